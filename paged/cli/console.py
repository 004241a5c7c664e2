"""What every command shares: JSON, tables, and errors that take one line."""

import json
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from typer.core import TyperGroup

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]

_WIDE = 10_000
_GAP = "  "

# A user's mistake, or something missing on the host. Anything else is a fault of this program,
# and keeps its traceback.
_EXPECTED = (ValueError, OSError, ImportError, RuntimeError)

# typer has brought its own click since 0.26 and used the public one before: found by descent.
_ClickException: Any = typer.BadParameter.__mro__[2]


def require_folder(plot: Any) -> None:
    """Refuse a picture that could not be written, before anything is measured for it.

    Raises:
        ValueError: its folder is not there, or it is a folder itself.
    """
    if not plot.parent.is_dir() or plot.is_dir():
        raise ValueError(f"plot: got {plot}, expected a file in a folder that is there")


def print_json(value: Any) -> None:
    """The value as JSON on stdout, in ASCII, so that no terminal's encoding can refuse it."""
    typer.echo(json.dumps(value, indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str = "") -> None:
    """A table on stdout; cells are text, not markup. Numbers stand right, and are never folded.

    Columns for which the terminal has no room follow below, with the first one again.
    """
    console = Console(markup=False, highlight=False)
    heads = [*columns]

    def part(chosen: Sequence[int]) -> Table:
        return _table([heads[i] for i in chosen], [[row[i] for i in chosen] for row in rows])

    def width(chosen: Sequence[int]) -> int:
        wide = Console(width=_WIDE)
        return Measurement.get(wide, wide.options, part(chosen)).minimum

    for index, chosen in enumerate(side_by_side(len(heads), width, console.width)):
        table = part(chosen)
        if index == 0 and title:
            table.title, table.title_justify = title, "left"
        # Wider than the terminal rather than with digits on the next line.
        console.width = max(console.width, width(chosen))
        console.print(table)


def print_columns(lines: Sequence[Sequence[str]]) -> None:
    """Aligned columns on stdout, numbers to the right; the first line has the headings.

    Columns for which the terminal has no room follow below, with the first one again, or with the
    lines' numbers where that does not tell them apart.
    """
    room = Console().width
    if len({line[0] for line in lines}) < len(lines) and _width(lines) > room:
        lines = [["", *lines[0]], *([str(i), *line] for i, line in enumerate(lines[1:], 1))]

    def part(chosen: Sequence[int]) -> list[list[str]]:
        return [[line[i] for i in chosen] for line in lines]

    parts = side_by_side(len(lines[0]), lambda chosen: _width(part(chosen)), room)
    for index, chosen in enumerate(parts):
        if index:
            typer.echo()
        columns = [_aligned(column) for column in zip(*part(chosen), strict=True)]
        for cells in zip(*columns, strict=True):
            typer.echo(_GAP.join(cells).rstrip())


def wrapped(text: str) -> str:
    """Prose in lines that the terminal has room for."""
    return textwrap.fill(text, Console().width, break_long_words=False, break_on_hyphens=False)


def side_by_side(
    num_columns: int, width: Callable[[Sequence[int]], int], room: int
) -> Iterator[Sequence[int]]:
    """Which columns stand in each table: the first, and as many others as there is room for."""
    chosen = [0]
    for column in range(1, num_columns):
        if len(chosen) > 1 and width([*chosen, column]) > room:
            yield chosen
            chosen = [0]
        chosen.append(column)
    yield chosen


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    table = Table()
    for index, column in enumerate(columns):
        cells = [row[index] for row in rows]
        is_number = bool(rows) and all(isinstance(cell, int | float) for cell in cells)
        widths = [len(_cell(cell)) for cell in cells if _cell(cell)[:1].isdigit()]
        justify = "right" if is_number else "left"
        table.add_column(column, justify=justify, overflow="fold", min_width=max(widths, default=1))
    for row in rows:
        table.add_row(*(_cell(cell) for cell in row))
    return table


def _width(lines: Sequence[Sequence[str]]) -> int:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _aligned(column: Sequence[str]) -> list[str]:
    """A column's cells, all as wide as the widest; to the right if each is a number or a dash."""
    width = max(map(len, column))
    firsts = {cell[:1] for cell in column[1:]}
    is_number = any(map(str.isdigit, firsts)) and all(f.isdigit() or f in ("", "-") for f in firsts)
    return [cell.rjust(width) if is_number else cell.ljust(width) for cell in column]


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def note(text: str) -> None:
    """A remark for a person, on stderr."""
    typer.echo(text, err=True)


def help_alone(context: typer.Context) -> None:
    """A group's help where none of its commands is named."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


class OneLineErrors(TyperGroup):
    """A group whose errors are one line on stderr and exit code 2; `--debug` shows where."""

    def main(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Sequence[str] | None = None, **extra: Any
    ) -> Any:
        """Run the command; see `click.Command.main`."""
        arguments = list(sys.argv[1:] if args is None else args)
        debug = "--debug" in arguments
        # Accepted before and after the name of a command, which an option of a group is not.
        arguments = [argument for argument in arguments if argument != "--debug"]
        standalone = extra.pop("standalone_mode", True)
        try:
            result = super().main(arguments, standalone_mode=False, **extra)
        except typer.Abort:
            code = 130
        except _ClickException as error:
            code = _report(error.format_message(), error, debug)
        except _EXPECTED as error:
            code = _report(_words(error), error, debug)
        else:
            code = result if isinstance(result, int) else 0
        if standalone:
            sys.exit(code)
        return code


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        # Without the number that Python puts in front.
        return f"{error.filename}: {error.strerror}, expected a file that can be opened"
    return str(error) or type(error).__name__


def _report(message: str, error: BaseException, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    note(f"paged: {' '.join(message.split())}")
    return 2
