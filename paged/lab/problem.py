"""One step of attention, as shapes: what a kernel is compiled for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from paged.dtypes import is_quantized, storage_dtype
from paged.layouts import KVCache, Layout
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec, KVCacheSpec

_LEAST_CACHE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Problem:
    """`num_seqs` sequences of `kv_tokens` tokens each, the last `query_len` of them queries.

    Attributes:
        spec: the attention.
        layout: how the cache lies.
        block_size: tokens per block.
        num_seqs: sequences.
        kv_tokens: tokens of each sequence in the cache, this step's included.
        query_len: queries of each sequence; 1 is a decode, kv_tokens a prefill without history.
        cache_dtype: storage type.
        query_dtype: type of queries, results, and of new keys and values.

    Raises:
        ValueError: a size below 1, or more queries than tokens.
    """

    spec: AttentionSpec
    layout: Layout
    block_size: int = 16
    num_seqs: int = 32
    kv_tokens: int = 4096
    query_len: int = 1
    cache_dtype: str = "bfloat16"
    query_dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        for name in ("block_size", "num_seqs", "kv_tokens", "query_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected at least 1")
        if self.query_len > self.kv_tokens:
            raise ValueError(
                f"query_len: got {self.query_len}, expected at most kv_tokens {self.kv_tokens}"
            )
        storage_dtype(self.cache_dtype)
        storage_dtype(self.query_dtype)

    @property
    def cache_spec(self) -> KVCacheSpec:
        """What the cache keeps."""
        return KVCacheSpec.of(self.spec, block_size=self.block_size, dtype=self.cache_dtype)

    @property
    def blocks_per_seq(self) -> int:
        """Entries of a table row."""
        return -(-self.kv_tokens // self.block_size)

    @property
    def total_kv_tokens(self) -> int:
        """Keys that the whole step reads, once for each sequence."""
        return self.num_seqs * self.kv_tokens

    @property
    def label(self) -> str:
        """For tables and errors."""
        kind = "decodes" if self.query_len == 1 else f"queries of {self.query_len}"
        return f"{self.num_seqs} {kind} over {self.kv_tokens} tokens, {self.cache_dtype}"

    def bytes_per_token(self, target: str) -> float:
        """Bytes of HBM that hold one token's keys and values, a TPU's padding included."""
        return self.layout.page_bytes(self.cache_spec, target=target) / self.block_size

    def flop_per_token(self) -> float:
        """Matrix FLOP per KV token that the mask lets through: products with keys and values."""
        width = self.spec.head_dim + self.spec.value_dim
        # Queries see (kv_tokens - query_len + 1) .. kv_tokens keys.
        seen = self.query_len * (self.kv_tokens - (self.query_len - 1) / 2)
        return 2 * self.spec.num_heads * width * seen / self.kv_tokens

    def attend_arguments(
        self, sharding: jax.sharding.Sharding | None = None
    ) -> tuple[Any, KVCache, AttentionMetadata, Any]:
        """(query, cache, metadata, sinks) as `jax.ShapeDtypeStruct`s."""
        of = _shapes(sharding)
        spec, tokens = self.spec, self.num_seqs * self.query_len
        query = of((tokens, spec.num_heads, spec.head_dim), self.query_dtype)
        metadata = AttentionMetadata(
            block_table=of((self.num_seqs, self.blocks_per_seq), "int32"),
            slot_mapping=of((tokens,), "int32"),
            seq_lens=of((self.num_seqs,), "int32"),
            query_start_loc=of((self.num_seqs + 1,), "int32"),
            distribution=of((3,), "int32"),
            max_query_len=self.query_len,
            max_seq_len=self.kv_tokens,
        )
        sinks = of((spec.num_heads,), "float32") if spec.has_sinks else None
        return query, self._cache(of), metadata, sinks

    def write_arguments(
        self, sharding: jax.sharding.Sharding | None = None
    ) -> tuple[KVCache, Any, Any, Any]:
        """(cache, key, value, slot_mapping) as `jax.ShapeDtypeStruct`s."""
        of = _shapes(sharding)
        spec, tokens = self.spec, self.num_seqs * self.query_len
        key = of((tokens, spec.num_kv_heads, spec.head_dim), self.query_dtype)
        value = None if spec.is_latent else key
        return self._cache(of), key, value, of((tokens,), "int32")

    def _cache(self, of: Callable[[tuple[int, ...], str], Any]) -> KVCache:
        # One block more than needed: block 0 is nobody's. A cache that fits into VMEM is put there
        # by XLA, and nothing would be copied from HBM.
        page_bytes = self.layout.page_bytes(self.cache_spec)
        num_blocks = max(self.num_seqs * self.blocks_per_seq + 1, _LEAST_CACHE_BYTES // page_bytes)
        data = of(self.layout.shape(num_blocks, self.cache_spec), self.cache_dtype)
        if not is_quantized(self.cache_dtype):
            return KVCache(data, self.layout)
        scale = of((), "float32")
        return KVCache(data, self.layout, scale, None if self.layout.is_latent else scale)


def _shapes(sharding: jax.sharding.Sharding | None) -> Callable[[tuple[int, ...], str], Any]:
    def of(shape: tuple[int, ...], dtype: str) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding)

    return of
