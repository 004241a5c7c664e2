"""What `paged conform` shows: a matrix, what was not run and why, each failure with its command."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paged.cli.console import side_by_side
from paged.conformance.matrix import Cell, by_reason, counted, matrix
from paged.conformance.run import Run, Shown

if TYPE_CHECKING:
    from paged.conformance.mutants import MutationReport

_MOST_FAILURES = 10
_MOST_NAMES = 4
# Of a column with its border: all layouts of this project then share a table of 80 columns.
_NARROWEST = 8
_STYLES = {"failed": "bold red", "passed": "green", "refused": "blue", "not_run": "dim"}


def show_run(run: Run) -> None:
    """One subject: matrix, reasons, failures; what matters most stands last."""
    typer.echo(f"{run.name}, feature by layout:")
    console = Console(markup=False, highlight=False)
    columns = ("feature", *run.layouts)
    for chosen in side_by_side(len(columns), _narrowest, console.width):
        console.print(_matrix(run, [columns[i] for i in chosen[1:]]))
    _show_reasons("Not run", by_reason(run.results, "not_run"))
    # Asks that contradict themselves: each backend refuses them all, in words of its own.
    wrong = sum(result.is_wrong_ask and result.status == "refused" for result in run.results)
    modest = [result for result in run.results if not result.is_wrong_ask]
    _show_reasons("Refused, as the contract asks", by_reason(modest, "refused"))
    if wrong:
        typer.echo(f"Wrong asks refused: {wrong} (refuse/*)")
    _show_failures(run)
    typer.echo(f"{run.name}: {counted(run.summary)} ({run.seconds:.1f} s)")


def _narrowest(chosen: Sequence[int]) -> int:
    """Room in which words of so many columns can still be read."""
    return _NARROWEST * len(chosen) + 1


def _matrix(run: Run, layouts: Sequence[str]) -> Table:
    table = Table()
    # Where tables follow each other there is room for the whole word.
    table.add_column("feature", no_wrap=len(layouts) < len(run.layouts))
    for layout in layouts:
        table.add_column(layout, overflow="fold")
    for feature, cells in matrix(run).items():
        table.add_row(feature, *(_cell(cells[layout]) for layout in layouts))
    return table


def _cell(cell: Cell) -> Text:
    return Text("\n".join(cell.words), style=_STYLES[cell.status])


def _show_reasons(title: str, grouped: Mapping[str, list[Shown]]) -> None:
    if not grouped:
        return
    typer.echo(f"{title}:")
    for reason, results in grouped.items():
        names = list(dict.fromkeys(result.name for result in results))
        listed = ", ".join(names[:_MOST_NAMES])
        more = f", and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        typer.echo(f"  {len(results):>4}  {reason}: {listed}{more}")


def _show_failures(run: Run) -> None:
    failures = run.failures
    if not failures:
        return
    typer.echo("Failed:")
    for result in failures[:_MOST_FAILURES]:
        error = "" if result.max_error is None else f", largest error {result.max_error:.3g}"
        typer.echo(f"  {result.name} on {result.place}{error}")
        typer.echo(f"      {result.reason}")
        typer.echo(f"      {result.command}")
    if len(failures) > _MOST_FAILURES:
        more = len(failures) - _MOST_FAILURES
        typer.echo(f"  and {more} more; --html and --json list them all")
    rules = Counter(result.rule for result in failures if result.rule)
    for rule, count in rules.most_common():
        typer.echo(f"Broken {count} times: {rule}")


def show_left_out(left_out: Mapping[str, str]) -> None:
    """Backends that were not tried."""
    for name, reason in left_out.items():
        typer.echo(f"{name}: not run, {reason}")


def show_mutants(report: "MutationReport") -> None:
    """How many seeded faults the suite caught, beside a stand-in for how others test."""
    table = Table()
    for column in ("mutant", "killed by", "rule", "stand-in"):
        table.add_column(column, overflow="fold")
    for result in report.results:
        table.add_row(
            Text(result.name),
            Text(result.case or "SURVIVES", style="" if result.killed else "bold red"),
            result.rule or "",
            {True: "killed", False: "survives", None: ""}[result.stand_in_killed],
        )
    Console(highlight=False).print(table)
    if report.survivors:
        typer.echo(f"Survivors: {', '.join(result.name for result in report.survivors)}")
    typer.echo(f"{report.backend}: {_share(report.killed, report.total)} mutants killed")
    if report.stand_in_killed is not None:
        typer.echo(
            f"stand-in: {_share(report.stand_in_killed, report.total)} (how others test: tolerance "
            "0.15, inputs in [0, 1), scale 1, blocks in order, memory zero)"
        )


def _share(count: int, total: int) -> str:
    return f"{count} of {total} ({100 * count / max(total, 1):.0f} %)"
