"""Times comparisons, in a process of the pool."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu.figures import moved_bytes, operations, quartiles
from benchmarks.gpu.peers import PEERS
from benchmarks.gpu.problems import Problem, pool_of, problem_of
from benchmarks.gpu.right import LIMIT, attend_error, write_error
from benchmarks.gpu.shapes import COMPARISONS, Comparison, Ours
from benchmarks.gpu.stopwatch import DeviceWatch, HostWatch, Stopwatch
from paged.backends.triton.on_torch import TritonBackend

RUNS, DRY_RUNS = 25, 1
_COPY_BYTES, _PRODUCT = 2 << 30, 8192
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
    ready = {name: watch.ready(call)[0] for name, call in calls.items()}
    seconds = watch.compare(ready, DRY_RUNS if dry else RUNS)
    work = {"copy": 2 * size, "matmul": 2 * side**3}
    return {name: work[name] / quartiles(seconds[name])[1] for name in work}


def run_comparison(name: str, dry: bool) -> dict[str, Any]:
    """Rows of a comparison, one for each variant; a variant that fails has its reason."""
    (comparison,) = (known for known in COMPARISONS if known.name == name)
    if dry:
        comparison = comparison.shrunk()
    watch, pool = _watch(dry), pool_of(comparison, _device(dry))
    rows: dict[str, dict[str, Any]] = {}
    ready: dict[str, Callable[[], Any]] = {}
    for variant, make in _variants(comparison, pool, dry).items():
        row = rows[variant] = {"comparison": name, "variant": variant}
        try:
            call, error = make()
            row["error_of_result"] = error(call())
            eager = [watch.eager(call) for _ in range(1 if dry else _EAGER_RUNS)]
            row["eager_ms"] = quartiles(eager)[1] * 1e3
            ready[variant], row["how"] = watch.ready(call)
        except Exception as failure:  # noqa: BLE001 - it is a row, and the others are timed
            row["reason"] = f"{type(failure).__name__}: {failure}".splitlines()[0][:300]
    for variant, seconds in watch.compare(ready, DRY_RUNS if dry else RUNS).items() if ready else ():
        low, middle, high = quartiles(seconds)
        rows[variant] |= {
            "ms": middle * 1e3,
            "ms_quartiles": [low * 1e3, high * 1e3],
            "runs": len(seconds),
            "bytes": moved_bytes(comparison),
            "operations": operations(comparison),
        }
    for variant, row in rows.items():
        row["is_ours"] = variant not in PEERS
        if (found := row.get("error_of_result")) is not None:
            row["is_right"] = found <= LIMIT
    bad = [row for row in rows.values() if "reason" in row or not row.get("is_right", True)]
    return {"rows": list(rows.values()), "suspect": bool(bad)}


def _variants(
    comparison: Comparison, pool: torch.Tensor, dry: bool
) -> dict[str, Callable[[], tuple[Callable[[], Any], Callable[[Any], float]]]]:
    """By name, what makes a variant's call and tells the error of its result."""
    made: dict[str, Any] = {
        ours.name: functools.partial(_ours, comparison, ours, pool, dry) for ours in comparison.ours
    }
    for peer in comparison.peers:
        made[peer] = functools.partial(_peer, comparison, peer, pool, dry)
    return made


def _ours(
    comparison: Comparison, ours: Ours, pool: torch.Tensor, dry: bool
) -> tuple[Callable[[], Any], Callable[[Any], float]]:
    problem, backend = problem_of(comparison, ours, pool), _backend(dry)
    if comparison.kind == "write":
        new = (problem.key, problem.value, problem.metadata.slot_mapping)
        return (lambda: backend.write(problem.cache, *new)), lambda _: write_error(problem)
    query, cache, metadata = problem.query, problem.cache, problem.metadata
    return (
        lambda: backend.attend(query, cache, metadata, problem.spec),
        lambda found: attend_error(problem, found.out),
    )


def _peer(
    comparison: Comparison, peer: str, pool: torch.Tensor, dry: bool
) -> tuple[Callable[[], Any], Callable[[Any], float]]:
    problem: Problem = problem_of(comparison, comparison.ours[0], pool)
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
