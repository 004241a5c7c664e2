"""Blocks that were given up while a step may still read them.

Steps are numbered as they are dispatched and end in that order. A block that is given up waits for
the last step dispatched before; a caller that announces no steps never waits.
"""

from collections import deque

import numpy as np
from jaxtyping import Int32

from paged.blocks.errors import expect_equal, expect_none

Blocks = Int32[np.ndarray, " blocks"]


class InFlight:
    """Steps that run, and the blocks that wait for them. 4 bytes a block.

    Attributes:
        num_waiting: blocks that wait.
    """

    __slots__ = ("_batch", "_begun", "_ended", "_next_batch", "_queue", "num_waiting")

    def __init__(self, num_blocks: int) -> None:
        self._begun = 0
        self._ended = 0
        # Which batch of the queue a block waits in; 0 for none. A block that is asked for again
        # leaves its batch by forgetting it.
        self._batch = np.zeros(num_blocks, np.int32)
        self._queue: deque[tuple[int, int, Blocks]] = deque()
        self._next_batch = 1
        self.num_waiting = 0

    @property
    def num_steps(self) -> int:
        """Steps dispatched and not ended."""
        return self._begun - self._ended

    @property
    def nbytes(self) -> int:
        """Bytes of bookkeeping."""
        return self._batch.nbytes

    def begin(self) -> int:
        """A step is dispatched; returns its number."""
        self._begun += 1
        return self._begun

    def end(self, step: int) -> Blocks:
        """A step has ended, and so have all before it; returns the blocks that nobody reads now.

        Raises:
            ValueError: no step in flight has that number.
        """
        if not self._ended < step <= self._begun:
            raise ValueError(
                f"step: got {step}, expected one in flight, from {self._ended + 1} to {self._begun}"
            )
        self._ended = step
        done: list[np.ndarray] = [np.empty(0, np.int32)]
        while self._queue and self._queue[0][0] <= step:
            _, batch, blocks = self._queue.popleft()
            done.append(blocks[self._batch[blocks] == batch])
        blocks = np.concatenate(done)
        self.take_back(blocks)
        return blocks

    def wait(self, blocks: Blocks) -> None:
        """Blocks wait for the steps that are in flight now."""
        self._batch[blocks] = self._next_batch
        self._queue.append((self._begun, self._next_batch, blocks))
        self._next_batch = self._next_batch % (2**31 - 1) + 1
        self.num_waiting += blocks.size

    def take_back(self, blocks: Blocks) -> None:
        """Blocks that wait do so no longer."""
        self._batch[blocks] = 0
        self.num_waiting -= blocks.size

    def waiting(self) -> Int32[np.ndarray, " blocks"]:
        """The blocks that wait."""
        return self._batch.nonzero()[0].astype(np.int32)

    def check_integrity(self) -> None:
        """Each block that waits stands in the batch that it knows.

        Raises:
            IntegrityError: naming the invariant and the numbers that disagree.
        """
        found = [blocks[self._batch[blocks] == batch] for _, batch, blocks in self._queue]
        waiting = self.waiting()
        expect_equal("blocks that wait against their count", waiting.size, self.num_waiting)
        lost = np.setdiff1d(waiting, np.concatenate([np.empty(0, np.int32), *found]))
        expect_none("blocks that wait for no step", lost)
        expect_equal(
            "whether steps are in flight that blocks wait for",
            self.num_steps > 0,
            bool(self._queue) or self.num_steps > 0,
        )
