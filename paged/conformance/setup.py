"""The description of a problem: a few frozen words from which a seed makes numbers."""

from dataclasses import dataclass, replace
from typing import Literal

from paged.layouts import Layout
from paged.spec import AttentionSpec, KVCacheSpec

Poison = Literal["nan", "nan_keys", "nan_values", "inf", "garbage", "zero"]
Placement = Literal["permuted", "identity"]
Data = Literal[
    "normal", "rising", "falling", "same", "opposite", "both_signs", "saturating", "nan_neighbour"
]
Sinks = Literal["positive", "negative", "minus_inf", "mixed"]
Slots = Literal["new", "none", "half"]
Past = Literal["nan", "null"]


@dataclass(frozen=True, slots=True)
class Setup:
    """One step of a scheduler, adversarial by default.

    The defaults give most cases one shape, so that a compiler has little to do.

    Attributes:
        sequences: (query_len, seq_len) of each, in the contract's order.
        num_kv_heads: KV heads; 1 in a latent layout, whose heads are all queries'.
        group_size: query heads per KV head.
        head_dim: width of keys and values; of the latent in a latent layout.
        latent: (kv_lora_rank, qk_rope_head_dim) in a latent layout; from head_dim by default.
        block_size: tokens per block of the kernel.
        manager_ratio: kernel blocks in a block of the manager.
        num_blocks: kernel blocks in the pool.
        num_seqs: S, padding included.
        num_tokens: T, padding included.
        table_width: B, in the manager's blocks.
        sharpness: scale * sqrt(head_dim), the standard deviation of the logits of normal data.
        window: as in `AttentionSpec`.
        soft_cap: as in `AttentionSpec`.
        sinks: which kind of sink logits, None for none.
        cache_dtype: storage type; the query's by default.
        k_scale: one number, or one for each KV head (repeated to fit); None for none.
        v_scale: likewise; dropped in a latent layout.
        data: what queries, keys and values are.
        poison: what memory holds that no sequence owns; nan_keys and nan_values leave the
            other half finite. Types without NaN get extreme numbers.
        placement: which physical blocks sequences get.
        slots: "new" writes each token of the step; "none" finds all written before (slots -1),
            "half" the first half of each query.
        past: what the table names, and memory holds, before a window.
        strided: queries, keys and values are slices of one array, the table of a wider one.
    """

    sequences: tuple[tuple[int, int], ...]
    num_kv_heads: int = 2
    group_size: int = 2
    head_dim: int = 64
    latent: tuple[int, int] | None = None
    block_size: int = 16
    manager_ratio: int = 1
    num_blocks: int = 40
    num_seqs: int = 8
    num_tokens: int = 64
    table_width: int = 8
    sharpness: float = 1.3
    window: int | None = None
    soft_cap: float | None = None
    sinks: Sinks | None = None
    cache_dtype: str | None = None
    k_scale: float | tuple[float, ...] | None = None
    v_scale: float | tuple[float, ...] | None = None
    data: Data = "normal"
    poison: Poison = "nan"
    placement: Placement = "permuted"
    slots: Slots = "new"
    past: Past = "nan"
    strided: bool = False

    @property
    def num_heads(self) -> int:
        """Query heads."""
        return self.num_kv_heads * self.group_size

    @property
    def max_query_len(self) -> int:
        """The static bound, in powers of two from 32 so that shapes repeat."""
        longest = max(query_len for query_len, _ in self.sequences)
        return 1 if longest <= 1 else max(32, 1 << (longest - 1).bit_length())

    @property
    def max_seq_len(self) -> int:
        """The static bound: what the table has room for."""
        return self.table_width * self.block_size * self.manager_ratio

    def spec(self, layout: Layout) -> AttentionSpec:
        """The attention asked for, on this layout."""
        rank, rope = self.latent_widths if layout.is_latent else (None, None)
        head_dim = self.head_dim if rank is None or rope is None else rank + rope
        return AttentionSpec(
            num_heads=self.num_heads,
            num_kv_heads=1 if layout.is_latent else self.num_kv_heads,
            head_dim=head_dim,
            scale=self.sharpness * head_dim**-0.5,
            window=self.window,
            soft_cap=self.soft_cap,
            has_sinks=self.sinks is not None,
            kv_lora_rank=rank,
            qk_rope_head_dim=rope,
        )

    @property
    def latent_widths(self) -> tuple[int, int]:
        """kv_lora_rank and qk_rope_head_dim of the problem's latent form."""
        rope = self.head_dim // 4
        return self.latent or (self.head_dim - rope, rope)

    def storage(self, dtype: str) -> str:
        """The cache's type for queries of `dtype`."""
        return self.cache_dtype or dtype

    def cache_spec(self, layout: Layout, dtype: str) -> KVCacheSpec:
        """The kernel's cache, on this layout, for queries of `dtype`."""
        return KVCacheSpec.of(
            self.spec(layout), block_size=self.block_size, dtype=self.storage(dtype)
        )

    def but(self, **changes: object) -> "Setup":
        """The same setup with some words changed."""
        return replace(self, **changes)  # pyright: ignore[reportArgumentType]
