"""The hash index: which block holds the contents that a digest stands for, in each group."""

from collections.abc import Sequence

import numpy as np

from paged.blocks.errors import expect_equal, expect_none
from paged.blocks.events import AllCleared, BlocksRemoved, BlocksStored, EventLog
from paged.blocks.pool import BlockPool, Blocks
from paged.blocks.preimages import Preimages

Shards = tuple[dict[bytes, int], ...]

_NUM_SHARDS = 256
"""Dictionaries of a group, by the first byte of a digest. A dictionary is rebuilt now and then, at
once: of ten million entries that takes 0.4 s (CPython 3.11, 2026-11), of a shard of them 2 ms."""


class PrefixIndex:
    """Digest to block, and back. One block a digest and group: the first to come.

    A block in the index has the label group + 1, and its digest in a row of an array, so that
    millions of them cost no collector's time.

    Args:
        pool: whose labels the index keeps.
        num_groups: groups.
        digest_size: bytes of a digest.
        preimages: kept where the hash is not trusted; None where it is.
        log: is told what is stored and removed.

    Attributes:
        num_evictions: blocks that lost their contents so far.
    """

    __slots__ = ("_blocks", "_digests", "_log", "_pool", "num_evictions", "preimages")

    def __init__(
        self,
        pool: BlockPool,
        num_groups: int,
        digest_size: int,
        preimages: Preimages | None,
        log: EventLog,
    ) -> None:
        self._pool = pool
        self._blocks: tuple[Shards, ...] = tuple(
            tuple({} for _ in range(_NUM_SHARDS)) for _ in range(num_groups)
        )
        # Of raw bytes, which numpy reads and writes as bytes objects.
        self._digests = np.zeros(pool.num_blocks, np.dtype(f"V{digest_size}"))
        self._log = log
        self.preimages = preimages
        self.num_evictions = 0

    def __len__(self) -> int:
        return sum(len(known) for shards in self._blocks for known in shards)

    @property
    def nbytes(self) -> int:
        """Bytes of bookkeeping beside the dictionaries."""
        return self._digests.nbytes

    def block(self, group: int, digest: bytes) -> int | None:
        """The block that holds what a digest stands for; None where there is none."""
        return self._blocks[group][digest[0]].get(digest)

    def items(self, group: int) -> list[tuple[bytes, int]]:
        """All digests of a group and their blocks."""
        return [item for known in self._blocks[group] for item in known.items()]

    def leading(self, group: int, digests: Sequence[bytes]) -> list[int]:
        """The blocks of the leading digests, up to the first that has none."""
        shards, found = self._blocks[group], []
        for digest in digests:
            block = shards[digest[0]].get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def add(self, group: int, digests: Sequence[bytes], blocks: Blocks) -> None:
        """Enter full blocks. Where a digest has a block already, the new one stays outside.

        No table is rewritten to make two blocks one: whoever computed the second keeps it. A block
        that is in the index already stays as it is.
        """
        # The type that numpy would convert it to at every use.
        blocks = blocks.astype(np.intp)
        is_new = self._pool.labels[blocks] == 0
        if np.count_nonzero(is_new) < len(digests):
            digests = [digests[place] for place in is_new.nonzero()[0].tolist()]
            blocks = blocks[is_new]
        shards = self._blocks[group]
        ids = blocks.tolist()
        fresh = [
            place
            for place, (digest, block) in enumerate(zip(digests, ids, strict=True))
            if shards[digest[0]].setdefault(digest, block) == block
        ]
        if not fresh:
            return
        if len(fresh) < len(digests):
            digests, blocks = [digests[place] for place in fresh], blocks[fresh]
        self._label(group, digests, blocks)
        if self.preimages is not None:
            for digest in digests:
                self.preimages.pin(digest)
        if self._log.is_on:
            self._log.add(BlocksStored(group, tuple(digests), tuple(blocks.tolist())))

    def evict(self, blocks: Blocks) -> None:
        """Forget blocks of the index, which are about to be reused."""
        # The type that numpy would convert it to at every use.
        blocks = blocks.astype(np.intp)
        if len(self._blocks) == 1:
            self._evict_from(0, blocks)
        else:
            labels = self._pool.labels[blocks]
            for label in sorted(set(labels.tolist())):
                self._evict_from(label - 1, blocks[labels == label])
        self._pool.labels[blocks] = 0
        self.num_evictions += blocks.size

    def restore(self, group: int, digests: Sequence[bytes], blocks: Blocks) -> None:
        """Take over entries that were saved; their preimages are restored apart."""
        for digest, block in zip(digests, blocks.tolist(), strict=True):
            self._blocks[group][digest[0]][digest] = block
        self._label(group, digests, blocks)

    def clear(self) -> None:
        """Forget all."""
        for group, shards in enumerate(self._blocks):
            if self.preimages is not None:
                for digest, _ in self.items(group):
                    self.preimages.unpin(digest)
            for known in shards:
                known.clear()
        self._pool.labels[:] = 0
        self._log.add(AllCleared())

    def check_integrity(self) -> None:
        """Digest to block and block to digest agree, and labels are those of the index.

        Raises:
            IntegrityError: naming the invariant and the numbers that disagree.
        """
        labels = np.zeros_like(self._pool.labels)
        for group in range(len(self._blocks)):
            known = dict(self.items(group))
            blocks = np.fromiter(known.values(), np.int32, len(known))
            expect_equal(
                f"blocks of the index in group {group}", np.unique(blocks).size, len(known)
            )
            expect_none("blocks of two groups", blocks[labels[blocks] != 0])
            labels[blocks] = group + 1
            expect_equal(
                f"digests of group {group}, by block and by digest",
                self._digests_of(blocks) == list(known),
                True,
            )
        wrong = (labels != self._pool.labels).nonzero()[0]
        expect_none("blocks whose label is not that of the index", wrong)

    def _evict_from(self, group: int, blocks: Blocks) -> None:
        digests = self._digests_of(blocks)
        shards = self._blocks[group]
        for digest in digests:
            del shards[digest[0]][digest]
        if self.preimages is not None:
            for digest in digests:
                self.preimages.unpin(digest)
        if self._log.is_on:
            self._log.add(BlocksRemoved(group, tuple(digests)))

    def _digests_of(self, blocks: Blocks) -> list[bytes]:
        return self._digests[blocks].tolist()

    def _label(self, group: int, digests: Sequence[bytes], blocks: Blocks) -> None:
        """Note at blocks which digests they hold."""
        self._digests[blocks] = np.frombuffer(b"".join(digests), self._digests.dtype)
        self._pool.labels[blocks] = group + 1
