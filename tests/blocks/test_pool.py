import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paged.blocks import NULL_BLOCK, BlockPool, IntegrityError, OutOfBlocks


def drain(pool):
    """The order of reuse, told by using all that is free."""
    return pool.allocate(pool.num_free)


def state(pool):
    return (
        pool.num_free,
        [pool.ref_count(block) for block in range(1, pool.num_blocks)],
        list(pool._free),
    )


def test_by_hand():
    pool = BlockPool(6)  # the null block and blocks 1 to 5
    assert pool.num_free == 5
    assert pool.allocate(2) == [1, 2]
    assert pool.allocate(2) == [3, 4]
    pool.share([2])
    assert [pool.ref_count(block) for block in (1, 2, 3, 4, 5)] == [1, 2, 1, 1, 0]
    pool.free([2, 1])  # block 2 keeps one reference
    assert pool.num_free == 2
    pool.free([4])
    pool.free([2])
    # 5 was never used, then they were freed in the order 1, 4, 2.
    assert drain(pool) == [5, 1, 4, 2]
    assert pool.num_free == 0
    pool.check_integrity()


def test_null_block_is_never_handed_out_nor_counted():
    pool = BlockPool(4)
    for _ in range(3):
        blocks = drain(pool)
        assert sorted(blocks) == [1, 2, 3]
        pool.free(blocks)
        assert pool.num_free == 3


@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_fresh_pool_gives_ids_from_one_in_order(count):
    pool = BlockPool(8)
    assert pool.allocate(count) == list(range(1, count + 1))
    assert pool.num_free == 7 - count


def test_a_block_freed_last_is_reused_last():
    pool = BlockPool(5)
    assert drain(pool) == [1, 2, 3, 4]
    for block in (3, 1, 4, 2):
        pool.free([block])
    assert drain(pool) == [3, 1, 4, 2]


def test_allocation_is_all_or_nothing():
    pool = BlockPool(6)
    pool.allocate(4)
    pool.free([3, 1])
    before = state(pool)
    with pytest.raises(OutOfBlocks, match="wanted 4 blocks, 3 available") as caught:
        pool.allocate(4)
    assert (caught.value.wanted, caught.value.available) == (4, 3)
    assert state(pool) == before
    assert drain(pool) == [5, 3, 1]


def test_a_shared_block_is_free_with_its_last_reference():
    pool = BlockPool(3)
    (block,) = pool.allocate(1)
    pool.share([block, block])
    assert pool.ref_count(block) == 3
    pool.free([block])
    assert (pool.ref_count(block), pool.num_free) == (2, 1)
    pool.free([block, block])  # twice in one call is right: it has two references
    assert (pool.ref_count(block), pool.num_free) == (0, 2)


@pytest.mark.parametrize(
    ("block_ids", "message"),
    [
        ([1, 4], r"block_ids: got 4 1 time\(s\), expected at most its reference count, 0"),
        ([1, 1], r"block_ids: got 1 2 time\(s\), expected at most its reference count, 1"),
        ([1, 2, 2, 2], r"block_ids: got 2 3 time\(s\), expected at most its reference count, 2"),
        ([1, 0], "block_ids: got 0 at index 1, expected a block id of at least 1 and at most 5"),
        ([1, 6], "block_ids: got 6 at index 1, expected a block id of at least 1 and at most 5"),
        ([1, -1], "block_ids: got -1 at index 1"),
        ([1, 2.0], r"block_ids: got 2\.0 at index 1"),
        ([2, True], "block_ids: got True at index 1"),
        (1, "block_ids: got 1, expected a sequence"),
    ],
)
def test_free_refuses_the_whole_call(block_ids, message):
    pool = BlockPool(6)
    pool.allocate(3)
    pool.share([2])
    before = state(pool)
    with pytest.raises(ValueError, match=message):
        pool.free(block_ids)
    assert state(pool) == before


def test_double_free_over_two_calls():
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool.free(blocks)
    before = state(pool)
    with pytest.raises(ValueError, match="reference count, 0"):
        pool.free(blocks)
    assert state(pool) == before


@pytest.mark.parametrize(
    ("block_ids", "message"),
    [
        ([1, 4], "block_ids: got 4, which is free, expected blocks in use"),
        ([1, 0], "block_ids: got 0 at index 1"),
        ([1, 6], "block_ids: got 6 at index 1"),
    ],
)
def test_share_refuses_the_whole_call(block_ids, message):
    pool = BlockPool(6)
    pool.allocate(3)
    before = state(pool)
    with pytest.raises(ValueError, match=message):
        pool.share(block_ids)
    assert state(pool) == before


