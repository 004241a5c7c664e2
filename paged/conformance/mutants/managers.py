"""Seeds the faults of the block manager, and looks for a case of its suite that catches each."""

import importlib
import time
from collections.abc import Iterable
from typing import Any

from paged.conformance.managers import MANAGER_CASES, run_manager_conformance
from paged.conformance.managers.run import OURS
from paged.conformance.mutants.blocks import LIKELY, MUTANTS
from paged.conformance.mutants.clone import clone_class
from paged.conformance.mutants.mutant import Mutant
from paged.conformance.mutants.report import MutantResult, MutationReport
from paged.conformance.mutants.run import Progress


def run_manager_mutants(
    mutants: Iterable[Mutant] = MUTANTS, *, seed: int = 0, on_result: Progress | None = None
) -> MutationReport:
    """Scores the manager's cases by the faults of this project's manager that they catch.

    Args:
        mutants: by default all.
        seed: of random loads.
        on_result: shows progress.

    Raises:
        ValueError: the manager fails a case without any fault in it.
        StaleMutantError: a mutant does not fit the source any more.
    """
    module, _, name = OURS.partition(":")
    manager = getattr(importlib.import_module(module), name)
    failures = run_manager_conformance(manager, seed=seed).failures
    if failures:
        raise ValueError(f"manager: it fails {failures[0].name} without any fault in it")
    chosen = tuple(mutants)
    results: list[MutantResult] = []
    for mutant in chosen:
        results.append(_tried(manager, mutant, seed))
        if on_result is not None:
            on_result(results[-1], len(results), len(chosen))
    return MutationReport("blocks", tuple(results), seed)


def _tried(manager: Any, mutant: Mutant, seed: int) -> MutantResult:
    start = time.perf_counter()
    faulty = clone_class(manager, mutant)
    likely = mutant.likely or LIKELY[mutant.kind]
    names = [case.name for case in MANAGER_CASES]
    for case in [*likely, *(name for name in names if name not in likely)]:
        for failure in run_manager_conformance(faulty, cases=case, seed=seed).failures:
            return MutantResult(
                mutant,
                killed=True,
                case=failure.name,
                reason=failure.reason,
                rule=failure.rule,
                seconds=time.perf_counter() - start,
            )
    return MutantResult(mutant, killed=False, seconds=time.perf_counter() - start)
