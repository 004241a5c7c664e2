"""Swapping: a request's blocks go to the host and come back, by copy orders."""

from array import array
from collections.abc import Hashable

import numpy as np

from paged.blocks import checks
from paged.blocks.admission import Admission, enroll, spare_blocks
from paged.blocks.committing import register
from paged.blocks.core import Core, unpin
from paged.blocks.errors import NeverFits
from paged.blocks.holdings import Holding
from paged.blocks.host_pool import HostPool, Swapped
from paged.blocks.pool import NO_BLOCKS


def swap_out(core: Core, holding: Holding) -> None:
    """Move a request to the host; its blocks are free, and found by others as long as they last.

    Raises:
        OutOfBlocks: too few blocks of the host are free.
        ValueError: no host pool, drafts that were neither accepted nor rejected, or blocks that
            are still to be filled from the host.
    """
    host, row = _host(core), holding.row
    if core.rows.num_drafts[row]:
        raise ValueError(
            f"request_id: got {holding.request_id!r} with {core.rows.num_drafts[row]} draft(s), "
            "expected them accepted or rejected first"
        )
    held = holding.held()
    if any(core.copies.comes_from_host(block) for block in held.tolist()):
        raise ValueError(
            f"request_id: got {holding.request_id!r}, which was just swapped in, expected "
            "its copy orders taken first"
        )
    # The one call that may fail: from here on nothing does.
    fresh = host.pool.acquire(held.size)
    core.copies.swap_out(zip(held.tolist(), fresh.tolist(), strict=True))
    core.counters.blocks_swapped_out += held.size
    host_tables, start = [], 0
    for released, table in zip(holding.released, holding.tables, strict=True):
        host_table = array("i", bytes(4 * released))
        end = start + len(table) - released
        host_table.frombytes(fresh[start:end].tobytes())
        host_tables.append(host_table)
        start = end
    rows = core.rows
    host.requests[holding.request_id] = Swapped(
        holding,
        host_tables,
        int(rows.num_tokens[row]),
        int(rows.committed[row]),
        rows.tail[row].copy(),
    )
    core.pool.release(held[::-1])
    del core.holdings[holding.request_id]
    rows.give_back(row)
    holding.row = -1
    for table in holding.tables:
        table[:] = array("i", bytes(4 * len(table)))


def swap_in(core: Core, request_id: Hashable) -> Admission:
    """Bring a request back. What the index still has of it is shared, the rest is copied.

    Raises:
        OutOfBlocks: too few blocks are free.
        ValueError: no host pool, or the request is not swapped out.
    """
    host = _host(core)
    swapped = _swapped(host, request_id)
    holding = swapped.holding
    cached = [_cached(core, swapped, group) for group in range(len(core.groups))]
    shared = np.array([b for found in cached for b in found.values()], np.int32)
    held = swapped.held()
    if held.size > core.pool.num_blocks - 1:
        raise NeverFits(held.size, core.pool.num_blocks - 1)
    # The one call that may fail: from here on nothing does.
    fresh = core.pool.acquire(
        held.size - shared.size, shared if shared.size else NO_BLOCKS, spare=spare_blocks(core)
    ).tolist()
    place = 0
    for number, host_table in enumerate(swapped.host_tables):
        table = holding.tables[number]
        pairs = []
        for column in range(holding.released[number], len(host_table)):
            if column in cached[number]:
                table[column] = cached[number][column]
            else:
                table[column] = fresh[place]
                pairs.append((host_table[column], fresh[place]))
                place += 1
        core.copies.swap_in(pairs)
        core.counters.blocks_swapped_in += len(pairs)
    host.leaving.append(held)
    del host.requests[request_id]
    holding.row = core.rows.take()
    enroll(core, holding, swapped.num_tokens, swapped.committed)
    core.rows.tail[holding.row] = swapped.tail
    register(core, holding, 0, swapped.committed)
    tables = tuple(table.tolist() for table in holding.tables)
    return Admission(holding.row, swapped.committed, 0, tables)


def drop(core: Core, request_id: Hashable) -> None:
    """Give up a request that is swapped out."""
    host = _host(core)
    swapped = _swapped(host, request_id)
    del host.requests[request_id]
    unpin(core, swapped.holding)
    # An order may still be going to fill them.
    host.leaving.append(swapped.held())


def _cached(core: Core, swapped: Swapped, group: int) -> dict[int, int]:
    """Columns of a table whose contents are still in the index, and the blocks that hold them."""
    holding, hasher, index = swapped.holding, core.hasher, core.index
    if hasher is None or index is None:
        return {}
    ratio = core.groups[group].block_size // hasher.unit
    known = swapped.committed // hasher.unit
    if not hasher.is_trusted:
        # Beyond these the request's digests were not compared with what they stand for.
        known = holding.num_entered
    found = {}
    for column in range(holding.released[group], known // ratio):
        block = index.block(group, holding.digests[(column + 1) * ratio - 1])
        if block is not None:
            found[column] = block
    return found


def _host(core: Core) -> HostPool:
    if core.host is None:
        raise ValueError("host_blocks: got 0, expected a host pool to swap to")
    return core.host


def _swapped(host: HostPool, request_id: Hashable) -> Swapped:
    checks.hashable("request_id", request_id)
    if request_id not in host.requests:
        raise ValueError(
            f"request_id: got {request_id!r}, expected one of the {len(host.requests)} "
            "request(s) that are swapped out"
        )
    return host.requests[request_id]
