import numpy as np
import pytest
from block_subjects import state

from paged.blocks import IntegrityError, KVCacheManager, NeverFits, OutOfBlocks


def test_by_hand():
    # 25, 47 and 12 tokens at 16 a block: 2 + 3 + 1 = 6 blocks, 96 slots, 84 of them used.
    manager = KVCacheManager(num_blocks=11, block_size=16)
    assert manager.num_free_blocks == 10
    assert manager.allocate_slots("a", 25) == [1, 2]
    assert manager.allocate_slots("b", 47) == [3, 4, 5]
    assert manager.allocate_slots("c", 12) == [6]
    assert manager.num_free_blocks == 4
    used = [block for request in "abc" for block in manager.block_ids(request)]
    assert used == [1, 2, 3, 4, 5, 6]
    assert len(used) * manager.block_size == 96
    assert sum(manager.num_tokens(request) for request in "abc") == 84

    assert manager.append_slots("b") == []  # token 48 fills block 5
    assert manager.append_slots("b") == [7]
    assert manager.block_ids("b") == [3, 4, 5, 7]
    manager.free("b")  # nobody can ask for what it held, so it goes first, the tail before the head
    assert manager.num_free_blocks == 7
    assert manager.allocate_slots("d", 16 * 7) == [7, 5, 4, 3, 8, 9, 10]
    manager.check_integrity()


@pytest.mark.parametrize(
    ("num_tokens", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)]
)
def test_num_blocks_needed(num_tokens, blocks):
    manager = KVCacheManager(8, 16)
    assert manager.num_blocks_needed(num_tokens) == blocks
    if num_tokens:
        assert manager.allocate_slots("a", num_tokens) == list(range(1, blocks + 1))


def test_a_fresh_prompt_gets_ids_from_one_and_never_the_null_block():
    manager = KVCacheManager(5, 4)
    assert manager.num_free_blocks == 4
    for _ in range(3):
        ids = manager.allocate_slots("a", 16)
        assert sorted(ids) == [1, 2, 3, 4]
        assert manager.num_free_blocks == 0
        manager.free("a")
    assert KVCacheManager(5, 4).allocate_slots("a", 10) == [1, 2, 3]


def test_append_adds_a_block_only_where_the_last_is_full():
    manager = KVCacheManager(8, 4)
    manager.allocate_slots("a", 3)
    assert [manager.append_slots("a") for _ in range(6)] == [[], [2], [], [], [], [3]]
    # 9 tokens in 3 blocks: 3 more fit, 4 more need one block, 8 more two.
    assert manager.append_slots("a", 3) == []
    assert manager.append_slots("a", 5) == [4, 5]
    assert manager.num_tokens("a") == 17
    manager.check_integrity()


def test_tables_are_append_only():
    manager = KVCacheManager(12, 4)
    manager.allocate_slots("a", 6)
    manager.allocate_slots("b", 6)
    before = manager.block_ids("a")
    for num_tokens in (1, 2, 5):
        manager.append_slots("b", num_tokens)
        manager.append_slots("a", num_tokens)
        after = manager.block_ids("a")
        assert after[: len(before)] == before
        before = after
    assert len(before) == 4


def test_failed_allocation_leaves_no_trace():
    manager = KVCacheManager(7, 4)
    manager.allocate_slots("a", 8)
    manager.allocate_slots("b", 8)
    manager.free("a")
    before = state(manager)
    assert not manager.can_allocate(17)
    with pytest.raises(OutOfBlocks, match="wanted 5 blocks, 4 available"):
        manager.allocate_slots("c", 17)
    assert state(manager) == before
    assert manager.can_allocate(16)
    assert manager.allocate_slots("c", 16) == [2, 1, 5, 6]


def test_failed_append_leaves_no_trace():
    manager = KVCacheManager(4, 4)
    manager.allocate_slots("a", 3)
    manager.allocate_slots("b", 4)
    before = state(manager)
    assert not manager.can_append("a", 6)  # 9 tokens: two blocks more, one is free
    with pytest.raises(OutOfBlocks, match="wanted 2 blocks, 1 available"):
        manager.append_slots("a", 6)
    assert state(manager) == before
    assert manager.can_append("a", 5)
    assert manager.append_slots("a", 5) == [3]
    assert not manager.can_append("b")
    with pytest.raises(OutOfBlocks, match="wanted 1 blocks, 0 available"):
        manager.append_slots("b")
    assert manager.num_tokens("b") == 4


def test_a_prompt_larger_than_the_pool_is_told_from_one_that_waits():
    manager = KVCacheManager(4, 4)  # three blocks, 12 tokens
    manager.allocate_slots("a", 1)
    assert manager.fits(12)
    assert not manager.can_allocate(12)
    assert not manager.fits(13)
    with pytest.raises(NeverFits, match="wanted 4 blocks, 3 available"):
        manager.allocate_slots("b", 13)
    manager.free("a")
    assert manager.can_allocate(12)
    assert not manager.can_allocate(13)


def test_a_request_is_allocated_once_and_freed_once():
    manager = KVCacheManager(6, 4)
    manager.allocate_slots("a", 5)
    before = state(manager)
    with pytest.raises(ValueError, match=r"request_id: got 'a', which holds 2 block\(s\)"):
        manager.allocate_slots("a", 1)
    assert state(manager) == before
    manager.free("a")
    before = state(manager)
    with pytest.raises(ValueError, match="request_id: got 'a', expected one of the 0 request"):
        manager.free("a")
    assert state(manager) == before
    assert manager.allocate_slots("a", 1) == [2]  # the id may be used again


