"""The report as a page of text."""

from collections.abc import Iterator
from typing import Any

_FEW = 12
"""Failures that are printed; the file has all."""


def lines(report: dict[str, Any]) -> Iterator[str]:
    """The end of the output. The rows were printed as they came; what matters most stands last."""
    yield ", ".join(f"{name} {value}" for name, value in report["facts"].items())
    if ceilings := report["ceilings"]:
        copy, matmul = ceilings["copy"] / 1e9, ceilings["matmul"] / 1e12
        yield f"copy {copy:.0f} GB/s, bf16 matmul {matmul:.0f} TFLOP/s"
    yield from _steps(report["steps"])
    for line in report["targets"]:
        reached = {True: "reached", False: "NOT reached", None: "no figure"}[line["reached"]]
        found = "" if line["found"] is None else f" ({line['found']:.1%})"
        yield f"{reached:<12} {line['target']}{found}"
    if report["dry"]:
        yield "dry: no figures mean anything"
    yield f"{'correct' if report['ok'] else 'WRONG'}, {report['seconds']:.0f} s"


def row_line(row: dict[str, Any]) -> str:
    """One timed variant."""
    head = f"{row['comparison']:<34} {row['variant']:<17}"
    found = row.get("error_of_result")
    wrong = "" if row.get("is_right", True) else f" WRONG: error {found or float('inf'):.1e}"
    if row.get("ms") is None:
        return f"{head} {row.get('reason', 'no time')[:90]}{wrong}"
    line = f"{head}{row['ms']:>9.3f} ms, eager {row['eager_ms']:.3f}"
    for figure, unit in (("gb_s", "GB/s"), ("tflop_s", "TFLOP/s")):
        if row[figure]:
            line += f", {row[figure]:.0f} {unit}"
    for figure, roof in (("of_copy", "copy"), ("of_matmul", "matmul")):
        if row[figure]:
            line += f", {row[figure]:.0%} of {roof}"
    return line + ("" if row["how"] in ("graph", "eager") else f", {row['how'][:60]}") + wrong


def _steps(steps: dict[str, dict[str, Any]]) -> Iterator[str]:
    for name, step in steps.items():
        yield f"{name}: {step['status']}{_because(step.get('reason'))}, {step['seconds']:.0f} s"
        for front_end, part in step.get("front_ends", {}).items():
            counts = ", ".join(f"{count} {status}" for status, count in part["counts"].items())
            yield f"  {front_end}: {counts or 'nothing ran'}{_because(part['reason'])}"
        failures = step.get("failures", [])
        for failure in failures[:_FEW]:
            yield f"  FAILED {failure[:300]}"
        if len(failures) > _FEW:
            yield f"  and {len(failures) - _FEW} more"
        if cut := step.get("not_run", []):
            yield f"  cut off by the budget: {len(cut)}, first {cut[0]}"


def _because(reason: str | None) -> str:
    return f" ({reason})" if reason else ""
