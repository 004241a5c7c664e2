"""Growth: slots for a request's next tokens, copies of blocks that it shares, and rollback."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from paged.blocks.core import Core, limit_of
from paged.blocks.holdings import Holding
from paged.blocks.pool import NULL_BLOCK


@dataclass(frozen=True, slots=True)
class TableChanges:
    """Entries of block tables that were written: what a table on the device has to follow.

    Attributes:
        rows: [changes] int32, the request's row.
        groups: [changes] int32.
        columns: [changes] int32, the place in the table.
        blocks: [changes] int32, the block that stands there now.
    """

    rows: Int32[np.ndarray, " changes"]
    groups: Int32[np.ndarray, " changes"]
    columns: Int32[np.ndarray, " changes"]
    blocks: Int32[np.ndarray, " changes"]

    def __len__(self) -> int:
        return self.rows.size

    @classmethod
    def of(cls, entries: Sequence[tuple[int, int, int, int]]) -> "TableChanges":
        """From (row, group, column, block) of each."""
        columns = np.array(entries, np.int32).reshape(-1, 4).T
        return cls(*columns)


NO_CHANGES = TableChanges.of(())
"""No table was written to."""


class _Step(NamedTuple):
    """What one table needs: a copy of its last block, then `added` blocks."""

    holding: Holding
    group: int
    copies: bool
    added: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What an append needs.

    Attributes:
        steps: for each table that needs something.
        num_blocks: blocks in all.
    """

    steps: list[_Step]
    num_blocks: int


def plan(core: Core, asks: Iterable[tuple[Holding, int, int]]) -> Plan:
    """What it takes that requests grow: (holding, tokens now, tokens then) of each."""
    steps: list[_Step] = []
    total = 0
    leaving: dict[int, int] = {}
    for holding, now, then in asks:
        for number, group in enumerate(core.groups):
            table = holding.tables[number]
            added = group.num_blocks(then) - len(table)
            copies = False
            if now % group.block_size:
                last = table[-1]
                # The last of those that share a block writes to it; the others go before.
                gone = leaving.get(last, 0)
                copies = core.pool.num_references(last) - gone > 1
                leaving[last] = gone + copies
            if copies or added:
                steps.append(_Step(holding, number, copies, added))
                total += copies + added
    return Plan(steps, total)


def grow(core: Core, asks: Sequence[tuple[Holding, int, int]]) -> TableChanges:
    """Slots for requests' next tokens: (holding, tokens now, tokens then) of each.

    The caller writes the new number of tokens to the rows.

    Raises:
        OutOfBlocks: too few blocks are free for all of them.
    """
    planned = plan(core, asks)
    # The one call that may fail: from here on nothing does.
    fresh = core.pool.acquire(planned.num_blocks).tolist() if planned.num_blocks else []
    changes: list[tuple[int, int, int, int]] = []
    place = 0
    for step in planned.steps:
        table, row = step.holding.tables[step.group], step.holding.row
        if step.copies:
            _copy_on_write(core, table, fresh[place])
            place += 1
            changes.append((row, step.group, len(table) - 1, table[-1]))
        for block in fresh[place : place + step.added]:
            changes.append((row, step.group, len(table), block))
            table.append(block)
        place += step.added
    slides = any(group.size is not None for group in core.groups)
    for holding, now, then in asks:
        if slides:
            _release_unread(core, holding, now, changes)
        core.rows.limit[holding.row] = limit_of(core, holding, then)
    return TableChanges.of(changes)


def grow_batch(
    core: Core, rows: Int64[np.ndarray, " batch"], num_tokens: Int64[np.ndarray, " batch"]
) -> TableChanges:
    """A slot for one more token of each of several rows that are at their limit.

    Args:
        core: the state.
        rows: distinct.
        num_tokens: of each, before.

    Raises:
        OutOfBlocks: too few blocks are free for all of them.
        ValueError: a row that is not in use, or with drafts.
    """
    holdings, group = core.rows.at(rows), core.groups[0]
    drafts = core.rows.num_drafts[rows]
    if np.count_nonzero(drafts):
        row = rows[drafts.argmax()]
        raise ValueError(f"rows: got {row}, with drafts, expected them accepted or not")
    reads_all = group.size is None and len(core.groups) == 1
    columns, offsets = np.divmod(num_tokens, group.block_size)
    if reads_all and not np.count_nonzero(offsets):
        return _add_a_block_each(core, rows, holdings, columns)
    asks = zip(holdings, num_tokens.tolist(), (num_tokens + 1).tolist(), strict=True)
    return grow(core, list(asks))


def shrink(core: Core, holding: Holding, num_tokens: int) -> None:
    """Take back slots at the end of a request, and the blocks that are left without any."""
    for number, group in enumerate(core.groups):
        table = holding.tables[number]
        kept = group.num_blocks(num_tokens)
        core.pool.release(holding.blocks(number, kept)[::-1])
        del table[kept:]
    core.rows.num_tokens[holding.row] = num_tokens
    core.rows.limit[holding.row] = limit_of(core, holding, num_tokens)


def _add_a_block_each(
    core: Core,
    rows: Int64[np.ndarray, " batch"],
    holdings: Sequence[Holding],
    columns: Int64[np.ndarray, " batch"],
) -> TableChanges:
    """`grow` where every table is full, so that nothing is written to a block that others read.

    It is what most steps need, so it goes through the batch in arrays.

    Args:
        core: the state.
        rows: distinct.
        holdings: their requests.
        columns: the length of the table of each.
    """
    fresh = core.pool.acquire(rows.size)
    for holding, block in zip(holdings, fresh.tolist(), strict=True):
        holding.tables[0].append(block)
    core.rows.limit[rows] = (columns + 1) * core.groups[0].block_size
    group = np.zeros(rows.size, np.int32)
    return TableChanges(rows.astype(np.int32), group, columns.astype(np.int32), fresh)


def _copy_on_write(core: Core, table: array, copy: int) -> None:
    """Put a copy in place of the last block, which others read on."""
    shared = table[-1]
    core.copies.on_device(shared, copy)
    core.counters.write_copies += 1
    table[-1] = copy
    core.pool.release([shared])


def _release_unread(
    core: Core, holding: Holding, position: int, changes: list[tuple[int, int, int, int]]
) -> None:
    """Give back the blocks that the query at `position`, and all after it, read no more.

    `position` is the first that the coming step computes: drafts after it may be rejected, but it
    will not be computed again.
    """
    for number, group in enumerate(core.groups):
        if group.size is None:
            continue
        before, after = holding.released[number], group.first_block(position)
        if after > before:
            core.pool.release(holding.blocks(number, before, after)[::-1])
            table = holding.tables[number]
            for column in range(before, after):
                table[column] = NULL_BLOCK
                changes.append((holding.row, number, column, NULL_BLOCK))
            holding.released[number] = after
            core.counters.window_releases += after - before
