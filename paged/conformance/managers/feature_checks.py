"""Procedures for managers that have forks, drafts, groups, a host pool, batches or ranks."""

import random
from collections.abc import Callable
from typing import Any

from paged.conformance.managers.expect import expect, expect_raises
from paged.conformance.managers.prefix_checks import admitted
from paged.conformance.managers.serving import Serving
from paged.conformance.managers.walk import serving, walk

Make = Callable[..., Any]

_FULL = {"block_size": 4, "kind": "full"}


def _pairs(copies: Any) -> list[tuple[int, int]]:
    return list(zip(copies.src.tolist(), copies.dst.tolist(), strict=True))


def copy_on_write(make: Make, seed: int) -> None:
    """Three share a half-full block: two copies, then the last writes in place."""
    manager = make(20, 4)
    admitted(manager, "a", range(6))
    manager.take_copies()
    manager.fork("a", ["b", "c"])
    for name in "bc":
        expect(f"table of {name!r}", manager.block_ids(name), [1, 2])
    expect("free blocks after a fork", manager.num_free_blocks, 17)
    expect("copies ordered by a fork", len(manager.take_copies()), 0)
    manager.append_slots("c")
    rows = [manager.row(name) for name in "ab"]
    manager.append_batch(rows, [6, 7])
    expect(
        "copies, of each writer but the last",
        _pairs(manager.take_copies().on_device),
        [(2, 3), (2, 4)],
    )
    expect("tables", [manager.block_ids(n) for n in "abc"], [[1, 4], [1, 2], [1, 3]])
    for name in "abc":
        manager.append_slots(name)
    expect("copies of a block that is its writer's alone", len(manager.take_copies()), 0)
    manager.free("a")
    manager.free("c")
    expect("table of the one that is left", manager.block_ids("b"), [1, 2])
    expect("free blocks", manager.num_free_blocks, 17)
    # A full last block is not written to, so it is not copied.
    manager = make(20, 4)
    admitted(manager, "a", range(8))
    manager.fork("a", ["b"])
    expect("blocks that grow after a full one", [manager.append_slots(n) for n in "ab"], [[3], [4]])
    expect("copies of a full block", len(manager.take_copies()), 0)


def copy_of_a_copy(make: Make, seed: int) -> None:
    """Orders of one round all read what was there before it, whatever is freed in between."""
    for is_freed in (False, True):
        manager = make(20, 4)
        admitted(manager, "a", range(6))
        manager.fork("a", ["b"])
        manager.append_slots("b")
        if is_freed:
            manager.free("a")
        manager.commit("b", [6])
        manager.fork("b", ["c"])
        manager.append_slots("c")
        held = {2: "the half-full block"}
        orders = manager.take_copies()
        held |= {dst: held.get(src, "nothing") for src, dst in _pairs(orders.on_device)}
        for name in "bc":
            found = held.get(manager.block_ids(name)[1], "nothing")
            expect(f"what the last block of {name!r} was filled from", found, held[2])


def fork_is_all_or_nothing(make: Make, seed: int) -> None:
    """A child that is there already, or a copy without room, leaves no trace."""
    manager = make(4, 4)
    admitted(manager, "a", range(6))
    expect_raises("a fork to one that is there", manager.fork, "a", ["b", "a"])
    expect_raises("the tables of a child that was not made", manager.block_ids, "b")
    expect_raises("a fork to one child twice", manager.fork, "a", ["b", "b"])
    manager.fork("a", ["b", "c"])
    expect("can_append with a block to copy", [manager.can_append(n) for n in "abc"], [True] * 3)
    manager.append_slots("a")
    expect("can_append with none left", manager.can_append("b"), False)
    expect_raises("a copy without room", manager.append_slots, "b")
    expect("table after a copy that failed", manager.block_ids("b"), [1, 2])
    expect("copies", _pairs(manager.take_copies().on_device), [(2, 3)])
    manager.free("c")
    manager.append_slots("b")
    expect("table of the last", manager.block_ids("b"), [1, 2])


