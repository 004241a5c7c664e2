"""Paged allocation: blocks from the block manager, one by one as a request grows."""

import numpy as np
from jaxtyping import Int64

from paged.blocks import KVCacheManager, OutOfBlocks
from paged.replay.memory import Held, Slots, Steps
from paged.replay.trace import Trace


class Paged:
    """Blocks of one size from a `KVCacheManager`; see `Memory`.

    The manager's null block and what is left over at the end of the pool are not for requests.

    Args:
        trace: the requests.
        pool_slots: slots of the pool.
        block_size: tokens per block.

    Raises:
        ValueError: a pool of less than two blocks.
    """

    name = "paged"

    def __init__(self, trace: Trace, pool_slots: int, block_size: int) -> None:
        num_blocks = pool_slots // block_size
        if num_blocks < 2:
            raise ValueError(
                f"pool: got {pool_slots} slots, expected at least two blocks of {block_size}"
            )
        self.block_size = block_size
        self.pool_slots = (num_blocks - 1) * block_size
        self._trace = trace
        self._finals = trace.finals
        self._manager = KVCacheManager(num_blocks, block_size)

    @property
    def num_free(self) -> int:
        """Slots of free blocks, those included whose contents are still cached."""
        return self._manager.num_free_blocks * self.block_size

    def refusal(self, request: int) -> str | None:
        """Where it fills more blocks than there are."""
        wanted = self.wanted(request, int(self._finals[request]))
        if wanted <= self.pool_slots:
            return None
        return f"policy paged needs {wanted} slots in blocks of {self.block_size} for it"

    def wanted(self, request: int, num_tokens: int) -> int:
        """Whole blocks for the tokens that are known."""
        return -(-num_tokens // self.block_size) * self.block_size

    def admit(self, request: int, num_tokens: int) -> int | None:
        """Blocks for the tokens that are known."""
        try:
            self._manager.allocate_slots(request, num_tokens)
        except OutOfBlocks:
            return None
        return 0

    def reach(self, slots: Slots, most: int) -> int:
        """As many steps as the free blocks last."""
        free = self._manager.num_free_blocks
        return int(np.searchsorted(self._added(slots, most), free, side="right"))

    def grow(self, requests: Int64[np.ndarray, " running"], steps: int) -> None:
        """A block for each request that fills its last one."""
        for request in requests.tolist():
            self._manager.append_slots(request, steps)

    def release(self, request: int) -> None:
        """Give the blocks back; what is cached of them can be found until they are reused."""
        self._manager.free(request)

    def held(self, slots: Slots, finals: Slots, ahead: Steps) -> Held:
        """Blocks that are shared count once; only a request's last block has empty slots."""
        size, last = self.block_size, int(ahead[-1])
        added = size * np.concatenate([[0], self._added(slots, last)])[ahead]
        # What is never used shows when a request enters its last block.
        enters = np.clip((finals - 1) // size * size + 1 - slots, 0, last + 1)
        internal = np.zeros(last + 2, np.int64)
        np.add.at(internal, enters, -finals % size)
        return Held(
            self.pool_slots - self.num_free + added,
            (-slots % size).sum() + added - slots.size * ahead,
            internal.cumsum()[ahead],
        )

    def _added(self, slots: Slots, steps: int) -> Steps:
        """Blocks that have been added after each of the coming steps, over all requests."""
        size = self.block_size
        # A request whose slots fill its last block takes one in the first step, and so on.
        due = np.bincount(-slots % size, minlength=size)
        return due[np.arange(steps) % size].cumsum()
