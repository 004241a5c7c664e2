"""Rotary position embedding (RoFormer, arXiv:2104.09864), the half-split form of the Llamas.

Entry i of a head turns together with entry i + head_dim/2, by position * frequency i.
"""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

ROPE_TYPES = ("default", "linear", "llama3")
"""Ways of stretching the frequencies to longer contexts that are implemented."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Which angle a position turns each pair of entries by.

    Attributes:
        theta: base of the frequencies, theta ** (-2 i / head_dim).
        rope_type: one of `ROPE_TYPES`. "linear" divides every frequency by `factor`; "llama3"
            divides only those whose wavelength passes the original context, with a ramp between.
        factor: how many times longer the context became.
        low_freq_factor: llama3: wavelengths above original / low_freq_factor are stretched whole.
        high_freq_factor: llama3: wavelengths below original / high_freq_factor stay as they were.
        original_max_position_embeddings: llama3: the context trained before stretching.

    Raises:
        ValueError: a field out of range, naming the field, its value and what is accepted.
    """

    theta: float = 10000.0
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def __post_init__(self) -> None:
        if self.rope_type not in ROPE_TYPES:
            raise ValueError(
                f"rope_type: got {self.rope_type!r}, supported are {', '.join(ROPE_TYPES)}"
            )
        for name in ("theta", "factor", "low_freq_factor", "original_max_position_embeddings"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name}: got {value!r}, expected a positive finite number")
        if not self.high_freq_factor > self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor: got {self.high_freq_factor}, expected more than "
                f"low_freq_factor {self.low_freq_factor}"
            )


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Float[np.ndarray, "pairs"]:
    """Radians per position of each pair of entries, fp32 of shape [head_dim // 2].

    Worked out in fp64 on the host: at position 100,000 an error of one fp32 rounding in a
    frequency is already a hundredth of a radian.
    """
    frequencies = rope.theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.rope_type == "linear":
        frequencies = frequencies / rope.factor
    elif rope.rope_type == "llama3":
        turns = rope.original_max_position_embeddings * frequencies / (2 * math.pi)
        kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        kept = np.clip(kept, 0.0, 1.0)
        frequencies = kept * frequencies + (1 - kept) * frequencies / rope.factor
    return frequencies.astype(np.float32)


def rotation(
    positions: Int[Array, "tokens"], frequencies: Float[np.ndarray, "pairs"]
) -> tuple[Float[Array, "tokens 1 pairs"], Float[Array, "tokens 1 pairs"]]:
    """Cosine and sine of every token's angles, fp32, with an axis of one for the heads."""
    angles = positions.astype(jnp.float32)[:, None, None] * frequencies[None, None, :]
    return jnp.cos(angles), jnp.sin(angles)


def rotate(
    x: Float[Array, "tokens heads dim"],
    cos: Float[Array, "tokens 1 pairs"],
    sin: Float[Array, "tokens 1 pairs"],
) -> Float[Array, "tokens heads dim"]:
    """Turn the pairs (i, i + dim/2) of each head; computed in fp32, returned in x's dtype."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
