import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paged.blocks.errors import IntegrityError
from paged.blocks.free_list import FreeList


def blocks(*ids):
    return np.array(ids, np.int32)


def test_by_hand():
    free = FreeList(6)
    assert list(free) == [1, 2, 3, 4, 5]
    free.remove(blocks(3, 5))  # from the middle, and the last
    assert free.pop_front(1).tolist() == [1]
    assert list(free) == [2, 4]
    assert free.holds(np.arange(6)).tolist() == [False, False, True, False, True, False]
    free.push_back(blocks(5, 1))
    free.push_front(blocks(3))
    assert list(free) == [3, 2, 4, 5, 1]
    assert len(free) == 5
    free.check_integrity()


def test_empty_and_filled_again():
    free = FreeList(3)
    assert free.pop_front(2).tolist() == [1, 2]
    assert (len(free), list(free)) == (0, [])
    assert free.pop_front(0).tolist() == []
    free.push_back(blocks(2, 1))
    assert (len(free), list(free)) == (2, [2, 1])
    free.check_integrity()


def test_a_block_that_left_the_middle_and_came_again_stands_once():
    free = FreeList(5)
    free.remove(blocks(2))
    free.push_back(blocks(2))
    assert list(free) == [1, 3, 4, 2]
    assert free.pop_front(3).tolist() == [1, 3, 4]


def test_a_long_stale_stretch_is_passed_over():
    free = FreeList(1001)
    free.remove(np.arange(1, 1000, dtype=np.int32))
    assert free.pop_front(1).tolist() == [1000]
    assert len(free) == 0


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda free: free._place.__setitem__(2, -1), "free blocks against their count"),
        (lambda free: free._ring.__setitem__(1, 4), "that do not stand at their place"),
        (lambda free: setattr(free, "_first", 2), "whose place is not in use"),
    ],
)
def test_check_integrity_finds(fault, message):
    free = FreeList(5)
    fault(free)
    with pytest.raises(IntegrityError, match=message):
        free.check_integrity()


@settings(max_examples=60)
@given(st.integers(2, 9), st.data())
def test_it_is_a_plain_list(num_blocks, data):
    """Long enough that the ring goes round and is rewritten."""
    free, model = FreeList(num_blocks), list(range(1, num_blocks))
    for _ in range(data.draw(st.integers(1, 40))):
        action = data.draw(st.sampled_from(["pop", "remove", "back", "front"]))
        used = [block for block in range(1, num_blocks) if block not in model]
        chosen = data.draw(st.permutations(used if action in ("back", "front") else model))
        chosen = chosen[: data.draw(st.integers(0, len(chosen)))]
        if action == "pop":
            assert free.pop_front(len(chosen)).tolist() == model[: len(chosen)]
            model = model[len(chosen) :]
        elif action == "remove":
            free.remove(blocks(*chosen))
            model = [block for block in model if block not in chosen]
        elif action == "back":
            free.push_back(blocks(*chosen))
            model = model + chosen
        else:
            free.push_front(blocks(*chosen))
            model = chosen + model
        free.check_integrity()
        assert list(free) == model
        assert len(free) == len(model)
