"""The pool: which blocks are free, and how many references the others have."""

from array import array
from collections import Counter
from collections.abc import Iterable

from paged.blocks import checks
from paged.blocks.errors import OutOfBlocks, expect_equal
from paged.blocks.free_list import FreeList

NULL_BLOCK = 0
"""The block that stands where there is none: never allocated, shared or freed."""


class BlockPool:
    """Hands out block ids and counts references; knows neither requests nor tokens.

    A block is free or has references, never both. Blocks are reused least recently freed first; a
    fresh pool gives 1, 2, 3, ... The cost of an operation depends on the blocks it names, not on
    the size of the pool, which costs 12 bytes a block.

    A call that raises has changed nothing. Ids are returned as ints and accepted as any integers.

    Args:
        num_blocks: size of the pool, the null block included; at least 2.

    Raises:
        ValueError: `num_blocks` is not an integer of at least 2 that fits int32.
    """

    __slots__ = ("_free", "_num_blocks", "_ref_counts")

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = checks.integer("num_blocks", num_blocks, at_least=2)
        checks.slots_fit("num_blocks", self._num_blocks, block_size=1)
        self._free = FreeList(self._num_blocks)
        self._ref_counts = array("i", bytes(4 * self._num_blocks))

    @property
    def num_blocks(self) -> int:
        """Size of the pool, the null block included."""
        return self._num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` could hand out now; the null block is none of them."""
        return len(self._free)

    def ref_count(self, block_id: int) -> int:
        """References to a block; 0 when it is free.

        Raises:
            ValueError: the null block, which is not counted, or no block of this pool.
        """
        (block,) = self._ids("block_id", [block_id])
        return self._ref_counts[block]

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, each with one reference: all of them or none.

        Raises:
            OutOfBlocks: fewer are free.
            ValueError: `count` is not an integer of at least 0.
        """
        count = checks.integer("count", count, at_least=0)
        if count > len(self._free):
            raise OutOfBlocks(wanted=count, available=len(self._free))
        blocks = [self._free.pop_front() for _ in range(count)]
        for block in blocks:
            self._ref_counts[block] = 1
        return blocks

    def share(self, block_ids: Iterable[int]) -> None:
        """Add a reference to each block, once for each time it is named.

        Raises:
            ValueError: the null block, an unknown id, or a free block, whose contents are nobody's.
        """
        blocks = self._ids("block_ids", block_ids)
        for block in blocks:
            if self._ref_counts[block] == 0:
                raise ValueError(f"block_ids: got {block}, which is free, expected blocks in use")
        for block in blocks:
            self._ref_counts[block] += 1

    def free(self, block_ids: Iterable[int]) -> None:
        """Give up a reference to each block, once for each time it is named.

        Blocks left without references are reused in the order given here. Name the last block of a
        sequence first and the head of its prefix is the last to be overwritten.

        Raises:
            ValueError: the null block, an unknown id, or more references than a block has.
        """
        blocks = self._ids("block_ids", block_ids)
        for block, times in Counter(blocks).items():
            if times > self._ref_counts[block]:
                raise ValueError(
                    f"block_ids: got {block} {times} time(s), expected at most its reference "
                    f"count, {self._ref_counts[block]}"
                )
        for block in blocks:
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                self._free.push_back(block)

    def check_integrity(self) -> None:
        """Compare all bookkeeping with itself; walks the whole pool.

        Raises:
            IntegrityError: naming the invariant and the two numbers that disagree.
        """
        self._free.check_integrity()
        expect_equal("reference count of the null block", self._ref_counts[NULL_BLOCK], 0)
        for block in range(1, self._num_blocks):
            count = self._ref_counts[block]
            expect_equal(f"reference count of block {block}", count, max(count, 0))
            expect_equal(
                f"block {block} free, with reference count {count}", block in self._free, count == 0
            )

    def _ids(self, name: str, block_ids: Iterable[int]) -> list[int]:
        return checks.ids(name, block_ids, at_least=NULL_BLOCK + 1, below=self._num_blocks)