@pytest.mark.parametrize(
    "call",
    [
        lambda manager: manager.append_slots("b"),
        lambda manager: manager.can_append("b"),
        lambda manager: manager.free("b"),
        lambda manager: manager.block_ids("b"),
        lambda manager: manager.num_tokens("b"),
    ],
)
def test_unknown_requests_are_refused(call):
    manager = KVCacheManager(6, 4)
    manager.allocate_slots("a", 5)
    before = state(manager)
    with pytest.raises(ValueError, match="request_id: got 'b', expected one of the 1 request"):
        call(manager)
    assert state(manager) == before


@pytest.mark.parametrize("num_tokens", [0, -1, 1.0, True, "1", None])
@pytest.mark.parametrize("call", ["allocate_slots", "append_slots", "can_append", "can_allocate"])
def test_bad_token_counts_are_refused(call, num_tokens):
    manager = KVCacheManager(6, 4)
    manager.allocate_slots("a", 5)
    before = state(manager)
    args = {"allocate_slots": ["b"], "append_slots": ["a"], "can_append": ["a"]}.get(call, [])
    message = f"num_tokens: got {num_tokens!r}, expected an integer of at least 1"
    with pytest.raises(ValueError, match=message):
        getattr(manager, call)(*args, num_tokens)
    assert state(manager) == before


@pytest.mark.parametrize("call", ["fits", "num_blocks_needed"])
def test_bad_sizes_are_refused(call):
    with pytest.raises(ValueError, match="num_tokens: got -1, expected an integer of at least 0"):
        getattr(KVCacheManager(6, 4), call)(-1)


@pytest.mark.parametrize(
    ("num_blocks", "block_size", "message"),
    [
        (1, 16, "num_blocks: got 1, expected an integer of at least 2"),
        (8, 0, "block_size: got 0, expected an integer of at least 1"),
        (8, 4.0, r"block_size: got 4\.0"),
        (2**27, 16, "num_blocks: got 134217728 with block_size 16, expected at most 134217727"),
    ],
)
def test_bad_pools_are_refused(num_blocks, block_size, message):
    with pytest.raises(ValueError, match=message):
        KVCacheManager(num_blocks, block_size)


def test_what_is_returned_may_be_changed():
    manager = KVCacheManager(6, 4)
    manager.allocate_slots("a", 5).append(99)
    manager.append_slots("a", 4).append(99)
    manager.block_ids("a").append(99)
    assert manager.block_ids("a") == [1, 2, 3]
    manager.check_integrity()


def test_any_hashable_id_and_numpy_counts_are_accepted():
    manager = KVCacheManager(np.int32(6), np.int64(4))
    manager.allocate_slots(("tenant", 7), np.int32(5))
    manager.append_slots(("tenant", 7), np.int32(4))
    assert manager.num_tokens(("tenant", 7)) == 9
    assert type(manager.num_tokens(("tenant", 7))) is int


def holding(manager, request):
    return manager._core.holdings[request]


@pytest.mark.parametrize(
    "fault",
    [
        lambda manager: manager._core.pool.acquire(1),
        lambda manager: manager._core.pool.share([1]),
        lambda manager: manager._core.pool.release([1]),
        lambda manager: manager._core.pool._free.remove(np.array([5], np.int32)),
        lambda manager: manager._core.rows.num_tokens.__setitem__(0, 9),
        lambda manager: manager._core.rows.limit.__setitem__(0, 99),
        lambda manager: manager._core.rows.committed.__setitem__(0, 6),
        lambda manager: manager._core.rows.holdings.__setitem__(0, None),
        lambda manager: holding(manager, "a").tables[0].__setitem__(1, 1),
        lambda manager: holding(manager, "a").tables[0].__setitem__(1, 3),
        lambda manager: holding(manager, "a").tables[0].__setitem__(1, 0),
        lambda manager: holding(manager, "a").tables[0].__setitem__(1, 99),
        lambda manager: holding(manager, "a").released.__setitem__(0, 1),
        lambda manager: manager._core.holdings.pop("a"),
        lambda manager: manager._core.pool.labels.__setitem__(1, 1),
    ],
)
def test_check_integrity_compares_requests_with_the_pool(fault):
    manager = KVCacheManager(6, 4)
    manager.allocate_slots("a", 5)
    manager.allocate_slots("b", 4)
    manager.check_integrity()
    fault(manager)
    with pytest.raises(IntegrityError, match=r"found .+, expected .+"):
        manager.check_integrity()


def test_check_integrity_finds_a_block_twice_in_one_request():
    # The pool agrees, so that only the request itself is wrong.
    manager = KVCacheManager(6, 4)
    manager.allocate_slots("a", 8)
    manager._core.pool.share([1])
    manager._core.pool.release([2])
    holding(manager, "a").tables[0][1] = 1
    with pytest.raises(IntegrityError, match="distinct blocks of request 'a': found 1, expected 2"):
        manager.check_integrity()


def test_blocks_may_be_asked_to_stay_free():
    manager = KVCacheManager(6, 4, watermark=1)
    prompt = manager.prompt(range(12))
    # Three of five blocks; the watermark is for when somebody runs.
    assert manager.can_admit(prompt, spare=2)
    assert not manager.can_admit(prompt, spare=3)
    manager.allocate_slots("a", 4)
    assert manager.can_admit(prompt)
    assert not manager.can_admit(prompt, spare=2)
    with pytest.raises(ValueError, match="spare: got -1, expected an integer of at least 0"):
        manager.can_admit(prompt, spare=-1)
