"""Seeded faults: none is stale, the mechanism leaves the real modules alone, and each is caught."""

import ast
import json
import sys
import threading
from collections import Counter

import pytest

from paged.backends import load_backend
from paged.backends.cpu.build import BuildError, find_compiler
from paged.backends.reference import ReferenceBackend
from paged.backends.xla import XlaBackend
from paged.conformance import CASES, select
from paged.conformance.mutants import (
    MUTANTS,
    Mutant,
    StaleMutantError,
    clone,
    run_mutants,
    select_mutants,
)
from paged.conformance.mutants.clone import source_of
from paged.conformance.mutants.likely import LIKELY
from paged.layouts import LAYOUTS

ALL = [(name, mutant) for name, mutants in MUTANTS.items() for mutant in mutants]

# One of each part of the XLA backend, and those that only one kind of case can catch.
A_DOZEN = (
    "window one key too long",
    "values not zeroed under the mask",
    "last block lost where it holds one key",
    "padding counted as a query",
    "scale * 1.001",
    "soft cap after the mask",
    "sink in the lse only",
    "K scale used for V",
    "output not rescaled as the maximum grows",
    "lse to base 2",
    "slot -1 written (bfloat16)",
    "ties rounded up",
    "keys and values swapped in the layout's gather",
    "gather over one long dimension",
    "types of new rows not checked",
)


@pytest.mark.parametrize(("backend", "mutant"), ALL, ids=lambda x: getattr(x, "name", x))
def test_no_mutant_is_stale(backend, mutant):
    source = source_of(mutant.module)
    changed = mutant.applied(source)
    # Of another language, whose comments no mutant is in.
    is_native = ":" in mutant.module
    assert is_native or ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
    assert mutant.layout in LAYOUTS
    for pattern in mutant.likely or LIKELY[mutant.kind]:
        assert select(pattern), "a pattern that fits no case raises"


def test_there_are_enough_of_each_backend_and_names_are_unique():
    assert len(MUTANTS["xla"]) >= 60
    assert len(MUTANTS["reference"]) >= 25
    assert len(MUTANTS["pallas_tpu"]) >= 20
    assert len(MUTANTS["triton"]) >= 20
    assert len(MUTANTS["cpu"]) >= 20
    for mutants in MUTANTS.values():
        (_, count) = Counter(mutant.name for mutant in mutants).most_common(1)[0]
        assert count == 1


@pytest.mark.parametrize("backend", ["xla", "reference"])
def test_every_kind_is_seeded(backend):
    """A kernel's list has what only a kernel can do wrong, and what it shares need not be there."""
    kinds = {mutant.kind for mutant in MUTANTS[backend]}
    # A compiled backend keeps nothing from call to call, and the reference shares the checks.
    assert kinds >= set(LIKELY) - {"repeat", "claim", "memory"}


def test_a_stale_mutant_is_told():
    mutant = Mutant("stale", "mask", "paged.backends.xla.attend", "no such line", "")
    with pytest.raises(StaleMutantError, match=r"'stale'.*has 0 of 'no such line'"):
        clone(XlaBackend, mutant)
    mutant = Mutant("twice", "mask", "paged.backends.xla.attend", "jnp.where", "")
    with pytest.raises(StaleMutantError, match="expected exactly one"):
        run_mutants("xla", mutants=[mutant], stand_in=False)


def test_a_module_that_is_not_used_is_told():
    mutant = Mutant("elsewhere", "mask", "paged.backends.merge", "lse_first, lse_second)", "0)")
    with pytest.raises(ImportError, match="XlaBackend never imports its module"):
        clone(XlaBackend, mutant)


@pytest.mark.parametrize("backend", [XlaBackend, ReferenceBackend])
def test_a_clone_leaves_the_real_modules_alone(backend):
    before = {name: id(module) for name, module in sys.modules.items() if "paged" in name}
    one, other = clone(backend), clone(backend)
    after = {name: id(module) for name, module in sys.modules.items() if "paged" in name}
    assert after == before
    assert len({type(one), type(other), backend}) == 3
    mine, real = type(one)._attend.__globals__, backend._attend.__globals__
    shared = {name for name in real if name in mine and mine[name] is real[name]}
    assert {"AttentionOutput", "KVCache", "AttentionMetadata"} <= shared
    private = "ragged_attention" if backend is XlaBackend else "oracle"
    assert mine[private] is not real[private]
    assert mine["KernelBackend"] is real["KernelBackend"]


