"""Runs a block manager against the cases."""

import importlib
import time
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any

from paged.conformance.managers import checks, feature_checks, prefix_checks
from paged.conformance.managers.case import ManagerCase
from paged.conformance.managers.cases import MANAGER_CASES
from paged.conformance.managers.expect import BrokenRule
from paged.conformance.managers.protocol import Manager, ManagerFactory
from paged.conformance.managers.report import ManagerReport, ManagerResult
from paged.conformance.managers.rules import MANAGER_RULES

OURS = "paged.blocks:KVCacheManager"

CHECKS = {**checks.CHECKS, **prefix_checks.CHECKS, **feature_checks.CHECKS}
"""All procedures, by the word in `ManagerCase.check`."""

Progress = Callable[[ManagerResult, int, int], None]
"""Called after each result with the number of results so far, and of all."""


def run_manager_conformance(
    factory: str | ManagerFactory | None = None,
    *,
    cases: str | Iterable[str] | None = None,
    seed: int = 0,
    on_result: Progress | None = None,
) -> ManagerReport:
    """Runs every case on managers that the factory makes.

    Args:
        factory: a class or function of (num_blocks, block_size), or "package.module:name" of one;
            by default this project's manager.
        cases: names or patterns; all by default.
        seed: of random histories.
        on_result: shows progress.

    Raises:
        ValueError: a pattern that fits no case, or a name that names nothing.
        TypeError: the factory makes something that is no manager.
    """
    factory = _found(factory or OURS) if isinstance(factory or OURS, str) else factory
    make: Any = factory
    subject = make(8, 4)
    if not isinstance(subject, Manager):
        members = ("num_free_blocks", *_CALLS)
        missing = ", ".join(name for name in members if not hasattr(subject, name))
        raise TypeError(f"factory: made a {type(subject).__name__}, which lacks {missing}")
    features = frozenset(getattr(subject, "features", ()))
    chosen = _selected(cases)
    results: list[ManagerResult] = []
    for case in chosen:
        results.append(_run(case, make, features, seed))
        if on_result is not None:
            on_result(results[-1], len(results), len(chosen))
    return ManagerReport(type(subject).__name__, tuple(results))


_CALLS = (
    "fits",
    "can_allocate",
    "can_append",
    "allocate_slots",
    "append_slots",
    "free",
    "block_ids",
)


def _run(
    case: ManagerCase, make: ManagerFactory, features: frozenset[str], seed: int
) -> ManagerResult:
    missing = [word for word in case.needs if word not in features]
    if missing:
        return ManagerResult(case, "not_run", f"waits for {' and '.join(missing)}", seed)
    start = time.perf_counter()
    status, reason = "passed", ""
    try:
        CHECKS[case.check](make, seed)
    except BrokenRule as broken:
        status, reason = "failed", f"{MANAGER_RULES[case.rule]}: {broken}"
    except Exception as error:  # noqa: BLE001 (a faulty manager may raise anything)
        status = "failed"
        reason = f"{MANAGER_RULES[case.rule]}: raised {type(error).__name__}: {error}"
    return ManagerResult(case, status, reason, seed, time.perf_counter() - start)


def _selected(cases: str | Iterable[str] | None) -> tuple[ManagerCase, ...]:
    if cases is None:
        return MANAGER_CASES
    chosen: list[ManagerCase] = []
    for pattern in [cases] if isinstance(cases, str) else cases:
        fitting = [case for case in MANAGER_CASES if fnmatchcase(case.name, pattern)]
        if not fitting:
            groups = dict.fromkeys(case.name.partition("/")[0] for case in MANAGER_CASES)
            raise ValueError(
                f"cases: no case is named {pattern!r}, expected a name or a pattern of one; they "
                f"begin with {'/, '.join(groups)}/"
            )
        chosen += [case for case in fitting if case not in chosen]
    return tuple(chosen)


def _found(where: Any) -> Any:
    """What "package.module:name" names; imported when asked for, so that no manager is needed."""
    module, _, name = where.partition(":")
    if not module or not name:
        raise ValueError(f"factory: got {where!r}, expected package.module:Class")
    found = getattr(importlib.import_module(module), name, None)
    if found is None:
        raise ValueError(f"factory: {module} has no {name!r}")
    return found
