"""The stream of chunks from HBM: every block that any query sees, in the order of use.

Items (sequences of one query, or tiles of several queries) are read one after the other. A chunk is
what is copied and computed at a time. It has room for several *pieces*; a piece holds up to
`piece_blocks` consecutive blocks of one item, so that several short sequences share a chunk. Items
come in groups, whose queries and results are in VMEM together: no chunk spans two groups.

Chunks are numbered over the whole call, and number n goes to buffer n % 2. Starting runs ahead of
using, across the ends of items and groups: where the next chunk starts is kept in SMEM.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Int

_ITEM, _OFFSET, _STARTED, _IS_FULL, _PIECES = 0, 1, 2, 3, 5
_PIECE_ITEM, _PIECE_OFFSET, _PIECE_COUNT, _PIECE_SIZE = range(4)


class Walk(NamedTuple):
    """What is read for each item, scalars. Items in use come first.

    Attributes:
        sequence: which sequence.
        first: position of the item's first query.
        queries: how many queries; 0 for an item that is not in use.
        start_block: first logical block that any of them sees.
        blocks: how many blocks from there; 0 for an item that is not in use.
        chunks: for each group of items how many chunks it has.
        block_table: physical blocks, the rows of all sequences one after the other.
    """

    sequence: Int[jax.Array, " items"]
    first: Int[jax.Array, " items"]
    queries: Int[jax.Array, " items"]
    start_block: Int[jax.Array, " items"]
    blocks: Int[jax.Array, " items"]
    chunks: Int[jax.Array, " groups"]
    block_table: Int[jax.Array, " entries"]


class Piece(NamedTuple):
    """A part of a chunk.

    Attributes:
        item: whose blocks.
        offset: blocks of the item before these.
        count: how many blocks; 0 for a piece that is not in use.
    """

    item: Any
    offset: Any
    count: Any


def count_chunks(
    blocks: Int[jax.Array, " items"], group: int, pieces: int, piece_blocks: int
) -> Int[jax.Array, " groups"]:
    """How many chunks the stream makes of each group."""
    in_group = (-(-blocks // piece_blocks)).reshape(-1, group).sum(axis=1, dtype=jnp.int32)
    return -(-in_group // pieces)


class Stream:
    """Starts chunks, and waits for them.

    Args:
        walk: refs in SMEM.
        cache: ref `[num_blocks, block_size, *token, lanes]` in HBM.
        buffers: ref `[2, tokens of a chunk, *token or larger, lanes]` in VMEM; a token whose rows
            lie in parts has the words of all, see `Cells.parts`.
        semaphores: two, for copies.
        state: ref `[Stream.state_size(pieces)]` int32 in SMEM.
        group: items in a group.
        pieces: pieces in a chunk.
        piece_blocks: blocks in a piece.
        table_width: entries of the block table for each sequence.
    """

    def __init__(
        self,
        walk: Walk,
        cache: Any,
        buffers: Any,
        semaphores: Any,
        state: Any,
        *,
        group: int,
        pieces: int,
        piece_blocks: int,
        table_width: int,
    ) -> None:
        self.walk, self.cache, self.buffers = walk, cache, buffers
        self.semaphores, self.state = semaphores, state
        self.group, self.pieces, self.piece_blocks = group, pieces, piece_blocks
        self.table_width = table_width
        self.parts = cache.shape[-1] // buffers.shape[-1]

    @staticmethod
    def state_size(pieces: int) -> int:
        """Numbers of SMEM that a stream needs."""
        return _PIECES + 2 * pieces * _PIECE_SIZE

    def reset(self) -> None:
        """Nothing started."""
        for index in (_ITEM, _OFFSET, _STARTED):
            self.state[index] = 0

    def start_next(self) -> None:
        """Starts the next chunk, if there is one. Its buffer must be free."""
        item, offset, number = (self.state[i] for i in (_ITEM, _OFFSET, _STARTED))
        slot = jnp.bitwise_and(number, 1)
        left = self._blocks(item) - offset
        is_full = left >= self.pieces * self.piece_blocks

        @pl.when(left > 0)
        def _() -> None:
            self.state[_STARTED] = number + 1
            self.state[_IS_FULL + slot] = is_full.astype(jnp.int32)

        @pl.when(is_full)
        def _() -> None:
            self._start_full(item, offset, slot)

        @pl.when(jnp.logical_and(left > 0, jnp.logical_not(is_full)))
        def _() -> None:
            self._start_pieces(item, offset, slot)

    def _start_full(self, item: Any, offset: Any, slot: Any) -> None:
        """All pieces are of one item: most chunks of long sequences, in as few instructions."""
        blocks = self.pieces * self.piece_blocks
        self._start_blocks(self._entry(item, offset), 0, slot, blocks)
        for piece in range(self.pieces):
            held = Piece(item, offset + piece * self.piece_blocks, self.piece_blocks)
            self._record(slot, piece, held)
        is_last = self._blocks(item) == offset + blocks
        self.state[_ITEM] = jnp.where(is_last, item + 1, item)
        self.state[_OFFSET] = jnp.where(is_last, 0, offset + blocks)

    def _start_pieces(self, item: Any, offset: Any, slot: Any) -> None:
        """Each piece is of the next item that still has blocks, as long as the group lasts."""
        group = lax.div(item, self.group)

        def fill(piece: Any, cursor: tuple[Any, Any]) -> tuple[Any, Any]:
            item, offset = cursor
            is_ours = lax.div(item, self.group) == group
            left = jnp.where(is_ours, self._blocks(item) - offset, 0)
            count = jnp.minimum(left, self.piece_blocks)
            self._record(slot, piece, Piece(self._clipped(item), offset, count))
            entry, target = self._entry(item, offset), piece * self.piece_blocks

            # A single piece that is full is a full chunk.
            if self.pieces > 1:

                @pl.when(count == self.piece_blocks)
                def _() -> None:
                    self._start_blocks(entry, target, slot, self.piece_blocks)

            @pl.when(count < self.piece_blocks)
            def _() -> None:
                # Only entries that a query sees are read; those past the end may hold anything.
                def one(index: Any, _: None) -> None:
                    self._start_blocks(entry + index, target + index, slot, 1)

                lax.fori_loop(0, count, one, None)

            is_last = jnp.logical_and(left > 0, left <= self.piece_blocks)
            return jnp.where(is_last, item + 1, item), jnp.where(is_last, 0, offset + count)

        after = lax.fori_loop(0, self.pieces, fill, (item, offset))
        self.state[_ITEM], self.state[_OFFSET] = after

    def wait(self, slot: Any) -> None:
        """Waits until the chunk in a buffer is there."""
        is_full = self.state[_IS_FULL + slot] == 1

        @pl.when(is_full)
        def _() -> None:
            self._wait_blocks(0, slot, self.pieces * self.piece_blocks)

        @pl.when(jnp.logical_not(is_full))
        def _() -> None:
            def one_piece(piece: Any, _: None) -> None:
                count, target = self.piece(slot, piece).count, piece * self.piece_blocks

                if self.pieces > 1:

                    @pl.when(count == self.piece_blocks)
                    def _() -> None:
                        self._wait_blocks(target, slot, self.piece_blocks)

                @pl.when(count < self.piece_blocks)
                def _() -> None:
                    def one(index: Any, _: None) -> None:
                        self._wait_blocks(target + index, slot, 1)

                    lax.fori_loop(0, count, one, None)

            lax.fori_loop(0, self.pieces, one_piece, None)

    def piece(self, slot: Any, piece: Any) -> Piece:
        """What a piece of the chunk in a buffer holds."""
        base = self._record_base(slot, piece)
        fields = (_PIECE_ITEM, _PIECE_OFFSET, _PIECE_COUNT)
        return Piece(*(self.state[base + field] for field in fields))

    def _record(self, slot: Any, piece: Any, held: Piece) -> None:
        base = self._record_base(slot, piece)
        self.state[base + _PIECE_ITEM] = held.item
        self.state[base + _PIECE_OFFSET] = held.offset
        self.state[base + _PIECE_COUNT] = held.count

    def _record_base(self, slot: Any, piece: Any) -> Any:
        return _PIECES + (slot * self.pieces + piece) * _PIECE_SIZE

    def _clipped(self, item: Any) -> Any:
        return jnp.minimum(item, self.walk.blocks.shape[0] - 1)

    def _blocks(self, item: Any) -> Any:
        is_item = item < self.walk.blocks.shape[0]
        return jnp.where(is_item, self.walk.blocks[self._clipped(item)], 0)

    def _entry(self, item: Any, offset: Any) -> Any:
        """Where in the flat table an item's block is named."""
        item = self._clipped(item)
        row = self.walk.sequence[item] * self.table_width
        return row + self.walk.start_block[item] + offset

    def _start_blocks(self, entry: Any, target: Any, slot: Any, count: int) -> None:
        """Starts copies of consecutive entries of the table to consecutive places of a buffer."""
        lanes = self.buffers.shape[-1]
        for index in range(count):
            block = self.cache.at[self.walk.block_table[entry + index]]
            for part in range(self.parts):
                some = block
                if self.parts > 1:
                    some = block.at[..., pl.ds(part * lanes, lanes)]
                place = self._place(slot, target + index, 1, part)
                pltpu.make_async_copy(some, place, self.semaphores.at[slot]).start()

    def _wait_blocks(self, target: Any, slot: Any, count: int) -> None:
        """One wait for the bytes of several blocks."""
        place = self._place(slot, target, count)
        pltpu.make_async_copy(place, place, self.semaphores.at[slot]).wait()

    def _place(self, slot: Any, index: Any, blocks: int, part: int | None = None) -> Any:
        """Where blocks lie in a buffer, or one part of their rows."""
        block_size, *token = self.cache.shape[1:]
        tokens = pl.ds(index * block_size, blocks * block_size)
        if len(token) == 1:
            return self.buffers.at[slot, tokens]
        # What the buffer has beyond a token's own size is its pitch.
        words = token[0]
        rows = pl.ds(0, words * self.parts) if part is None else pl.ds(part * words, words)
        return self.buffers.at[slot, tokens, rows]
