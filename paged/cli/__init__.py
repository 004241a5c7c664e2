"""One command, `paged`. Each subcommand has a file; what they need is imported when they run."""

import sys
from typing import Annotated

import typer

from paged import __version__
from paged.cli import conform, demo, generate, inventory, lab, plan, profile, replay
from paged.cli.console import OneLineErrors, help_alone

app = typer.Typer(
    name="paged",
    cls=OneLineErrors,
    help="Paged attention on any hardware: layouts, kernels, and an engine to try them.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for command in (
    generate.generate,
    plan.plan,
    inventory.backends,
    inventory.layouts,
    conform.conform,
    demo.demo,
    replay.replay,
    profile.profile,
):
    app.command()(command)
app.add_typer(lab.app, name="lab")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"paged {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; stands anywhere.")
    ] = False,
) -> None:
    del version, debug
    help_alone(context)


def main() -> None:
    """The entry point of the package."""
    app(args=sys.argv[1:], prog_name="paged")
