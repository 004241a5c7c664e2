"""Rotary position embedding (RoFormer, arXiv:2104.09864), the half-split form of the Llamas.

Entry i of a head turns together with entry i + head_dim/2, by position * frequency i.
"""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""Ways of stretching the frequencies to longer contexts that are implemented."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Which angle a position turns each pair of entries by.

    Attributes:
        theta: base of the frequencies, theta ** (-2 i / head_dim).
        rope_type: one of `ROPE_TYPES`. "linear" divides every frequency by `factor`; "llama3"
            divides only those whose wavelength passes the original context, with a ramp between;
            "yarn" (arXiv:2309.00071) ramps over the pairs, and scales what it turned besides.
        factor: how many times longer the context became.
        low_freq_factor: llama3: wavelengths above original / low_freq_factor are stretched whole.
        high_freq_factor: llama3: wavelengths below original / high_freq_factor stay as they were.
        original_max_position_embeddings: llama3, yarn: the context trained before stretching.
        beta_fast: yarn: pairs that turn more often than this in the original context are kept.
        beta_slow: yarn: those that turn less often are stretched whole.
        truncate: yarn: whether the ramp begins and ends at whole pairs.
        mscale: yarn: weight of the factor's logarithm in what rotated entries are multiplied by.
        mscale_all_dim: yarn: the same for all entries of a head. Rotated ones are multiplied by
            the quotient of the two, and DeepSeek's softmax scale takes this one's square.
        attention_factor: yarn: in place of that quotient, if given.

    Raises:
        ValueError: a field out of range, naming the field, its value and what is accepted.
    """

    theta: float = 10000.0
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        if self.rope_type not in ROPE_TYPES:
            raise ValueError(
                f"rope_type: got {self.rope_type!r}, supported are {', '.join(ROPE_TYPES)}"
            )
        for name in (
            *("theta", "factor", "low_freq_factor", "original_max_position_embeddings"),
            *("beta_fast", "beta_slow", "attention_factor"),
        ):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name}: got {value!r}, expected a positive finite number")
        for name in ("mscale", "mscale_all_dim"):
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name}: got {value!r}, expected a finite number of at least 0")
        if not self.beta_fast > self.beta_slow:
            raise ValueError(
                f"beta_fast: got {self.beta_fast}, expected more than beta_slow {self.beta_slow}"
            )
        if not self.high_freq_factor > self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor: got {self.high_freq_factor}, expected more than "
                f"low_freq_factor {self.low_freq_factor}"
            )

    @property
    def amplitude(self) -> float:
        """What rotated entries of queries and keys are multiplied by; 1 but for yarn."""
        if self.rope_type != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        # Where only one of the two is there, neither counts.
        if self.mscale and self.mscale_all_dim:
            return self.yarn_scale(self.mscale) / self.yarn_scale(self.mscale_all_dim)
        return self.yarn_scale(1.0)

    def yarn_scale(self, weight: float) -> float:
        """1 + weight * log(factor) / 10: longer contexts want sharper logits (section 3.4)."""
        return 1.0 if self.factor <= 1 else 0.1 * weight * math.log(self.factor) + 1.0


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Float[np.ndarray, " pairs"]:
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
    elif rope.rope_type == "yarn":
        kept = 1 - _yarn_ramp(rope, head_dim)
        frequencies = kept * frequencies + (1 - kept) * frequencies / rope.factor
    return frequencies.astype(np.float32)


def _yarn_ramp(rope: RopeConfig, head_dim: int) -> Float[np.ndarray, " pairs"]:
    """0 for pairs that are kept, 1 for those that are stretched whole, linear between."""

    def pair_that_turns(times: float) -> float:
        wavelength = rope.original_max_position_embeddings / (2 * math.pi * times)
        return head_dim * math.log(wavelength) / (2 * math.log(rope.theta))

    low, high = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    # Both at one pair: a step there, as the others have it.
    high = high + 0.001 if low == high else high
    return np.clip((np.arange(head_dim // 2) - low) / (high - low), 0.0, 1.0)


def rotation(
    positions: Int[Array, " tokens"],
    frequencies: Float[np.ndarray, " pairs"],
    amplitude: float = 1.0,
) -> tuple[Float[Array, "tokens 1 pairs"], Float[Array, "tokens 1 pairs"]]:
    """Cosine and sine of every token's angles, fp32, with an axis of one for the heads.

    Both are times `amplitude`, so that what is rotated is multiplied by it too.
    """
    angles = positions.astype(jnp.float32)[:, None, None] * frequencies[None, None, :]
    return jnp.cos(angles) * amplitude, jnp.sin(angles) * amplitude


def rotate(
    x: Float[Array, "tokens heads dim"],
    cos: Float[Array, "tokens 1 pairs"],
    sin: Float[Array, "tokens 1 pairs"],
) -> Float[Array, "tokens heads dim"]:
    """Turn the pairs (i, i + dim/2) of each head; computed in fp32, returned in x's dtype."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
