"""The manager's state, which the operations of the other modules work on."""

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

from paged.blocks import checks
from paged.blocks.copies import PendingCopies
from paged.blocks.events import EventLog
from paged.blocks.groups import Group
from paged.blocks.hashing import Hasher
from paged.blocks.holdings import Holding, Rows
from paged.blocks.host_pool import HostPool
from paged.blocks.partial_tails import PartialTails
from paged.blocks.pool import BlockPool, Blocks
from paged.blocks.prefix_index import PrefixIndex
from paged.blocks.stats import Counters


@dataclass(slots=True, eq=False)
class Core:
    """All of a manager's state.

    Attributes:
        groups: kinds of layers.
        hasher: makes digests; None without prefix caching.
        pool: the blocks on the device.
        index: which of them hold what; None without prefix caching.
        partial_tails: which start like a prompt goes on; None where that is not wanted.
        host: the blocks that are swapped out; None where there is no room for any.
        log: what happened to the index.
        watermark: blocks that an admission leaves free for those that run.
        rows: numbers of the requests on the device.
        holdings: those requests.
        copies: orders that nobody has taken yet.
        counters: what has happened so far.
    """

    groups: tuple[Group, ...]
    hasher: Hasher | None
    pool: BlockPool
    index: PrefixIndex | None
    partial_tails: PartialTails | None
    host: HostPool | None
    log: EventLog
    watermark: int
    rows: Rows
    holdings: dict[Hashable, Holding] = field(default_factory=dict)
    copies: PendingCopies = field(default_factory=PendingCopies)
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self.pool.on_evict = self.evict

    def holding(self, request_id: Hashable) -> Holding:
        """What a request on the device holds.

        Raises:
            ValueError: no such request, or it is swapped out.
        """
        checks.hashable("request_id", request_id)
        holding = self.holdings.get(request_id)
        if holding is None:
            if self.host is not None and request_id in self.host.requests:
                raise ValueError(f"request_id: got {request_id!r}, which is swapped out")
            raise ValueError(
                f"request_id: got {request_id!r}, expected one of the {len(self.holdings)} "
                "request(s) that hold blocks"
            )
        return holding

    def require_new(self, request_id: Hashable) -> None:
        """Refuse a request that is there already.

        Raises:
            ValueError: it is, or can be none.
        """
        checks.hashable("request_id", request_id)
        if request_id in self.holdings:
            raise ValueError(
                f"request_id: got {request_id!r}, which holds "
                f"{self.holdings[request_id].held().size} block(s), expected a new one"
            )
        if self.host is not None and request_id in self.host.requests:
            raise ValueError(
                f"request_id: got {request_id!r}, which is swapped out, expected a new one"
            )

    def evict(self, blocks: Blocks) -> None:
        """Cached blocks are about to be reused."""
        assert self.index is not None
        self.index.evict(blocks)
        if self.partial_tails is not None:
            for block in blocks.tolist():
                self.partial_tails.discard(block)


def limit_of(core: Core, holding: Holding, num_tokens: int) -> int:
    """Tokens below which an append needs no new block, no copy and no release: see `Rows`."""
    limit: float = math.inf
    for group, table, released in zip(core.groups, holding.tables, holding.released, strict=True):
        if num_tokens % group.block_size and core.pool.num_references(table[-1]) > 1:
            return num_tokens
        limit = min(limit, len(table) * group.block_size)
        if group.size is not None:
            limit = min(limit, group.next_release(released))
    return max(num_tokens, int(limit))


def free(core: Core, holding: Holding) -> None:
    """Give back all that a request on the device holds, the last block first to be reused."""
    core.pool.release(holding.held()[::-1])
    unpin(core, holding)
    del core.holdings[holding.request_id]
    core.rows.give_back(holding.row)


def pin(core: Core, holding: Holding) -> None:
    """Hold on to the preimages of a request's chain."""
    if core.index is not None and core.index.preimages is not None and holding.num_entered:
        core.index.preimages.pin(holding.digests[holding.num_entered - 1])


def unpin(core: Core, holding: Holding) -> None:
    """Let go of them."""
    if core.index is not None and core.index.preimages is not None and holding.num_entered:
        core.index.preimages.unpin(holding.digests[holding.num_entered - 1])
