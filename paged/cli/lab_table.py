"""Measurements as tables: one line each for a terminal, targets side by side for a document."""

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paged.lab.measure import Measurement

Row = dict[str, Any]


def figure(value: float | None) -> str:
    """Cycles, or a dash."""
    return "-" if value is None else f"{value:.2f}"


def ratio(value: float | None, of: float | None) -> str:
    """One as a multiple of the other, or a dash."""
    return "-" if value is None or not of else f"{value / of:.2f}x"


def count(value: int | None, unit: int = 1) -> str:
    """Whole units, or a dash."""
    return "-" if value is None else f"{value // unit:,}"


COLUMNS: dict[str, Callable[[Row], str]] = {
    "kernel": lambda row: row["kernel"],
    "layout": lambda row: row["layout"],
    "target": lambda row: row["target"],
    "block": lambda row: str(row["block_size"]),
    "scheduled": lambda row: figure(row["scheduled_per_token"]),
    "issued": lambda row: figure(row["issued_per_token"]),
    "bound": lambda row: figure(row["bound_per_token"]),
    "HBM": lambda row: figure(row["hbm_cycles_per_token"]),
    "of HBM": lambda row: ratio(row["scheduled_per_token"], row["hbm_cycles_per_token"]),
    "spills": lambda row: count(row["spills"]),
    "VMEM KiB": lambda row: count(row["vmem_bytes"], 1024),
}
"""What a row shows, by heading."""


def text_table(measurements: Sequence["Measurement"]) -> list[list[str]]:
    """A heading and one line for each measurement."""
    best = _best(measurements)
    columns = {**COLUMNS, "of best": lambda row: ratio(row["scheduled_per_token"], row["best"])}
    rows = [{**m.row(), "best": best.get(_rivals(m))} for m in measurements]
    cells = [[cell(row) for cell in columns.values()] for row in rows]
    return [
        [*columns, "status"],
        *([*line, m.status] for line, m in zip(cells, measurements, strict=True)),
    ]


def markdown_table(measurements: Sequence["Measurement"]) -> list[str]:
    """Kernels below each other, targets side by side; those of one problem above its HBM line."""
    best = _best(measurements)
    targets = list(dict.fromkeys(m.target for m in measurements))
    lines = [
        ["kernel", "layout", "block"],
        ["---", "---", "---:"],
    ]
    for target in targets:
        lines[0] += [target.name, "of HBM", "of best"]
        lines[1] += ["---:"] * 3
    for spec in dict.fromkeys(m.problem.spec for m in measurements):
        alike = [m for m in measurements if m.problem.spec == spec]
        hbm = ["HBM needs", "", ""]
        for target in targets:
            needs = [m.hbm_cycles for m in alike if m.target == target and m.hbm_cycles]
            # Layouts may pad differently: what the least padded one needs.
            hbm += [figure(min(needs, default=None)), "", ""]
        by_name = {(_name(m), m.target): m for m in alike}
        # Each of them is best first on its own target: the first one's order is kept.
        for name in dict.fromkeys(_name(m) for m in alike):
            line = [str(part) for part in name]
            for target in targets:
                line += _compared(by_name.get((name, target)), best)
            lines.append(line)
        lines.append(hbm)
    return [f"| {' | '.join(line)} |".replace("  ", " ") for line in lines]


def by_cost(measurement: "Measurement") -> tuple[bool, float]:
    """For sorting: the fewest scheduled cycles first, and what has none last."""
    cost = measurement.row()["scheduled_per_token"]
    return cost is None, cost or 0.0


def _name(measurement: "Measurement") -> tuple[str, str, int]:
    problem = measurement.problem
    return measurement.kernel, problem.layout.name, problem.block_size


def _compared(measurement: "Measurement | None", best: dict[Hashable, float]) -> list[str]:
    if measurement is None:
        return ["-"] * 3
    row = measurement.row()
    cost = row["scheduled_per_token"]
    return [
        figure(cost) if measurement.status == "compiled" else measurement.status,
        ratio(cost, row["hbm_cycles_per_token"]),
        ratio(cost, best.get(_rivals(measurement))),
    ]


def _rivals(measurement: "Measurement") -> Hashable:
    """Whom one can be compared with: the same attention on the same hardware."""
    return measurement.target, measurement.problem.spec


def _best(measurements: Sequence["Measurement"]) -> dict[Hashable, float]:
    best: dict[Hashable, float] = {}
    for m in measurements:
        cost = m.row()["scheduled_per_token"]
        if cost is not None:
            best[_rivals(m)] = min(cost, best.get(_rivals(m), cost))
    return best
