import numpy as np
import pytest
from block_subjects import pool_state
from hypothesis import given, settings
from hypothesis import strategies as st

from paged.blocks import NULL_BLOCK, BlockPool, IntegrityError, OutOfBlocks


def blocks(*ids):
    return np.array(ids, np.int32)


def drain(pool):
    """The order of reuse, told by using all that is free."""
    return pool.acquire(pool.num_free).tolist()


def counts(pool):
    return [pool.ref_count(block) for block in range(1, pool.num_blocks)]


def test_by_hand():
    pool = BlockPool(6)  # the null block and blocks 1 to 5
    assert pool.num_free == 5
    assert pool.acquire(2).tolist() == [1, 2]
    assert pool.acquire(2).tolist() == [3, 4]
    pool.share([2])
    assert counts(pool) == [1, 2, 1, 1, 0]
    pool.labels[[2, 3]] = 1  # what these hold may be asked for again
    pool.release([3, 2, 1])  # block 2 keeps one reference
    assert (pool.num_free, pool.num_used) == (3, 2)
    # Block 1 holds nothing of worth, so it goes before the never used 5; 3 goes last.
    assert pool.free_blocks().tolist() == [1, 5, 3]
    pool.release([2])
    assert pool.free_blocks().tolist() == [1, 5, 3, 2]
    pool.check_integrity()


def test_null_block_is_never_handed_out_nor_counted():
    pool = BlockPool(4)
    for _ in range(3):
        taken = drain(pool)
        assert sorted(taken) == [1, 2, 3]
        pool.release(taken)
        assert pool.num_free == 3


@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_fresh_pool_gives_ids_from_one_in_order(count):
    pool = BlockPool(8)
    assert pool.acquire(count).tolist() == list(range(1, count + 1))
    assert pool.num_free == 7 - count


def test_acquire_is_all_or_nothing():
    pool = BlockPool(6)
    pool.acquire(4)
    pool.labels[[1, 3]] = 1
    pool.release([3, 1])
    before = pool_state(pool)
    for count, shared, spare in ((4, (), 0), (3, (3,), 0), (2, (1, 3), 0), (2, (3,), 1)):
        with pytest.raises(OutOfBlocks, match="wanted 4 blocks, 3 available") as caught:
            pool.acquire(count, blocks(*shared), spare=spare)
        assert (caught.value.wanted, caught.value.available) == (4, 3)
        assert pool_state(pool) == before
    assert drain(pool) == [5, 3, 1]


def test_a_shared_block_that_is_free_is_taken_before_others_are():
    # Block 1 is the next to be reused; wanted for what it holds, it is not.
    pool = BlockPool(4)
    pool.acquire(3)
    pool.labels[1:] = 1
    pool.release([1, 2, 3])
    evicted = []
    pool.on_evict = lambda gone: (evicted.extend(gone.tolist()), pool.labels.put(gone, 0))
    assert pool.acquire(1, blocks(1)).tolist() == [2]
    assert counts(pool) == [1, 1, 0]
    assert evicted == [2]
    pool.check_integrity()


def test_a_shared_block_is_free_with_its_last_reference():
    pool = BlockPool(3)
    (block,) = pool.acquire(1).tolist()
    pool.share([block], times=2)
    assert pool.ref_count(block) == 3
    pool.acquire(0, blocks(block))
    assert pool.ref_count(block) == 4
    for left in (3, 2, 1, 0):
        assert pool.num_free == 1
        pool.release([block])
        assert pool.ref_count(block) == left
    assert pool.num_free == 2


