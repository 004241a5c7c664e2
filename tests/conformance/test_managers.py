"""The block manager's part: ours passes, and faulty ones fail by the right rule."""

import json

import pytest

from paged.blocks import KVCacheManager, OutOfBlocks
from paged.conformance.managers import (
    MANAGER_CASES,
    MANAGER_RULES,
    run_manager_conformance,
)
from paged.conformance.managers.expect import BrokenRule, expect_raises
from paged.conformance.managers.run import CHECKS


def test_ours_has_everything_and_passes():
    report = run_manager_conformance()
    assert report.ok, report.failures[0].reason
    status = {result.name: result.status for result in report.results}
    assert len(status) == len(MANAGER_CASES), "no case is left out"
    assert set(status.values()) == {"passed"}
    assert {word for case in MANAGER_CASES for word in case.needs} == KVCacheManager.features


class HasNothingBeyondBlocks(KVCacheManager):
    features = frozenset()


def test_a_manager_is_not_asked_for_what_it_has_not():
    report = run_manager_conformance(HasNothingBeyondBlocks)
    assert report.ok
    waiting = {result.name: result.reason for result in report.results if result.status != "passed"}
    assert waiting["prefix/touch"] == "waits for prefix caching"
    assert waiting["groups/fixed_point"] == "waits for groups and prefix caching"
    assert "blocks/double_free" not in waiting


def test_every_rule_has_a_case_and_every_check_is_used():
    assert {case.rule for case in MANAGER_CASES} == set(MANAGER_RULES)
    assert {case.check for case in MANAGER_CASES} == set(CHECKS)
    names = [case.name for case in MANAGER_CASES]
    assert len(set(names)) == len(names)


def test_the_json_has_the_form_of_the_kernels_report():
    found = json.loads(run_manager_conformance(cases="blocks/*").to_json())
    assert found["backend"] == "KVCacheManager"
    keys = {"name", "layout", "dtype", "status", "reason", "max_error", "seed"}
    assert all(set(case) == keys for case in found["cases"])
    assert found["summary"] == {
        "passed": len(found["cases"]),
        "failed": 0,
        "refused": 0,
        "not_run": 0,
    }


def _table(manager, request_id):
    return manager._core.holding(request_id).tables[0]


class GivesTheNullBlock(KVCacheManager):
    def allocate_slots(self, request_id, num_tokens):
        super().allocate_slots(request_id, num_tokens)
        return self.block_ids(request_id)

    def block_ids(self, request_id):
        return [block - 1 for block in super().block_ids(request_id)]


class CountsTheNullBlock(KVCacheManager):
    @property
    def num_free_blocks(self):
        return super().num_free_blocks + 1


class KeepsWhatItGotBeforeItFailed(KVCacheManager):
    def allocate_slots(self, request_id, num_tokens):
        if not self.can_allocate(num_tokens):
            super().allocate_slots(("lost", request_id), self.block_size)
            raise OutOfBlocks(self.num_blocks_needed(num_tokens), self.num_free_blocks)
        return super().allocate_slots(request_id, num_tokens)


class AppendsHalf(KVCacheManager):
    def append_slots(self, request_id, num_tokens=1):
        while num_tokens > 0 and not self.can_append(request_id, num_tokens):
            super().append_slots(request_id, 1)
            num_tokens -= 1
        return super().append_slots(request_id, num_tokens)


class GivesABlockTooMany(KVCacheManager):
    def allocate_slots(self, request_id, num_tokens):
        return super().allocate_slots(request_id, num_tokens + 1)


class HandsOutItsOwnList(KVCacheManager):
    def block_ids(self, request_id):
        return _table(self, request_id)


class RewritesItsTables(KVCacheManager):
    def append_slots(self, request_id, num_tokens=1):
        added = super().append_slots(request_id, num_tokens)
        _table(self, request_id).reverse()
        return added


class SharesABlock(KVCacheManager):
    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self._calls = 0

    def allocate_slots(self, request_id, num_tokens):
        blocks = super().allocate_slots(request_id, num_tokens)
        self._calls += 1
        if self._calls > 30:
            other = next(iter(self._core.holdings.values())).tables[0][0]
            _table(self, request_id)[0] = other
        return blocks


