"""Runs a backend against the cases. No input or output: whoever calls shows the results."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from paged.conformance.case import Case
from paged.conformance.cases import CASES
from paged.conformance.checks import CHECKS
from paged.conformance.programs import release_programs
from paged.conformance.report import Report, Result
from paged.conformance.setup import Setup
from paged.conformance.subject import Subject
from paged.conformance.verdict import NotRun, Refused, Violation
from paged.layouts import Layout, get_layout

DEFAULT_DTYPES = ("float32", "bfloat16")

_PLAIN = Setup(sequences=())

Progress = Callable[[Result, int, int], None]
"""Called after each result with the number of results so far, and of all."""


def run_conformance(
    backend: Any,
    *,
    cases: str | Case | Iterable[str | Case] | None = None,
    layouts: Iterable[str | Layout] | None = None,
    dtypes: Iterable[str] | None = None,
    full: bool = False,
    seed: int = 0,
    target: str | None = None,
    on_result: Progress | None = None,
) -> Report:
    """Runs every case on every layout in every dtype.

    Args:
        backend: anything with the `paged.Backend` protocol, or a `Subject` around it. Optional
            attributes are listed at `Subject`.
        cases: cases, names or patterns ("window/*"); all by default.
        layouts: by default those that the backend claims.
        dtypes: of the queries; float32 and bfloat16 by default, and what a case names itself.
        full: also runs the large cases.
        seed: of all numbers. The same seed gives a case the same numbers, alone or among others.
        target: platform that is asked for; the backend's own by default.
        on_result: shows progress.

    Raises:
        ValueError: a pattern that fits no case, or an unknown layout.
        TypeError: the backend's layouts are no `Layout`s.
    """
    subject = backend if isinstance(backend, Subject) else Subject(backend, target=target)
    chosen = tuple(subject.backend.layouts if layouts is None else map(get_layout, layouts))
    wanted = None if dtypes is None else tuple(dtypes)
    plan = list(planned(subject, select(cases), chosen, wanted, full=full))
    results: list[Result] = []
    for case, layout, dtype in plan:
        if wanted is not None and dtype not in wanted:
            why = f"runs in {', '.join(case.dtypes or ())} only"
            result = Result(case, layout.name, dtype, "not_run", why, None, seed)
        else:
            result = run_case(subject, case, layout, dtype, seed=seed, full=full)
        results.append(result)
        release_programs()
        if on_result is not None:
            on_result(result, len(results), len(plan))
    return Report(subject.name, tuple(layout.name for layout in chosen), tuple(results))


def select(cases: str | Case | Iterable[str | Case] | None = None) -> tuple[Case, ...]:
    """Cases by themselves, by name or by pattern, in the order of the table.

    Raises:
        ValueError: a pattern that fits no case.
    """
    if cases is None:
        return CASES
    asked = [cases] if isinstance(cases, str | Case) else list(cases)
    chosen = [case for case in asked if isinstance(case, Case)]
    for pattern in asked:
        if isinstance(pattern, Case):
            continue
        fitting = [case for case in CASES if fnmatchcase(case.name, pattern)]
        if not fitting:
            groups = dict.fromkeys(case.name.partition("/")[0] for case in CASES)
            raise ValueError(
                f"cases: no case is named {pattern!r}, expected a name or a pattern of one; they "
                f"begin with {'/, '.join(groups)}/"
            )
        chosen += [case for case in fitting if case not in chosen]
    return tuple(chosen)


def planned(
    subject: Subject,
    cases: Iterable[Case],
    layouts: Iterable[Layout],
    dtypes: tuple[str, ...] | None = None,
    *,
    full: bool = False,
) -> Iterator[tuple[Case, Layout, str]]:
    """What will be run, layout by layout; a case without any wanted dtype stands once."""
    cases = tuple(cases)
    for layout in layouts:
        for case in cases:
            own = case.dtypes or dtypes or DEFAULT_DTYPES
            fitting = [dtype for dtype in own if dtypes is None or dtype in dtypes]
            if case.one_dtype and dtypes is None and not full:
                fitting = [next(filter(subject.takes, fitting), fitting[0])]
            for dtype in fitting or own[:1]:
                yield case, layout, dtype


def run_case(
    subject: Subject, case: Case, layout: Layout, dtype: str, *, seed: int = 0, full: bool = True
) -> Result:
    """One case on one layout in one dtype."""
    start = time.perf_counter()

    def result(status, reason="", error=None, rule=None, where=None) -> Result:
        seconds = time.perf_counter() - start
        return Result(case, layout.name, dtype, status, reason, error, seed, rule, where, seconds)

    if case.large and not full:
        return result("not_run", "large: runs with full=True (--full)")
    kind = "latent" if layout.is_latent else "kv"
    if case.only is not None and case.only != kind:
        return result("not_run", f"for {case.only} layouts")
    case, note = fitted(subject, case, layout, dtype)
    try:
        error = CHECKS[case.check](subject, case, layout, dtype, seed)
    except Refused as refused:
        return result("refused", str(refused))
    except NotRun as not_run:
        return result("not_run", str(not_run))
    except Violation as violation:
        return result(
            "failed", str(violation), violation.error, violation.rule.key, violation.where
        )
    return result("passed", note, error=error)


def fitted(subject: Subject, case: Case, layout: Layout, dtype: str) -> tuple[Case, str]:
    """The case with heads as wide as the backend serves on this layout, and what changed.

    Most cases are about something else than the width of heads, and a kernel for one width is to
    meet them too.
    """
    setup = case.setup
    if case.name.startswith("head_dim/") or setup.head_dim != _PLAIN.head_dim:
        return case, ""
    for head_dim in (setup.head_dim, 128, 256):
        plainest = replace(_PLAIN, head_dim=head_dim)
        cache_spec = plainest.cache_spec(layout, setup.storage(dtype))
        asked = plainest.spec(layout)
        if not subject.reasons(asked, layout, cache_spec=cache_spec, dtype=dtype):
            if head_dim == setup.head_dim:
                break
            note = f"head_dim {head_dim}: {setup.head_dim} is refused on this layout"
            return replace(case, setup=replace(setup, head_dim=head_dim)), note
    return case, ""
