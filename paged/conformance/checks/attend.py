"""Write, compare the whole pool, attend, compare each row, and do it again."""

import numpy as np

from paged.conformance.arrays import differing
from paged.conformance.case import Case
from paged.conformance.compare import compare_pool, compare_rows
from paged.conformance.problem import Problem, build
from paged.conformance.subject import Subject
from paged.conformance.verdict import Violation
from paged.layouts import Layout


def attend(subject: Subject, case: Case, layout: Layout, dtype: str, seed: int) -> float:
    """The procedure of most cases."""
    error, out, lse, after = _run_case(subject, case, layout, dtype, seed)
    require_same_bits((out, lse), subject.attend(after), "repeat", "a second call")
    return error


def eager(subject: Subject, case: Case, layout: Layout, dtype: str, seed: int) -> float:
    """The same outside `jax.jit`, where a backend holds the caller's own objects."""
    return _run_case(subject, case, layout, dtype, seed, eager=True)[0]


def repeat(subject: Subject, case: Case, layout: Layout, dtype: str, seed: int) -> float:
    """Twice the same call, another one in between: nothing may be left over."""
    first, other = (
        build(case.setup, layout, dtype, seed, f"{case.name}/{part}") for part in ("one", "other")
    )
    subject.require_claim(first)
    error, out, lse, _ = run(subject, first, case.rules[0])
    run(subject, other, case.rules[0])
    _, again_out, again_lse, _ = run(subject, first, case.rules[0])
    require_same_bits((out, lse), (again_out, again_lse), "repeat", "the call after another one")
    return error


def _run_case(
    subject: Subject, case: Case, layout: Layout, dtype: str, seed: int, *, eager: bool = False
) -> tuple[float, np.ndarray, np.ndarray | None, Problem]:
    problem = build(case.setup, layout, dtype, seed, case.name)
    subject.require_claim(problem)
    try:
        return run(subject, problem, case.rules[0], eager=eager)
    except Violation as violation:
        raise _explained(violation, subject, case, layout, dtype, seed) from None


def run(
    subject: Subject, problem: Problem, rule: str, *, eager: bool = False
) -> tuple[float, np.ndarray, np.ndarray | None, Problem]:
    """One write and one attend, compared with the oracle.

    Returns:
        The largest error, output, lse, and the problem over the pool that was written.
    """
    pool = subject.write(problem, eager=eager)
    compare_pool(problem, pool)
    after = problem.with_pool(pool)
    out, lse = subject.attend(after, eager=eager)
    return compare_rows(after, out, lse, rule=rule), out, lse, after


def require_same_bits(
    first: tuple[np.ndarray, np.ndarray | None],
    second: tuple[np.ndarray, np.ndarray | None],
    rule: str,
    what: str,
) -> None:
    """Compares two results bit by bit.

    Raises:
        Violation: they differ.
    """
    for name, one, other in zip(("out", "lse"), first, second, strict=True):
        if one is None or other is None:
            continue
        differs = differing(one, other)
        if differs.any():
            index = tuple(int(i) for i in np.argwhere(differs)[0])
            raise Violation(
                rule,
                f"{what} gives {name}{list(index)} = {other[index]}, expected the bits of "
                f"{one[index]}; {int(differs.sum())} numbers differ",
            )


def _explained(
    violation: Violation, subject: Subject, case: Case, layout: Layout, dtype: str, seed: int
) -> Violation:
    """The violation with the rule that is really broken: which hostility makes it go away?"""
    if violation.rule.key != case.rules[0] or not subject.explains:
        return violation
    for rule, word, change in (
        ("6", "over a pool of zeros", {"poison": "zero"}),
        ("13", "with blocks in order", {"placement": "identity"}),
    ):
        milder = build(case.setup.but(**change), layout, dtype, seed, case.name)
        try:
            run(subject, milder, case.rules[0])
        except Violation:
            continue
        return Violation(
            rule,
            f"{violation.message} (right {word})",
            error=violation.error,
            where=violation.where,
        )
    return violation
