"""Groups: which blocks a query reads, and hits against a search that tries every length."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paged.blocks import Group, KVCacheManager, NeverFits
from paged.blocks.groups import common_hit


def test_by_hand():
    window, chunked = Group(4, "window", 6), Group(4, "chunked", 8)
    # Position 9 reads 4 to 9: block 0 may go. Position 15 reads 8 to 15 of its chunk.
    assert [window.first_block(p) for p in (0, 8, 9, 12, 13)] == [0, 0, 1, 1, 2]
    assert [chunked.first_block(p) for p in (7, 8, 15, 16)] == [0, 2, 2, 4]
    assert [window.next_release(n) for n in (0, 1)] == [9, 13]
    assert [chunked.next_release(n) for n in (0, 1, 2)] == [8, 8, 16]
    for kind in ("full", "latent"):
        assert (Group(4, kind).first_block(99), Group(4, kind).next_release(0)) == (0, math.inf)


KINDS = st.one_of(
    st.sampled_from(["full", "latent"]).map(lambda kind: (kind, None)),
    st.tuples(st.sampled_from(["window", "chunked"]), st.integers(1, 20)),
)
GROUPS = st.builds(lambda size, kind: Group(size, *kind), st.sampled_from([1, 2, 4]), KINDS)


@settings(max_examples=100)
@given(GROUPS, st.integers(0, 12))
def test_the_next_release_is_the_first_position_that_reads_a_block_no_more(group, released):
    reads = [p for p in range(200) if group.first_block(p) > released]
    assert group.next_release(released) == (reads[0] if reads else math.inf)


@settings(max_examples=200)
@given(st.lists(GROUPS, min_size=1, max_size=3), st.integers(0, 24), st.data())
def test_a_common_hit_is_the_longest_that_every_group_accepts(groups, limit, data):
    cached = [data.draw(st.sets(st.integers(0, 24), max_size=25)) for _ in groups]
    step = math.lcm(*(group.block_size for group in groups))

    def fits(length):
        return all(
            set(range(group.first_block(length), length // group.block_size)) <= mine
            for group, mine in zip(groups, cached, strict=True)
        )

    longest = max(length for length in range(0, limit + 1, step) if fits(length))
    assert common_hit(limit, groups, lambda group, block: block in cached[group]) == longest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "block_size: got 0, expected an integer of at least 1"),
        ((4, "sliding"), "kind: got 'sliding', expected one of"),
        ((4, "window"), "size: got None, expected an integer of at least 1"),
        ((4, "full", 8), "size: got 8 for kind 'full', expected None"),
    ],
)
def test_bad_groups_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Group(*arguments)


def test_groups_of_a_manager():
    manager = KVCacheManager(20, 4, groups=[{"kind": "full"}, Group(8, "window", 8)])
    assert manager.groups == (Group(4), Group(8, "window", 8))
    assert manager.num_blocks_needed(16) == 6
    assert len(manager.allocate_slots("a", 16)) == 4
    assert len(manager.block_ids("a", 1)) == 2
    for group in (2, -1):
        with pytest.raises(ValueError, match=f"group: got {group}, expected 0 to 1"):
            manager.block_ids("a", group)
    with pytest.raises(ValueError, match="groups: got 0, expected 1 to 127"):
        KVCacheManager(20, 4, groups=[])
    with pytest.raises(ValueError, match="groups: got 'full', expected a Group"):
        KVCacheManager(20, 4, groups=["full"])


def test_a_long_prompt_in_chunks_needs_a_window_and_two_chunks():
    manager = KVCacheManager(10, 4, groups=[{"kind": "window", "size": 8}])
    assert not manager.fits(100)
    assert not manager.fits(100, chunk=16)
    assert manager.fits(100, chunk=12)
    prompt = manager.prompt(range(100))
    with pytest.raises(NeverFits, match="wanted 25 blocks, 9 available"):
        manager.admit("a", prompt)
    manager.admit("a", prompt, chunk=12)
    while manager.num_tokens("a") < 100:
        manager.commit_prompt("a", manager.num_tokens("a"))
        manager.append_slots("a", min(12, 100 - manager.num_tokens("a")))
        manager.check_integrity()
    # The last chunk starts at position 96, which reads from 89 on.
    assert manager.block_ids("a").count(0) == 22
