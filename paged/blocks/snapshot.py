"""Snapshots: a manager's state as JSON, and a manager from it, refused where it is not one."""

from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int32

from paged.blocks import checks
from paged.blocks.admission import enroll
from paged.blocks.core import Core
from paged.blocks.errors import IntegrityError
from paged.blocks.hashing import HashFunction, Prompt
from paged.blocks.holdings import Holding
from paged.blocks.host_pool import HostPool, Swapped
from paged.blocks.integrity import check_integrity, check_numbers
from paged.blocks.keys import CacheKeys
from paged.blocks.pool import BlockPool, Blocks
from paged.blocks.stats import Counters

if TYPE_CHECKING:
    from paged.blocks.manager import KVCacheManager

_VERSION = 1

_MIN_ROWS = 2**16
"""Rows that every snapshot may use: requests that share blocks may be more than the blocks."""


def snapshot_of(core: Core, block_size: int) -> dict[str, Any]:
    """The state as JSON can hold it.

    Raises:
        ValueError: steps are in flight, copies or events are pending, a request's id is neither
            a string nor an integer, or its row is past what `restore` makes room for.
    """
    pending = core.pool.num_steps + len(core.copies) + len(core.log)
    pending += 0 if core.host is None else len(core.host.leaving)
    if pending:
        raise ValueError(
            "snapshot: steps are in flight, or copies or events are not taken, expected none"
        )
    index, preimages = core.index, None if core.index is None else core.index.preimages
    groups = range(len(core.groups))
    return {
        "version": _VERSION,
        "options": {
            "num_blocks": core.pool.num_blocks,
            "block_size": block_size,
            "groups": [group.as_json() for group in core.groups],
            "prefix_caching": core.hasher is not None,
            "hash": None if core.hasher is None else core.hasher.name,
            "partial_tails": core.partial_tails is not None,
            "host_blocks": 0 if core.host is None else core.host.pool.num_blocks - 1,
            "watermark": core.watermark,
            "events": core.log.is_on,
        },
        "free": core.pool.free_blocks().tolist(),
        "requests": [_request(core, holding) for holding in core.holdings.values()],
        "index": []
        if index is None
        else [[[digest.hex(), block] for digest, block in index.items(group)] for group in groups],
        "preimages": []
        if preimages is None
        else [[part.hex() for part in item] for item in preimages.items()],
        "partial_tails": [] if core.partial_tails is None else core.partial_tails.as_json(),
        "host": None if core.host is None else _host(core.host),
        "counters": core.counters.as_json(),
        "evictions": 0 if index is None else index.num_evictions,
    }


def restored(
    make: "type[KVCacheManager]",
    snapshot: Mapping[str, Any],
    hash: str | HashFunction | None,
) -> "KVCacheManager":
    """A manager of a snapshot.

    Raises:
        ValueError: it is none, or contradicts itself.
    """
    try:
        if snapshot["version"] != _VERSION:
            raise ValueError(f"version {snapshot['version']!r}, expected {_VERSION}")
        options = dict(snapshot["options"])
        named = options.pop("hash")
        if named == "custom" and not callable(hash):
            raise ValueError("it was hashed by a function, expected that function as hash")
        manager = make(**options, hash=(hash if named == "custom" else named) or "sha256")
        _fill(manager._core, snapshot)
        check_integrity(manager._core)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise ValueError(f"snapshot: {type(error).__name__}: {error}") from error
    except IntegrityError as error:
        raise ValueError(f"snapshot: it contradicts itself: {error}") from error
    return manager


def _request(core: Core, holding: Holding) -> dict[str, Any]:
    rows, row = core.rows, holding.row
    return {
        "row": checks.integer("snapshot: row", row, at_least=0, at_most=_last_row(core)),
        "num_tokens": int(rows.num_tokens[row]),
        "num_drafts": int(rows.num_drafts[row]),
        "committed": int(rows.committed[row]),
        "tail": rows.tail[row].tolist(),
        "tables": [table.tolist() for table in holding.tables],
        **_chain(holding),
    }


def _chain(holding: Holding) -> dict[str, Any]:
    prompt = holding.prompt
    return {
        "request_id": _request_id("snapshot: request_id", holding.request_id),
        "released": list(holding.released),
        "prompt": None if prompt is None else prompt.token_ids.tolist(),
        "keys": None if prompt is None else prompt.keys.as_json(),
        "digests": [digest.hex() for digest in holding.digests],
        "contents": [content.hex() for content in holding.contents],
        "num_entered": holding.num_entered,
        "is_collided": holding.is_collided,
    }


def _host(host: HostPool) -> dict[str, Any]:
    return {
        "free": host.pool.free_blocks().tolist(),
        "requests": [
            {
                **_chain(swapped.holding),
                "num_tokens": swapped.num_tokens,
                "committed": swapped.committed,
                "tail": swapped.tail.tolist(),
                "tables": [table.tolist() for table in swapped.host_tables],
            }
            for swapped in host.requests.values()
        ],
    }


