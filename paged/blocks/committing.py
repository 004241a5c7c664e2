"""Commit: a request's tokens are known and computed, so that its full blocks can be found.

"Computed" means by a step that is dispatched, or by the coming one. A later request may take over
blocks that are written in the very step in which it reads them: a step writes first, then attends.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from paged.blocks.core import Core
from paged.blocks.holdings import Holding

Link = tuple[list[bytes], list[bytes]]
"""What goes on a request's chain: digests, and what of each was hashed beside its parent."""


class HashedBatch(NamedTuple):
    """What one more token of each of several rows does to their chains.

    Attributes:
        offsets: [batch] the tokens' places in their units of the hash.
        filled: the request, first position and link of each unit that is full then.
    """

    offsets: Int64[np.ndarray, " batch"]
    filled: list[tuple[Holding, int, Link]]


def commit_prompt(core: Core, holding: Holding, num_tokens: int) -> None:
    """The first `num_tokens` tokens of a request's prompt are computed.

    Raises:
        ValueError: fewer than before, more than the prompt or its slots have, or no prompt.
    """
    prompt, rows = holding.prompt, core.rows
    if prompt is None:
        raise ValueError(f"request_id: got {holding.request_id!r}, which came without token ids")
    before = int(rows.committed[holding.row])
    most = min(len(prompt), int(rows.num_tokens[holding.row] - rows.num_drafts[holding.row]))
    if not before <= num_tokens <= most:
        raise ValueError(
            f"num_tokens: got {num_tokens}, expected from {before}, which are computed, to {most}, "
            "which are in the prompt and have slots"
        )
    rows.committed[holding.row] = num_tokens
    if core.hasher is None:
        return
    if num_tokens == len(prompt):
        unit = core.hasher.unit
        rest = prompt.token_ids[num_tokens // unit * unit :]
        rows.tail[holding.row, : rest.size] = rest
    register(core, holding, before, num_tokens)


def commit_tokens(core: Core, holding: Holding, tokens: Int32[np.ndarray, " tokens"]) -> None:
    """A request's next tokens, after its prompt, are these and computed.

    Raises:
        ValueError: its prompt is not computed yet, or more tokens than it has slots for; slots of
            drafts do not count.
    """
    rows, row = core.rows, holding.row
    before = int(rows.committed[row])
    room = int(rows.num_tokens[row] - rows.num_drafts[row]) - before
    _require_prompt_done(holding, before)
    if tokens.size > room:
        raise ValueError(
            f"token_ids: got {tokens.size}, expected at most {room}: drafts and tokens without "
            "slots are not committed"
        )
    if core.hasher is None:
        rows.committed[row] = before + tokens.size
        return
    unit = core.hasher.unit
    known = before % unit
    joined = np.concatenate([rows.tail[row, :known], tokens])
    # First: a hash function that was given may raise.
    link = _hashed(core, holding, joined, before - known)
    rows.committed[row] = before + tokens.size
    _extend_chain(holding, link)
    rest = joined[joined.size // unit * unit :]
    rows.tail[row, : rest.size] = rest
    register(core, holding, before, before + tokens.size)


def check_batch(
    core: Core,
    rows: Int64[np.ndarray, " batch"],
    num_tokens: Int64[np.ndarray, " batch"],
    tokens: Int32[np.ndarray, " batch"],
) -> None:
    """Refuse one token for each of several rows where it is not the next one.

    Raises:
        ValueError: another number of tokens, or a row whose earlier tokens are not committed.
    """
    _require_one_each(rows, tokens)
    committed = core.rows.committed[rows]
    if np.count_nonzero(committed == num_tokens) < rows.size:
        place = (committed != num_tokens).argmax()
        raise ValueError(
            f"rows: got {rows[place]}, of whose {num_tokens[place]} tokens {committed[place]} "
            "are committed, expected all of them"
        )


def check_late_batch(
    core: Core, rows: Int64[np.ndarray, " batch"], tokens: Int32[np.ndarray, " batch"]
) -> None:
    """Refuse one token for each of several rows where there is no slot for it, or no ids before.

    Raises:
        ValueError: another number of tokens, a row without such a slot, or a prompt that is not
            all committed.
    """
    _require_one_each(rows, tokens)
    numbers = core.rows
    holdings, committed = numbers.at(rows), numbers.committed[rows]
    short = (committed >= numbers.num_tokens[rows] - numbers.num_drafts[rows]).nonzero()[0]
    if short.size:
        row = rows[short[0]]
        raise ValueError(
            f"rows: got {row}, all of whose {committed[short[0]]} tokens are committed"
        )
    for holding, before in zip(holdings, committed.tolist(), strict=True):
        _require_prompt_done(holding, before)


def hash_batch(
    core: Core,
    rows: Int64[np.ndarray, " batch"],
    before: Int64[np.ndarray, " batch"],
    tokens: Int32[np.ndarray, " batch"],
) -> HashedBatch:
    """The next token of each row, hashed where it fills a unit; `check_batch` has seen them.

    Apart from `commit_batch`, and before anything changes: a hash function that was given may
    raise.

    Args:
        core: the state.
        rows: distinct.
        before: the tokens that were committed before, of each.
        tokens: the next one of each.
    """
    if core.hasher is None:
        return HashedBatch(before, [])
    unit = core.hasher.unit
    offsets = before % unit
    filled = (offsets == unit - 1).nonzero()[0]
    if not filled.size:
        return HashedBatch(offsets, [])
    units = core.rows.tail[rows[filled]]
    units[:, -1] = tokens[filled]
    hashed = [
        (holding, start, _hashed(core, holding, held, start))
        for holding, start, held in zip(
            core.rows.at(rows[filled]), (before[filled] - unit + 1).tolist(), units, strict=True
        )
    ]
    return HashedBatch(offsets, hashed)


def commit_batch(
    core: Core,
    rows: Int64[np.ndarray, " batch"],
    before: Int64[np.ndarray, " batch"],
    tokens: Int32[np.ndarray, " batch"],
    hashed: HashedBatch,
) -> None:
    """One more token of each row is known and computed.

    Args:
        core: the state.
        rows: as for `hash_batch`, like the next two.
        before: see there.
        tokens: see there.
        hashed: what it gave for them.
    """
    core.rows.committed[rows] = before + 1
    if core.hasher is None:
        return
    offsets, filled = hashed
    core.rows.tail[rows, offsets] = tokens
    if filled:
        _fill_units(core, filled)


def register(core: Core, holding: Holding, start: int, end: int) -> None:
    """Enter into the index the blocks that a request filled between two positions."""
    index, hasher = core.index, core.hasher
    if index is None or hasher is None or holding.is_collided:
        return
    first, last = start // hasher.unit, end // hasher.unit
    if first == last:
        return
    if index.preimages is not None:
        last = _enter(core, holding, last)
    for number, group in enumerate(core.groups):
        ratio = group.block_size // hasher.unit
        begin, stop = max(first // ratio, holding.released[number]), last // ratio
        if begin < stop:
            digests = holding.digests[(begin + 1) * ratio - 1 : stop * ratio : ratio]
            blocks = holding.blocks(number, begin, stop)
            index.add(number, digests, blocks)
            if core.partial_tails is not None:
                _offer(core, holding, begin, blocks.tolist())


def _require_one_each(
    rows: Int64[np.ndarray, " batch"], tokens: Int32[np.ndarray, " batch"]
) -> None:
    if tokens.size != rows.size:
        raise ValueError(f"token_ids: got {tokens.size}, expected {rows.size}, one for each row")


def _require_prompt_done(holding: Holding, committed: int) -> None:
    if holding.prompt is None:
        raise ValueError(f"request_id: got {holding.request_id!r}, which came without token ids")
    if committed < len(holding.prompt):
        raise ValueError(
            f"request_id: got {holding.request_id!r}, of whose {len(holding.prompt)} prompt tokens "
            f"{committed} are committed, expected all of them"
        )


def _fill_units(core: Core, filled: list[tuple[Holding, int, Link]]) -> None:
    assert core.hasher is not None
    assert core.index is not None
    unit = core.hasher.unit
    is_alike = len(core.groups) == 1 and core.hasher.is_trusted and not core.hasher.keeps_contents
    digests: list[bytes] = []
    blocks: list[int] = []
    for holding, start, link in filled:
        _extend_chain(holding, link)
        if not is_alike:
            register(core, holding, start, start + unit)
            continue
        # Entered together: most of the time goes into calls, whatever they are about.
        place = start // unit
        if place >= holding.released[0]:
            digests.append(holding.digests[-1])
            blocks.append(holding.tables[0][place])
    if digests:
        core.index.add(0, digests, np.array(blocks, np.int32))


def _hashed(core: Core, holding: Holding, tokens: Int32[np.ndarray, " tokens"], start: int) -> Link:
    """The full units among a request's tokens from `start` on, which is where its chain ends."""
    assert core.hasher is not None
    assert holding.prompt is not None
    parent = holding.digests[-1] if holding.digests else holding.prompt.root
    digests, contents = core.hasher.chain(parent, tokens, start, holding.prompt.keys)
    return digests, contents if core.hasher.keeps_contents else []


def _extend_chain(holding: Holding, link: Link) -> None:
    digests, contents = link
    holding.digests += digests
    holding.contents += contents


def _enter(core: Core, holding: Holding, last: int) -> int:
    """Enter a chain's preimages up to `last`; returns up to where they are what they should be."""
    assert core.index is not None
    assert holding.prompt is not None
    preimages = core.index.preimages
    assert preimages is not None
    first = holding.num_entered
    parent = holding.digests[first - 1] if first else holding.prompt.root
    before, entered = parent, first
    for place in range(first, last):
        if not preimages.enter(parent, holding.digests[place], holding.contents[place]):
            holding.is_collided = True
            break
        parent, entered = holding.digests[place], place + 1
    if entered > first:
        preimages.pin(parent)
        preimages.unpin(before)
    holding.num_entered = entered
    return entered


def _offer(core: Core, holding: Holding, begin: int, blocks: list[int]) -> None:
    """Blocks that the index took may serve as the source of a partial hit."""
    assert core.index is not None
    assert core.partial_tails is not None
    assert holding.prompt is not None
    for place, block in enumerate(blocks, begin):
        is_indexed = core.index.block(0, holding.digests[place]) == block
        if is_indexed and block not in core.partial_tails:
            parent = holding.digests[place - 1] if place else holding.prompt.root
            core.partial_tails.add(parent, holding.contents[place], block)
