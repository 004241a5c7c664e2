"""One query a sequence over latents: a pipeline over the pieces of a chunk.

The logits of a piece are computed while those before it are weighed and mixed: a matrix unit takes
its instructions in program order, and would otherwise wait for each softmax. No key of a piece is
masked one by one for each head. What a query does not see is overwritten with zeros where it lies,
which happens in the last piece of a sequence only, and a row of 0 and -inf is added to the logits.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Float

from paged.backends.pallas_tpu.latent import LatentCells
from paged.backends.pallas_tpu.plan import Plan
from paged.backends.pallas_tpu.products import logits, mixture
from paged.backends.pallas_tpu.rows import Rows
from paged.backends.pallas_tpu.state import State, weigh
from paged.backends.pallas_tpu.stream import Stream

# Pieces whose logits are computed ahead. Bundles a token, v6e, 128 heads, chunks of 4,096 in pieces
# of 1,024 (paged lab, libtpu 0.0.52): 1.04 with 1, 1.02 with 2, 1.01 with 4, which spills most.
_AHEAD = 2

# Tokens that are overwritten at a time.
STRIP = 64


def take_in(plan: Plan, stream: Stream, slot: Any, query: Any, rows: Rows, state: State) -> None:
    """Takes in a chunk; see `decode.take_in`."""
    pieces = [_Piece(plan, stream, slot, index) for index in range(plan.pieces)]
    for piece in pieces:
        piece.blank()
    found = []
    for index in range(len(pieces) + _AHEAD):
        if index < len(pieces):
            piece = pieces[index]
            products = logits(plan, query[piece.item, 0], rows.factor[0], piece.buffer, 0)
            found.append(products + piece.bias)
        if index >= _AHEAD:
            _join(plan, pieces[index - _AHEAD], found[index - _AHEAD], state)


def _join(plan: Plan, piece: "_Piece", logits: Float[jax.Array, "M tokens"], state: State) -> None:
    at = (piece.item, 0)
    before = state.peak[at]
    new = weigh(logits, before)
    kept = jnp.exp2(before - new.origin)
    state.peak[at] = jnp.broadcast_to(new.peak, before.shape)
    state.total[at] = state.total[at] * kept + new.total
    state.out[at] = state.out[at] * kept[:, :1] + mixture(plan, new.weights, piece.buffer, 0)


class _Piece:
    """One piece's latents, and which of them its query sees."""

    def __init__(self, plan: Plan, stream: Stream, slot: Any, index: int) -> None:
        tokens = plan.tiling.piece
        held = stream.piece(slot, index)
        walk = stream.walk
        position = walk.first[held.item]
        start = (walk.start_block[held.item] + held.offset) * plan.block_size
        assert isinstance(plan.cells, LatentCells)
        self.cells, self.tokens = plan.cells, tokens
        self.item = lax.rem(held.item, plan.tiling.group)
        self.buffer = stream.buffers.at[slot, pl.ds(index * tokens, tokens)]
        # Keys in this range are seen, none where the piece is not in use.
        self.end = jnp.where(held.count > 0, jnp.minimum(position + 1 - start, tokens), 0)
        self.begin: Any = 0
        if plan.spec.window is not None:
            self.begin = jnp.maximum(position + 1 - plan.spec.window - start, 0)

    @property
    def bias(self) -> Float[jax.Array, "1 tokens"]:
        """To be added to logits."""
        key = lax.broadcasted_iota(jnp.int32, (1, self.tokens), 1)
        return jnp.where(self._is_seen(key), 0.0, -jnp.inf)

    def blank(self) -> None:
        """Overwrites what is not seen with zeros: 0 * NaN is NaN."""
        strip = math.gcd(self.tokens, STRIP)
        strips = self.tokens // strip
        is_whole = jnp.logical_and(self.begin <= 0, self.end >= self.tokens)
        first = lax.div(self.end, strip) if isinstance(self.begin, int) else 0

        def one(index: Any, _: None) -> None:
            offset = pl.multiple_of(index * strip, strip)
            rows = self.buffer.at[pl.ds(offset, strip)]
            self.cells.blank(rows, self.begin - offset, self.end - offset)

        lax.fori_loop(jnp.where(is_whole, strips, first), strips, one, None)

    def _is_seen(self, token: jax.Array) -> jax.Array:
        is_seen = token < self.end
        if isinstance(self.begin, int):
            return is_seen
        return jnp.logical_and(is_seen, token >= self.begin)
