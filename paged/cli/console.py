"""What every command shares: JSON, tables, and errors that take one line."""

import json
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from typer.core import TyperGroup

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]

_WIDE = 10_000

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
    """A table on stdout; cells are text, not markup. Numbers stand right, and are never folded."""
    table = Table(title=title or None, title_justify="left")
    for index, column in enumerate(columns):
        cells = [row[index] for row in rows]
        is_number = bool(rows) and all(isinstance(cell, int | float) for cell in cells)
        widths = [len(_cell(cell)) for cell in cells if _cell(cell)[:1].isdigit()]
        justify = "right" if is_number else "left"
        table.add_column(column, justify=justify, overflow="fold", min_width=max(widths, default=1))
    for row in rows:
        table.add_row(*(_cell(cell) for cell in row))
    console = Console(markup=False, highlight=False)
    # Wider than the terminal rather than with digits on the next line.
    least = Measurement.get(Console(width=_WIDE), Console(width=_WIDE).options, table).minimum
    console.width = max(console.width, least)
    console.print(table)


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def note(text: str) -> None:
    """A remark for a person, on stderr."""
    typer.echo(text, err=True)


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
            code = _report(str(error) or type(error).__name__, error, debug)
        else:
            code = result if isinstance(result, int) else 0
        if standalone:
            sys.exit(code)
        return code


def _report(message: str, error: BaseException, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    note(f"paged: {' '.join(message.split())}")
    return 2
