"""Fork and reset: what concerns the blocks of several requests at once."""

from collections.abc import Hashable, Iterable, Sequence

from paged.blocks import checks
from paged.blocks.core import Core, limit_of, pin
from paged.blocks.holdings import Holding


def fork(core: Core, parent: Holding, children: Sequence[Hashable]) -> list[int]:
    """Requests that share all of a parent's blocks; returns their rows.

    Raises:
        ValueError: drafts, tokens that are not committed, or children that are not new and
            distinct.
    """
    if isinstance(children, str | bytes) or not isinstance(children, Iterable):
        raise ValueError(f"children: got {children!r}, expected a sequence of requests")
    children = list(children)
    for child in children:
        checks.hashable("children", child)
    rows, row = core.rows, parent.row
    tokens, drafts = int(rows.num_tokens[row]), int(rows.num_drafts[row])
    committed = int(rows.committed[row])
    if drafts or (parent.prompt is not None and committed != tokens):
        raise ValueError(
            f"request_id: got {parent.request_id!r} with {committed} of {tokens} tokens committed "
            f"and {drafts} draft(s), expected all of them and none"
        )
    if len(set(children)) != len(children):
        raise ValueError(f"children: got {children!r}, expected distinct requests")
    for child in children:
        core.require_new(child)
    if not children:
        return []
    core.pool.share(parent.held(), times=len(children))
    taken = []
    for child in children:
        holding = Holding(
            request_id=child,
            row=rows.take(),
            tables=[table[:] for table in parent.tables],
            released=parent.released.copy(),
            prompt=parent.prompt,
            digests=parent.digests.copy(),
            contents=parent.contents.copy(),
            num_entered=parent.num_entered,
            is_collided=parent.is_collided,
        )
        core.holdings[child] = holding
        rows.holdings[holding.row] = holding
        rows.num_tokens[holding.row] = tokens
        rows.committed[holding.row] = committed
        rows.tail[holding.row] = rows.tail[row]
        rows.limit[holding.row] = limit_of(core, holding, tokens)
        pin(core, holding)
        taken.append(holding.row)
    rows.limit[row] = limit_of(core, parent, tokens)
    return taken


def reset(core: Core) -> None:
    """Forget what is cached.

    Raises:
        ValueError: requests hold blocks, here or on the host, or steps are in flight.
    """
    swapped = 0 if core.host is None else len(core.host.requests)
    if core.holdings or swapped or core.pool.num_steps:
        raise ValueError(
            f"reset: {len(core.holdings)} request(s) hold blocks, {swapped} are swapped out and "
            f"{core.pool.num_steps} step(s) are in flight, expected none"
        )
    if core.index is not None:
        core.index.clear()
    if core.partial_tails is not None:
        core.partial_tails.clear()
