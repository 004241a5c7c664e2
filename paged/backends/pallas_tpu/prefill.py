"""Several queries of one sequence: a tile, whose queries share every key that is read.

A step of keys is gone through in units: one KV head and some columns (see `columns`). The matrix
units compute the logits of later units while a unit's softmax runs on the vector unit: `_AHEAD`
units, into a ring in VMEM that carries over to the next step, so that no step waits for its first
logits. A step of 256 keys and 512 columns of 8 heads takes 2,226 bundles on v6e, nominally 1,024;
without the ring 2,668, with all logits first 4,053 for half of the columns.

Keys that every query of the tile sees take a path without masks.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from paged.backends.pallas_tpu.cells import KEY, VALUE
from paged.backends.pallas_tpu.columns import ring_heads, unit, width
from paged.backends.pallas_tpu.plan import SUBLANES, Plan
from paged.backends.pallas_tpu.products import LOG2_E
from paged.backends.pallas_tpu.rows import Rows
from paged.backends.pallas_tpu.state import State
from paged.backends.pallas_tpu.stream import Stream

# Counted: 3 units ahead take 8% more bundles, 6 no fewer.
_AHEAD = 4
BLANKED = 16
"""Tokens that are blanked at a time."""


class Work(NamedTuple):
    """Refs in VMEM.

    Attributes:
        ring: `[slots, tokens of a step, columns of a unit]`, products of keys and queries.
        bias: `[tokens of a step, M]`, 0 where a column sees a key, -inf elsewhere.
    """

    ring: Any
    bias: Any


def open_tile(plan: Plan, stream: Stream, slot: Any, query: Any, state: State, *work: Any) -> None:
    """Waits for a tile's first chunk, and begins its first products; see `take_in`."""
    _arrive(plan, stream, slot)
    state.clear()
    parts = _parts(plan)
    for head in range(ring_heads(plan.spec.num_kv_heads, len(parts), _AHEAD)):
        keys = _keys(plan, _step_buffer(plan, stream, slot, 0), head)
        for part in parts:
            _begin(plan, keys, query, Work(*work), head, part)


def take_in(
    plan: Plan,
    stream: Stream,
    slot: Any,
    is_last: Any,
    query: Any,
    rows: Rows,
    state: State,
    *work: Any,
) -> None:
    """Takes in a chunk that is there, and waits for the tile's next one.

    Args:
        plan: static sizes.
        stream: where the chunk came from.
        slot: the buffer that it is in.
        is_last: whether it is the tile's last chunk.
        query: ref `[1, num_kv_heads, lanes, M]`.
        rows: numbers of each column.
        state: what is kept of the tile.
        work: see `Work`.
    """
    ring, bias = both = Work(*work)
    heads, parts, tokens = plan.spec.num_kv_heads, _parts(plan), plan.tiling.step
    ahead = ring_heads(heads, len(parts), _AHEAD)
    buffer = partial(_step_buffer, plan, stream)
    span = _span(plan, stream, slot)

    def step(index: Any, is_masked: bool) -> None:
        if is_masked:
            bias[...] = _bias(plan, rows, span, index * tokens)
        is_end = index == span.last_step
        # After the tile's last step the first units of that step are computed again, for nobody.
        is_over = jnp.logical_and(is_end, jnp.logical_not(is_last))
        after = buffer(
            jnp.where(is_over, 1 - slot, slot),
            jnp.where(is_over, 0, jnp.minimum(index + 1, span.last_step)),
        )
        for head in range(heads):
            coming = (head + ahead) % heads
            keys = _keys(plan, buffer(slot, index) if coming > head else after, coming)
            values = _values(plan, buffer(slot, index), head)
            for part in parts:
                products = ring[_slot_of(both, head, part)]
                _begin(plan, keys, query, both, coming, part)
                hidden = bias[:, part] if is_masked else None
                _accumulate(plan, products, hidden, values, rows, state, head, part)

    # Every query sees the keys up to the first one. A window has an edge at each query, so that
    # all of its steps are masked.
    whole = 0
    if plan.spec.window is None:
        seen_by_all = jnp.clip(span.first + 1 - span.start, 0, plan.tiling.chunk)
        whole = lax.div(seen_by_all, tokens)

    def part(number: Any, _: None) -> None:
        """All steps but the last, then the last one: it looks ahead into the next chunk."""

        @pl.when(jnp.logical_and(number == 1, jnp.logical_not(is_last)))
        def _() -> None:
            _arrive(plan, stream, 1 - slot)

        low = number * span.last_step
        high = span.last_step + number
        if plan.spec.window is None:
            lax.fori_loop(low, jnp.minimum(high, whole), lambda index, _: step(index, False), None)
        lax.fori_loop(jnp.maximum(low, whole), high, lambda index, _: step(index, True), None)

    lax.fori_loop(0, 2, part, None)


class _Span(NamedTuple):
    """Where a chunk lies in its sequence.

    Attributes:
        start: position of its first token.
        end: tokens before this one, counted from the start, are seen by some query.
        first: position of the tile's first query.
        last: position of its last query.
        last_step: the step with token `end - 1`.
    """

    start: Any
    end: Any
    first: Any
    last: Any
    last_step: Any


