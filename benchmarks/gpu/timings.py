"""Times comparisons, in a process of the pool."""

import functools
import math
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu.figures import moved_bytes, operations, quartiles
from benchmarks.gpu.peers import PEERS
from benchmarks.gpu.problems import pool_of, problem_of
from benchmarks.gpu.right import LIMIT, attend_error, write_error
from benchmarks.gpu.shapes import COMPARISONS, Comparison, Ours
from benchmarks.gpu.stopwatch import Call, DeviceWatch, HostWatch, Stopwatch
from paged.backends.triton.on_torch import TritonBackend

RUNS, DRY_RUNS = 25, 1
_COPY_BYTES, _PRODUCT = 1 << 30, 8192
_EAGER_RUNS = 10


def run_ceilings(dry: bool) -> dict[str, Any]:
    """Copy bandwidth (read and written) and rate of a bf16 product."""
    watch, device = _watch(dry), _device(dry)
    size, side = (1 << 16, 64) if dry else (_COPY_BYTES, _PRODUCT)
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    left, right = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(left)
    calls = {"copy": lambda: target.copy_(source), "matmul": lambda: torch.mm(left, right, out=out)}
    for call in calls.values():
        call()
    # No graph: one launch each, and a graph may copy by another engine.
    seconds = watch.compare(calls, DRY_RUNS if dry else RUNS)
    work = {"copy": 2 * size, "matmul": 2 * side**3}
    return {name: work[name] / quartiles(seconds[name])[1] for name in work}


def run_comparison(name: str, dry: bool) -> dict[str, Any]:
    """Rows of a comparison, one for each variant; a variant that fails has its reason."""
    start = time.perf_counter()
    (comparison,) = (known for known in COMPARISONS if known.name == name)
    if dry:
        comparison = comparison.shrunk()
    watch, pool = _watch(dry), pool_of(comparison, _device(dry))
    if not dry:
        # The last comparison's memory: this one's pieces have other sizes.
        torch.cuda.empty_cache()
    rows: dict[str, dict[str, Any]] = {}
    ready: dict[str, Call] = {}
    for variant, make in _variants(comparison, pool, dry).items():
        row = rows[variant] = {"comparison": name, "variant": variant}
        row["is_ours"] = variant not in PEERS
        try:
            call, error_of = make()
            error = error_of(call())
            row["error_of_result"] = error if math.isfinite(error) else None
            row["is_right"] = error <= LIMIT
            row["eager_ms"] = 1e3 * quartiles(_eager(watch, call, dry))[1]
            ready[variant], row["how"] = watch.ready(call)
        except Exception as failure:  # noqa: BLE001 - it is a row, and the others are timed
            row["reason"] = f"{type(failure).__name__}: {failure}".splitlines()[0]
    seconds = watch.compare(ready, DRY_RUNS if dry else RUNS)
    for variant, own in seconds.items():
        low, middle, high = (1e3 * value for value in quartiles(own))
        rows[variant] |= {
            "ms": middle,
            "ms_quartiles": [low, high],
            "runs": len(own),
            "bytes": moved_bytes(comparison),
            "operations": operations(comparison),
        }
    return {
        "rows": list(rows.values()),
        "failures": [what for row in rows.values() if (what := _failure(row))],
        # After any error the device may be lost to this process: the pool looks.
        "suspect": any("reason" in row for row in rows.values()),
        "seconds": time.perf_counter() - start,
    }


def _failure(row: dict[str, Any]) -> str:
    """What is wrong with ours; a device that is too small is no fault of a kernel."""
    if not row["is_ours"]:
        return ""
    if not row.get("is_right", True):
        return f"{row['comparison']} {row['variant']}: wrong by {row['error_of_result']}"
    reason = row.get("reason", "")
    is_fault = reason and not reason.startswith("OutOfMemoryError")
    return f"{row['comparison']} {row['variant']}: {reason}" if is_fault else ""


def _eager(watch: Stopwatch, call: Call, dry: bool) -> list[float]:
    return [watch.eager(call) for _ in range(1 if dry else _EAGER_RUNS)]


Made = tuple[Call, Callable[[Any], float]]
"""A call, and what tells the error of its result."""


def _variants(
    comparison: Comparison, pool: torch.Tensor, dry: bool
) -> dict[str, Callable[[], Made]]:
    """By name, what makes a variant."""
    made: dict[str, Callable[[], Made]] = {
        ours.name: functools.partial(_ours, comparison, ours, pool, dry) for ours in comparison.ours
    }
    for peer in comparison.peers:
        made[peer] = functools.partial(_peer, comparison, peer, pool, dry)
    return made


def _ours(comparison: Comparison, ours: Ours, pool: torch.Tensor, dry: bool) -> Made:
    problem, backend = problem_of(comparison, ours, pool), _backend(dry)
    if comparison.kind == "write":
        new = (problem.key, problem.value, problem.metadata.slot_mapping)
        return (lambda: backend.write(problem.cache, *new)), lambda _: write_error(problem)
    query, cache, metadata = problem.query, problem.cache, problem.metadata
    return (
        lambda: backend.attend(query, cache, metadata, problem.spec),
        lambda found: attend_error(problem, found.out),
    )


def _peer(comparison: Comparison, peer: str, pool: torch.Tensor, dry: bool) -> Made:
    problem = problem_of(comparison, comparison.ours[0], pool)
    call, as_ours = PEERS[peer](comparison, problem, dry)
    return call, lambda found: attend_error(problem, as_ours(found))


@functools.cache
def _backend(dry: bool) -> TritonBackend:
    return TritonBackend(interpret=dry)


@functools.cache
def _watch(dry: bool) -> Stopwatch:
    return HostWatch() if dry else DeviceWatch()


def _device(dry: bool) -> str:
    return "cpu" if dry else "cuda"
