"""What a model needs from attention and from its cache, said without a layout or a device.

`AttentionSpec` describes one layer's arithmetic, `KVCacheSpec` what that layer keeps per token.
Both are frozen and hashable, so they may be static arguments of a compiled function.

Latent attention (MLA, DeepSeek-V2, arXiv:2405.04434) needs no second kind of spec. Its cache is
one latent per token, and in the absorbed form it is multi-query attention whose values are the
first `kv_lora_rank` entries of its keys: `num_kv_heads == 1`, `head_dim` the latent's width and
`value_dim == kv_lora_rank`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from paged.dtypes import storage_dtype

_LARGEST_FLOAT32 = float.fromhex("0x1.fffffep127")
_SMALLEST_FLOAT32 = 2.0**-126
"""The smallest normal number: XLA flushes those below it to 0."""


def _is_float32(value: Any) -> bool:
    """Whether this is a number, and finite in float32."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    return bool(-_LARGEST_FLOAT32 <= value <= _LARGEST_FLOAT32)


def _require_positive(**values: int) -> None:
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name}: got {value!r}, expected an integer of at least 1")


def _check_latent(
    num_kv_heads: int, head_dim: int, kv_lora_rank: int | None, qk_rope_head_dim: int | None
) -> None:
    if (kv_lora_rank is None) != (qk_rope_head_dim is None):
        raise ValueError(
            f"kv_lora_rank: got {kv_lora_rank} with qk_rope_head_dim {qk_rope_head_dim}, "
            "expected both or neither"
        )
    if kv_lora_rank is None or qk_rope_head_dim is None:
        return
    _require_positive(kv_lora_rank=kv_lora_rank)
    if isinstance(qk_rope_head_dim, bool) or not isinstance(qk_rope_head_dim, int):
        raise ValueError(f"qk_rope_head_dim: got {qk_rope_head_dim!r}, expected an integer")
    if qk_rope_head_dim < 0:
        raise ValueError(f"qk_rope_head_dim: got {qk_rope_head_dim}, expected at least 0")
    if num_kv_heads != 1:
        raise ValueError(f"num_kv_heads: got {num_kv_heads}, expected 1 for a latent cache")
    if head_dim != kv_lora_rank + qk_rope_head_dim:
        raise ValueError(
            f"head_dim: got {head_dim}, expected kv_lora_rank + qk_rope_head_dim = "
            f"{kv_lora_rank + qk_rope_head_dim}"
        )


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """One layer's attention.

    Attributes:
        num_heads: query heads; a multiple of `num_kv_heads`.
        num_kv_heads: key/value heads. Query head h reads KV head h // group_size.
        head_dim: width of a query and of a key.
        scale: factor on the logits; always explicit.
        window: a token sees its last `window` keys, its own included; None sees all.
        soft_cap: logits become soft_cap * tanh(logits / soft_cap), before the mask; None for none.
        has_sinks: the call brings one logit per query head that joins the denominator only.
        kv_lora_rank: width of the latent's part that serves as value (MLA); None without.
        qk_rope_head_dim: width of the latent's rotary part (MLA); None without.

    Raises:
        ValueError: a field out of range, naming the field, its value and what is accepted.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    soft_cap: float | None = None
    has_sinks: bool = False
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None

    def __post_init__(self) -> None:
        _require_positive(
            num_heads=self.num_heads, num_kv_heads=self.num_kv_heads, head_dim=self.head_dim
        )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads: got {self.num_heads}, expected a multiple of "
                f"num_kv_heads {self.num_kv_heads}"
            )
        if not _is_float32(self.scale):
            raise ValueError(
                f"scale: got {self.scale!r}, expected a finite number of at most "
                f"{_LARGEST_FLOAT32:.7g} in magnitude (float32)"
            )
        if self.window is not None:
            _require_positive(window=self.window)
            if self.window >= 2**31:
                raise ValueError(f"window: got {self.window}, expected less than {2**31} (int32)")
        if self.soft_cap is not None and not (
            _is_float32(self.soft_cap) and self.soft_cap >= _SMALLEST_FLOAT32
        ):
            raise ValueError(
                f"soft_cap: got {self.soft_cap!r}, expected a positive number or None, from "
                f"{_SMALLEST_FLOAT32:.7g} to {_LARGEST_FLOAT32:.7g} (float32)"
            )
        _check_latent(self.num_kv_heads, self.head_dim, self.kv_lora_rank, self.qk_rope_head_dim)

    @property
    def group_size(self) -> int:
        """Query heads per KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def is_latent(self) -> bool:
        """Whether keys and values are one latent (MLA)."""
        return self.kv_lora_rank is not None

    @property
    def value_dim(self) -> int:
        """Width of a value, and of an output head."""
        return self.head_dim if self.kv_lora_rank is None else self.kv_lora_rank


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """What one layer keeps for each token, and how many tokens make a block.

    Attributes:
        num_kv_heads: key/value heads held here (one rank's share under tensor parallelism).
        head_dim: width of a key, and of a value unless latent.
        block_size: tokens per block.
        dtype: storage type by name, one of `paged.dtypes.STORAGE_DTYPES`.
        kv_lora_rank: as in `AttentionSpec`.
        qk_rope_head_dim: as in `AttentionSpec`.

    Raises:
        ValueError: a field out of range, naming the field, its value and what is accepted.
    """

    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str = "float32"
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None

    def __post_init__(self) -> None:
        _require_positive(
            num_kv_heads=self.num_kv_heads, head_dim=self.head_dim, block_size=self.block_size
        )
        storage_dtype(self.dtype)
        _check_latent(self.num_kv_heads, self.head_dim, self.kv_lora_rank, self.qk_rope_head_dim)

    @classmethod
    def of(
        cls, attention: AttentionSpec, *, block_size: int, dtype: str = "float32"
    ) -> "KVCacheSpec":
        """The cache that a layer with this attention needs."""
        return cls(
            num_kv_heads=attention.num_kv_heads,
            head_dim=attention.head_dim,
            block_size=block_size,
            dtype=dtype,
            kv_lora_rank=attention.kv_lora_rank,
            qk_rope_head_dim=attention.qk_rope_head_dim,
        )

    @property
    def is_latent(self) -> bool:
        """Whether a token keeps one latent instead of keys and values."""
        return self.kv_lora_rank is not None

    @property
    def values_per_token(self) -> int:
        """Numbers kept per token in this layer, padding of a layout not counted."""
        return self.head_dim if self.is_latent else 2 * self.num_kv_heads * self.head_dim

    @property
    def bytes_per_token(self) -> int:
        """Bytes kept per token in this layer, padding of a layout not counted."""
        return self.values_per_token * storage_dtype(self.dtype).itemsize
