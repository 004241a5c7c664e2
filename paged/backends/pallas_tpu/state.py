"""The online softmax: what is kept of each row while its keys come in.

Milakov and Gimelshein, arXiv:1805.02867; in float32 and to base 2, from (out 0, maximum -inf,
sum 0). Maximum and sum stand in all lanes of a register.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float


class State(NamedTuple):
    """Refs in VMEM, for each item of a group and each step of KV heads.

    Attributes:
        out: `[items, steps, M, lanes]`, not yet divided.
        peak: `[items, steps, M, LANES]`, the largest logit so far.
        total: `[items, steps, M, LANES]`, the sum of 2 ** (logit - peak).
    """

    out: Any
    peak: Any
    total: Any

    def clear(self) -> None:
        """No key seen yet."""
        self.out[...] = jnp.zeros_like(self.out)
        self.peak[...] = jnp.full_like(self.peak, -jnp.inf)
        self.total[...] = jnp.zeros_like(self.total)


class Weights(NamedTuple):
    """Some keys' weights, each row measured from its own origin.

    Attributes:
        weights: 2 ** (logit - origin).
        peak: the largest logit.
        origin: peak; 0 where the row sees none of the keys.
        total: sum of the weights.
    """

    weights: Float[jax.Array, "M tokens"]
    peak: Float[jax.Array, "M 1"]
    origin: Float[jax.Array, "M 1"]
    total: Float[jax.Array, "M 1"]


def weigh(logits: Float[jax.Array, "M tokens"], before: Any = None) -> Weights:
    """Weights of keys, `before` being the largest logit of those that came earlier."""
    peak = jnp.max(logits, axis=1, keepdims=True)
    if before is not None:
        peak = jnp.maximum(before[:, :1], peak)
    # -inf - -inf is NaN.
    origin = jnp.where(peak == -jnp.inf, 0.0, peak)
    weights = jnp.exp2(logits - origin)
    return Weights(weights, peak, origin, jnp.sum(weights, axis=1, keepdims=True))
