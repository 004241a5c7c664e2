"""The second pool: blocks on the host, and the requests that are swapped out to it."""

from array import array
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int32

from paged.blocks.errors import expect_none
from paged.blocks.holdings import Holding
from paged.blocks.pool import BlockPool, Blocks


@dataclass(slots=True, eq=False)
class Swapped:
    """A request that is swapped out: what it holds, and where.

    Attributes:
        holding: its tables hold the null block for each block that lies on the host.
        host_tables: for each group the host's block of each entry; 0 where there was none.
        num_tokens: tokens with slots.
        committed: tokens whose ids are known and computed.
        tail: those that fill no unit of the hash yet.
    """

    holding: Holding
    host_tables: list[array]
    num_tokens: int
    committed: int
    tail: Int32[np.ndarray, " unit"]

    def held(self) -> Blocks:
        """All blocks on the host."""
        blocks = np.concatenate([np.array(table, np.int32) for table in self.host_tables])
        return blocks[blocks != 0]


@dataclass(slots=True, eq=False)
class HostPool:
    """Blocks on the host.

    A block that was swapped in is read by an order that is still to be carried out, so it comes
    back only when the orders are taken.

    Attributes:
        pool: the blocks; number 0 is never used.
        requests: who is swapped out.
        leaving: blocks that come back when the orders are taken.
    """

    pool: BlockPool
    requests: dict[Hashable, Swapped] = field(default_factory=dict)
    leaving: list[Blocks] = field(default_factory=list)

    def settle(self) -> None:
        """The orders were taken."""
        for blocks in self.leaving:
            self.pool.release(blocks)
        self.leaving.clear()

    def check_integrity(self) -> None:
        """The pool agrees with itself and with who is swapped out.

        Raises:
            IntegrityError: naming the invariant and the numbers that disagree.
        """
        held = [*(swapped.held() for swapped in self.requests.values()), *self.leaving]
        blocks = np.concatenate([np.empty(0, np.int32), *held])
        counts = np.bincount(blocks, minlength=self.pool.num_blocks)
        # Whoever is swapped out has a copy of its own.
        expect_none("host blocks held more than once", (counts > 1).nonzero()[0])
        self.pool.check_integrity(counts)
