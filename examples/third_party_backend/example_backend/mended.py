"""Attention over gathered blocks: short and slow."""

from typing import Any

import jax
import jax.numpy as jnp

from paged.backends import AttentionOutput, Capabilities, KernelBackend
from paged.layouts import KVCache, get_layout
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec

HALVES = ("float16", "bfloat16")


class ExampleBackend(KernelBackend):
    """Gathers each token's whole sequence and attends to it in one piece."""

    name = "example"
    platform = "any"
    layouts = (get_layout("flashinfer"),)
    capabilities = Capabilities(soft_cap=False, sinks=False, cache_dtypes=("float32", *HALVES))

    def _write(self, cache: KVCache, key: Any, value: Any, slot_mapping: Any) -> KVCache:
        key, value = key.astype(cache.data.dtype), value.astype(cache.data.dtype)
        return cache.with_data(cache.layout.write(cache.data, key, value, slot_mapping))

    def _attend(
        self, query: Any, cache: KVCache, metadata: AttentionMetadata, spec: AttentionSpec, _: Any
    ) -> AttentionOutput:
        num_tokens, starts = len(query), metadata.query_start_loc
        token = jnp.arange(num_tokens)
        sequence = jnp.searchsorted(starts, token, side="right") - 1
        position = metadata.seq_lens[sequence] - starts[sequence + 1] + token
        position = jnp.where(token < starts[-1], position, -1)[:, None]

        keys, values = (
            rows.reshape(num_tokens, -1, spec.num_kv_heads, spec.head_dim).astype(jnp.float32)
            for rows in cache.layout.gather(cache.data, metadata.block_table[sequence])
        )
        key_position = jnp.arange(keys.shape[1])[None]
        seen = key_position <= position
        if spec.window is not None:
            seen &= key_position > position - spec.window
        # Memory that a sequence does not own may hold NaN, and 0 * NaN is NaN.
        values = jnp.where(seen[..., None, None], values, 0)

        grouped = query.astype(jnp.float32).reshape(num_tokens, spec.num_kv_heads, -1, spec.head_dim)
        logits = jnp.einsum("thgd,tkhd->thgk", grouped, keys, precision="highest") * spec.scale
        logits = jnp.where(seen[:, None, None], logits, -jnp.inf)
        lse = jax.nn.logsumexp(logits, axis=-1)
        weights = jnp.exp(logits - jnp.where(jnp.isneginf(lse), 0, lse)[..., None])
        out = jnp.einsum("thgk,tkhd->thgd", weights, values, precision="highest")
        return AttentionOutput(
            out.reshape(query.shape).astype(query.dtype), lse.reshape(query.shape[:2])
        )
