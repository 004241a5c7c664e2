import pytest

from paged.blocks.errors import IntegrityError
from paged.blocks.free_list import FreeList


def test_by_hand():
    free = FreeList(6)
    assert list(free) == [1, 2, 3, 4, 5]
    free.remove(3)  # from the middle
    free.remove(5)  # the last
    assert free.pop_front() == 1
    assert list(free) == [2, 4]
    assert [block in free for block in range(6)] == [False, False, True, False, True, False]
    free.push_back(5)
    free.push_back(1)
    assert list(free) == [2, 4, 5, 1]
    assert len(free) == 4
    free.check_integrity()


def test_empty_and_filled_again():
    free = FreeList(3)
    assert [free.pop_front(), free.pop_front()] == [1, 2]
    assert (len(free), list(free)) == (0, [])
    free.check_integrity()
    free.push_back(2)
    free.push_back(1)
    assert (len(free), list(free)) == (2, [2, 1])
    free.check_integrity()


def test_a_mark_without_a_place_is_found():
    free = FreeList(5)
    free.remove(2)
    free._next[2] = 3
    with pytest.raises(IntegrityError, match="block 2 marked as free: found True, expected False"):
        free.check_integrity()
