"""States every invariant of the manager's state. Cheap: a few passes over arrays."""

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
        both = [request for request in core.host.requests if request in core.holdings]
        expect_equal("requests both on the device and on the host", both, [])


def _check_holding(core: Core, holding: Holding) -> None:
    who, rows, row = f"request {holding.request_id!r}", core.rows, holding.row
    expect_equal(f"request of row {row}", rows.holdings[row] is holding, True)
    tokens, committed = int(rows.num_tokens[row]), int(rows.committed[row])
    drafts = int(rows.num_drafts[row])
    expect_equal(f"{who}: tokens in order", 0 <= committed <= tokens - drafts <= tokens, True)
    if core.hasher is not None and holding.prompt is not None:
        known = max(committed, len(holding.prompt)) // core.hasher.unit
        expect_equal(f"digests of {who}", len(holding.digests), known)
    for number, group in enumerate(core.groups):
        table, released = holding.tables[number], holding.released[number]
        blocks = holding.blocks(number, 0)
        what = f"{who} in group {number}" if number else who
        expect_equal(
            f"blocks of {what} for its {tokens} tokens", len(table), group.num_blocks(tokens)
        )
        expect_none(
            f"blocks of {what} before its window",
            blocks[:released][blocks[:released] != NULL_BLOCK],
        )
        kept = blocks[released:]
        expect_equal(f"distinct blocks of {what}", np.unique(kept).size, kept.size)
        expect_equal(f"null blocks among those of {what}", int((kept == NULL_BLOCK).sum()), 0)
        expect_equal(
            f"blocks given back of {what}, at most those before its window",
            released <= group.first_block(tokens - drafts),
            True,
        )
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
