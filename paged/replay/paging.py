"""Paged allocation: blocks from the block manager, one by one as a request grows.

Where the trace says what prompts share, the manager's own prefix cache finds it: a prompt's full
blocks are known from its admission on. What was generated is not: no trace says what it was, so
that no later prompt can be seen to repeat it.
"""

import numpy as np
from jaxtyping import Int64

from paged.blocks import KVCacheManager, OutOfBlocks, Prompt
from paged.replay.memory import Held, Slots, Steps
from paged.replay.trace import OUTPUT_TOKEN, Trace


class Paged:
    """Blocks of one size from a `KVCacheManager`; see `Memory`.

    The manager's null block and what is left over at the end of the pool are not for requests.

    Args:
        trace: the requests.
        pool_slots: slots of the pool.
        block_size: tokens per block.
        watermark: share of the blocks that an admission leaves free for those that run. What it
            keeps from the first in line is external waste.

    Raises:
        ValueError: an argument out of range, or a pool of less than two blocks.
    """

    name = "paged"

    def __init__(
        self, trace: Trace, pool_slots: int, block_size: int, *, watermark: float = 0.01
    ) -> None:
        if block_size < 1:
            raise ValueError(f"block_size: got {block_size}, expected at least 1")
        if not 0 <= watermark < 1:
            raise ValueError(f"watermark: got {watermark}, expected from 0 to less than 1")
        num_blocks = pool_slots // block_size
        if num_blocks < 2:
            raise ValueError(
                f"pool: got {pool_slots} slots, expected at least two blocks of {block_size}"
            )
        self.block_size = block_size
        self.pool_slots = (num_blocks - 1) * block_size
        self.refused_slots = 0
        self._trace = trace
        self._finals = trace.finals
        self._watermark = int(watermark * (num_blocks - 1))
        self._manager = KVCacheManager(
            num_blocks,
            block_size,
            prefix_caching=trace.hash_ids is not None,
            watermark=self._watermark,
        )
        # By request, while it runs: its row in the manager's batches.
        self._rows = np.zeros(len(trace), np.int64)
        # Of the first in line and of those that run: hashed once.
        self._prompts: dict[int, Prompt] = {}

    @property
    def num_free(self) -> int:
        """Slots of free blocks, those included whose contents are still cached."""
        return self._manager.num_free_blocks * self.block_size

    def refusal(self, request: int) -> str | None:
        """Where it fills more blocks than there are."""
        final = int(self._finals[request])
        if self._manager.fits(final):
            return None
        wanted = self._manager.num_blocks_needed(final) * self.block_size
        return f"policy paged needs {wanted} slots in blocks of {self.block_size} for it"

    def admit(self, request: int, num_tokens: int) -> int | None:
        """Blocks for the tokens that are known; those that others have computed are shared."""
        try:
            num_cached = self._allocate(request, num_tokens)
        except OutOfBlocks as error:
            self.refused_slots = (error.wanted - self._watermark) * self.block_size
            return None
        self._rows[request] = self._manager.row(request)
        return num_cached

    def reach(self, slots: Slots, most: int) -> int:
        """As many steps as the free blocks last."""
        free = self._manager.num_free_blocks
        return int(np.searchsorted(self._added(slots, most), free, side="right"))

    def grow(self, requests: Int64[np.ndarray, " running"], steps: int) -> None:
        """A token more for each request, as often as that."""
        rows = self._rows[requests]
        for _ in range(steps):
            self._manager.append_batch(rows)

    def release(self, request: int) -> None:
        """Give the blocks back; what is cached of them can be found until they are reused."""
        self._manager.free(request)
        self._prompts.pop(request, None)

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

    def _allocate(self, request: int, num_tokens: int) -> int:
        """Blocks for a request; returns how many of its tokens are cached.

        Raises:
            OutOfBlocks: too few are free.
        """
        if self._trace.hash_ids is None:
            self._manager.allocate_slots(request, num_tokens)
            return 0
        prompt = self._prompts.get(request)
        if prompt is None:
            prompt = self._manager.prompt(self._trace.token_ids(request))
            self._prompts[request] = prompt
        generated = np.full(num_tokens - len(prompt), OUTPUT_TOKEN, np.int32)
        known = prompt.followed_by(generated) if generated.size else prompt
        admission = self._manager.admit(request, known)
        # The next one admitted to this step may share them: it attends after they are written.
        self._manager.commit_prompt(request, len(prompt))
        return admission.num_cached_tokens

    def _added(self, slots: Slots, steps: int) -> Steps:
        """Blocks that have been added after each of the coming steps, over all requests."""
        size = self.block_size
        # A request whose slots fill its last block takes one in the first step, and so on.
        due = np.bincount(-slots % size, minlength=size)
        return due[np.arange(steps) % size].cumsum()
