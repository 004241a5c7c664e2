"""Several queries of one sequence: a tile, whose queries share every key that is read.

Keys that every query of the tile sees take a path without masks; what is left is taken in shorter,
masked steps.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from paged.backends.pallas_tpu.plan import Plan
from paged.backends.pallas_tpu.products import logits, mixture, own_columns
from paged.backends.pallas_tpu.rows import Rows
from paged.backends.pallas_tpu.state import State, weigh
from paged.backends.pallas_tpu.stream import Stream


def take_in(plan: Plan, stream: Stream, slot: Any, query: Any, rows: Rows, state: State) -> None:
    """Takes in a chunk; see `decode.take_in`."""
    held = stream.piece(slot, 0)
    walk = stream.walk
    first = walk.first[held.item]
    last = first + walk.queries[held.item] - 1
    start = (walk.start_block[held.item] + held.offset) * plan.block_size
    tokens = plan.tiling.step

    def step(index: Any, is_masked: bool) -> None:
        offset = pl.multiple_of(index * tokens, tokens)
        buffer = stream.buffers.at[slot, pl.ds(offset, tokens)]
        mask, seen = None, None
        if is_masked:
            mask, seen = _masks(plan, rows, start + offset, first, last)
        _accumulate(plan, buffer, query, rows, state, mask, seen)

    # Every query sees the keys up to the first one. A window has an edge at each query, so that
    # all of its steps are masked.
    end = jnp.minimum(last + 1 - start, plan.tiling.chunk)
    whole = 0
    if plan.spec.window is None:
        whole = lax.div(jnp.clip(first + 1 - start, 0, plan.tiling.chunk), tokens)
        lax.fori_loop(0, whole, lambda index, _: step(index, False), None)
    lax.fori_loop(whole, lax.div(end + (tokens - 1), tokens), lambda i, _: step(i, True), None)


def _masks(
    plan: Plan, rows: Rows, origin: Any, first: Any, last: Any
) -> tuple[jax.Array, jax.Array]:
    """Which row sees which key, and which key any row sees."""
    tokens, window = plan.tiling.step, plan.spec.window
    key = origin + lax.broadcasted_iota(jnp.int32, (plan.height, tokens), 1)
    row = jnp.minimum(first + rows.query[...], last)
    mask = key <= row
    token = origin + lax.broadcasted_iota(jnp.int32, (tokens, plan.cells.value_lanes), 0)
    seen = token <= last
    if window is not None:
        mask = jnp.logical_and(mask, key > row - window)
        seen = jnp.logical_and(seen, token > first - window)
    return mask, seen


def _accumulate(
    plan: Plan, buffer: Any, query: Any, rows: Rows, state: State, mask: Any, seen: Any
) -> None:
    found = [
        logits(plan, query[0, step], rows.factor[step], buffer, step) for step in range(plan.steps)
    ]
    for step, of_step in enumerate(found):
        at = (0, step)
        before = state.peak[at]
        new = weigh(of_step if mask is None else jnp.where(mask, of_step, -jnp.inf), before)
        kept = jnp.exp2(before - new.origin)
        state.peak[at] = jnp.broadcast_to(new.peak, before.shape)
        state.total[at] = state.total[at] * kept + new.total
        products = own_columns(plan, mixture(plan, new.weights, buffer, step, seen))
        state.out[at] = state.out[at] * kept[:, :1] + products
