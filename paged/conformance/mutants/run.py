"""Seeds each fault, and looks for a case that catches it."""

import time
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from paged.backends import Unavailable, load_backend
from paged.conformance.case import Case
from paged.conformance.cases import CASES
from paged.conformance.mutants.catalog import mutants_of
from paged.conformance.mutants.clone import clone
from paged.conformance.mutants.likely import LIKELY
from paged.conformance.mutants.mutant import Mutant
from paged.conformance.mutants.report import MutantResult, MutationReport
from paged.conformance.report import Result
from paged.conformance.stand_in import StandIn
from paged.conformance.subject import Subject, quick_options
from paged.conformance.suite import planned, run_case
from paged.layouts import Layout, get_layout

Progress = Callable[[MutantResult, int, int], None]
"""Called after each mutant with the number of results so far, and of all."""


def run_mutants(
    backend_name: str | Any,
    *,
    mutants: Iterable[str | Mutant] | None = None,
    on_result: Progress | None = None,
    seed: int = 0,
    stand_in: bool = True,
    cases: Iterable[Case] | None = None,
) -> MutationReport:
    """Scores the suite by the faults of a backend that it catches.

    Args:
        backend_name: name of a listed backend, or an instance of one.
        mutants: mutants, or names or patterns of the listed ones; by default all of the backend.
        on_result: shows progress.
        seed: of all numbers.
        stand_in: whether the same mutants also meet the stand-in for how others test.
        cases: those that may catch a mutant; by default all but the large ones.

    Raises:
        ValueError: no such backend or mutant, or the backend fails a case without any fault in it.
        StaleMutantError: a mutant does not fit the source any more.
    """
    backend = load_backend(backend_name) if isinstance(backend_name, str) else backend_name
    if isinstance(backend, Unavailable):
        raise ValueError(f"backend {backend.name}: {backend.reason}")
    chosen = select_mutants(backend.name, mutants)
    options = quick_options() if getattr(backend, "arrays", "jax") == "jax" else None
    run = _Run(backend, tuple(CASES if cases is None else cases), seed, options, stand_in)
    results: list[MutantResult] = []
    for mutant in chosen:
        # A faulty numpy backend divides by zero; the verdict says so already.
        with np.errstate(all="ignore"):
            results.append(run.tried(mutant))
        if on_result is not None:
            on_result(results[-1], len(results), len(chosen))
    return MutationReport(str(backend.name), tuple(results), seed)


def select_mutants(
    backend: str, mutants: Iterable[str | Mutant] | None = None
) -> tuple[Mutant, ...]:
    """Mutants by themselves, by name or by pattern, in the order of the list.

    Raises:
        ValueError: a backend without listed mutants, or a pattern that fits none.
    """
    if mutants is None:
        return mutants_of(backend)
    asked = [mutants] if isinstance(mutants, str | Mutant) else list(mutants)
    chosen: list[Mutant] = []
    for one in asked:
        if isinstance(one, Mutant):
            chosen.append(one)
            continue
        listed = mutants_of(backend)
        fitting = [mutant for mutant in listed if fnmatchcase(mutant.name, one)]
        if not fitting:
            raise ValueError(
                f"mutants: none of {backend} is named {one!r}; there are {len(listed)}"
            )
        chosen += [mutant for mutant in fitting if mutant not in chosen]
    return tuple(chosen)


class _Run:
    """What the mutants of one run share: the backend without a fault, and its results."""

    def __init__(
        self,
        backend: Any,
        cases: tuple[Case, ...],
        seed: int,
        compiler_options: dict[str, Any] | None,
        stand_in: bool,
    ) -> None:
        self._class = type(backend)
        self._cases = tuple(case for case in cases if not case.large)
        self._seed = seed
        self._options = compiler_options
        self._stand_in = StandIn(compiler_options) if stand_in else None
        self._sound = self._subject(None)
        self._sound_results: dict[tuple[str, str, str], Result] = {}

    def _subject(self, mutant: Mutant | None) -> Subject:
        faulty = clone(self._class, mutant)
        return Subject(faulty, compiler_options=self._options, explains=False)

    def tried(self, mutant: Mutant) -> MutantResult:
        subject = self._subject(mutant)
        asked, why = None, ""
        if self._stand_in is not None:
            layout, dtype = get_layout(mutant.layout), mutant.dtype or "float32"
            why = self._stand_in.fault_seen(subject.backend, layout, dtype) or ""
            asked = bool(why)
        start = time.perf_counter()
        for case, layout, dtype in self._attempts(mutant, subject):
            result = run_case(subject, case, layout, dtype, seed=self._seed, full=False)
            if result.status == "failed":
                self._require_sound(case, layout, dtype)
                return MutantResult(
                    mutant,
                    True,
                    case.name,
                    layout.name,
                    dtype,
                    result.reason,
                    result.rule,
                    time.perf_counter() - start,
                    asked,
                    why,
                )
        seconds = time.perf_counter() - start
        return MutantResult(
            mutant, False, seconds=seconds, stand_in_killed=asked, stand_in_reason=why
        )

    def _attempts(self, mutant: Mutant, subject: Subject) -> Iterator[tuple[Case, Layout, str]]:
        """Every case on the mutant's layout, the likely ones first."""
        layout = get_layout(mutant.layout)
        left = list(self._cases)
        for pattern in (*(mutant.likely or LIKELY[mutant.kind]), "*"):
            fitting = [case for case in left if fnmatchcase(case.name, pattern)]
            left = [case for case in left if case not in fitting]
            attempts = list(planned(subject, fitting, [layout]))
            if mutant.dtype is not None:
                attempts.sort(key=lambda attempt: attempt[2] != mutant.dtype)
            yield from attempts

    def _require_sound(self, case: Case, layout: Layout, dtype: str) -> None:
        """A case that the backend fails without a fault proves nothing about a fault."""
        key = (case.name, layout.name, dtype)
        if key not in self._sound_results:
            self._sound_results[key] = run_case(
                self._sound, case, layout, dtype, seed=self._seed, full=False
            )
        result = self._sound_results[key]
        if result.status == "failed":
            raise ValueError(
                f"backend {self._sound.name} fails {case.name} on {layout.name} in {dtype} "
                f"without any fault in it: {result.reason}"
            )
