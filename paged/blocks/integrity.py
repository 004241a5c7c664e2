"""States every invariant of the manager's state. Cheap: a few passes over arrays."""

from array import array
from collections.abc import Sequence

import numpy as np

from paged.blocks.core import Core, limit_of
from paged.blocks.errors import expect_equal, expect_none
from paged.blocks.holdings import Holding
from paged.blocks.pool import NULL_BLOCK


def check_integrity(core: Core) -> None:
    """Compare all bookkeeping with itself; walks the whole pool.

    Raises:
        IntegrityError: naming the invariant and the numbers that disagree.
    """
    held = [holding.held() for holding in core.holdings.values()]
    blocks = np.concatenate([np.empty(0, np.int32), *held])
    beyond = blocks[(blocks < 0) | (blocks >= core.pool.num_blocks)]
    expect_none("blocks held that are not in the pool", beyond)
    for holding in core.holdings.values():
        _check_holding(core, holding)
    core.pool.check_integrity(np.bincount(blocks, minlength=core.pool.num_blocks))
    in_use = [row for row, holding in enumerate(core.rows.holdings) if holding is not None]
    expect_equal("rows in use", in_use, sorted(holding.row for holding in core.holdings.values()))
    if core.index is not None:
        core.index.check_integrity()
        _check_preimages(core)
        if core.partial_tails is not None:
            expect_none(
                "blocks that serve partial hits and are not in the index",
                [
                    b
                    for b in range(core.pool.num_blocks)
                    if b in core.partial_tails and not core.pool.labels[b]
                ],
            )
    if core.host is not None:
        core.host.check_integrity()
        for each in core.host.requests.values():
            check_numbers(core, each.holding, each.host_tables, each.num_tokens, 0, each.committed)
        both = [request for request in core.host.requests if request in core.holdings]
        expect_equal("requests both on the device and on the host", both, [])


def _check_holding(core: Core, holding: Holding) -> None:
    who, rows, row = f"request {holding.request_id!r}", core.rows, holding.row
    expect_equal(f"request of row {row}", rows.holdings[row] is holding, True)
    tokens, committed = int(rows.num_tokens[row]), int(rows.committed[row])
    drafts = int(rows.num_drafts[row])
    check_numbers(core, holding, holding.tables, tokens, drafts, committed)
    for number, group in enumerate(core.groups):
        released, blocks = holding.released[number], holding.blocks(number, 0)
        what = _in_group(who, number)
        kept = blocks[released:]
        expect_none(
            f"blocks of {what} that are in the index of another group",
            kept[(core.pool.labels[kept] != 0) & (core.pool.labels[kept] != number + 1)],
        )
        # A block with empty slots will be written to, so nobody may find it.
        full = committed // group.block_size
        open_blocks = blocks[max(full, released) :]
        shared = core.pool.labels[open_blocks] != 0
        expect_none(f"blocks of {what} in the index that are not computed", open_blocks[shared])
    # It may be lower: who shared a block and wrote elsewhere leaves the others' limits as they are.
    most = limit_of(core, holding, tokens)
    expect_equal(
        f"limit of {who}, {rows.limit[row]}, at most {most}", rows.limit[row] <= most, True
    )


def check_numbers(
    core: Core,
    holding: Holding,
    tables: Sequence[array],
    num_tokens: int,
    num_drafts: int,
    committed: int,
) -> None:
    """What a request's numbers have to be by its tables and its chain, on the device or the host.

    Of `committed` only the range is known: within a prompt, or within a unit after it, nothing
    tells a smaller number from one of a request that has computed less.

    Args:
        core: the state.
        holding: the request.
        tables: its blocks, on the device or on the host.
        num_tokens: tokens with slots, drafts included.
        num_drafts: the last of them.
        committed: tokens whose ids are known and computed.

    Raises:
        IntegrityError: naming the number that disagrees.
    """
    who, hasher, prompt = f"request {holding.request_id!r}", core.hasher, holding.prompt
    expect_equal(
        f"num_tokens of {who}, {num_tokens}, more than its num_drafts, {num_drafts}",
        0 <= num_drafts < num_tokens,
        True,
    )
    most = 0 if prompt is None else num_tokens - num_drafts
    expect_equal(f"committed of {who}, {committed}, at most {most}", 0 <= committed <= most, True)
    known = entered = 0
    if hasher is not None and prompt is not None:
        known = max(committed, len(prompt)) // hasher.unit
        entered = 0 if hasher.is_trusted else committed // hasher.unit
    expect_equal(f"digests of {who}", len(holding.digests), known)
    keeps = hasher is not None and hasher.keeps_contents
    expect_equal(f"contents of {who}", len(holding.contents), known if keeps else 0)
    expect_equal(
        f"num_entered of {who}, {holding.num_entered}, at most {entered}",
        0 <= holding.num_entered <= entered,
        True,
    )
    for number, group in enumerate(core.groups):
        what, released = _in_group(who, number), holding.released[number]
        blocks = np.array(tables[number], np.int32)
        expect_equal(
            f"blocks of {what} for its num_tokens, {num_tokens}",
            blocks.size,
            group.num_blocks(num_tokens),
        )
        most = group.first_block(num_tokens - num_drafts)
        expect_equal(
            f"released of {what}, {released}, at most the {most} blocks before its window",
            0 <= released <= most,
            True,
        )
        gone, kept = blocks[:released], blocks[released:]
        expect_none(f"blocks of {what} before its window", gone[gone != NULL_BLOCK])
        expect_equal(f"distinct blocks of {what}", np.unique(kept).size, kept.size)
        expect_equal(f"null blocks among those of {what}", int((kept == NULL_BLOCK).sum()), 0)


def _in_group(who: str, number: int) -> str:
    return f"{who} in group {number}" if number else who


def _check_preimages(core: Core) -> None:
    assert core.index is not None
    preimages = core.index.preimages
    if preimages is None:
        return
    pinned = [digest for g in range(len(core.groups)) for digest, _ in core.index.items(g)]
    holdings = list(core.holdings.values())
    if core.host is not None:
        holdings += [swapped.holding for swapped in core.host.requests.values()]
    pinned += [h.digests[h.num_entered - 1] for h in holdings if h.num_entered]
    preimages.check_integrity(pinned)