def rejected_tokens(make: Make, seed: int) -> None:
    """Drafts get slots, are never found, and what is rejected gives its blocks back."""
    manager = make(20, 4)
    admitted(manager, "a", range(7))
    manager.append_slots("a", 1, drafts=9)
    expect("blocks with 17 tokens", len(manager.block_ids("a")), 5)
    expect_raises("drafts committed", manager.commit, "a", [7, 8])
    manager.commit("a", [7])
    expect_raises("an append with drafts pending", manager.append_slots, "a")
    expect_raises("ten of nine drafts", manager.accept, "a", 10)
    expect("cached of what is no draft", manager.num_cached_tokens(manager.prompt(range(20))), 8)
    manager.accept("a", 2)
    expect("tokens after two were right", manager.num_tokens("a"), 10)
    expect("blocks after that", manager.block_ids("a"), [1, 2, 3])
    expect("free blocks after that", manager.num_free_blocks, 16)
    manager.commit("a", [8, 9])
    manager.append_slots("a", 1, drafts=3)
    manager.commit("a", [10])
    manager.accept("a", 0)
    expect("blocks with none right", manager.block_ids("a"), [1, 2, 3])
    expect("blocks of the next tokens", len(manager.append_slots("a", 2)), 1)
    manager.commit("a", [11, 12])
    expect("cached in the end", manager.num_cached_tokens(manager.prompt(range(20))), 12)


def blocks_before_it(make: Make, seed: int) -> None:
    """A window of six: block 0 goes with position 9, and no earlier; then one every four."""
    for by_batch in (False, True):
        manager = make(20, 4, groups=[{**_FULL, "kind": "window", "size": 6}])
        admitted(manager, "a", range(6))
        gone = []
        for position in range(6, 18):
            if by_batch:
                manager.append_batch([manager.row("a")], [position])
            else:
                manager.append_slots("a")
                manager.commit("a", [position])
            gone.append(manager.block_ids("a").count(0))
        # Position 9 reads 4 to 9, position 13 reads 8 to 13.
        expect("blocks gone, from position 6 on", gone, [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3])
        expect("free blocks", manager.num_free_blocks, 17)


def window_in_flight(make: Make, seed: int) -> None:
    """What a step in flight reads is not given out before it has ended."""
    manager = make(5, 4, groups=[{**_FULL, "kind": "window", "size": 4}])
    admitted(manager, "a", range(7))
    step = manager.begin_step()
    manager.append_slots("a")
    expect("free blocks while a step reads block 1", manager.num_free_blocks, 2)
    expect_raises("an allocation of it", manager.allocate_slots, "b", 12)
    later = manager.begin_step()
    manager.end_step(step)
    expect("free blocks when it has ended", manager.num_free_blocks, 3)
    expect_raises("a step that is not in flight", manager.end_step, step)
    manager.end_step(later)
    manager.allocate_slots("b", 12)
    # Whatever is given up waits for the last step dispatched before.
    manager = make(5, 4)
    admitted(manager, "a", range(9))
    steps = [manager.begin_step(), manager.begin_step()]
    manager.free("a")
    manager.end_step(steps[0])
    expect("free blocks with one of two steps ended", manager.num_free_blocks, 1)
    expect("can_admit of what waits", manager.can_admit(manager.prompt(range(50, 60))), False)
    # What waits can be asked for again, and is in use then.
    expect("cached of what waits", admitted(manager, "b", range(9)), 8)
    manager.end_step(steps[1])
    expect("free blocks when both have ended", manager.num_free_blocks, 1)


def window_hit(make: Make, seed: int) -> None:
    """A hit needs the blocks inside the window, and those only."""
    manager = make(10, 4, groups=[{**_FULL, "kind": "window", "size": 5}])
    admitted(manager, "a", range(17))
    manager.append_slots("a")
    expect("blocks before the window", manager.block_ids("a"), [0, 0, 0, 4, 5])
    # Another takes those never used, and 3 and 2, which lose what they held.
    manager.allocate_slots("b", 24)
    given = manager.admit("c", manager.prompt([*range(16), 99]))
    expect("cached tokens", given.num_cached_tokens, 16)
    expect("blocks of the hit", given.block_ids[0][:4], [0, 0, 0, 4])
    expect(
        "cached where the window starts earlier",
        manager.num_cached_tokens(manager.prompt(range(16))),
        0,
    )


def chunked(make: Make, seed: int) -> None:
    """A query reads from the start of its chunk on."""
    manager = make(20, 4, groups=[{**_FULL, "kind": "chunked", "size": 8}])
    admitted(manager, "a", range(7))
    gone = []
    for position in range(7, 18):
        manager.append_slots("a")
        manager.commit("a", [position])
        gone.append(manager.block_ids("a").count(0))
    expect("blocks gone, from position 7 on", gone, [0, 2, 2, 2, 2, 2, 2, 2, 2, 4, 4])
    given = manager.admit("b", manager.prompt([*range(12), 99]))
    expect("cached in the middle of a chunk", given.num_cached_tokens, 12)
    expect("blocks before the chunk", given.block_ids[0][:2], [0, 0])


