"""Admission: what of a prompt is cached, and blocks for the rest, all or nothing."""

from array import array
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from paged.blocks.core import Core, limit_of, pin
from paged.blocks.errors import NeverFits
from paged.blocks.groups import common_hit
from paged.blocks.hashing import Prompt
from paged.blocks.holdings import Holding
from paged.blocks.pool import NO_BLOCKS, Blocks


@dataclass(frozen=True, slots=True)
class Admission:
    """What a request was given.

    Attributes:
        row: its row in a batch.
        num_cached_tokens: leading tokens that need not be computed.
        num_copied_tokens: how many of them, the last ones, a copy order brings.
        block_ids: for each group its blocks; the null block where none is needed any more.
    """

    row: int
    num_cached_tokens: int
    num_copied_tokens: int
    block_ids: tuple[list[int], ...]


@dataclass(frozen=True, slots=True)
class Hit:
    """What is cached of a prompt.

    Attributes:
        num_tokens: leading tokens whose blocks can be shared.
        tables: for each group the blocks of these tokens.
        source: block whose first tokens are the prompt's next ones; the null block for none.
        num_copied: how many those are.
    """

    num_tokens: int
    tables: tuple[list[int], ...]
    source: int = 0
    num_copied: int = 0

    @property
    def shared(self) -> Blocks:
        """The blocks to share, of all groups."""
        blocks = [block for table in self.tables for block in table if block]
        return np.array(blocks, np.int32) if blocks else NO_BLOCKS


