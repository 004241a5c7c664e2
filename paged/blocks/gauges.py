"""Reads off the state how full the pool is, and how much of it is wasted."""

from paged.blocks.core import Core
from paged.blocks.stats import Counters, Gauges, Stats


def stats_of(core: Core) -> Stats:
    """Counters and gauges now."""
    counters = Counters(**core.counters.as_json())
    if core.index is not None:
        counters.evictions = core.index.num_evictions
    return Stats(counters, _gauges(core))


def _gauges(core: Core) -> Gauges:
    rows, pool = core.rows, core.pool
    reserved = internal = held = 0
    for group_number, group in enumerate(core.groups):
        # Slots that hold no token, by block: of a shared block those that no holder fills.
        empty: dict[int, tuple[int, int]] = {}
        blocks: set[int] = set()
        for holding in core.holdings.values():
            row, table = holding.row, holding.tables[group_number]
            blocks.update(table[holding.released[group_number] :])
            tokens = int(rows.num_tokens[row])
            done = tokens - int(rows.num_drafts[row])
            if holding.prompt is not None:
                done = int(rows.committed[row])
            for column in range(done // group.block_size, len(table)):
                start = column * group.block_size
                past = max(0, start + group.block_size - tokens)
                ahead = max(0, start + group.block_size - max(done, start)) - past
                block = table[column]
                least = empty.get(block, (group.block_size, group.block_size))
                empty[block] = min(least, (past, ahead))
        reserved += sum(ahead for _, ahead in empty.values())
        internal += sum(past for past, _ in empty.values())
        held += len(blocks) * group.block_size
    slot = max(group.block_size for group in core.groups)
    return Gauges(
        requests=len(core.holdings),
        swapped_requests=0 if core.host is None else len(core.host.requests),
        blocks=pool.num_blocks - 1,
        used_blocks=pool.num_used,
        waiting_blocks=pool.num_waiting,
        cached_blocks=0 if core.index is None else len(core.index),
        used_slots=held - reserved - internal,
        reserved_slots=reserved,
        internal_slots=internal,
        external_slots=pool.num_waiting * slot,
    )
