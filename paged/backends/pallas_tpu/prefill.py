"""Several queries of one sequence: a tile, whose queries share every key that is read.

A step of keys is gone through in units: one KV head and some columns (see `columns`). The matrix
units compute the logits of later units while a unit's softmax runs on the vector unit: `_AHEAD`
units, into a ring in VMEM that carries over to the next step, so that no step waits for its first
logits. A step of 256 keys and 512 columns of 8 heads takes 2,226 bundles on v6e, nominally 1,024;
without the ring 2,668, with all logits first 4,053 for half of the columns.

Keys that every query of the tile sees take a path without masks.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from paged.backends.pallas_tpu.cells import KEY, VALUE
from paged.backends.pallas_tpu.columns import ring_slots, unit, width
from paged.backends.pallas_tpu.plan import SUBLANES, Plan
from paged.backends.pallas_tpu.products import LOG2_E
from paged.backends.pallas_tpu.rows import Rows
from paged.backends.pallas_tpu.state import State
from paged.backends.pallas_tpu.stream import Stream

# Counted: 3 units ahead take 8% more bundles, 6 no fewer.
_AHEAD = 4


class Work(NamedTuple):
    """Refs in VMEM.

    Attributes:
        ring: `[slots, tokens of a step, columns of a unit]`, products of keys and queries.
        bias: `[tokens of a step, M]`, 0 where a column sees a key, -inf elsewhere.
    """

    ring: Any
    bias: Any


class _Unit(NamedTuple):
    head: int
    columns: slice


def take_in(
    plan: Plan, stream: Stream, slot: Any, query: Any, rows: Rows, state: State, *work: Any
) -> None:
    """Takes in a chunk; see `decode.take_in`.

    Args:
        plan: static sizes.
        stream: where the chunk came from.
        slot: the buffer that it is in.
        query: ref `[1, num_kv_heads, lanes, M]`.
        rows: numbers of each column.
        state: what is kept of the tile.
        work: see `Work`.
    """
    ring, bias = Work(*work)
    held = stream.piece(slot, 0)
    walk = stream.walk
    first = walk.first[held.item]
    last = first + walk.queries[held.item] - 1
    start = (walk.start_block[held.item] + held.offset) * plan.block_size
    tokens, window = plan.tiling.step, plan.spec.window
    end = jnp.minimum(last + 1 - start, plan.tiling.chunk)
    last_step = lax.div(end - 1, tokens)
    units = _units(plan)
    ahead = min(_AHEAD, ring.shape[0])

    def buffer(index: Any) -> Any:
        offset = pl.multiple_of(index * tokens, tokens)
        return stream.buffers.at[slot, pl.ds(offset, tokens)]

    def begin(number: int, index: Any) -> None:
        ring[number % ring.shape[0]] = _products(plan, buffer(index), query, units[number])

    def step(index: Any, is_masked: bool) -> None:
        if is_masked:
            bias[...] = _bias(plan, rows, start + index * tokens, first, last)
        for number, each in enumerate(units):
            products = ring[number % ring.shape[0]]
            # Past the end the last step's are computed again, for nobody.
            coming, later = divmod(number + ahead, len(units))
            begin(later, jnp.minimum(index + coming, last_step))
            hidden = bias[:, each.columns] if is_masked else None
            _accumulate(plan, buffer(index), products, rows, state, each, hidden)

    # What no query sees may hold anything, and 0 * NaN is NaN: it becomes 0 where it lies.
    @pl.when(end < (last_step + 1) * tokens)
    def _() -> None:
        plan.cells.blank(buffer(last_step), 0, end - last_step * tokens)

    if window is not None:
        before = first + 1 - window - start

        @pl.when(before > 0)
        def _() -> None:
            plan.cells.blank(buffer(0), before, tokens)

    for number in range(ahead):
        begin(number, 0)

    # Every query sees the keys up to the first one. A window has an edge at each query, so that
    # all of its steps are masked.
    whole = 0
    if window is None:
        whole = lax.div(jnp.clip(first + 1 - start, 0, plan.tiling.chunk), tokens)
        lax.fori_loop(0, whole, lambda index, _: step(index, False), None)
    lax.fori_loop(whole, last_step + 1, lambda index, _: step(index, True), None)


def finish(plan: Plan, rows: Rows, state: State, out: Any, lse: Any) -> None:
    """Divides; sinks join the denominator.

    Args:
        plan: static sizes.
        rows: numbers of each column.
        state: all keys taken in.
        out: ref `[1, num_kv_heads, lanes, M]`.
        lse: ref `[1, num_kv_heads, M]`.
    """
    for head in range(plan.spec.num_kv_heads):
        top, denominator = state.peak[0, head, :1], state.total[0, head, :1]
        share = rows.out_factor[head]
        if plan.spec.has_sinks:
            sink = rows.sink[head]
            peak, top = top, jnp.maximum(top, sink)
            kept = jnp.exp2(peak - top)
            denominator = denominator * kept + jnp.exp2(sink - top)
            share = share * kept
        out[0, head] = (state.out[0, head] * (share / denominator)).astype(out.dtype)
        lse[0, pl.ds(head, 1)] = top * jnp.float32(1 / LOG2_E) + jnp.log(denominator)


def _units(plan: Plan) -> list[_Unit]:
    columns = width(plan.spec, plan.tiling.rows)
    size = unit(columns)
    parts = [slice(start, start + size) for start in range(0, columns, size)]
    return [_Unit(head, part) for head in range(plan.spec.num_kv_heads) for part in parts]


def _bias(plan: Plan, rows: Rows, origin: Any, first: Any, last: Any) -> jax.Array:
    """What is added to the logits so that each column sees its own keys."""
    position = jnp.minimum(first + rows.query[...], last) - origin
    shape = (plan.tiling.step, position.shape[1])
    key = lax.broadcasted_iota(jnp.int32, shape, 0)
    mask = key <= position
    if plan.spec.window is not None:
        mask = jnp.logical_and(mask, key > position - plan.spec.window)
    return jnp.where(mask, 0.0, -jnp.inf)


def _products(plan: Plan, buffer: Any, query: Any, each: _Unit) -> jax.Array:
    """Keys times queries `[tokens, columns]`."""
    return _dot(
        plan,
        plan.cells.take(buffer, each.head, KEY, plan.compute_dtype),
        query[0, each.head, :, each.columns],
    )


def _dot(plan: Plan, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.dot(
        left, right, precision=plan.precision, preferred_element_type=jnp.float32
    )


def _accumulate(
    plan: Plan, buffer: Any, products: Any, rows: Rows, state: State, each: _Unit, bias: Any
) -> None:
    """Takes a unit's keys into the state."""
    at = (0, each.head, slice(None), each.columns)
    found = products * rows.factor[each.head, :, each.columns]
    if plan.spec.soft_cap is not None:
        found = jnp.tanh(found) * jnp.float32(plan.spec.soft_cap * LOG2_E)
    if bias is not None:
        found = found + bias
    before = state.peak[at]
    peak = jnp.maximum(before, jnp.max(found, axis=0, keepdims=True))
    # -inf - -inf is NaN. Without a mask every column sees a key.
    origin = peak if bias is None else jnp.where(peak == -jnp.inf, 0.0, peak)
    kept = jnp.exp2(before - origin)
    weights = jnp.exp2(found - origin[:1]).astype(plan.compute_dtype)
    values = plan.cells.take(buffer, each.head, VALUE, plan.compute_dtype)
    # Ones below the values sum the weights: a sum on the vector unit took 2,515 bundles a step.
    ones = jnp.ones((2 * SUBLANES, values.shape[0]), values.dtype)
    mixed = _dot(plan, jnp.concatenate([values.T, ones]), weights)
    lanes = plan.cells.lanes
    state.peak[at] = peak
    state.total[at] = state.total[at] * kept + mixed[lanes : lanes + SUBLANES]
    state.out[at] = state.out[at] * kept[:1] + mixed[:lanes]
