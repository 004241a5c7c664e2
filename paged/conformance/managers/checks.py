"""The procedures that manager cases name, each `(make, seed) -> None`, raising `BrokenRule`."""

import random
from collections.abc import Callable, Hashable
from typing import Any

from paged.conformance.managers.expect import BrokenRule, expect, expect_raises
from paged.conformance.managers.protocol import Manager, ManagerFactory

_BLOCK_SIZE = 4


def null_block(make: ManagerFactory, seed: int) -> None:
    """All of the pool given out, twice over: block 0 is never among it."""
    manager = make(9, _BLOCK_SIZE)
    for request in ("first", "second"):
        blocks = _allocate(manager, request, 8 * _BLOCK_SIZE)
        expect("blocks of the whole pool", sorted(blocks), list(range(1, 9)))
        manager.free(request)


def fresh_order(make: ManagerFactory, seed: int) -> None:
    """A fresh pool gives 1, 2, 3, ... over several requests."""
    manager = make(12, _BLOCK_SIZE)
    expect("first request's blocks", _allocate(manager, "a", 3 * _BLOCK_SIZE), [1, 2, 3])
    expect("second request's blocks", _allocate(manager, "b", _BLOCK_SIZE + 1), [4, 5])
    expect("blocks that an append added", _append(manager, "a", 1), [6])


def free_count(make: ManagerFactory, seed: int) -> None:
    """The count falls by what is given and rises by what is freed."""
    manager = make(12, _BLOCK_SIZE)
    expect("free blocks of a fresh pool of 12", manager.num_free_blocks, 11)
    _allocate(manager, "a", 2 * _BLOCK_SIZE)
    expect("free blocks with 2 given", manager.num_free_blocks, 9)
    _append(manager, "a", 1)
    expect("free blocks with 3 given", manager.num_free_blocks, 8)
    manager.free("a")
    expect("free blocks with all freed", manager.num_free_blocks, 11)


