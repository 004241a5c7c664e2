"""Numbers of each row of the matrices, and the end of a row: division, sinks and the LSE."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from paged.backends.pallas_tpu.plan import LANES, Plan
from paged.backends.pallas_tpu.products import LOG2_E
from paged.backends.pallas_tpu.state import State


class Rows(NamedTuple):
    """Refs in VMEM.

    Attributes:
        factor: `[steps, M, 1]`, of the products; to base 2, unless a soft cap comes in between.
        out_factor: `[steps, M, 1]`, of the output.
        sink: `[steps, M, 1]`, to base 2.
        query: `[M, 1]` int32, which query of the tile.
    """

    factor: Any
    out_factor: Any
    sink: Any
    query: Any


def finish(plan: Plan, item: Any, rows: Rows, state: State, out: Any, lse: Any) -> None:
    """Divides; sinks join the denominator.

    Args:
        plan: static sizes.
        item: which of the group.
        rows: numbers of each row.
        state: of the group, all keys taken in.
        out: ref `[items, steps, M, lanes]`.
        lse: ref `[items, M, LANES]`, lane i for step i.
    """
    lane = lax.broadcasted_iota(jnp.int32, (plan.height, LANES), 1)
    sums = jnp.zeros((plan.height, LANES), jnp.float32)
    for step in range(plan.steps):
        at = (item, step)
        top, denominator, share = state.peak[at], state.total[at], rows.out_factor[step]
        if plan.spec.has_sinks:
            sink = rows.sink[step]
            top = jnp.maximum(state.peak[at], sink)
            kept = jnp.exp2(state.peak[at] - top)
            denominator = denominator * kept + jnp.exp2(sink - top)
            share = share * kept[:, :1]
        out[at] = (state.out[at] * (share / denominator[:, :1])).astype(out.dtype)
        natural = top * jnp.float32(1 / LOG2_E) + jnp.log(denominator)
        sums = jnp.where(lane == step, natural, sums)
    lse[item] = sums