@pytest.mark.parametrize(
    ("block_ids", "message"),
    [
        ([1, 4], "block_ids: got 4, which has no reference, expected blocks in use"),
        ([1, 1], "block_ids: got 1 more than once, expected distinct blocks"),
        ([1, 0], "block_ids: got 0 at index 1, expected a block id of at least 1 and at most 5"),
        ([1, 6], "block_ids: got 6 at index 1, expected a block id of at least 1 and at most 5"),
        (blocks(1, 6), "block_ids: got 6, expected block ids of at least 1 and at most 5"),
        (blocks(1, -1), "block_ids: got -1, expected block ids of at least 1 and at most 5"),
        ([1, 2.0], r"block_ids: got 2\.0 at index 1"),
        ([2, True], "block_ids: got True at index 1"),
        (1, "block_ids: got 1, expected a sequence"),
    ],
)
def test_release_refuses_the_whole_call(block_ids, message):
    pool = BlockPool(6)
    pool.acquire(3)
    before = pool_state(pool)
    with pytest.raises(ValueError, match=message):
        pool.release(block_ids)
    assert pool_state(pool) == before


def test_double_free_over_two_calls():
    pool = BlockPool(4)
    taken = pool.acquire(2)
    pool.release(taken)
    before = pool_state(pool)
    with pytest.raises(ValueError, match="which has no reference"):
        pool.release(taken)
    assert pool_state(pool) == before


@pytest.mark.parametrize(
    ("block_ids", "message"),
    [
        ([1, 4], "block_ids: got 4, which is free, expected blocks in use"),
        ([1, 0], "block_ids: got 0 at index 1"),
        ([1, 6], "block_ids: got 6 at index 1"),
        ([2, 2], "block_ids: got 2 more than once"),
    ],
)
def test_share_refuses_the_whole_call(block_ids, message):
    pool = BlockPool(6)
    pool.acquire(3)
    before = pool_state(pool)
    with pytest.raises(ValueError, match=message):
        pool.share(block_ids)
    assert pool_state(pool) == before


@pytest.mark.parametrize("block_id", [0, 3, -1, "1"])
def test_ref_count_refuses_what_is_not_counted(block_id):
    with pytest.raises(ValueError, match=f"block_id: got {block_id!r} at index 0"):
        BlockPool(3).ref_count(block_id)


@pytest.mark.parametrize("count", [-1, 1.0, True, None])
def test_acquire_refuses_no_count(count):
    pool = BlockPool(3)
    with pytest.raises(ValueError, match=f"count: got {count!r}, expected an integer of at least"):
        pool.acquire(count)
    assert pool.num_free == 2


@pytest.mark.parametrize("num_blocks", [1, 0, -3, 2.0, True, 2**31])
def test_a_pool_has_a_sensible_size(num_blocks):
    with pytest.raises(ValueError, match=f"num_blocks: got {num_blocks!r}"):
        BlockPool(num_blocks)


def test_given_up_blocks_wait_for_the_steps_in_flight():
    pool = BlockPool(6)
    pool.acquire(4)
    first, second = pool.begin_step(), pool.begin_step()
    pool.release([1])
    third = pool.begin_step()
    pool.release([2])
    pool.end_step(first)
    assert (pool.num_free, pool.num_waiting, pool.num_used) == (1, 2, 2)
    pool.check_integrity()
    pool.end_step(second)  # the last that was dispatched before block 1 was given up
    assert pool.free_blocks().tolist() == [1, 5]
    pool.end_step(third)
    assert (pool.num_free, pool.num_waiting) == (3, 0)
    pool.release([3])
    assert pool.num_free == 4
    pool.check_integrity()


def test_a_block_that_waits_can_be_shared_and_is_not_free_before_its_time():
    pool = BlockPool(4)
    pool.acquire(1)
    pool.labels[1] = 1
    first = pool.begin_step()
    pool.release([1])
    with pytest.raises(OutOfBlocks, match="wanted 3 blocks, 2 available"):
        pool.acquire(3)
    pool.acquire(0, blocks(1))
    second = pool.begin_step()
    pool.release([1])  # it waits for another step now
    pool.end_step(first)
    assert (pool.num_waiting, pool.num_free) == (1, 2)
    pool.end_step(second)
    assert (pool.num_waiting, pool.num_free) == (0, 3)
    pool.check_integrity()


@pytest.mark.parametrize("step", [0, 3, -1])
def test_steps_end_that_are_in_flight(step):
    pool = BlockPool(3)
    pool.begin_step()
    pool.begin_step()
    with pytest.raises(ValueError, match=f"step: got {step}, expected one in flight, from 1 to 2"):
        pool.end_step(step)
    pool.end_step(2)  # all before it have ended too
    assert pool.num_steps == 0