@pytest.mark.parametrize("block_id", [0, 3, -1, "1"])
def test_ref_count_refuses_what_is_not_counted(block_id):
    with pytest.raises(ValueError, match=f"block_id: got {block_id!r} at index 0"):
        BlockPool(3).ref_count(block_id)


@pytest.mark.parametrize("count", [-1, 1.0, True, None])
def test_allocate_refuses_no_count(count):
    pool = BlockPool(3)
    with pytest.raises(ValueError, match=f"count: got {count!r}, expected an integer of at least"):
        pool.allocate(count)
    assert pool.num_free == 2


@pytest.mark.parametrize("num_blocks", [1, 0, -3, 2.0, True, 2**31])
def test_a_pool_has_a_sensible_size(num_blocks):
    with pytest.raises(ValueError, match=f"num_blocks: got {num_blocks!r}"):
        BlockPool(num_blocks)


def test_numpy_ids_and_iterators_are_accepted_and_ints_come_back():
    pool = BlockPool(4)
    blocks = pool.allocate(np.int32(3))
    assert [type(block) for block in blocks] == [int, int, int]
    pool.share(iter(np.array([2], np.int32)))
    pool.free(np.array([2, 3], np.int32))
    pool.free(reversed([1, 2]))
    assert [type(block) for block in drain(pool)] == [int, int, int]


# Each breaks one thing that a fault in the pool could break, in a pool where block 1 has two
# references, block 2 one, and the free list is 4, 3.
FAULTS = {
    "a free block with a reference": lambda pool: pool._ref_counts.__setitem__(3, 1),
    "a used block without": lambda pool: pool._ref_counts.__setitem__(2, 0),
    "a negative count": lambda pool: pool._ref_counts.__setitem__(2, -1),
    "a count for the null block": lambda pool: pool._ref_counts.__setitem__(NULL_BLOCK, 1),
    "a free block lost": lambda pool: pool._free.remove(3),
    "a used block freed": lambda pool: pool._free.push_back(2),
    "the number of free blocks": lambda pool: setattr(pool._free, "_length", 3),
    "a link back": lambda pool: pool._free._prev.__setitem__(3, 3),
    "the list's end": lambda pool: pool._free._prev.__setitem__(0, 4),
    "a ring that never closes": lambda pool: pool._free._next.__setitem__(3, 4),
    "a block marked free off the list": lambda pool: pool._free._next.__setitem__(2, 3),
}


def sound_pool():
    pool = BlockPool(5)
    pool.allocate(3)
    pool.free([3])
    pool.share([1])
    pool.check_integrity()
    assert list(pool._free) == [4, 3]
    return pool


@pytest.mark.parametrize("fault", FAULTS)
def test_check_integrity_finds(fault):
    pool = sound_pool()
    FAULTS[fault](pool)
    with pytest.raises(IntegrityError, match=r"found \S+, expected \S+"):
        pool.check_integrity()


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 7), st.data())
def test_reuse_follows_a_plain_list(num_blocks, data):
    pool = BlockPool(num_blocks)
    free, refs = list(range(1, num_blocks)), dict.fromkeys(range(1, num_blocks), 0)
    for _ in range(data.draw(st.integers(1, 12))):
        used = [block for block, count in refs.items() if count]
        some = st.lists(st.sampled_from(used), max_size=5) if used else st.just([])
        action = data.draw(st.sampled_from(["allocate", "share", "free"]))
        if action == "allocate":
            count = data.draw(st.integers(0, num_blocks))
            if count > len(free):
                with pytest.raises(OutOfBlocks):
                    pool.allocate(count)
            else:
                assert pool.allocate(count) == free[:count]
                refs.update(dict.fromkeys(free[:count], 1))
                del free[:count]
        elif action == "share":
            blocks = data.draw(some)
            pool.share(blocks)
            for block in blocks:
                refs[block] += 1
        else:
            blocks = data.draw(some)
            if any(blocks.count(block) > refs[block] for block in blocks):
                with pytest.raises(ValueError, match="reference count"):
                    pool.free(blocks)
            else:
                pool.free(blocks)
                for block in blocks:
                    refs[block] -= 1
                    if refs[block] == 0:
                        free.append(block)
        pool.check_integrity()
        assert state(pool) == (len(free), list(refs.values()), free)
