"""The report as a page of text."""

from collections.abc import Iterator
from typing import Any

_FEW = 12
"""Failures that are printed; the file has all."""


def lines(report: dict[str, Any]) -> Iterator[str]:
    """Line by line; what matters most stands last, where a short view of the output ends."""
    yield _facts(report["facts"])
    yield from _rows(report)
    yield from _steps(report["steps"])
    for line in report["targets"]:
        reached = {True: "reached", False: "NOT reached", None: "no figure"}[line["reached"]]
        found = "" if line["found"] is None else f" ({line['found']:.1%})"
        yield f"{reached:<12} {line['target']}{found}"
    if report["dry"]:
        yield "dry: no figures mean anything"
    yield f"{'correct' if report['ok'] else 'WRONG':<12} in {report['seconds']:.0f} s"


def row_line(row: dict[str, Any]) -> str:
    """One timed variant."""
    head = f"{row['comparison']:<36} {row['variant']:<18}"
    wrong = "" if row.get("is_right", True) else f"  WRONG: {row['error_of_result']:.1e}"
    if row.get("ms") is None:
        return f"{head} {row.get('reason', 'no time')}{wrong}"
    line = f"{head} {row['ms']:>8.3f} ms  eager {row['eager_ms']:>8.3f}  "
    for name, figure in (("GB/s", "gb_s"), ("TFLOP/s", "tflop_s")):
        line += f"{row[figure]:>7.0f} {name} "
    shares = (("copy", "of_copy"), ("matmul", "of_matmul"))
    line += " ".join(f"{_percent(row[figure])} {name}" for name, figure in shares)
    how = "" if row["how"] == "graph" else f"  {row['how']}"
    return line + how + wrong


def _facts(facts: dict[str, Any]) -> str:
    known = (f"{name} {value}" for name, value in facts.items() if not isinstance(value, dict))
    return ", ".join(known)


def _rows(report: dict[str, Any]) -> Iterator[str]:
    ceilings = report["ceilings"]
    if ceilings:
        copy, matmul = ceilings["copy"], ceilings["matmul"]
        yield f"copy {copy / 1e9:.0f} GB/s, bf16 matmul {matmul / 1e12:.0f} TFLOP/s"
    for row in report["rows"]:
        yield row_line(row)


def _steps(steps: dict[str, dict[str, Any]]) -> Iterator[str]:
    for name, step in steps.items():
        yield f"{name}: {step['status']}{_because(step.get('reason'))}, {step['seconds']:.0f} s"
        for front_end, part in step.get("front_ends", {}).items():
            counts = ", ".join(f"{count} {status}" for status, count in part["counts"].items())
            yield f"  {front_end}: {counts or 'nothing ran'}{_because(part['reason'])}"
        failures = step.get("failures", [])
        for failure in failures[:_FEW]:
            yield f"  FAILED {failure}"
        if len(failures) > _FEW:
            yield f"  and {len(failures) - _FEW} more"
        if cut := step.get("not_run", []):
            yield f"  cut off by the budget: {len(cut)}, first {cut[0]}"


def _because(reason: str | None) -> str:
    return f" ({reason})" if reason else ""


def _percent(share: float | None) -> str:
    return "   -" if share is None else f"{share:>4.0%}"
