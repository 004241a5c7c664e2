"""Attention over two sets of keys, from the attention over each."""

import jax.numpy as jnp
import numpy as np

from paged.backends.api import AttentionOutput


def merge_states(first: AttentionOutput, second: AttentionOutput) -> AttentionOutput:
    """Merges attention over disjoint sets of keys into attention over their union.

    With weights w = exp(lse - max(lse)), out = sum(w * out) / sum(w). An empty state (out 0,
    lse -inf) leaves the other as it is, and two of them give an empty state. A sink may be in
    one of the two only.

    Args:
        first: `out [tokens, heads, dim]`, `lse [tokens, heads]`; numpy or JAX.
        second: the same shapes.

    Returns:
        `out` in the dtype of `first.out`, `lse` float32.

    Raises:
        ValueError: a state without lse, shapes that differ, or an lse that is not one number per
            token and head of `out`.
    """
    if first.lse is None or second.lse is None:
        raise ValueError("lse: got None, expected the log-sum-exp of both states")
    for name in ("out", "lse"):
        shapes = tuple(tuple(getattr(state, name).shape) for state in (first, second))
        if shapes[0] != shapes[1]:
            raise ValueError(f"{name}: got shapes {shapes[0]} and {shapes[1]}, expected the same")
    lse_shape, heads = tuple(first.lse.shape), tuple(first.out.shape[:-1])
    if lse_shape != heads:
        raise ValueError(
            f"lse: got shape {lse_shape}, expected {heads} as in out without its last axis"
        )
    xp = np if isinstance(first.out, np.ndarray) and isinstance(second.out, np.ndarray) else jnp
    lse_first = xp.asarray(first.lse, xp.float32)
    lse_second = xp.asarray(second.lse, xp.float32)
    peak = xp.maximum(lse_first, lse_second)
    # -inf - -inf is NaN: measure two empty states from 0, so that both weigh exp(-inf) = 0.
    origin = xp.where(xp.isneginf(peak), 0.0, peak)
    weight_first, weight_second = xp.exp(lse_first - origin), xp.exp(lse_second - origin)
    total = weight_first + weight_second
    is_empty = total == 0
    divisor = xp.where(is_empty, 1.0, total)
    out = (
        xp.asarray(first.out, xp.float32) * (weight_first / divisor)[..., None]
        + xp.asarray(second.out, xp.float32) * (weight_second / divisor)[..., None]
    )
    lse = xp.where(is_empty, -xp.inf, origin + xp.log(divisor))
    return AttentionOutput(out.astype(first.out.dtype), lse.astype(xp.float32))