def _span(plan: Plan, stream: Stream, slot: Any) -> _Span:
    held, walk = stream.piece(slot, 0), stream.walk
    first = walk.first[held.item]
    last = first + walk.queries[held.item] - 1
    start = (walk.start_block[held.item] + held.offset) * plan.block_size
    end = jnp.minimum(last + 1 - start, plan.tiling.chunk)
    return _Span(start, end, first, last, lax.div(end - 1, plan.tiling.step))


def _step_buffer(plan: Plan, stream: Stream, slot: Any, index: Any) -> Any:
    """A step's tokens."""
    offset = pl.multiple_of(index * plan.tiling.step, plan.tiling.step)
    return stream.buffers.at[slot, pl.ds(offset, plan.tiling.step)]


def _arrive(plan: Plan, stream: Stream, slot: Any) -> None:
    """Waits for a chunk, and zeroes what no query sees: that may be NaN, and 0 * NaN is NaN."""
    stream.wait(slot)
    span, tokens = _span(plan, stream, slot), plan.tiling.step

    def blank(index: Any, begin: Any, end: Any) -> None:
        offset = index * BLANKED
        part = stream.buffers.at[slot, pl.ds(pl.multiple_of(offset, BLANKED), BLANKED)]
        plan.cells.blank(part, begin - offset, end - offset)

    def after(index: Any, _: None) -> None:
        blank(index, 0, span.end)

    lax.fori_loop(
        lax.div(span.end, BLANKED), (span.last_step + 1) * (tokens // BLANKED), after, None
    )
    if plan.spec.window is not None:
        begin = jnp.maximum(span.first + 1 - plan.spec.window - span.start, 0)

        def before(index: Any, _: None) -> None:
            blank(index, begin, plan.tiling.chunk)

        lax.fori_loop(0, lax.div(begin + (BLANKED - 1), BLANKED), before, None)


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


def _parts(plan: Plan) -> list[slice]:
    """The columns of each unit."""
    columns = width(plan.spec, plan.tiling.rows)
    return [slice(start, start + unit(columns)) for start in range(0, columns, unit(columns))]


def _bias(plan: Plan, rows: Rows, span: _Span, offset: Any) -> jax.Array:
    """What is added to a step's logits so that each column sees its own keys."""
    position = jnp.minimum(span.first + rows.query[...], span.last) - (span.start + offset)
    shape = (plan.tiling.step, position.shape[1])
    key = lax.broadcasted_iota(jnp.int32, shape, 0)
    mask = key <= position
    if plan.spec.window is not None:
        mask = jnp.logical_and(mask, key > position - plan.spec.window)
    return jnp.where(mask, 0.0, -jnp.inf)


def _slot_of(work: Work, head: int, part: slice) -> int:
    """Of the ring."""
    columns = work.ring.shape[2]
    parts = work.bias.shape[1] // columns
    return (head * parts + part.start // columns) % work.ring.shape[0]


def _begin(plan: Plan, keys: Any, query: Any, work: Work, head: int, part: slice) -> None:
    """Products of keys and queries, for later."""
    work.ring[_slot_of(work, head, part)] = _dot(plan, keys, query[0, head, :, part])


def _keys(plan: Plan, buffer: Any, head: int) -> jax.Array:
    return plan.cells.take(buffer, head, KEY, plan.compute_dtype)


def _values(plan: Plan, buffer: Any, head: int) -> jax.Array:
    """Values `[lanes, tokens]`, and below them ones, whose products are sums of the weights.

    A sum on the vector unit took 2,515 bundles a step.
    """
    values = plan.cells.take(buffer, head, VALUE, plan.compute_dtype)
    ones = jnp.ones((2 * SUBLANES, values.shape[0]), values.dtype)
    return jnp.concatenate([values.T, ones])


def _dot(plan: Plan, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.dot(left, right, precision=plan.precision, preferred_element_type=jnp.float32)


def _accumulate(
    plan: Plan,
    products: jax.Array,
    bias: jax.Array | None,
    values: jax.Array,
    rows: Rows,
    state: State,
    head: int,
    part: slice,
) -> None:
    """Takes a step's keys of one head into the state of some columns."""
    at = (0, head, slice(None), part)
    found = products * rows.factor[head, :, part]
    if plan.spec.soft_cap is not None:
        found = jnp.tanh(found) * jnp.float32(plan.spec.soft_cap * LOG2_E)
    if bias is not None:
        found = found + bias
    before = state.peak[at]
    peak = jnp.maximum(before, jnp.max(found, axis=0, keepdims=True))
    # -inf - -inf is NaN. Without a mask every column sees a key.
    origin = peak if bias is None else jnp.where(peak == -jnp.inf, 0.0, peak)
    kept = jnp.exp2(before - origin)
    weights = jnp.exp2(found - origin[:1])
    mixed = _dot(plan, values, weights.astype(plan.compute_dtype))
    lanes = plan.cells.lanes
    state.peak[at] = peak
    state.total[at] = state.total[at] * kept + mixed[lanes : lanes + SUBLANES]
    state.out[at] = state.out[at] * kept[:1] + mixed[:lanes]
