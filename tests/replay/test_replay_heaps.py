"""The two heaps: by hand, then against a map of who has which slot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged.replay import HEAPS, power_of_two
from paged.replay.heaps import BuddyHeap, FirstFitHeap


def test_first_fit_takes_the_lowest_hole_that_is_long_enough():
    heap = FirstFitHeap(8)
    assert [heap.allocate(length) for length in (3, 2, 2)] == [0, 3, 5]
    heap.free(0)
    # Four slots are free, and no four side by side.
    assert heap.num_free == 4
    assert heap.allocate(4) is None
    assert heap.allocate(1) == 0
    heap.free(3)
    assert heap.allocate(4) == 1


def test_buddies_are_split_and_joined():
    heap = BuddyHeap(8)
    assert heap.allocate(3) == 0
    assert heap.num_free == 4
    assert heap.allocate(1) == 4
    assert heap.allocate(2) == 6
    assert heap.allocate(2) is None
    assert heap.allocate(1) == 5
    for start in (0, 4, 6, 5):
        heap.free(start)
    assert heap.allocate(8) == 0


def test_a_buddy_heap_of_another_size_is_several():
    heap = BuddyHeap(11)
    assert heap.fits(8)
    assert not heap.fits(9)
    assert [heap.allocate(length) for length in (8, 2, 1)] == [0, 8, 10]
    assert heap.num_free == 0
    for start in (8, 10, 0):
        heap.free(start)
    # 8 to 9 and 10 are not buddies of each other, nor of what lies before.
    assert [heap.allocate(length) for length in (2, 1, 8)] == [8, 10, 0]


@pytest.mark.parametrize("name", HEAPS)
def test_what_is_refused(name):
    heap = HEAPS[name](4)
    with pytest.raises(ValueError, match="length: got 0, expected at least 1"):
        heap.allocate(0)
    with pytest.raises(ValueError, match="start: got 0, expected the start of a stretch"):
        heap.free(0)
    with pytest.raises(ValueError, match="num_slots: got 0, expected at least 1"):
        HEAPS[name](0)


@pytest.mark.parametrize("name", HEAPS)
@given(
    num_slots=st.integers(1, 70),
    moves=st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=60),
)
def test_stretches_never_overlap_and_all_of_it_comes_back(name, num_slots, moves):
    heap = HEAPS[name](num_slots)
    owner, held = [None] * num_slots, []
    for is_allocation, number in moves:
        if is_allocation:
            size = heap.size_for(number)
            start = heap.allocate(number)
            if start is None:
                holes = "".join(" " if each is None else "x" for each in owner)
                is_hole = " " * size in holes
                # A buddy heap wants its stretches aligned too.
                assert not is_hole or name == "buddy"
                continue
            assert size >= number
            assert owner[start : start + size] == [None] * size
            owner[start : start + size] = [start] * size
            held.append((start, size))
        elif held:
            start, size = held.pop(number % len(held))
            heap.free(start)
            owner[start : start + size] = [None] * size
        assert heap.num_free == owner.count(None)
    for start, _ in held:
        heap.free(start)
    longest = max(length for length in range(1, num_slots + 1) if heap.fits(length))
    assert longest == (num_slots if name == "first-fit" else power_of_two(num_slots + 1) // 2)
    assert heap.allocate(longest) == 0
