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

_FEW = 20
"""Failures of the suite that are printed as they come."""

Ask = tuple[str, tuple[Any, ...], str]
"""A function of `benchmarks.gpu`, its arguments, and the front end in whose environment it runs."""


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

    def asked(self, calls: list[Ask], deadline: float) -> list[dict[str, Any]]:
        """The row that each call gives, in the environment of its front end."""
        rows: list[dict[str, Any]] = [{"cut": True} for _ in calls]
        tasks = []
        for at, (function, item, front_end) in enumerate(calls):
            environment = suite.environment_of(front_end, dry=self.dry)
            tasks.append(Task(str(at), f"benchmarks.gpu.{function}", deque([item]), environment))

        def keep(task: Task, item: tuple[Any, ...], row: dict[str, Any]) -> None:
            rows[int(task.name)] = row

        self.pool.run(tasks, workers=min(self.workers, 2), deadline=deadline, on_row=keep)
        return rows


def facts(run: Run, deadline: float) -> dict[str, Any]:
    """Fills the report's facts."""
    names = {"torch": "facts:torch_facts", "jax": "facts:jax_facts"}
    rows = run.asked([(function, (), name) for name, function in names.items()], deadline)
    for name, row in zip(names, rows, strict=True):
        run.report["facts"] |= {f"{name}_error": row["error"]} if "error" in row else row
    return {"status": "passed"}


def conformance(run: Run, deadline: float) -> dict[str, Any]:
    """The suite on all front ends that can run here. JAX may be without; torch may not."""
    names = suite.FRONT_ENDS[:2] if run.dry else suite.FRONT_ENDS
    asks: list[Ask] = [("suite:planned_items", (name, run.dry), name) for name in names]
    plans = run.asked(asks, deadline)
    front_ends: dict[str, dict[str, Any]] = {}
    tasks: list[Task] = []
    failures: list[str] = []
    for name, plan in zip(names, plans, strict=True):
        is_cut = "cut" in plan
        reason = "cut off by the budget" if is_cut else plan.get("error") or plan["reason"]
        front_ends[name] = {"reason": reason, "seconds": 0.0, "counts": Counter(), "groups": {}}
        tasks += suite.tasks_of(name, plan.get("items", []), dry=run.dry)
        if reason and name != "jax" and not is_cut:
            failures.append(f"{name}: {reason}")

    def keep(task: Task, item: tuple[Any, ...], row: dict[str, Any]) -> None:
        part = front_ends[item[0]]
        status = "failed" if "error" in row else row["status"]
        group = part["groups"].setdefault(item[3].partition("/")[0], Counter())
        for counts in (part["counts"], group):
            counts[status] += 1
        part["seconds"] += row.get("seconds", 0.0)
        if status == "failed":
            failures.append(f"{_place(item)}: {row.get('error') or row['reason']}")
            if len(failures) <= _FEW:
                print(f"FAILED {failures[-1][:300]}", flush=True)

    ordered = suite.by_group(tasks)
    cut = run.pool.run(ordered, workers=run.workers, deadline=deadline, on_row=keep)
    has_run = any(part["counts"] for part in front_ends.values())
    return {
        "status": _status(bool(failures), has_run, bool(cut)),
        "front_ends": front_ends,
        "failures": failures,
        "not_run": [_place(item) for _, item in cut],
    }


def timings(run: Run, deadline: float) -> dict[str, Any]:
    """Every comparison, one after another, with the device to itself."""
    report, environment = run.report, suite.environment_of("torch", dry=run.dry)
    calls = {"ceilings": ("run_ceilings", (run.dry,))}
    calls |= {one.name: ("run_comparison", (one.name, run.dry)) for one in COMPARISONS}
    tasks = [
        Task(name, f"benchmarks.gpu.timings:{function}", deque([item]), environment, _PATIENCE)
        for name, (function, item) in calls.items()
    ]
    failures: list[str] = []
    seconds: dict[str, float] = {}

    def keep(task: Task, item: tuple[Any, ...], row: dict[str, Any]) -> None:
        if "error" in row:
            # It may be a kernel of ours that hung, or took its process with it. Where FlexAttention
            # is there it is that one: ours were timed before, at the same shape.
            is_ours = not task.name.startswith("flex ")
            lost = {"comparison": task.name, "variant": "all", "is_ours": is_ours}
            row["rows"] = [lost | {"reason": row["error"]}]
            row["failures"] = [f"{task.name}: {row['error']}"] if is_ours else []
        elif task.name == "ceilings":
            report["ceilings"] = row
            return
        ceilings = Ceilings(**report["ceilings"]) if report["ceilings"] else None
        for timed in row["rows"]:
            timed |= shares(timed, ceilings, dry=run.dry)
            report["rows"].append(timed)
            print(row_line(timed), flush=True)
        failures.extend(row["failures"])
        seconds[task.name] = row.get("seconds", 0.0)

    # One process: those of other steps are ended first.
    cut = run.pool.run(tasks, workers=1, deadline=deadline, on_row=keep)
    return {
        "status": _status(bool(failures), bool(report["rows"]), bool(cut)),
        "failures": failures,
        "seconds_of": seconds,
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


def _status(is_wrong: bool, has_run: bool, is_cut: bool) -> str:
    if is_wrong:
        return "failed"
    if not has_run:
        return "not_run"
    return "passed in part" if is_cut else "passed"


def _place(item: tuple[Any, ...]) -> str:
    front_end, _, layout, case, dtype = item
    return f"{front_end} {layout} {case} {dtype}"
