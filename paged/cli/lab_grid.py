"""A checked grid as a table: how many of each kind, and every reason once."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from paged.cli.console import print_columns

if TYPE_CHECKING:
    from paged.lab.grid import Checked

_STATUSES = ("compiled", "refused", "failed")
_ALLOWED = ("backend", "target", "layout", "grid", "write", "as_json")


def refuse_sizes(context: Any) -> None:
    """Refuses options of one problem beside the grid, which has its own.

    Raises:
        ValueError: naming the option.
    """
    for param in context.command.params:
        source = context.get_parameter_source(param.name)
        is_given = source is not None and source.name != "DEFAULT"
        if is_given and param.name not in _ALLOWED:
            raise ValueError(
                f"grid: got {param.opts[0]} too, expected beside it only --target, --layout, "
                "--write and --json: the grid has sizes of its own"
            )


def show_grid(checked: Sequence["Checked"]) -> None:
    """Counts for each target, layout and step, then reasons."""
    counts = Counter((c.target.name, c.problem.layout.name, c.step, c.status) for c in checked)
    lines = [["target", "layout", "step", *_STATUSES, ""]]
    for name in dict.fromkeys((c.target.name, c.problem.layout.name, c.step) for c in checked):
        lines.append([*name, *(str(counts[*name, status]) for status in _STATUSES), ""])
    print_columns(lines)
    total = Counter(c.status for c in checked)
    typer.echo(", ".join(f"{total[status]:,} {status}" for status in _STATUSES))
    for reason, many in Counter(c.compiled.reason for c in checked if _is(c, "refused")).items():
        typer.echo(f"refused, {many:,}: {reason}")
    for c in checked:
        if _is(c, "failed"):
            typer.echo(f"failed: {c.label}: {c.compiled.reason}")


def _is(checked: "Checked", status: str) -> bool:
    return checked.status == status