class KeepsABlockWhenFreed(KVCacheManager):
    def free(self, request_id):
        _table(self, request_id).pop()
        super().free(request_id)


class LetsEveryoneWait(KVCacheManager):
    def fits(self, num_tokens):
        return True


class FreesTwice(KVCacheManager):
    def free(self, request_id):
        if request_id in self._core.holdings:
            super().free(request_id)


class TakesTheUnknownForEmpty(KVCacheManager):
    def block_ids(self, request_id):
        return super().block_ids(request_id) if request_id in self._core.holdings else []


class ForgetsTheFirstAllocation(KVCacheManager):
    def allocate_slots(self, request_id, num_tokens):
        self._core.holdings.pop(request_id, None)
        return super().allocate_slots(request_id, num_tokens)


class PromisesTooMuch(KVCacheManager):
    def can_append(self, request_id, num_tokens=1):
        super().can_append(request_id, num_tokens)
        return True


FAULTS = {
    GivesTheNullBlock: ("blocks/null_block", "B1"),
    CountsTheNullBlock: ("blocks/free_count", "B1"),
    GivesABlockTooMany: ("blocks/rounding", "B1"),
    KeepsWhatItGotBeforeItFailed: ("blocks/failed_allocation", "B2"),
    AppendsHalf: ("blocks/failed_append", "B2"),
    PromisesTooMuch: ("blocks/can_tells_the_truth", "B2"),
    RewritesItsTables: ("blocks/append_only", "B8"),
    SharesABlock: ("blocks/one_owner", "B8"),
    HandsOutItsOwnList: ("blocks/own_lists", "B8"),
    KeepsABlockWhenFreed: ("blocks/preemption", "B14"),
    LetsEveryoneWait: ("blocks/larger_than_the_pool", "B15"),
    FreesTwice: ("blocks/double_free", "B16"),
    TakesTheUnknownForEmpty: ("blocks/unknown_request", "B16"),
    ForgetsTheFirstAllocation: ("blocks/same_request_twice", "B16"),
}


@pytest.mark.parametrize("manager", FAULTS, ids=lambda manager: manager.__name__)
def test_a_faulty_manager_fails_by_the_right_rule(manager):
    case, rule = FAULTS[manager]
    failed = {result.name: result for result in run_manager_conformance(manager).failures}
    assert case in failed
    assert failed[case].rule == rule
    assert failed[case].reason.startswith(f"rule {rule} ({MANAGER_RULES[rule].text})")


def test_a_fault_of_the_program_is_no_refusal():
    def refuses():
        raise KeyError("no such block")

    expect_raises("a call that is refused", refuses)
    with pytest.raises(BrokenRule, match="a call that is served gave 3, expected an exception"):
        expect_raises("a call that is served", lambda: 3)
    with pytest.raises(TypeError):
        expect_raises("a call with an argument too many", refuses, 1)
    with pytest.raises(AttributeError):
        expect_raises("a call of a method that is not there", lambda: refuses.nothing)


def test_what_is_no_manager_is_refused():
    with pytest.raises(TypeError, match="made a list, which lacks num_free_blocks, fits"):
        run_manager_conformance(lambda num_blocks, block_size: [])
    with pytest.raises(ValueError, match=r"paged\.blocks has no 'Manager'"):
        run_manager_conformance("paged.blocks:Manager")
    with pytest.raises(ValueError, match=r"expected package\.module:Class"):
        run_manager_conformance("paged.blocks")
    with pytest.raises(ValueError, match="no case is named 'block'"):
        run_manager_conformance(cases="block")


def test_progress_is_told_after_each_result():
    seen = []
    report = run_manager_conformance(
        on_result=lambda result, done, total: seen.append((result.name, done, total))
    )
    assert [done for _, done, _ in seen] == list(range(1, len(report.results) + 1))
    assert {total for _, _, total in seen} == {len(report.results)}
