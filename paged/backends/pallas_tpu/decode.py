"""One query a sequence: a chunk holds pieces of several sequences.

All pieces are computed in one straight line, so that the latencies of one hide behind the work of
the others: each takes its own softmax, and joins its sequence's state at the end. A short sequence
costs the pieces that it has.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from paged.backends.pallas_tpu.plan import Plan
from paged.backends.pallas_tpu.products import logits, mixture, own_columns
from paged.backends.pallas_tpu.rows import Rows
from paged.backends.pallas_tpu.state import State, weigh
from paged.backends.pallas_tpu.stream import Stream


def take_in(plan: Plan, stream: Stream, slot: Any, query: Any, rows: Rows, state: State) -> None:
    """Takes in a chunk.

    Args:
        plan: static sizes.
        stream: where the chunk came from.
        slot: the buffer that it is in.
        query: ref `[items of the group, steps, M, columns]`.
        rows: numbers of each row.
        state: what is kept of the group's items.
    """
    steps = range(plan.steps)
    pieces = [_Piece(plan, stream, slot, index) for index in range(plan.pieces)]
    # All logits first: the latencies of one product hide behind the others.
    found = [
        [
            piece.masked(
                logits(plan, query[piece.item, step], rows.factor[step], piece.buffer, step)
            )
            for step in steps
        ]
        for piece in pieces
    ]
    for piece, of_piece in zip(pieces, found, strict=True):
        for step in steps:
            new = weigh(of_piece[step])
            products = mixture(plan, new.weights, piece.buffer, step, piece.seen)
            at = (piece.item, step)
            before = state.peak[at]
            peak = jnp.maximum(before, new.peak)
            origin = jnp.where(peak == -jnp.inf, 0.0, peak)
            kept, joined = jnp.exp2(before - origin), jnp.exp2(new.peak - origin)
            state.peak[at] = peak
            state.total[at] = state.total[at] * kept + new.total * joined
            out = own_columns(plan, products)
            state.out[at] = state.out[at] * kept[:, :1] + out * joined[:, :1]


class _Piece:
    """One piece's keys, and which of them its query sees."""

    def __init__(self, plan: Plan, stream: Stream, slot: Any, index: int) -> None:
        tokens = plan.tiling.piece
        held = stream.piece(slot, index)
        walk = stream.walk
        position = walk.first[held.item]
        start = (walk.start_block[held.item] + held.offset) * plan.block_size
        self.item = lax.rem(held.item, plan.tiling.group)
        self.buffer = stream.buffers.at[slot, pl.ds(index * tokens, tokens)]
        # Keys before this index are seen, none where the piece is not in use.
        end = jnp.where(held.count > 0, position + 1 - start, 0)
        key = lax.broadcasted_iota(jnp.int32, (plan.height, tokens), 1)
        token = lax.broadcasted_iota(jnp.int32, (tokens, plan.cells.value_lanes), 0)
        self.mask, self.seen = key < end, token < end
        if plan.spec.window is not None:
            begin = position + 1 - plan.spec.window - start
            self.mask = jnp.logical_and(self.mask, key >= begin)
            self.seen = jnp.logical_and(self.seen, token >= begin)

    def masked(self, logits: Any) -> Any:
        return jnp.where(self.mask, logits, -jnp.inf)