def rounding(make: ManagerFactory, seed: int) -> None:
    """A request holds exactly the blocks that its tokens fill."""
    for block_size in (1, 4, 16):
        for num_tokens in range(1, 2 * block_size + 2):
            manager = make(40, block_size)
            needed = -(-num_tokens // block_size)
            what = f"blocks of {block_size} for {num_tokens} tokens"
            expect(what, len(_allocate(manager, "at once", num_tokens)), needed)
            _allocate(manager, "one by one", 1)
            for _ in range(num_tokens - 1):
                _append(manager, "one by one", 1)
            expect(f"{what}, one by one", len(manager.block_ids("one by one")), needed)
    manager = make(40, _BLOCK_SIZE)
    _allocate(manager, "a", 1)
    expect("blocks added by an append of three blocks' tokens", len(_append(manager, "a", 12)), 3)


def failed_allocation(make: ManagerFactory, seed: int) -> None:
    """One block too few: nothing is taken, and the next calls are as if it had not been."""
    manager, twin = make(8, _BLOCK_SIZE), make(8, _BLOCK_SIZE)
    for each in (manager, twin):
        _allocate(each, "a", 3 * _BLOCK_SIZE)
    expect_raises("allocate_slots of 5 blocks with 4 free", manager.allocate_slots, "b", 17)
    expect("free blocks after an allocation that failed", manager.num_free_blocks, 4)
    expect_raises("block_ids of the request that failed", manager.block_ids, "b")
    blocks = [_allocate(each, "b", 16) for each in (manager, twin)]
    expect("blocks given after an allocation that failed", *blocks)


def failed_append(make: ManagerFactory, seed: int) -> None:
    """An append of two blocks with one free takes none, and counts no token."""
    manager = make(5, _BLOCK_SIZE)
    _allocate(manager, "a", 2 * _BLOCK_SIZE + 1)
    before = list(manager.block_ids("a"))
    expect_raises("append_slots of 2 blocks with 1 free", manager.append_slots, "a", 8)
    expect("blocks after an append that failed", list(manager.block_ids("a")), before)
    expect("free blocks after an append that failed", manager.num_free_blocks, 1)
    expect("blocks added by the three tokens that fit", _append(manager, "a", 3), [])
    expect("blocks added by the next", len(_append(manager, "a", 1)), 1)


def refused_arguments(make: ManagerFactory, seed: int) -> None:
    """No tokens, or fewer, are refused and change nothing."""
    manager = make(8, _BLOCK_SIZE)
    _allocate(manager, "a", 3)
    for count in (0, -1, -_BLOCK_SIZE):
        expect_raises(f"allocate_slots of {count} tokens", manager.allocate_slots, "b", count)
        expect_raises(f"append_slots of {count} tokens", manager.append_slots, "a", count)
        expect("free blocks after a refusal", manager.num_free_blocks, 6)
    expect("blocks added by the token that fills a block", _append(manager, "a", 1), [])
    expect_raises("a pool of 2**31 slots", make, 2**27, 16)


def can_tells_the_truth(make: ManagerFactory, seed: int) -> None:
    """`can_allocate` and `can_append` against what the calls do, to the last block."""
    for num_tokens in range(1, 7 * _BLOCK_SIZE + 1):
        for ask, call in (("can_allocate", "allocate_slots"), ("can_append", "append_slots")):
            manager = make(8, _BLOCK_SIZE)
            _allocate(manager, "a", _BLOCK_SIZE + 1)
            request = () if ask == "can_allocate" else ("a",)
            said = getattr(manager, ask)(*request, num_tokens)
            done = _succeeds(getattr(manager, call), *(request or ("b",)), num_tokens)
            expect(f"{ask} for {num_tokens} tokens", bool(said), done)


def append_only(make: ManagerFactory, seed: int) -> None:
    """Tables grow at their end, whatever the other requests do."""
    manager = make(64, _BLOCK_SIZE)
    tables: dict[str, list[int]] = {}
    for request in ("a", "b", "c"):
        tables[request] = _allocate(manager, request, _BLOCK_SIZE)
    for step in range(24):
        request = "abc"[step % 3]
        tables[request] += _append(manager, request, 1 + step % 3)
        if step == 12:
            manager.free("c")
            tables["c"] = _allocate(manager, "c", _BLOCK_SIZE)
        for name, table in tables.items():
            expect(f"table of {name!r} after step {step}", list(manager.block_ids(name)), table)


def one_owner(make: ManagerFactory, seed: int) -> None:
    """Requests that come, grow and go share no block."""
    manager = make(20, _BLOCK_SIZE)
    for step in range(40):
        request = step % 5
        if step >= 5:
            manager.free(request)
        _allocate(manager, request, 1 + step * 3 % 12)
        held = [block for r in range(min(step + 1, 5)) for block in manager.block_ids(r)]
        expect(f"blocks with two owners after step {step}", len(held) - len(set(held)), 0)


def own_lists(make: ManagerFactory, seed: int) -> None:
    """What a caller does with a list it was given is its own affair."""
    manager = make(8, _BLOCK_SIZE)
    given: list[Any] = [manager.allocate_slots("a", _BLOCK_SIZE)]
    given += [manager.append_slots("a", _BLOCK_SIZE), manager.block_ids("a")]
    for blocks in given:
        if hasattr(blocks, "append"):
            blocks.append(7)
            blocks[0] = 6
    expect("table after the caller changed its lists", list(manager.block_ids("a")), [1, 2])


def random_history(make: ManagerFactory, seed: int) -> None:
    """Hundreds of calls beside a model of what each request must hold."""
    rng = random.Random(seed)
    manager, tokens = make(32, _BLOCK_SIZE), dict[int, int]()
    for step in range(400):
        request, count = rng.randrange(8), rng.randint(1, 4 * _BLOCK_SIZE)
        before = manager.num_free_blocks
        if request not in tokens:
            possible = -(-count // _BLOCK_SIZE) <= before
            done = _succeeds(manager.allocate_slots, request, count)
            grown = count
        elif rng.random() < 0.4:
            manager.free(request)
            del tokens[request]
            continue
        else:
            grown = tokens[request] + count
            added = -(-grown // _BLOCK_SIZE) + -tokens[request] // _BLOCK_SIZE
            possible = added <= before
            done = _succeeds(manager.append_slots, request, count)
        expect(f"whether step {step} was served, {before} blocks free", done, possible)
        if done:
            tokens[request] = grown
        held = [block for each in tokens for block in manager.block_ids(each)]
        needed = sum(-(-each // _BLOCK_SIZE) for each in tokens.values())
        expect(f"blocks held after step {step}", len(set(held)), needed)
        expect(f"free blocks after step {step}", manager.num_free_blocks, 31 - needed)
        expect(f"whether block 0 is held after step {step}", 0 in held, False)


def preemption(make: ManagerFactory, seed: int) -> None:
    """All comes back, and the request may come again under its name."""
    manager = make(8, _BLOCK_SIZE)
    _allocate(manager, "a", 3 * _BLOCK_SIZE)
    _append(manager, "a", _BLOCK_SIZE + 1)
    _allocate(manager, "b", _BLOCK_SIZE)
    manager.free("a")
    expect("free blocks after the preemption", manager.num_free_blocks, 6)
    expect_raises("block_ids of a preempted request", manager.block_ids, "a")
    expect("blocks of the request, run again", len(_allocate(manager, "a", 17)), 5)
    expect("the other request's blocks", len(manager.block_ids("b")), 1)


def larger_than_the_pool(make: ManagerFactory, seed: int) -> None:
    """Known before it waits: `fits` counts the pool without its null block."""
    manager = make(8, _BLOCK_SIZE)
    expect("fits(the whole pool)", bool(manager.fits(7 * _BLOCK_SIZE)), True)
    expect("fits(one token more)", bool(manager.fits(7 * _BLOCK_SIZE + 1)), False)
    expect_raises("allocate_slots of more than the pool", manager.allocate_slots, "a", 29)
    _allocate(manager, "b", 7 * _BLOCK_SIZE)
    expect("fits, whatever is in use", bool(manager.fits(7 * _BLOCK_SIZE)), True)


def double_free(make: ManagerFactory, seed: int) -> None:
    """The second time raises, and no block is on the free list twice."""
    manager = make(8, _BLOCK_SIZE)
    _allocate(manager, "a", 2 * _BLOCK_SIZE)
    manager.free("a")
    expect_raises("the second free", manager.free, "a")
    expect("free blocks after it", manager.num_free_blocks, 7)
    blocks = _allocate(manager, "b", 7 * _BLOCK_SIZE)
    expect("distinct blocks of the whole pool", len(set(blocks)), 7)


def unknown_request(make: ManagerFactory, seed: int) -> None:
    """Every call that names a request raises where there is none."""
    manager = make(8, _BLOCK_SIZE)
    _allocate(manager, "a", 1)
    for name, arguments in (
        ("free", ("b",)),
        ("block_ids", ("b",)),
        ("append_slots", ("b", 1)),
        ("can_append", ("b", 1)),
    ):
        expect_raises(f"{name} of an unknown request", getattr(manager, name), *arguments)
    expect("free blocks after that", manager.num_free_blocks, 6)


def same_request_twice(make: ManagerFactory, seed: int) -> None:
    """A request that holds blocks is not allocated anew."""
    manager = make(8, _BLOCK_SIZE)
    blocks = _allocate(manager, "a", _BLOCK_SIZE)
    expect_raises("a second allocation of one request", manager.allocate_slots, "a", 1)
    expect("its blocks", list(manager.block_ids("a")), blocks)
    expect("free blocks", manager.num_free_blocks, 6)


def _allocate(manager: Manager, request: Hashable, num_tokens: int) -> list[int]:
    return list(_served(manager.allocate_slots, request, num_tokens))


def _append(manager: Manager, request: Hashable, num_tokens: int) -> list[int]:
    return list(_served(manager.append_slots, request, num_tokens))


def _served(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except Exception as error:
        name = getattr(call, "__name__", "call")
        raise BrokenRule(
            f"{name}{arguments} raised {type(error).__name__}: {error}, expected blocks"
        ) from error


def _succeeds(call: Callable[..., Any], *arguments: Any) -> bool:
    try:
        call(*arguments)
    except Exception:  # noqa: BLE001 (a manager raises what it likes)
        return False
    return True


CHECKS: dict[str, Callable[[ManagerFactory, int], None]] = {
    check.__name__: check
    for check in (
        null_block,
        fresh_order,
        free_count,
        rounding,
        failed_allocation,
        failed_append,
        refused_arguments,
        can_tells_the_truth,
        append_only,
        one_owner,
        own_lists,
        random_history,
        preemption,
        larger_than_the_pool,
        double_free,
        unknown_request,
        same_request_twice,
    )
}
"""By the word in `ManagerCase.check`."""