def test_numpy_ids_and_iterators_are_accepted():
    pool = BlockPool(4)
    pool.acquire(np.int32(3))
    pool.share(iter(np.array([2], np.int64)))
    pool.release(np.array([2, 3], np.int32))
    pool.release(reversed([1, 2]))
    assert drain(pool) == [2, 1, 3]


# Each breaks one thing that a fault in the pool could break, in a pool where block 1 has two
# references, block 2 one, 4 is free and 3 waits for a step.
FAULTS = {
    "a free block with a reference": lambda pool: pool._ref_counts.__setitem__(4, 1),
    "a waiting block with a reference": lambda pool: pool._ref_counts.__setitem__(3, 1),
    "a used block without": lambda pool: pool._ref_counts.__setitem__(2, 0),
    "a negative count": lambda pool: pool._ref_counts.__setitem__(2, -1),
    "a count for the null block": lambda pool: pool._ref_counts.__setitem__(NULL_BLOCK, 1),
    "a label of the null block": lambda pool: pool.labels.__setitem__(NULL_BLOCK, 1),
    "a free block lost": lambda pool: pool._free.remove(blocks(4)),
    "a used block freed": lambda pool: pool._free.push_back(blocks(2)),
    "a waiting block freed": lambda pool: pool._free.push_back(blocks(3)),
    "a waiting block lost": lambda pool: pool._in_flight.take_back(blocks(3)),
    "the number of waiting blocks": lambda pool: setattr(pool._in_flight, "num_waiting", 2),
    "a wait for no step": lambda pool: pool._in_flight._batch.__setitem__(3, 9),
    "a batch that outlives the steps": lambda pool: setattr(pool._in_flight, "_ended", 1),
    "the number of free blocks": lambda pool: setattr(pool._free, "_length", 3),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_check_integrity_finds(fault):
    pool = BlockPool(5)
    pool.acquire(3)
    pool.begin_step()
    pool.release([3])
    pool.share([1])
    pool.check_integrity()
    FAULTS[fault](pool)
    with pytest.raises(IntegrityError, match=r"found .+, expected .+"):
        pool.check_integrity()


@settings(max_examples=60)
@given(st.integers(2, 7), st.data())
def test_reuse_follows_a_plain_list(num_blocks, data):
    pool = BlockPool(num_blocks, on_evict=lambda gone: pool.labels.put(gone, 0))
    free, refs, kept = list(range(1, num_blocks)), dict.fromkeys(range(1, num_blocks), 0), set()
    for _ in range(data.draw(st.integers(1, 15))):
        used = [block for block, count in refs.items() if count]
        some = data.draw(st.permutations(used))[: data.draw(st.integers(0, 3))]
        action = data.draw(st.sampled_from(["acquire", "share", "release", "label"]))
        if action == "acquire":
            count = data.draw(st.integers(0, num_blocks))
            wanted = data.draw(st.permutations(sorted(kept)))[: data.draw(st.integers(0, 2))]
            left = [block for block in free if block not in wanted]
            if count > len(left):
                with pytest.raises(OutOfBlocks):
                    pool.acquire(count, blocks(*wanted))
            else:
                assert pool.acquire(count, blocks(*wanted)).tolist() == left[:count]
                free = left[count:]
                kept -= set(left[:count])
                for block in [*wanted, *left[:count]]:
                    refs[block] += 1
        elif action == "share":
            pool.share(some)
            for block in some:
                refs[block] += 1
        elif action == "label":
            pool.labels[some] = 1
            kept |= set(some)
        else:
            pool.release(some)
            for block in some:
                refs[block] -= 1
            idle = [block for block in some if refs[block] == 0]
            free = [b for b in idle if b not in kept] + free + [b for b in idle if b in kept]
        pool.check_integrity()
        assert pool.free_blocks().tolist() == free
        assert counts(pool) == list(refs.values())