def fixed_point(make: Make, seed: int) -> None:
    """A full group has 4 blocks, a window group lost one: the hit is what both have."""
    groups = [_FULL, {**_FULL, "kind": "window", "size": 5}]
    manager = make(30, 4, groups=groups)
    for length in (8, 16):
        admitted(manager, length, range(length))
        manager.free(length)
    expect("cached in both", manager.num_cached_tokens(manager.prompt(range(20))), 16)
    given = manager.admit("a", manager.prompt(range(20)))
    expect("blocks of the full group", 0 in given.block_ids[0], False)
    expect("blocks of the window group before it", given.block_ids[1][:3].count(0), 3)
    # Window first, full second: what the window group accepts the full one does not have, and
    # what that has left the window group does not accept.
    manager = make(12, 4, groups=groups[::-1])
    admitted(manager, "a", range(17))
    manager.append_slots("a")
    manager.free("a")
    manager.allocate_slots("b", 16)
    expect("cached in neither", manager.num_cached_tokens(manager.prompt(range(20))), 0)
    # One group's allocation must not evict what the other has just hit.
    manager = make(13, 4, groups=groups)
    admitted(manager, "a", range(12))
    manager.free("a")
    given = manager.admit("b", manager.prompt(range(24)))
    expect("cached", given.num_cached_tokens, 12)
    held = [block for table in given.block_ids for block in table if block]
    expect("distinct blocks of both groups", len(set(held)), len(held))


def groups_of_two_sizes(make: Make, seed: int) -> None:
    """A hit is a multiple of both block sizes, and each group registers its own blocks."""
    groups = [{"block_size": 4, "kind": "latent"}, {"block_size": 8, "kind": "full"}]
    manager = make(30, 4, groups=groups)
    admitted(manager, "a", range(14))
    expect("blocks of each group", [len(manager.block_ids("a", g)) for g in (0, 1)], [4, 2])
    expect("blocks needed", manager.num_blocks_needed(14), 6)
    expect("cached of 14 tokens", admitted(manager, "b", range(14)), 8)
    rows = [manager.row("a")]
    for token in (14, 15, 16):
        manager.append_batch(rows, [token])
    expect(
        "cached when the larger block is full",
        manager.num_cached_tokens(manager.prompt(range(20))),
        16,
    )
    expect(
        "the second group's hit",
        manager.admit("c", manager.prompt(range(20))).block_ids[1][:2],
        manager.block_ids("a", 1)[:2],
    )


def swap(make: Make, seed: int) -> None:
    """Out and in again: what is still cached is shared, the rest comes from the host."""
    manager = make(9, 4, host_blocks=3)
    admitted(manager, "a", range(10))
    manager.take_copies()
    manager.swap_out("a")
    orders = manager.take_copies()
    expect("copies out", _pairs(orders.swap_out), [(1, 1), (2, 2), (3, 3)])
    expect("free blocks", (manager.num_free_blocks, manager.num_free_host_blocks), (8, 0))
    expect_raises("an append to what is swapped out", manager.append_slots, "a")
    expect_raises("an admission under its name", manager.allocate_slots, "a", 1)
    admitted(manager, "b", range(50, 75))  # seven blocks: of the old ones only the head stays
    expect_raises("a return without room", manager.swap_in, "a")
    expect("blocks of the host after a return that failed", manager.num_free_host_blocks, 0)
    manager.free("b")
    given = manager.swap_in("a")
    expect("cached tokens of the return", given.num_cached_tokens, 10)
    expect("the block that was still there", given.block_ids[0][0], 1)
    expect("blocks of the host before its copies are made", manager.num_free_host_blocks, 0)
    orders = manager.take_copies()
    expect(
        "copies in",
        _pairs(orders.swap_in),
        [(2, given.block_ids[0][1]), (3, given.block_ids[0][2])],
    )
    expect("blocks of the host when they are", manager.num_free_host_blocks, 3)
    expect("cached of what came back", admitted(manager, "c", range(10)), 8)
    # A request whose digests stand for another's contents must not come back to those.
    manager = make(20, 4, host_blocks=3, hash=lambda data: b"same")
    admitted(manager, "x", range(50, 59))
    admitted(manager, "a", range(9))
    manager.take_copies()
    manager.swap_out("a")
    manager.take_copies()
    back = manager.swap_in("a").block_ids[0]
    expect("blocks of another after the return", set(back) & set(manager.block_ids("x")), set())
    manager = make(9, 4)
    admitted(manager, "d", range(90, 94))
    expect_raises("a swap without a host pool", manager.swap_out, "d")