def _fill(core: Core, snapshot: Mapping[str, Any]) -> None:
    for form in snapshot["requests"]:
        holding = _holding(core, form, core.pool)
        drafts = _number("num_drafts", form["num_drafts"])
        num_tokens, committed = _numbers(core, form, holding, drafts)
        tail = _tail(core, form)
        row = checks.integer("row", form["row"], at_least=0, at_most=_last_row(core))
        holding.row = core.rows.take_again(row)
        core.rows.num_drafts[row] = drafts
        core.rows.tail[row] = tail
        enroll(core, holding, num_tokens, committed)
    _fill_pool(core.pool, snapshot["free"], [h.held() for h in core.holdings.values()])
    if core.host is not None:
        for form in snapshot["host"]["requests"]:
            holding = _holding(core, form, core.host.pool)
            numbers = _numbers(core, form, holding, 0)
            tables = holding.tables
            holding.tables = [array("i", bytes(4 * len(table))) for table in tables]
            core.host.requests[holding.request_id] = Swapped(
                holding,
                tables,
                *numbers,
                _tail(core, form),
            )
        held = [swapped.held() for swapped in core.host.requests.values()]
        _fill_pool(core.host.pool, snapshot["host"]["free"], held)
    core.counters = Counters.from_json(snapshot["counters"])
    if core.index is not None:
        _fill_index(core, snapshot)
    # Shared blocks are known only now.
    for holding in core.holdings.values():
        enroll(
            core,
            holding,
            int(core.rows.num_tokens[holding.row]),
            int(core.rows.committed[holding.row]),
        )


def _fill_pool(pool: BlockPool, free: Sequence[int], held: Sequence[Blocks]) -> None:
    blocks = checks.ids("free", free, at_least=1, below=pool.num_blocks)
    counts = np.bincount(np.concatenate([np.empty(0, np.int32), *held]), minlength=pool.num_blocks)
    if len(set(blocks)) != len(blocks):
        raise ValueError("free: expected distinct blocks")
    pool.restore(np.array(blocks, np.int32), counts.astype(np.int32))


def _fill_index(core: Core, snapshot: Mapping[str, Any]) -> None:
    index = core.index
    assert index is not None
    assert core.hasher is not None
    index.num_evictions = _number("evictions", snapshot["evictions"])
    pinned: list[bytes] = []
    for group, entries in enumerate(snapshot["index"]):
        digests = [bytes.fromhex(digest) for digest, _ in entries]
        if any(len(digest) != core.hasher.digest_size for digest in digests):
            raise ValueError(f"index: expected digests of {core.hasher.digest_size} bytes")
        blocks = checks.ids(
            "index", [block for _, block in entries], at_least=1, below=core.pool.num_blocks
        )
        if digests:
            index.restore(group, digests, np.array(blocks, np.int32))
        pinned += digests
    if index.preimages is not None:
        everyone = list(core.holdings.values())
        if core.host is not None:
            everyone += [swapped.holding for swapped in core.host.requests.values()]
        pinned += [h.digests[h.num_entered - 1] for h in everyone if h.num_entered]
        items = [tuple(map(bytes.fromhex, item)) for item in snapshot["preimages"]]
        index.preimages.restore([(d, p, c) for d, p, c in items], pinned)
    if core.partial_tails is not None:
        for parent, content, block in snapshot["partial_tails"]:
            core.partial_tails.add(
                bytes.fromhex(parent), bytes.fromhex(content), _number("block", block)
            )
        core.partial_tails.settle()


def _holding(core: Core, form: Mapping[str, Any], pool: BlockPool) -> Holding:
    """A request of a snapshot. Its prompt is hashed again, and has to give the same digests."""
    tables = [
        array("i", checks.ids("tables", table, at_least=0, below=pool.num_blocks))
        for table in form["tables"]
    ]
    released = [_number("released", number) for number in form["released"]]
    if not len(tables) == len(released) == len(core.groups):
        raise ValueError(f"tables: expected one for each of {len(core.groups)} group(s)")
    holding = Holding(_request_id("request_id", form["request_id"]), -1, tables, released)
    core.require_new(holding.request_id)
    holding.digests = [bytes.fromhex(digest) for digest in form["digests"]]
    holding.contents = [bytes.fromhex(content) for content in form["contents"]]
    holding.num_entered = _number("num_entered", form["num_entered"])
    holding.is_collided = checks.flag("is_collided", form["is_collided"])
    if form["prompt"] is not None:
        keys = CacheKeys.from_json(form["keys"])
        holding.prompt = Prompt.make(core.hasher, form["prompt"], keys)
        known = len(holding.prompt.digests)
        if tuple(holding.digests[:known]) != holding.prompt.digests:
            raise ValueError(f"digests: not those of the prompt of {holding.request_id!r}")
    return holding


def _numbers(
    core: Core, form: Mapping[str, Any], holding: Holding, num_drafts: int
) -> tuple[int, int]:
    """Tokens with slots, and those committed: checked before anything is made of their size."""
    num_tokens = _number("num_tokens", form["num_tokens"])
    committed = _number("committed", form["committed"])
    check_numbers(core, holding, holding.tables, num_tokens, num_drafts, committed)
    return num_tokens, committed


def _tail(core: Core, form: Mapping[str, Any]) -> Int32[np.ndarray, " unit"]:
    tail, unit = checks.token_ids("tail", form["tail"]), core.rows.tail.shape[1]
    if tail.size != unit:
        raise ValueError(f"tail: got {tail.size} tokens, expected {unit}")
    return tail


def _request_id(name: str, value: Any) -> str | int:
    """An id that is the same after JSON."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{name}: got {value!r}, expected a string or an integer")
    return value


def _last_row(core: Core) -> int:
    return max(core.pool.num_blocks, _MIN_ROWS) - 1


def _number(name: str, value: Any) -> int:
    return checks.integer(name, value, at_least=0)
