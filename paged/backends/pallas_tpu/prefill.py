"""Several queries of one sequence: a tile, whose queries share every key that is read.

A step of keys is gone through in units: one KV head and some columns (see `columns`). The matrix
units compute the logits of later units while a unit's softmax runs on the vector unit: `_AHEAD`
units, into a ring in VMEM that carries over to the next step and chunk, so that none waits for its
first logits. A step of 256 keys and 512 columns of 8 heads takes 2,271 bundles on v6e, nominally
1,024; without the ring 3,007, with all logits first 4,053 for half of the columns.

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

# Counted: 3 units ahead take 8% more bundles, 2 take 28%, 6 no fewer.
_AHEAD = 4
BLANKED = 16
"""Tokens that are blanked at a time."""


class Work(NamedTuple):
    """Refs in VMEM.

    Attributes:
        ring: `[slots, tokens of a step, columns of a unit]`, logits to base 2.
        tops: `[slots, SUBLANES, columns of a unit]`, the largest of each column and sublane: found
            when the logits come, so that these pass the registers twice and not three times.
        bias: `[tokens of a step, M]`, 0 where a column sees a key, -inf elsewhere.
    """

    ring: Any
    tops: Any
    bias: Any


def open_tile(
    plan: Plan, stream: Stream, slot: Any, query: Any, rows: Rows, state: State, work: Work
) -> None:
    """Waits for a tile's first chunk, and begins its first products; see `take_in`."""
    _arrive(plan, stream, slot)
    state.clear()
    parts = _parts(plan)
    for head in range(ring_heads(plan.spec.num_kv_heads, len(parts), _AHEAD)):
        keys = _keys(plan, _step_buffer(plan, stream, slot, 0), head)
        for part in parts:
            _begin(plan, keys, query, rows, work, head, part)


def take_in(
    plan: Plan,
    stream: Stream,
    slot: Any,
    is_last: Any,
    query: Any,
    rows: Rows,
    state: State,
    work: Work,
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
        work: logits that are there already, and room.
    """
    bias = work.bias
    heads, parts, tokens = plan.spec.num_kv_heads, _parts(plan), plan.tiling.step
    ahead = ring_heads(heads, len(parts), _AHEAD)
    buffer = partial(_step_buffer, plan, stream)
    span = _span(plan, stream, slot)

    def step(index: Any, is_masked: bool, is_short: bool = False) -> None:
        here = buffer(slot, index).at[pl.ds(0, tokens // 2 if is_short else tokens)]
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
            is_ours = coming > head
            keys, values = None, _values(plan, here, head)
            # Nothing comes after a short step.
            if is_ours or not is_short:
                keys = _keys(plan, here if is_ours else after, coming)
            for part in parts:
                hidden = bias[: here.shape[0], part] if is_masked else None
                # Before its place in the ring is taken. What was there before the step is not
                # masked yet.
                ready = _ready(work, head, part, here.shape[0], hidden if head < ahead else None)
                if keys is not None:
                    _begin(plan, keys, query, rows, work, coming, part, hidden if is_ours else None)
                _accumulate(plan, *ready, values, state, head, part)

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

        # A tile often ends in the first half of a step: 1,661 bundles, not 2,820.
        left = span.end - span.last_step * tokens
        is_short = jnp.logical_and(is_last, left <= tokens // 2).astype(jnp.int32) * number
        low = number * span.last_step
        high = span.last_step + number
        if plan.spec.window is None:
            lax.fori_loop(low, jnp.minimum(high, whole), lambda index, _: step(index, False), None)
        full = high - is_short
        lax.fori_loop(jnp.maximum(low, whole), full, lambda index, _: step(index, True), None)
        lax.fori_loop(full, high, lambda index, _: step(index, True, is_short=True), None)

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
        top, denominator = (
            state.peak[0, head, :1],
            jnp.sum(state.total[0, head], axis=0, keepdims=True),
        )
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


def _begin(
    plan: Plan,
    keys: jax.Array,
    query: Any,
    rows: Rows,
    work: Work,
    head: int,
    part: slice,
    bias: jax.Array | None = None,
) -> None:
    """Logits for later."""
    found = _dot(plan, keys, query[0, head, :, part]) * rows.factor[head, :, part]
    if plan.spec.soft_cap is not None:
        found = jnp.tanh(found) * jnp.float32(plan.spec.soft_cap * LOG2_E)
    if bias is not None:
        found = found + bias
    slot = _slot_of(work, head, part)
    work.ring[slot, : found.shape[0]] = found
    work.tops[slot] = jnp.max(_by_sublane(found), axis=0)


def _by_sublane(found: jax.Array) -> jax.Array:
    """`[tokens / SUBLANES, SUBLANES, columns]`: whole registers one after the other."""
    return found.reshape(-1, SUBLANES, found.shape[1])


def _keys(plan: Plan, buffer: Any, head: int) -> jax.Array:
    return plan.cells.take(buffer, head, KEY, plan.compute_dtype)


def _values(plan: Plan, buffer: Any, head: int) -> jax.Array:
    """Values `[lanes, tokens]`."""
    return plan.cells.take(buffer, head, VALUE, plan.compute_dtype).T


def _dot(plan: Plan, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.dot(left, right, precision=plan.precision, preferred_element_type=jnp.float32)


def _ready(
    work: Work, head: int, part: slice, tokens: int, bias: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Logits from the ring, and the largest of each column and sublane."""
    slot = _slot_of(work, head, part)
    found = work.ring[slot, :tokens]
    if bias is None:
        return found, work.tops[slot]
    return found + bias, jnp.max(_by_sublane(found + bias), axis=0)


def _accumulate(
    plan: Plan,
    found: jax.Array,
    top: jax.Array,
    values: jax.Array,
    state: State,
    head: int,
    part: slice,
) -> None:
    """Takes a step's keys of one head into the state of some columns."""
    at = (0, head, slice(None), part)
    before = state.peak[at]
    peak = jnp.maximum(before, jnp.max(top, axis=0, keepdims=True))
    # -inf - -inf is NaN.
    origin = jnp.where(peak == -jnp.inf, 0.0, peak)
    kept = jnp.exp2(before - origin)
    # All sublanes of these are alike: nothing has to be spread.
    by_sublane = jnp.exp2(_by_sublane(found) - origin[None])
    weights = by_sublane.reshape(found.shape)
    mixed = _dot(plan, values, weights.astype(plan.compute_dtype))
    state.peak[at] = peak
    state.total[at] = state.total[at] * kept + jnp.sum(by_sublane, axis=0)
    state.out[at] = (_by_sublane(state.out[at]) * kept[None]).reshape(mixed.shape) + mixed
