"""Seeded faults of the block manager: none is stale, and each is caught."""

import ast
import sys

import pytest

from paged.blocks import KVCacheManager
from paged.conformance.managers import MANAGER_CASES
from paged.conformance.mutants import StaleMutantError, run_manager_mutants
from paged.conformance.mutants.blocks import LIKELY, MUTANTS
from paged.conformance.mutants.clone import clone_class, source_of


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_no_mutant_of_the_manager_is_stale(mutant):
    source = source_of(mutant.module)
    assert ast.dump(ast.parse(mutant.applied(source))) != ast.dump(ast.parse(source))
    names = {case.name for case in MANAGER_CASES}
    assert set(mutant.likely or LIKELY[mutant.kind]) <= names


def test_every_mutant_of_the_manager_is_killed():
    seen = []
    report = run_manager_mutants(on_result=lambda result, done, total: seen.append((done, total)))
    assert [result.name for result in report.survivors] == []
    assert report.total == len({mutant.name for mutant in MUTANTS}) >= 25
    assert seen == [(done, report.total) for done in range(1, report.total + 1)]
    assert report.stand_in_killed is None


def test_a_faulty_copy_leaves_the_real_manager_alone():
    (mutant,) = [one for one in MUTANTS if one.name == "a new block with two references"]
    before = dict(sys.modules)
    faulty = clone_class(KVCacheManager, mutant)(6, 4)
    assert sys.modules == before
    real = KVCacheManager(6, 4)
    for manager in (faulty, real):
        manager.allocate_slots("a", 4)
        manager.free("a")
    assert (faulty.num_free_blocks, real.num_free_blocks) == (4, 5)


def test_a_mutant_that_does_not_fit_is_told():
    mutant = MUTANTS[0]
    with pytest.raises(StaleMutantError, match="expected exactly one"):
        mutant.applied("no such line")
