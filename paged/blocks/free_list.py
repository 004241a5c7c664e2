"""The order in which free blocks are reused.

A ring of places, twice as many as blocks. A block that is free knows its place; a place whose
block does not know it is *stale* and is passed over:

    ring   .  7  4  9  4  .        first = 1, end = 5
    place  4: 4, 7: 1, 9: -1       9 was taken out of the middle, 4 freed again later

So a block leaves from anywhere by forgetting its place, and everything else is done to arrays of
blocks at once. Where the ring is full of stale places it is rewritten, which takes at least as
many removals as there are blocks: constant cost per operation. 12 bytes a block.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Int32

from paged.blocks.errors import expect_equal, expect_none

Blocks = Int32[np.ndarray, " blocks"]

_NOWHERE = -1
_SMALLEST_LOOK = 64


class FreeList:
    """Free blocks, the next to be reused first. Starts with blocks 1 .. num_blocks - 1, in order.

    Callers pass distinct valid ids: blocks to push that are not free, blocks to remove that are.
    """

    __slots__ = ("_end", "_first", "_length", "_place", "_ring")

    def __init__(self, num_blocks: int) -> None:
        self._ring = np.zeros(2 * num_blocks, np.int32)
        self._place = np.full(num_blocks, _NOWHERE, np.int32)
        self.restore(np.arange(1, num_blocks, dtype=np.int32))

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        """Blocks in the order of reuse."""
        return iter(self.blocks().tolist())

    @property
    def nbytes(self) -> int:
        """Bytes of bookkeeping."""
        return self._ring.nbytes + self._place.nbytes

    def holds(self, blocks: Blocks) -> Bool[np.ndarray, " blocks"]:
        """Which of the blocks are free."""
        return self._place[blocks] != _NOWHERE

    def blocks(self) -> Blocks:
        """All free blocks in the order of reuse."""
        places = self._places(self._first, self._end - self._first)
        blocks = self._ring[places]
        return blocks[self._place[blocks] == places]

    def restore(self, blocks: Blocks) -> None:
        """Make these the free blocks, in this order."""
        self._place[:] = _NOWHERE
        self._ring[: blocks.size] = blocks
        self._place[blocks] = np.arange(blocks.size)
        self._first, self._end, self._length = 0, blocks.size, blocks.size

    def push_back(self, blocks: Blocks) -> None:
        """Add blocks, to be reused after all that are free now and in this order."""
        self._make_room(blocks.size)
        self._put(blocks, self._end)
        self._end += blocks.size

    def push_front(self, blocks: Blocks) -> None:
        """Add blocks, to be reused before all that are free now and in this order."""
        self._make_room(blocks.size)
        self._first -= blocks.size
        self._put(blocks, self._first)

    def remove(self, blocks: Blocks) -> None:
        """Take blocks out, wherever they stand."""
        self._place[blocks] = _NOWHERE
        self._length -= blocks.size

    def pop_front(self, count: int) -> Blocks:
        """Take out the next `count` blocks; the list must have as many."""
        found: list[np.ndarray] = []
        missing, look = count, max(count, _SMALLEST_LOOK)
        while missing:
            places = self._places(self._first, min(look, self._end - self._first))
            expect_equal("whether a list that counts more blocks has them", places.size > 0, True)
            # The type that numpy would convert it to at every use.
            blocks = self._ring[places].astype(np.intp)
            live = (self._place[blocks] == places).nonzero()[0][:missing]
            found.append(blocks[live])
            missing -= live.size
            # Doubled, so that a long stale stretch costs no more looks than its logarithm.
            self._first += live.item(-1) + 1 if missing == 0 else places.size
            look *= 2
        taken = found[0] if len(found) == 1 else np.concatenate([np.empty(0, np.intp), *found])
        self.remove(taken)
        return taken.astype(np.int32)

    def check_integrity(self) -> None:
        """Every block that knows its place stands there, and the count is theirs.

        Raises:
            IntegrityError: naming the invariant and the numbers that disagree.
        """
        known = (self._place != _NOWHERE).nonzero()[0]
        expect_equal("free blocks against their count", known.size, self._length)
        strays = known[self._ring[self._place[known]] != known]
        expect_none("free blocks that do not stand at their place", strays)
        outside = (self._place[known] - self._first) % self._ring.size >= self._end - self._first
        expect_none("free blocks whose place is not in use", known[outside])

    def _places(self, start: int, count: int) -> np.ndarray:
        start %= self._ring.size
        places = np.arange(start, start + count)
        if start + count > self._ring.size:
            places %= self._ring.size
        return places

    def _put(self, blocks: Blocks, start: int) -> None:
        places = self._places(start, blocks.size)
        self._ring[places] = blocks
        self._place[blocks] = places
        self._length += blocks.size

    def _make_room(self, count: int) -> None:
        if self._end - self._first + count > self._ring.size:
            self.restore(self.blocks())
