"""The stream of chunks from HBM: every chunk of every tile, in the order in which they are used.

A chunk is up to `chunk_blocks` consecutive blocks of one sequence. Chunks are numbered over the
whole call, and number n goes to buffer n % 2. Starting runs ahead of using, across the ends of
tiles: where the next chunk starts is kept in SMEM. The copies of a chunk signal one semaphore.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

_TILE, _CHUNK, _STARTED, _WAITED, _COUNTS = range(5)

STATE_SIZE = _COUNTS + 2
"""int32 numbers of SMEM that a stream needs."""


class Tables(NamedTuple):
    """What the kernel reads of each tile, refs in SMEM; see `tiles.Walk`."""

    sequence: Any
    first: Any
    queries: Any
    start_block: Any
    blocks: Any
    block_table: Any


class Stream:
    """Starts chunks, and waits for them.

    Args:
        tables: the walk and the flat block table.
        cache: ref `[num_blocks, block_rows, lanes]` in HBM.
        buffers: ref `[2, chunk_blocks * block_rows, lanes]` in VMEM.
        semaphores: two, for copies.
        state: ref `[STATE_SIZE]` int32 in SMEM.
        chunk_blocks: blocks in a chunk.
        table_width: entries of the block table for each sequence.
    """

    def __init__(
        self,
        tables: Tables,
        cache: Any,
        buffers: Any,
        semaphores: Any,
        state: Any,
        *,
        chunk_blocks: int,
        table_width: int,
    ) -> None:
        self.tables, self.cache, self.buffers = tables, cache, buffers
        self.semaphores, self.state = semaphores, state
        self.chunk_blocks, self.table_width = chunk_blocks, table_width

    def open(self) -> None:
        """Resets the stream and starts its first two chunks."""
        for index in range(STATE_SIZE):
            self.state[index] = 0
        self.start_next()
        self.start_next()

    def start_next(self) -> None:
        """Starts the next chunk, if there is one. Its buffer must be free."""
        tile, chunk, number = self.state[_TILE], self.state[_CHUNK], self.state[_STARTED]
        clipped = jnp.minimum(tile, pl.num_programs(0) - 1)

        # Tiles in use come first, so that one without queries ends the stream.
        @pl.when(jnp.logical_and(tile == clipped, self.tables.queries[clipped] > 0))
        def _() -> None:
            offset = chunk * self.chunk_blocks
            left = self.tables.blocks[clipped] - offset
            count = jnp.minimum(left, self.chunk_blocks)
            row = self.tables.sequence[clipped] * self.table_width
            slot = jnp.bitwise_and(number, 1)
            self._copy_blocks(row + self.tables.start_block[clipped] + offset, count, slot)
            is_last = left <= self.chunk_blocks
            self.state[_TILE] = jnp.where(is_last, tile + 1, tile)
            self.state[_CHUNK] = jnp.where(is_last, 0, chunk + 1)
            self.state[_STARTED] = number + 1
            self.state[_COUNTS + slot] = count

    def wait(self, number: Any) -> None:
        """Waits until chunk `number` is in its buffer; returns at once where it never started."""
        is_due = jnp.logical_and(self.state[_WAITED] <= number, self.state[_STARTED] > number)

        @pl.when(is_due)
        def _() -> None:
            slot = jnp.bitwise_and(number, 1)
            count = self.state[_COUNTS + slot]
            self.state[_WAITED] = number + 1

            @pl.when(count == self.chunk_blocks)
            def _() -> None:
                # One wait for the bytes of all.
                whole = self.buffers.at[slot, :, pl.ds(0, self.cache.shape[2])]
                pltpu.make_async_copy(whole, whole, self.semaphores.at[slot]).wait()

            @pl.when(count < self.chunk_blocks)
            def _() -> None:
                def one(index: Any, _: None) -> None:
                    self._copy(0, index, slot).wait()

                lax.fori_loop(0, count, one, None)

    def _copy_blocks(self, entry: Any, count: Any, slot: Any) -> None:
        """Starts `count` copies, of the blocks from one entry of the table on."""

        def one(index: Any, _: None = None) -> None:
            # Only entries that a query sees are read; those past the end may hold anything.
            self._copy(self.tables.block_table[entry + index], index, slot).start()

        @pl.when(count == self.chunk_blocks)
        def _() -> None:
            for index in range(self.chunk_blocks):
                one(index)

        @pl.when(count < self.chunk_blocks)
        def _() -> None:
            lax.fori_loop(0, count, one, None)

    def _copy(self, block: Any, index: Any, slot: Any) -> Any:
        _, block_size, words = self.cache.shape[:3]
        tokens = pl.ds(index * block_size, block_size)
        target = self.buffers.at[slot, tokens, pl.ds(0, words)]
        return pltpu.make_async_copy(self.cache.at[block], target, self.semaphores.at[slot])
