"""What the tests of the block manager share: its whole state, to be compared."""


def state(manager):
    """All that a failed call must leave as it was, the order of reuse included."""
    core = manager._core
    return (
        pool_state(core.pool),
        {
            request: (
                [table.tolist() for table in holding.tables],
                list(holding.released),
                list(holding.digests),
                [int(getattr(core.rows, name)[holding.row]) for name in NUMBERS],
                core.rows.tail[holding.row].tolist(),
            )
            for request, holding in core.holdings.items()
        },
        None if core.index is None else [core.index.items(g) for g in range(len(core.groups))],
        None if core.index is None or core.index.preimages is None else preimages(core),
        dict(core.copies._source),
        list(core.log._events),
        core.counters.as_json(),
        None if core.host is None else (pool_state(core.host.pool), sorted(core.host.requests)),
    )


NUMBERS = ("num_tokens", "num_drafts", "committed")


def preimages(core):
    return sorted(
        (d, e.parent, e.content, e.pins) for d, e in core.index.preimages._entries.items()
    )


def pool_state(pool):
    return (
        pool.free_blocks().tolist(),
        pool._ref_counts.tolist(),
        pool.labels.tolist(),
        sorted(pool._in_flight.waiting().tolist()),
        pool.num_steps,
    )


def admit(manager, request, token_ids, **keys):
    """A request whose whole prompt is computed at once; its admission."""
    admission = manager.admit(request, manager.prompt(token_ids, **keys))
    manager.commit_prompt(request, len(token_ids))
    return admission


def tokens(*runs):
    """Token ids from (first, count) runs: tokens((100, 4), (7, 2)) is 100 to 103, 7 and 8."""
    return [first + place for first, count in runs for place in range(count)]