def find_hit(core: Core, prompt: Prompt | None) -> Hit:
    """What of a prompt is cached now. Its last token never is: it has to be computed."""
    if prompt is None or core.index is None or core.hasher is None:
        return Hit(0, tuple([] for _ in core.groups))
    index, unit = core.index, core.hasher.unit
    digests = prompt.digests
    num_units = (len(prompt) - 1) // unit
    if index.preimages is not None:
        known = index.preimages.num_known(prompt.root, digests, prompt.contents)
        num_units = min(num_units, known)
    if len(core.groups) == 1 and core.groups[0].size is None:
        table = index.leading(0, digests[:num_units])
        hit = Hit(len(table) * unit, (table,))
        return hit if core.partial_tails is None else _with_partial_tail(core, prompt, hit)

    ratios = [group.block_size // unit for group in core.groups]

    def block(group: int, place: int) -> int | None:
        return index.block(group, digests[(place + 1) * ratios[group] - 1])

    length = common_hit(
        num_units * unit, core.groups, lambda group, place: block(group, place) is not None
    )
    tables = []
    for number, group in enumerate(core.groups):
        first, last = group.first_block(length), length // group.block_size
        blocks = [block(number, place) or 0 for place in range(first, last)]
        tables.append([0] * first + blocks)
    return Hit(length, tuple(tables))


def num_new_blocks(core: Core, hit: Hit, num_tokens: int) -> int:
    """Blocks to take for the tokens after a hit, over all groups."""
    return sum(
        group.num_blocks(num_tokens) - len(table)
        for group, table in zip(core.groups, hit.tables, strict=True)
    )


def num_slots(hit: Hit, num_tokens: int, chunk: int | None) -> int:
    """Tokens that get slots at first: all, or a chunk beside what is cached."""
    if chunk is None:
        return num_tokens
    return min(num_tokens, hit.num_tokens + hit.num_copied + chunk)


def peak_blocks(core: Core, num_tokens: int, chunk: int | None, hit: int = 0) -> int:
    """The most blocks that a request of `num_tokens` tokens holds at once, over all groups."""
    return sum(group.peak_blocks(num_tokens, chunk, hit) for group in core.groups)


def spare_blocks(core: Core) -> int:
    """Blocks that an admission must leave free. Where nobody runs there is nobody to keep for."""
    return core.watermark if core.holdings else 0


def can_admit(
    core: Core, prompt: Prompt | None, num_tokens: int, chunk: int | None, spare: int = 0
) -> bool:
    """Whether `admit` would succeed now, and leave `spare` blocks free."""
    hit = find_hit(core, prompt)
    if peak_blocks(core, num_tokens, chunk, hit.num_tokens) > core.pool.num_blocks - 1:
        return False
    shared = hit.shared
    # A hit block that is free is taken from the free ones like any other.
    revived = core.pool.num_free_among(shared)
    wanted = num_new_blocks(core, hit, num_slots(hit, num_tokens, chunk)) + revived
    return wanted + max(spare, spare_blocks(core)) <= core.pool.num_free


def admit(
    core: Core,
    request_id: Hashable,
    prompt: Prompt | None,
    num_tokens: int,
    chunk: int | None,
) -> Admission:
    """Give a new request what is cached of its prompt and blocks for the rest.

    Raises:
        NeverFits: it needs more blocks than the pool has.
        OutOfBlocks: too few are free now.
    """
    hit = find_hit(core, prompt)
    peak = peak_blocks(core, num_tokens, chunk, hit.num_tokens)
    if peak > core.pool.num_blocks - 1:
        raise NeverFits(peak, core.pool.num_blocks - 1)
    slots = num_slots(hit, num_tokens, chunk)
    shared = hit.shared
    count = num_new_blocks(core, hit, slots)
    # The one call that may fail: from here on nothing does.
    fresh = core.pool.acquire(count, shared, spare=spare_blocks(core))
    tables, start = [], 0
    for group, cached in zip(core.groups, hit.tables, strict=True):
        end = start + group.num_blocks(slots) - len(cached)
        table = array("i", cached)
        table.frombytes(fresh[start:end].tobytes())
        tables.append(table)
        start = end
    cached_tokens = hit.num_tokens + hit.num_copied
    if hit.source:
        _order_copy(core, hit.source, int(fresh[0]))
    released = [group.first_block(hit.num_tokens) for group in core.groups]
    holding = Holding(request_id, core.rows.take(), tables, released, prompt)
    enroll(core, holding, slots, cached_tokens)
    if prompt is not None:
        holding.digests = list(prompt.digests)
        holding.contents = list(prompt.contents)
        if core.hasher is not None and not core.hasher.is_trusted:
            holding.num_entered = hit.num_tokens // core.hasher.unit
            pin(core, holding)
        core.counters.prompt_tokens += len(prompt)
        core.counters.hit_tokens += cached_tokens
    return Admission(
        holding.row, cached_tokens, hit.num_copied, tuple(table.tolist() for table in tables)
    )


def enroll(core: Core, holding: Holding, num_tokens: int, committed: int) -> None:
    """Enter a request and its numbers."""
    rows, row = core.rows, holding.row
    core.holdings[holding.request_id] = holding
    rows.holdings[row] = holding
    rows.num_tokens[row] = num_tokens
    rows.committed[row] = committed
    rows.limit[row] = limit_of(core, holding, num_tokens)


def _with_partial_tail(core: Core, prompt: Prompt, hit: Hit) -> Hit:
    """The hit, and a block to copy the next few tokens from, where there is one."""
    assert core.partial_tails is not None
    assert core.hasher is not None
    start, unit = hit.num_tokens, core.hasher.unit
    # One token is left to compute here as well.
    tokens = prompt.token_ids[start : min(start + unit, len(prompt) - 1)]
    if not tokens.size or prompt.keys.of_block(start, start + unit):
        return hit
    parent = prompt.digests[start // unit - 1] if start else prompt.root
    source, count = core.partial_tails.find(parent, tokens)
    return Hit(hit.num_tokens, hit.tables, source, count) if count else hit


def _order_copy(core: Core, source: int, destination: int) -> None:
    # The very block may have been taken: then its first tokens are where they should be.
    if source != destination:
        core.copies.on_device(source, destination)
        core.counters.partial_copies += 1