def watermark(make: Make, seed: int) -> None:
    """An admission leaves blocks for those that run; the first of all need not."""
    manager = make(9, 4, watermark=2)
    expect_raises("a watermark of the whole pool", make, 9, 4, watermark=8)
    manager.allocate_slots("a", 20)
    expect("can_allocate of two of three blocks", manager.can_allocate(8), False)
    expect_raises("an admission below the watermark", manager.allocate_slots, "b", 8)
    manager.allocate_slots("b", 4)
    manager.append_slots("a", 8)
    manager.free("a")
    manager.free("b")
    manager.allocate_slots("c", 32)


def partial_tail(make: Make, seed: int) -> None:
    """Three tokens of a cached block are copied, once they are written and only within a tenant."""
    manager = make(20, 4, partial_tails=True)
    admitted(manager, "a", range(9))
    wanted = [0, 1, 2, 3, 4, 5, 6, 90, 91]
    expect("cached before it is written", manager.num_cached_tokens(manager.prompt(wanted)), 4)
    manager.take_copies()
    expect(
        "cached for another tenant", manager.num_cached_tokens(manager.prompt(wanted, salt="x")), 0
    )
    expect(
        "cached where one token must be left",
        manager.num_cached_tokens(manager.prompt(range(6))),
        5,
    )
    given = manager.admit("b", manager.prompt(wanted))
    expect("cached tokens", (given.num_cached_tokens, given.num_copied_tokens), (7, 3))
    expect("copies", _pairs(manager.take_copies().on_device), [(2, given.block_ids[0][1])])
    manager.commit_prompt("b", 9)
    expect("cached of the second", manager.num_cached_tokens(manager.prompt([*wanted, 1])), 8)


def batch(make: Make, seed: int) -> None:
    """Many at once or none: rows that are not there, named twice, with drafts or without room."""
    manager = make(7, 4)
    for name, length in (("a", 4), ("b", 8), ("c", 6)):
        admitted(manager, name, range(100, 100 + length), salt=name)
    rows = [manager.row(name) for name in "abc"]
    for wrong in ([*rows, rows[0]], [*rows, 77], [*rows, -1], [0.0]):
        expect_raises(f"a batch of rows {wrong}", manager.append_batch, wrong, [1] * len(wrong))
    expect_raises("two blocks for a batch with one free", manager.append_batch, rows, [1, 2, 3])
    expect("tokens after that", [manager.num_tokens(n) for n in "abc"], [4, 8, 6])
    given = manager.append_batch([rows[0], rows[2]])
    expect(
        "what a table must follow", (given.rows.tolist(), given.columns.tolist()), ([rows[0]], [1])
    )
    expect("tokens", [manager.num_tokens(n) for n in "abc"], [5, 8, 7])
    expect_raises("a token after one that is not known", manager.append_batch, [rows[0]], [1])
    manager.commit_batch([rows[0], rows[2]], [1, 2])
    expect("committed tokens", [manager.num_committed(n) for n in "abc"], [5, 8, 7])
    expect_raises("a token without a slot", manager.commit_batch, [rows[0]], [1])
    manager.append_slots("a", 1, drafts=1)
    expect_raises("a batch with a row that has drafts", manager.append_batch, [rows[2], rows[0]])
    expect("tokens after that", [manager.num_tokens(n) for n in "abc"], [7, 8, 7])


def fewest_blocks(make: Make, seed: int) -> None:
    """The poorest rank says how many."""
    for_ranks = getattr(make, "for_ranks")  # noqa: B009 (a factory need not have it)
    manager = for_ranks([9, 7, 8], 4)
    expect("free blocks", manager.num_free_blocks, 6)
    expect_raises("no ranks", for_ranks, [], 4)


def at_work(make: Make, seed: int) -> None:
    """Random loads over a device: each request reads back what was written for it."""
    for number in range(10):
        rng = random.Random(1000 * seed + number)
        walk(rng, serving(rng, make), 60)


def copies_before_writes(make: Make, seed: int) -> None:
    """Beams over a device: forks write apart, and each reads its own."""
    work = Serving.of(make, 30, [_FULL])
    work.admit("a", list(range(6)))
    work.fork("a", ["b", "c"])
    for token in range(4):
        work.decode(["a", "b", "c"], [token, token + 10, token + 20])
    work.fork("b", ["d"])
    work.free("a")
    work.decode(["d", "b"], [1, 2])
    work.finish()


CHECKS = {
    check.__name__: check
    for check in (
        copy_on_write,
        copy_of_a_copy,
        fork_is_all_or_nothing,
        rejected_tokens,
        blocks_before_it,
        window_in_flight,
        window_hit,
        chunked,
        fixed_point,
        groups_of_two_sizes,
        swap,
        watermark,
        partial_tail,
        batch,
        fewest_blocks,
        copies_before_writes,
        at_work,
    )
}
"""By the word in `ManagerCase.check`."""