def test_mutants_run_side_by_side():
    names = ["last key dropped", "lse to base 2", "scale * 0.9"]
    found = {}

    def run(name):
        found[name] = run_mutants("reference", mutants=[name], stand_in=False)

    threads = [threading.Thread(target=run, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[name].killed for name in names] == [1, 1, 1]
    assert run_mutants("reference", mutants=["lse*"], stand_in=False).ok


def test_all_mutants_of_the_reference_are_caught():
    seen = []
    report = run_mutants(
        "reference",
        stand_in=False,
        on_result=lambda result, done, total: seen.append((done, total)),
    )
    assert report.ok, [result.name for result in report.survivors]
    assert seen[-1] == (len(MUTANTS["reference"]), len(MUTANTS["reference"]))
    _caught_as_wrong_results(report)


def test_a_dozen_mutants_of_xla_are_caught():
    report = run_mutants("xla", mutants=A_DOZEN, stand_in=False)
    assert report.ok, [result.name for result in report.survivors]
    assert report.total == len(A_DOZEN)


def test_some_mutants_of_the_tpu_kernels_are_caught():
    names = ["last key dropped", "blocks that do not fill a piece are not waited for", "slot + 1"]
    assert run_mutants("pallas_tpu", mutants=names, stand_in=False).killed == len(names)


@pytest.mark.full
def test_all_mutants_of_the_tpu_kernels_are_caught():
    report = run_mutants("pallas_tpu", stand_in=False)
    assert report.ok, [result.name for result in report.survivors]


def test_some_mutants_of_the_triton_kernels_are_caught():
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    names = [
        "one future key seen",
        "values of unseen tokens not zeroed",
        "parts weigh the same",
        "sink of the first head for all",
        "float8 rounded up",
        "slot -1 writes the last slot",
        "rotary part left out",
    ]
    assert run_mutants("triton", mutants=names, stand_in=False).killed == len(names)


@pytest.mark.full
def test_all_mutants_of_the_triton_kernels_are_caught():
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    report = run_mutants("triton", stand_in=False)
    assert report.ok, [result.name for result in report.survivors]


def needs_a_compiler():
    try:
        find_compiler()
    except BuildError as error:
        pytest.skip(str(error))


def test_a_mutant_of_the_cpu_kernels_is_caught():
    needs_a_compiler()
    assert run_mutants("cpu", mutants=["window one too long"], stand_in=False).killed == 1


@pytest.mark.full
def test_all_mutants_of_the_cpu_kernels_are_caught():
    needs_a_compiler()
    report = run_mutants("cpu", stand_in=False)
    assert report.ok, [result.name for result in report.survivors]
    _caught_as_wrong_results(report)


@pytest.mark.full
def test_all_mutants_of_xla_are_caught():
    report = run_mutants("xla")
    assert report.ok, [result.name for result in report.survivors]
    assert report.stand_in_killed < report.killed
    _caught_as_wrong_results(report)


def _caught_as_wrong_results(report):
    """A mutant that raises shows little: anyone would see it."""
    for result in report.results:
        if result.mutant.kind not in ("claim", "blocks"):
            assert "raised" not in result.reason, (result.name, result.reason)


def test_the_json_is_the_fixed_form():
    report = run_mutants("reference", mutants=["scale * 0.9", "last key dropped"])
    found = json.loads(report.to_json())
    assert (found["total"], found["killed"], found["survivors"]) == (2, 2, [])
    assert found["stand_in"] == {"killed": 1}
    assert [one["stand_in_killed"] for one in found["mutants"]] == [False, True]
    assert all(one["case"] in {case.name for case in CASES} for one in found["mutants"])


def test_a_survivor_is_told():
    mutant = Mutant(
        "renamed", "mask", "paged.backends.reference.attention", '"""Attention, unrounded.', '"""'
    )
    report = run_mutants("reference", mutants=[mutant], cases=select("batch/mixed"))
    assert not report.ok
    assert report.as_json()["survivors"] == ["renamed"]
    assert report.as_json()["stand_in"] == {"killed": 0}


class FailsAlways(ReferenceBackend):
    def _attend(self, *args):
        out, lse = super()._attend(*args)
        return out + 1, lse


def test_a_backend_that_fails_without_a_fault_is_no_measure():
    mutant = Mutant("spoiled", "mask", __name__, "\n        return out + 1,", "; return out + 2,")
    with pytest.raises(ValueError, match=r"fails batch/mixed .* without any fault in it"):
        run_mutants(FailsAlways(), mutants=[mutant], stand_in=False)


def test_select_by_name_and_pattern():
    assert [m.name for m in select_mutants("xla", "scale * 0.9")] == ["scale * 0.9"]
    assert len(select_mutants("xla", ["scale [*] *", "scale * 0.9"])) == 3
    with pytest.raises(ValueError, match="none of xla is named 'nothing'"):
        select_mutants("xla", "nothing")
    with pytest.raises(ValueError, match="no mutants are listed for 'other'"):
        select_mutants("other")
    with pytest.raises(ValueError, match="backend: got 'none'"):
        run_mutants("none")
    assert load_backend("xla").name in MUTANTS
