"""The pool: which blocks are free, how many references the others have, and whose contents last."""

from collections.abc import Callable, Iterable

import numpy as np
from jaxtyping import Int32

from paged.blocks import checks
from paged.blocks.errors import OutOfBlocks, expect_equal, expect_none
from paged.blocks.free_list import FreeList
from paged.blocks.in_flight import InFlight

NULL_BLOCK = 0
"""The block that stands where there is none: never allocated, shared or freed."""

NO_BLOCKS: Int32[np.ndarray, " blocks"] = np.empty(0, np.int32)
"""No blocks."""

Blocks = Int32[np.ndarray, " blocks"]


class BlockPool:
    """Hands out block ids and counts references; knows neither requests nor tokens.

    A block has references, or is free, or waits for steps that may still read it. Free blocks
    without a label are reused first, the last freed before the others; then those with one, least
    recently freed first. The cost of an operation depends on the blocks it names, not on the size
    of the pool: 21 bytes a block.

    A call that raises has changed nothing. All take and return int32 arrays of blocks.

    Args:
        num_blocks: size of the pool, the null block included; at least 2.
        on_evict: is told of labelled blocks that are about to be reused; it must clear their
            labels.

    Attributes:
        on_evict: as given; whoever comes to own the labels may set it.
        labels: [num_blocks] int8; not 0 where a block's contents may be asked for again. Its
            owner writes to it.

    Raises:
        ValueError: `num_blocks` is not an integer of at least 2 that fits int32.
    """

    __slots__ = ("_free", "_in_flight", "_num_blocks", "_ref_counts", "labels", "on_evict")

    def __init__(self, num_blocks: int, on_evict: Callable[[Blocks], None] | None = None) -> None:
        self._num_blocks = checks.integer("num_blocks", num_blocks, at_least=2)
        checks.slots_fit("num_blocks", self._num_blocks, block_size=1)
        self._free = FreeList(self._num_blocks)
        self._in_flight = InFlight(self._num_blocks)
        self._ref_counts = np.zeros(self._num_blocks, np.int32)
        self.on_evict = on_evict
        self.labels = np.zeros(self._num_blocks, np.int8)

    @property
    def num_blocks(self) -> int:
        """Size of the pool, the null block included."""
        return self._num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that `acquire` could hand out now; the null block is none of them."""
        return len(self._free)

    @property
    def num_waiting(self) -> int:
        """Blocks without references that a step in flight may read."""
        return self._in_flight.num_waiting

    @property
    def num_used(self) -> int:
        """Blocks with references."""
        return self._num_blocks - 1 - len(self._free) - self._in_flight.num_waiting

    @property
    def num_steps(self) -> int:
        """Steps in flight."""
        return self._in_flight.num_steps

    @property
    def nbytes(self) -> int:
        """Bytes of bookkeeping."""
        arrays = self._ref_counts.nbytes + self.labels.nbytes
        return arrays + self._free.nbytes + self._in_flight.nbytes

    def ref_count(self, block_id: int) -> int:
        """References to a block; 0 when it is free.

        Raises:
            ValueError: the null block, which is not counted, or no block of this pool.
        """
        return int(self._ref_counts[self._checked("block_id", [block_id])[0]])

    def num_references(self, block: int) -> int:
        """`ref_count` of a block that is known to be one of this pool's."""
        return self._ref_counts.item(block)

    def num_free_among(self, blocks: Blocks) -> int:
        """How many of some distinct blocks of this pool are free."""
        return int(np.count_nonzero(self._free.holds(blocks)))

    def acquire(self, count: int, shared: Blocks = NO_BLOCKS, *, spare: int = 0) -> Blocks:
        """Take `count` free blocks and a reference to each of `shared`: all of it or nothing.

        Args:
            count: blocks to take, each with one reference.
            shared: distinct blocks whose contents are wanted, in use or not. One that is free
                leaves the free list, so it counts as taken, and before any other block is: what
                this call takes can not be what it shares.
            spare: blocks that must stay free.

        Raises:
            OutOfBlocks: fewer are free.
            ValueError: `count` is not an integer of at least 0.
        """
        count = checks.integer("count", count, at_least=0)
        idle = shared[self._ref_counts[shared] == 0] if shared.size else shared
        is_free = self._free.holds(idle) if idle.size else idle
        revived = int(np.count_nonzero(is_free)) if idle.size else 0
        wanted = count + spare + revived
        if wanted > len(self._free):
            raise OutOfBlocks(wanted, len(self._free))
        if idle.size:
            self._free.remove(idle[is_free])
            self._in_flight.take_back(idle[~is_free])
        if shared.size:
            self._ref_counts[shared] += 1
        blocks = self._free.pop_front(count)
        # The type that numpy would convert it to at every use.
        taken = blocks.astype(np.intp)
        evicted = blocks[self.labels[taken] != 0]
        if evicted.size and self.on_evict is not None:
            self.on_evict(evicted)
        self._ref_counts[taken] = 1
        return blocks

    def share(self, blocks: Iterable[int] | Blocks, times: int = 1) -> None:
        """Add references to each of some distinct blocks in use.

        Raises:
            ValueError: the null block, an unknown id, one named twice, or a free block, whose
                contents are nobody's.
        """
        chosen = self._checked("block_ids", blocks)
        counts = self._ref_counts[chosen]
        if chosen.size and counts.min() < 1:
            block = chosen[counts.argmin()]
            raise ValueError(f"block_ids: got {block}, which is free, expected blocks in use")
        self._ref_counts[chosen] = counts + times

    def release(self, blocks: Iterable[int] | Blocks) -> None:
        """Give up a reference to each of some distinct blocks.

        Blocks left without references are reused in the order given here. Name the last block of a
        sequence first and the head of its prefix is the last to be overwritten.

        Raises:
            ValueError: the null block, an unknown id, one named twice, or a block that is free.
        """
        chosen = self._checked("block_ids", blocks)
        counts = self._ref_counts[chosen]
        if chosen.size and counts.min() < 1:
            block = chosen[counts.argmin()]
            raise ValueError(
                f"block_ids: got {block}, which has no reference, expected blocks in use"
            )
        self._ref_counts[chosen] = counts - 1
        idle = chosen[counts == 1]
        if self._in_flight.num_steps and idle.size:
            self._in_flight.wait(idle)
        else:
            self._reuse(idle)

    def begin_step(self) -> int:
        """A step is dispatched that reads blocks; returns its number."""
        return self._in_flight.begin()

    def end_step(self, step: int) -> None:
        """A step has ended, and so have all before it.

        Raises:
            ValueError: no step in flight has that number.
        """
        self._reuse(self._in_flight.end(step))

    def free_blocks(self) -> Blocks:
        """All free blocks in the order of reuse."""
        return self._free.blocks()

    def restore(self, free: Blocks, ref_counts: Int32[np.ndarray, " num_blocks"]) -> None:
        """Take over a state that was saved; `check_integrity` says whether it is one."""
        self._free.restore(free)
        self._ref_counts[:] = ref_counts

    def check_integrity(self, references: Int32[np.ndarray, " num_blocks"] | None = None) -> None:
        """Compare all bookkeeping with itself, and with who holds what where that is told.

        Args:
            references: how often each block is held.

        Raises:
            IntegrityError: naming the invariant and the numbers that disagree.
        """
        self._free.check_integrity()
        self._in_flight.check_integrity()
        counts = self._ref_counts
        everyone = np.arange(self._num_blocks, dtype=np.int32)
        expect_equal("reference count of the null block", int(counts[NULL_BLOCK]), 0)
        expect_equal("label of the null block", int(self.labels[NULL_BLOCK]), 0)
        expect_none("blocks with a negative reference count", (counts < 0).nonzero()[0])
        is_free = self._free.holds(everyone)
        is_waiting = np.zeros(self._num_blocks, bool)
        is_waiting[self._in_flight.waiting()] = True
        places = is_free.astype(np.int8) + is_waiting + (counts > 0)
        places[NULL_BLOCK] += 1
        expect_none(
            "blocks that are not exactly one of free, waiting and in use",
            (places != 1).nonzero()[0],
        )
        if references is not None:
            wrong = (counts != references).nonzero()[0]
            if wrong.size:
                block = int(wrong[0])
                expect_equal(
                    f"reference count of block {block} against who holds it",
                    int(counts[block]),
                    int(references[block]),
                )

    def _reuse(self, blocks: Blocks) -> None:
        if blocks.size:
            is_kept = self.labels[blocks] != 0
            self._free.push_front(blocks[~is_kept])
            self._free.push_back(blocks[is_kept])

    def _checked(self, name: str, values: Iterable[int] | Blocks) -> Blocks:
        """Distinct blocks of this pool, as an array."""
        if isinstance(values, np.ndarray) and values.dtype == np.int32:
            blocks = values
        else:
            chosen = checks.ids(name, values, at_least=NULL_BLOCK + 1, below=self._num_blocks)
            blocks = np.array(chosen, np.int32)
        if blocks.size < 2:
            ordered = blocks
        else:
            ordered = np.sort(blocks)
            twice = (ordered[1:] == ordered[:-1]).nonzero()[0]
            if twice.size:
                raise ValueError(
                    f"{name}: got {ordered[twice[0]]} more than once, expected distinct blocks"
                )
        if ordered.size and not 0 < ordered[0] <= ordered[-1] < self._num_blocks:
            wrong = ordered[0] if ordered[0] < 1 else ordered[-1]
            raise ValueError(
                f"{name}: got {wrong}, expected block ids of at least 1 and at most "
                f"{self._num_blocks - 1}"
            )
        return blocks
