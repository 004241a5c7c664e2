"""Procedures for managers that have prefix caching."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from paged.conformance.managers.expect import expect, expect_raises

Make = Callable[..., Any]


def admitted(manager: Any, name: Hashable, token_ids: Sequence[int], **keys: Any) -> int:
    """A request whose whole prompt is computed; its cached tokens."""
    given = manager.admit(name, manager.prompt(token_ids, **keys))
    manager.commit_prompt(name, len(token_ids))
    return given.num_cached_tokens


def _parities(data: bytes) -> bytes:
    """A hash of the last token and of everything, each to one bit."""
    return bytes([(data or b"0000")[-4] % 2, sum(data) % 2])


def free_hit_is_consumed(make: Make, seed: int) -> None:
    """Two of four free blocks are hits: of the others two are left, and three are too many."""
    manager = make(7, 4)
    admitted(manager, "a", range(9))
    manager.free("a")
    admitted(manager, "b", range(50, 58))
    expect("free blocks, two of them cached", manager.num_free_blocks, 4)
    five = manager.prompt([*range(8), *range(20, 32)])
    expect("can_admit of 5 blocks, 2 of them hits that are free", manager.can_admit(five), False)
    expect_raises("admit of 5 blocks with 4 free, hits included", manager.admit, "c", five)
    expect("free blocks after that", manager.num_free_blocks, 4)
    four = manager.prompt([*range(8), *range(20, 28)])
    expect("can_admit of 4 blocks", manager.can_admit(four), True)
    given = manager.admit("c", four)
    expect("cached tokens", given.num_cached_tokens, 8)
    expect("the hit's blocks", given.block_ids[0][:2], [1, 2])
    expect("distinct blocks of the request", len(set(given.block_ids[0])), 4)
    expect("free blocks", manager.num_free_blocks, 0)


def full_blocks_only(make: Make, seed: int) -> None:
    """A hit is full blocks, and one token at least is left to compute."""
    for length in range(1, 14):
        manager = make(20, 4)
        admitted(manager, "a", range(11))  # two full blocks, and three tokens more
        cached = admitted(manager, "b", range(length))
        expect(f"cached of {length} tokens", cached, min(8, (length - 1) // 4 * 4))
    manager = make(20, 4)
    manager.admit("a", manager.prompt(range(8)))
    manager.commit_prompt("a", 6)  # of a prompt that is computed in part
    expect("cached of what is computed so far", admitted(manager, "b", range(12)), 4)


def order_of_freeing(make: Make, seed: int) -> None:
    """Blocks without a hash go first, those of a prefix tail first."""
    manager = make(7, 4)
    admitted(manager, "a", range(14))  # blocks 1, 2, 3 with a hash, 4 without
    manager.free("a")
    given = manager.admit("b", manager.prompt(range(50, 74)))
    # 4 holds nothing of worth, 5 and 6 were never used; then 3, 2, 1.
    expect("blocks in the order of reuse", given.block_ids[0], [4, 5, 6, 3, 2, 1])


def least_recently_used(make: Make, seed: int) -> None:
    """What was used longest ago goes first, though another was computed before it."""
    manager = make(7, 4)
    admitted(manager, "old", range(8))
    admitted(manager, "new", range(50, 58))
    manager.free("old")
    manager.free("new")
    expect("cached of the old one", admitted(manager, "again", range(9)), 8)
    manager.free("again")
    # Free: 5 and 6 without a hash, then the new one's 4, 3, then 2, 1.
    admitted(manager, "other", range(80, 91))
    manager.free("other")
    expect("cached of the old one, used since", admitted(manager, "c", range(9)), 8)
    manager.free("c")
    expect(
        "cached of the new one, part of which was evicted", admitted(manager, "d", range(50, 59)), 4
    )


def touch(make: Make, seed: int) -> None:
    """Two requests on one prefix: the first to go leaves it to the other."""
    manager = make(6, 4)
    admitted(manager, "a", range(9))
    expect("cached tokens", admitted(manager, "b", range(9)), 8)
    expect("free blocks", manager.num_free_blocks, 1)
    manager.free("a")
    expect("free blocks after the first has gone", manager.num_free_blocks, 2)
    expect_raises("an allocation of what the other holds", manager.allocate_slots, "c", 12)
    manager.allocate_slots("c", 8)
    expect("blocks in two hands", set(manager.block_ids("b")) & set(manager.block_ids("c")), set())


def same_block_at_once(make: Make, seed: int) -> None:
    """Both compute it, both keep their own, and the first is found."""
    manager = make(10, 4)
    tables = {}
    for name in "ab":
        tables[name] = manager.admit(name, manager.prompt(range(6))).block_ids[0]
    expect("blocks of two requests that compute one prompt", tables, {"a": [1, 2], "b": [3, 4]})
    for name in "ab":
        manager.commit_prompt(name, 6)
    rows = [manager.row(name) for name in "ab"]
    for token in (6, 7):
        manager.append_batch(rows, [token, token])
    for name in "ab":
        expect(f"table of {name!r} after both", manager.block_ids(name), tables[name])
    expect(
        "the block that is found",
        manager.admit("c", manager.prompt(range(9))).block_ids[0][:2],
        [1, 2],
    )
    for name in "abc":
        manager.free(name)
    expect("free blocks", manager.num_free_blocks, 9)


def hash_of_all_keys(make: Make, seed: int) -> None:
    """Parent, tokens, adapter, salt, and where which image stands: all of it counts."""
    manager = make(60, 4)
    image = manager.image
    base = list(range(9))
    variants: dict[str, tuple[list[int], dict[str, Any]]] = {
        "plain": (base, {}),
        "another first block": ([9, *base[1:]], {}),
        "blocks in another order": ([*base[4:8], *base[:4], 8], {}),
        "a salt": (base, {"salt": "x"}),
        "another salt": (base, {"salt": "y"}),
        "an adapter called like the salt": (base, {"adapter": "x"}),
        "adapter and salt": (base, {"adapter": "x", "salt": "y"}),
        "salt and adapter": (base, {"adapter": "y", "salt": "x"}),
        "both in one word": (base, {"salt": "xy"}),
        "an image": (base, {"images": [image(b"i", 1, 2)]}),
        "another image": (base, {"images": [image(b"j", 1, 2)]}),
        "the image one place on": (base, {"images": [image(b"i", 2, 2)]}),
    }
    for name, (token_ids, keys) in variants.items():
        expect(f"cached of {name}, asked first", admitted(manager, name, token_ids, **keys), 0)
    for name, (token_ids, keys) in variants.items():
        again = admitted(manager, f"{name} again", token_ids, **keys)
        expect(f"cached of {name}, asked again", again, 8)
    later = {"images": [image(b"i", 6, 2)]}
    expect("cached before the image", admitted(manager, "later", base, **later), 4)


def colliding_hash(make: Make, seed: int) -> None:
    """All digests equal: a request still gets what it computed itself, and nothing else."""
    manager = make(40, 4, hash=lambda data: b"same")
    admitted(manager, "a", range(9), salt="one")
    expect("cached of the very same", admitted(manager, "b", range(9), salt="one"), 4)
    expect("cached of another's", admitted(manager, "c", range(9), salt="two"), 0)
    expect("cached of other tokens", admitted(manager, "d", range(1, 10), salt="one"), 0)
    others = set(manager.block_ids("c")) | set(manager.block_ids("d"))
    expect("blocks shared with others", others & set(manager.block_ids("a")), set())
    # By parity: a chain of two may have the digests of another whose first block differs.
    manager = make(40, 4, hash=_parities)
    first = [1, 2, 3, 4]
    admitted(manager, "a", [*first, *range(10, 15)])
    for place, word in enumerate(("parent", "tokens")):
        twisted = [*first, *range(10, 15)]
        twisted[4 * place] += 2
        same = 0 if word == "parent" else 4
        expect(f"cached with another {word}", admitted(manager, word, twisted), same)


def collision_before_a_window(make: Make, seed: int) -> None:
    """A digest whose block is gone still stands for what was cached with it."""
    manager = make(9, 4, hash=_parities, groups=[{"block_size": 4, "kind": "window", "size": 4}])
    admitted(manager, "a", [1, 2, 3, 4, 5, 6, 7, 8, 9])
    manager.append_slots("a")
    manager.allocate_slots("all", 24)  # evicts the block before the window, and no other
    manager.free("all")
    expect("cached of another first block", admitted(manager, "b", [3, 2, 3, 4, 5]), 0)
    expect("cached of what is gone", admitted(manager, "c", [1, 2, 3, 4, 0]), 0)


def comes_back(make: Make, seed: int) -> None:
    """A request that lost its blocks comes back with its outputs as part of its prompt."""
    manager = make(20, 4)
    prompt = manager.prompt(range(9), salt="x")
    manager.admit("a", prompt)
    manager.commit_prompt("a", 9)
    for token in range(9, 17):
        manager.append_batch([manager.row("a")], [token])
    manager.free("a")
    longer = prompt.followed_by(range(9, 17))
    expect("tokens of the longer prompt", len(longer), 17)
    expect("cached of it", manager.num_cached_tokens(longer), 16)
    again = manager.num_cached_tokens(manager.prompt(range(17), salt="x"))
    expect("cached of the same, hashed at once", again, 16)


def collision_forgotten(make: Make, seed: int) -> None:
    """A digest is free again when nothing that was made with it is left."""
    manager = make(5, 4, hash=lambda data: _parities(data)[:1])
    for name, first in (("a", 2), ("b", 4), ("a", 2)):
        expect(f"cached of {name!r}", admitted(manager, name, [first, 0, 0, 2, 7]), 0)
        expect(f"cached of {name!r} again", admitted(manager, "again", [first, 0, 0, 2, 8]), 4)
        manager.free("again")
        manager.free(name)
        manager.allocate_slots("all", 16)  # evicts everything
        manager.free("all")


def reset(make: Make, seed: int) -> None:
    """Refused while blocks are in use; then nothing is found any more."""
    manager = make(10, 4)
    admitted(manager, "a", range(9))
    expect_raises("reset with blocks in use", manager.reset)
    expect("cached after a reset that was refused", admitted(manager, "b", range(9)), 8)
    manager.free("a")
    manager.free("b")
    manager.reset()
    expect("free blocks after the reset", manager.num_free_blocks, 9)
    expect("cached after the reset", admitted(manager, "c", range(9)), 0)


def events(make: Make, seed: int) -> None:
    """Stored, removed and cleared add up to what can be found, group by group."""
    manager = make(9, 4, events=True)
    index: dict[tuple[int, bytes], int] = {}

    def replay() -> list[str]:
        kinds = []
        for event in manager.take_events():
            kinds.append(type(event).__name__)
            if kinds[-1] == "AllCleared":
                index.clear()
            elif kinds[-1] == "BlocksStored":
                for digest, block in zip(event.digests, event.block_ids, strict=True):
                    expect("a digest stored twice", (event.group, digest) in index, False)
                    index[event.group, digest] = block
            else:
                for digest in event.digests:
                    del index[event.group, digest]
        return kinds

    admitted(manager, "a", range(9))
    expect("events of a prompt", replay(), ["BlocksStored"])
    expect("blocks of the index", sorted(index.values()), [1, 2])
    admitted(manager, "b", range(9))
    expect("events of a hit", replay(), [])
    manager.append_batch([manager.row("a")] * 1, [9])
    manager.commit("a", [])
    manager.append_slots("a", 2)
    manager.commit("a", [10, 11])
    expect("events of a block that filled", replay(), ["BlocksStored"])
    expect("blocks of the index", sorted(index.values()), [1, 2, 3])
    expect_raises("an allocation that fails", manager.allocate_slots, "c", 100)
    expect("events of what failed", replay(), [])
    manager.free("a")
    manager.free("b")
    admitted(manager, "c", range(50, 75))
    expect("events of an eviction", replay(), ["BlocksRemoved", "BlocksStored"])
    expect("blocks of the index", len(index), 7)
    found = manager.num_cached_tokens(manager.prompt(range(9)))
    expect("cached of the old prompt, against the events", found // 4, len(index) - 6)
    manager.free("c")
    for name in "de":
        manager.admit(name, manager.prompt(range(80, 86)))
    for name in "de":
        manager.commit_prompt(name, 6)
    kinds = replay()
    expect("events of two that compute one block", kinds, ["BlocksRemoved"] * 2 + ["BlocksStored"])
    manager.free("d")
    manager.free("e")
    manager.reset()
    expect("events of a reset", replay(), ["AllCleared"])


CHECKS = {
    check.__name__: check
    for check in (
        free_hit_is_consumed,
        full_blocks_only,
        order_of_freeing,
        least_recently_used,
        touch,
        same_block_at_once,
        hash_of_all_keys,
        colliding_hash,
        collision_before_a_window,
        collision_forgotten,
        comes_back,
        reset,
        events,
    )
}
"""By the word in `ManagerCase.check`."""
