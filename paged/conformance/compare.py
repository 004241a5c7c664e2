"""What a backend gave against what the oracle gives: the whole pool, and each row."""

import math

import numpy as np

from paged.backends.reference import oracle
from paged.backends.reference.addressing import addresses
from paged.backends.reference.writing import written
from paged.conformance.arrays import differing
from paged.conformance.plain import plain
from paged.conformance.problem import Problem
from paged.conformance.tolerance import allowed
from paged.conformance.verdict import Violation, Where
from paged.dtypes import is_quantized
from paged.metadata import NO_SLOT, NULL_BLOCK

# A quotient value / scale that lies this near to a tie may be rounded either way.
_QUOTIENT_ERROR = 2.0**-22


def expected_pool(problem: Problem) -> np.ndarray:
    """The pool after the write, by the oracle's arithmetic."""
    return written(problem.cache, problem.key, problem.value, problem.metadata.slot_mapping)


def compare_pool(problem: Problem, found: np.ndarray) -> None:
    """Compares every bit of the pool.

    Raises:
        Violation: naming the block, the slot, what it holds and what it should.
    """
    expected = expected_pool(problem)
    differs = differing(found, expected)
    if differs.any() and is_quantized(problem.cache.dtype):
        k_error, v_error = map(_quotient_error, (problem.cache.k_scale, problem.cache.v_scale))
        for sign in (-1, 1):
            key = problem.key.astype(np.float64) * (1 + sign * k_error)
            value = problem.value
            if value is not None:
                value = value.astype(np.float64) * (1 + sign * v_error)
            other = written(problem.cache, key, value, problem.metadata.slot_mapping)
            differs &= differing(found, other)
    if not differs.any():
        return
    flat = int(np.flatnonzero(differs)[0])
    where = addresses(problem.cache.layout, found.shape)
    at = {axis: flat // stride % where.size[axis] for axis, stride in where.stride.items()}
    block, slot = at["block"], at["slot"]
    number = block * where.size["slot"] + slot
    named = number in problem.metadata.slot_mapping.tolist()
    last = where.size["block"] * where.size["slot"] - 1
    if named:
        rule = "11" if is_quantized(problem.cache.dtype) else "3"
        what = f"slot {number} holds {found.reshape(-1)[flat]}"
    else:
        has_padding = NO_SLOT in problem.metadata.slot_mapping
        rule = "4" if number == last and has_padding else "7"
        rule = "5" if block == NULL_BLOCK else rule
        what = f"slot {number}, which slot_mapping does not name, changed to "
        what += str(found.reshape(-1)[flat])
    part = {0: " (key)", 1: " (value)"}.get(at.get("kv", -1), "")
    raise Violation(
        rule,
        f"after write {what}{part}, expected {expected.reshape(-1)[flat]}; "
        f"{int(differs.sum())} numbers of the pool differ",
        where=Where(None, at.get("head", 0), at.get("dim", at.get("latent")), block, slot),
    )


def _quotient_error(scale: np.ndarray | None) -> float:
    """How far float32 may miss value / scale: not at all where only the exponent moves."""
    is_exact = scale is None or bool((np.frexp(scale)[0] == 0.5).all())
    return 0.0 if is_exact else _QUOTIENT_ERROR


def compare_rows(problem: Problem, out: np.ndarray, lse: np.ndarray | None, *, rule: str) -> float:
    """Compares each row with the oracle over the same pool.

    Args:
        problem: with the pool that was attended to.
        out: what the backend gave.
        lse: likewise, None where it gives none.
        rule: what a wrong output breaks, where nothing says it better.

    Returns:
        The largest absolute error of `out`.

    Raises:
        Violation: with the largest error in excess, its place and its rule.
    """
    exact_out, exact_lse = oracle(
        problem.query, problem.cache, problem.metadata, problem.spec, problem.sinks
    )
    plain_out, plain_lse = plain(problem)
    error = _require_close(problem, "out", out, exact_out, plain_out, rule)
    if lse is not None:
        _require_close(problem, "lse", lse, exact_lse, plain_lse, "8")
    return error


def _require_close(
    problem: Problem,
    name: str,
    found: np.ndarray,
    exact: np.ndarray,
    plain_result: np.ndarray,
    rule: str,
) -> float:
    found = found.astype(np.float64)
    limit = allowed(
        plain_result, exact, dtype=problem.dtype, cache_dtype=problem.cache.dtype
    ).reshape(-1, *[1] * (exact.ndim - 1))
    is_empty = problem.place[:, 0] < 0
    # Where both are -inf there is no error; a NaN is an error without bound.
    with np.errstate(invalid="ignore"):
        error = np.where(found == exact, 0, np.abs(found - exact))
    error = np.where(np.isnan(error), np.inf, error)
    error[~problem.expected] = 0
    limit = np.where(is_empty.reshape(limit.shape), 0, limit)
    excess = error - limit
    if (excess <= 0).all():
        return float(error.max(initial=0))
    index = tuple(int(i) for i in np.unravel_index(np.argmax(excess), excess.shape))
    token = index[0]
    block, slot = (int(part) for part in problem.place[token])
    where = Where(
        token,
        index[1],
        index[2] if len(index) > 2 else None,
        block if block >= 0 else None,
        slot if block >= 0 else None,
    )
    message = (
        f"{name} is {found[index]:.6g}, expected {exact[index]:.6g}; error "
        f"{error[index]:.3g}, allowed {float(limit[token].max()):.3g}"
    )
    if is_empty[token]:
        rule, message = "8", f"{name} of a row without keys is {found[index]:.6g}, expected "
        message += f"{exact[index]:.6g}"
    elif name == "lse" and _looks_like_base_2(found, exact):
        message += " (these are logarithms to base 2)"
    raise Violation(rule, message, error=float(error[index]), where=where)


def _looks_like_base_2(found: np.ndarray, exact: np.ndarray) -> bool:
    finite = np.isfinite(exact) & np.isfinite(found)
    return bool(np.allclose(found[finite] * math.log(2), exact[finite], rtol=1e-2, atol=1e-2))
