"""The order in which free blocks are reused.

A doubly-linked ring through two int32 arrays, 8 bytes a block. Entry 0 is the null block's; that
block is never free, so its entry serves as the ring's anchor and no end needs a special case:

    next[0] is the block to reuse next, prev[0] the one freed last

A queue would do for plain reuse. The links let a block leave from the middle at constant cost,
which is what taking back a free block whose contents are still good asks for.

`array` rather than numpy: all access is to single entries, and there it is twice as fast.
"""

from array import array
from collections.abc import Iterator
from itertools import islice

from paged.blocks.errors import expect_equal

_ANCHOR = 0
_NOT_FREE = -1


class FreeList:
    """Free blocks, least recently freed first. Starts with blocks 1 .. num_blocks - 1, in order.

    Callers pass valid ids: a block to `push_back` that is not free, one to `remove` that is.
    """

    __slots__ = ("_length", "_next", "_prev")

    def __init__(self, num_blocks: int) -> None:
        self._next = array("i", range(1, num_blocks + 1))
        self._next[-1] = _ANCHOR
        self._prev = array("i", range(-1, num_blocks - 1))
        self._prev[_ANCHOR] = num_blocks - 1
        self._length = num_blocks - 1

    def __len__(self) -> int:
        return self._length

    def __contains__(self, block: int) -> bool:
        return block != _ANCHOR and self._next[block] != _NOT_FREE

    def __iter__(self) -> Iterator[int]:
        """Blocks in the order of reuse."""
        block = self._next[_ANCHOR]
        while block != _ANCHOR:
            yield block
            block = self._next[block]

    def push_back(self, block: int) -> None:
        """Add a block, to be reused after all that are free now."""
        last = self._prev[_ANCHOR]
        self._next[last] = block
        self._prev[block] = last
        self._next[block] = _ANCHOR
        self._prev[_ANCHOR] = block
        self._length += 1

    def remove(self, block: int) -> None:
        """Take a block out, wherever it stands."""
        before, after = self._prev[block], self._next[block]
        self._next[before] = after
        self._prev[after] = before
        self._next[block] = self._prev[block] = _NOT_FREE
        self._length -= 1

    def pop_front(self) -> int:
        """Take out the least recently freed block; the list must not be empty."""
        block = self._next[_ANCHOR]
        self.remove(block)
        return block

    def check_integrity(self) -> None:
        """Links agree both ways, and the ring is as long as its count says.

        Raises:
            IntegrityError: naming the invariant and the two numbers that disagree.
        """
        # Cut off past the longest there can be, so that a broken ring that never closes still ends.
        ring = list(islice(self, len(self._next)))
        expect_equal("blocks on the free list against their count", len(ring), self._length)
        previous = _ANCHOR
        for block in [*ring, _ANCHOR]:
            expect_equal(f"block before {block} on the free list", self._prev[block], previous)
            previous = block
        on_ring = set(ring)
        for block in range(1, len(self._next)):
            expect_equal(f"block {block} marked as free", block in self, block in on_ring)
