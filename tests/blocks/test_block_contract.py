"""The rules for block managers, one test each, in the words of the conformance cases."""

import pytest

from paged.blocks import KVCacheManager
from paged.conformance.managers import MANAGER_CASES, MANAGER_RULES, run_manager_conformance


def holds(rule):
    names = [case.name for case in MANAGER_CASES if case.rule == rule]
    report = run_manager_conformance(KVCacheManager, cases=names)
    assert names
    assert [(result.name, result.status, result.reason) for result in report.results] == [
        (name, "passed", "") for name in names
    ]


def test_block_0_is_reserved_and_a_fresh_prompt_gets_ids_from_1():
    holds("B1")


def test_allocation_is_all_or_nothing_for_requests_forks_and_batches():
    holds("B2")


def test_a_hit_block_that_is_free_counts_as_consumed():
    holds("B3")


def test_hits_are_full_blocks_and_leave_one_token_to_compute():
    holds("B4")


def test_freed_blocks_with_a_hash_go_to_the_end_tail_first_others_to_the_front():
    holds("B5")


def test_eviction_is_least_recently_used_and_takes_the_tail_before_the_head():
    holds("B6")


def test_a_touched_block_leaves_the_free_list_and_counts_each_holder():
    holds("B7")


def test_two_requests_that_compute_one_block_keep_their_tables():
    holds("B8")


def test_a_hash_covers_all_keys_and_a_collision_gives_nobody_anothers_blocks():
    holds("B9")


def test_blocks_before_a_window_return_once_no_step_reads_them():
    holds("B10")


def test_a_hit_is_a_fixed_point_over_groups_and_none_evicts_anothers():
    holds("B11")


def test_a_fork_copies_once_per_writer_but_the_last_before_the_write():
    holds("B12")


def test_drafts_are_never_cached_and_rejected_ones_give_their_blocks_back():
    holds("B13")


def test_preemption_frees_everything_and_the_request_runs_again():
    holds("B14")


def test_a_prompt_larger_than_the_pool_is_refused_at_once():
    holds("B15")


def test_reset_double_free_and_unknown_ids_are_refused():
    holds("B16")


def test_events_are_the_history_of_the_index():
    holds("B17")


def test_the_number_of_blocks_is_the_minimum_over_ranks():
    holds("B18")


def test_there_are_no_other_rules():
    assert set(MANAGER_RULES) == {f"B{number}" for number in range(1, 19)}


@pytest.mark.parametrize("num_blocks", [1_000, 1_000_000])
@pytest.mark.parametrize("options", [{}, {"prefix_caching": False}, {"host_blocks": 10}])
def test_bookkeeping_takes_at_most_64_bytes_a_block(num_blocks, options):
    manager = KVCacheManager(num_blocks, 16, **options)
    assert manager.nbytes <= 64 * num_blocks
    # All arrays that grow with the pool are in it.
    arrays = [manager._core.pool, manager._core.pool._free, manager._core.pool._in_flight]
    arrays += [manager._core.index] if manager._core.index is not None else []
    counted = sum(
        getattr(owner, name).nbytes
        for owner in arrays
        for name in owner.__slots__
        if hasattr(getattr(owner, name), "nbytes") and hasattr(getattr(owner, name), "dtype")
    )
    assert manager.nbytes == counted
