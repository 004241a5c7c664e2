"""The steps. Each gives {"status", "reason", ...}; none stops another."""

import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from benchmarks.gpu import suite
from benchmarks.gpu.figures import Ceilings, shares
from benchmarks.gpu.pool import Pool, Task
from benchmarks.gpu.shapes import COMPARISONS
from benchmarks.gpu.show import row_line

_PATIENCE = 240.0
"""Seconds that one comparison may take; a peer's compilation may be a minute of them."""


@dataclass(slots=True)
class Run:
    """What the steps share.

    Attributes:
        pool: of processes.
        dry: whether interpreters stand in for the device.
        workers: processes for the suite.
        report: what is found goes in here.
    """

    pool: Pool
    dry: bool
    workers: int
    report: dict[str, Any] = field(default_factory=dict)

    def asked(
        self, function: str, items: list[tuple[Any, ...]], front_ends: list[str], deadline: float
    ) -> list[dict[str, Any]]:
        """Rows of a function that each front end's environment is asked."""
        rows: list[dict[str, Any]] = [{"error": "cut off by the budget"} for _ in items]
        tasks = [
            Task(str(at), function, deque([item]), suite.environment_of(front, dry=self.dry))
            for at, (item, front) in enumerate(zip(items, front_ends, strict=True))
        ]

        def keep(task: Task, item: tuple[Any, ...], row: dict[str, Any]) -> None:
            rows[int(task.name)] = row

        self.pool.run(tasks, workers=min(self.workers, 2), deadline=deadline, on_row=keep)
        return rows


def facts(run: Run, deadline: float) -> dict[str, Any]:
    """Fills the report's facts."""
    for name, front_end in (("torch_facts", "torch"), ("jax_facts", "jax")):
        (row,) = run.asked(f"benchmarks.gpu.facts:{name}", [()], [front_end], deadline)
        run.report["facts"] |= {f"{name}_error": row["error"]} if "error" in row else row
    return {"status": "passed"}


def conformance(run: Run, deadline: float) -> dict[str, Any]:
    """The suite on all front ends that can run here."""
    names = list(suite.FRONT_ENDS[:2] if run.dry else suite.FRONT_ENDS)
    function = "benchmarks.gpu.suite:planned_items"
    plans = run.asked(function, [(name, run.dry) for name in names], names, deadline)
    front_ends: dict[str, dict[str, Any]] = {}
    tasks: list[Task] = []
    for name, plan in zip(names, plans, strict=True):
        reason = plan.get("error") or plan.get("reason", "")
        front_ends[name] = {"reason": reason, "counts": Counter(), "seconds": 0.0}
        tasks += suite.tasks_of(name, plan.get("items", []), dry=run.dry)
    failures: list[str] = []
    results: list[dict[str, Any]] = []

    def keep(task: Task, item: tuple[Any, ...], row: dict[str, Any]) -> None:
        part = front_ends[item[0]]
        status = "failed" if "error" in row else row["status"]
        part["counts"][status] += 1
        part["seconds"] += row.get("seconds", 0.0)
        if status == "failed":
            failures.append(f"{_place(item)}: {row.get('error') or row.get('reason')}")
            print(f"FAILED {failures[-1]}", flush=True)
        results.append({"front_end": item[0], "item": item[2:], **row})

    ordered = suite.by_group(tasks)
    cut = run.pool.run(ordered, workers=run.workers, deadline=deadline, on_row=keep)
    status = "failed" if failures else "passed" if results else "not_run"
    if cut and status == "passed":
        status = "passed in part"
    return {
        "status": status,
        "reason": "" if results else "no front end can run here",
        "front_ends": front_ends,
        "failures": failures,
        "not_run": [_place(item) for _, item in cut],
        "results": results,
    }


def timings(run: Run, deadline: float) -> dict[str, Any]:
    """Every comparison, in one process of its own."""
    items = {"ceilings": ("benchmarks.gpu.timings:run_ceilings", (run.dry,))}
    for comparison in COMPARISONS:
        function = "benchmarks.gpu.timings:run_comparison"
        items[comparison.name] = (function, (comparison.name, run.dry))
    environment = suite.environment_of("torch", dry=run.dry)
    tasks = [
        Task(name, function, deque([item]), environment, _PATIENCE)
        for name, (function, item) in items.items()
    ]
    failures: list[str] = []
    missing: list[str] = []

    def keep(task: Task, item: tuple[Any, ...], row: dict[str, Any]) -> None:
        if task.name == "ceilings" and "error" not in row:
            run.report["ceilings"] = row
            return
        if "error" in row:
            # It may be a kernel of ours that hung, or took its process with it.
            failures.append(f"{task.name}: {row['error']}")
            print(f"FAILED {failures[-1]}", flush=True)
        ceilings = run.report["ceilings"]
        for timed in row.get("rows", []):
            timed |= shares(timed, Ceilings(**ceilings) if ceilings else None)
            run.report["rows"].append(timed)
            print(row_line(timed), flush=True)
            if not timed["is_ours"]:
                continue
            name = f"{timed['comparison']} {timed['variant']}"
            if not timed.get("is_right", True):
                failures.append(f"{name}: error {timed['error_of_result']:.1e}")
            elif "reason" in timed:
                failures.append(f"{name}: {timed['reason']}")
        if "ailment" in row:
            missing.append(f"{task.name}: {row['ailment']}")

    # Alone on the device: other processes are ended first.
    cut = run.pool.run(tasks, workers=1, deadline=deadline, on_row=keep)
    status = "failed" if failures else "passed" if run.report["rows"] else "not_run"
    if cut and status == "passed":
        status = "passed in part"
    return {
        "status": status,
        "reason": "",
        "failures": failures,
        "ailments": missing,
        "not_run": [task.name for task, _ in cut],
    }


def timed(step: Any, run: Run, deadline: float) -> dict[str, Any]:
    """A step's outcome with its seconds; its own error is an outcome too."""
    start = time.monotonic()
    try:
        outcome = step(run, deadline)
    except Exception as error:  # noqa: BLE001 - the other steps go on
        outcome = {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
    return outcome | {"seconds": time.monotonic() - start}


def _place(item: tuple[Any, ...]) -> str:
    front_end, _, layout, case, dtype = item
    return f"{front_end} {layout} {case} {dtype}"
