"""A manager's state from its arguments, which are checked here."""

import math

from paged.blocks import checks
from paged.blocks.core import Core
from paged.blocks.events import EventLog
from paged.blocks.groups import Group
from paged.blocks.hashing import Hasher, HashFunction
from paged.blocks.holdings import Rows
from paged.blocks.host_pool import HostPool
from paged.blocks.partial_tails import PartialTails
from paged.blocks.pool import BlockPool
from paged.blocks.prefix_index import PrefixIndex
from paged.blocks.preimages import Preimages


def build_core(
    num_blocks: int,
    groups: tuple[Group, ...],
    *,
    prefix_caching: bool,
    hash: str | HashFunction,
    partial_tails: bool,
    host_blocks: int,
    watermark: int,
    events: bool,
) -> Core:
    """The state of a manager that holds nothing yet; the arguments are those of `KVCacheManager`.

    Raises:
        ValueError: an argument out of range, or num_blocks * block_size of 2**31 or more.
    """
    num_blocks = checks.integer("num_blocks", num_blocks, at_least=2)
    checks.slots_fit("num_blocks", num_blocks, max(group.block_size for group in groups))
    host_blocks = checks.integer("host_blocks", host_blocks, at_least=0)
    watermark = checks.integer("watermark", watermark, at_least=0)
    if watermark >= num_blocks - 1:
        raise ValueError(
            f"watermark: got {watermark}, expected less than the pool's {num_blocks - 1} blocks"
        )
    checks.flag("prefix_caching", prefix_caching)
    checks.flag("partial_tails", partial_tails)
    checks.flag("events", events)
    reads_all = groups[0].size is None and len(groups) == 1
    if partial_tails and not (reads_all and prefix_caching):
        raise ValueError(
            "partial_tails: got True, expected prefix caching and one group that reads all"
        )
    unit = math.gcd(*(group.block_size for group in groups))
    hasher = Hasher.of(hash, unit, keeps_contents=partial_tails) if prefix_caching else None
    pool = BlockPool(num_blocks)
    log = EventLog(events)
    index = None
    if hasher is not None:
        preimages = None if hasher.is_trusted else Preimages()
        index = PrefixIndex(pool, len(groups), hasher.digest_size, preimages, log)
    return Core(
        groups=groups,
        hasher=hasher,
        pool=pool,
        index=index,
        partial_tails=PartialTails(unit) if partial_tails else None,
        host=HostPool(BlockPool(host_blocks + 1)) if host_blocks else None,
        log=log,
        watermark=watermark,
        rows=Rows(unit),
    )
