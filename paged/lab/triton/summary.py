"""Rows by target and kernel: the range of each figure."""

from collections.abc import Iterable, Sequence
from typing import Any

from paged.lab.triton.run import CompiledKernel

COLUMNS = ("target", "kernel", "cases", "registers", "spills", "spilling", "shared", "mma", "load")
"""`cases` that compiled; `spilling` says how many of them spill."""


def summarised(found: Iterable[CompiledKernel]) -> list[tuple[str, ...]]:
    """One line for each target and kernel, windows, soft caps and splits among the kernel's."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in found:
        if one.counts is not None:
            key = (one.target.name, one.case.name.split("+")[0])
            groups.setdefault(key, []).append(one.row())
    return [
        (
            *key,
            str(len(rows)),
            _range([row["registers"] for row in rows]),
            _range([row["spills"] for row in rows]),
            str(sum(row["spills"] > 0 for row in rows)),
            _range([row["shared_bytes"] for row in rows]),
            ", ".join(sorted({row["mma"] for row in rows if row["mma"]})) or "-",
            _range([row["load_bytes"] for row in rows if row["load_bytes"]]),
        )
        for key, rows in groups.items()
    ]


def _range(values: Sequence[int]) -> str:
    if not values:
        return "-"
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
