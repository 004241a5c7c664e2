"""`paged conform`: what the conformance suite says of a backend, as text, JSON, HTML and JUnit."""

import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from paged.cli.console import note

STDOUT = "-"
BLOCKS = "blocks"
"""The name under which the block manager is a subject like any backend."""

OnResult = Callable[[Any, int, int], None]


def conform(
    backend: Annotated[
        list[str] | None,
        typer.Argument(
            help="A listed backend, package.module:Class, or 'blocks' for the block manager; by "
            "default every backend that this host can run."
        ),
    ] = None,
    layout: Annotated[
        list[str] | None, typer.Option(help="Only this layout; may be repeated.")
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option(help="Only cases of this name or pattern; may be repeated.")
    ] = None,
    dtype: Annotated[
        list[str] | None, typer.Option(help="Only queries of this type; may be repeated.")
    ] = None,
    interpret: Annotated[
        bool, typer.Option("--interpret", help="Run kernels by their interpreter, on the CPU.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Also the large cases.")] = False,
    seed: Annotated[int, typer.Option(help="Of all numbers.", min=0)] = 0,
    target: Annotated[
        str | None, typer.Option(help="Platform to ask for; the backend's own by default.")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write JSON; - is stdout.")
    ] = None,
    html_file: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="Write a report to read.")
    ] = None,
    junit_file: Annotated[
        str | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML.")
    ] = None,
    mutants: Annotated[
        bool,
        typer.Option("--mutants", help="Seed faults into the backend and count what is caught."),
    ] = False,
) -> None:
    """Test backends against the contract; exit code 1 if anything fails.

    \b
    Example:
      paged conform xla --layout flashinfer
      paged conform my_pkg.my_mod:MyBackend --case "window/*" --dtype bfloat16 --html report.html
      paged conform xla --json -
      paged conform --mutants xla
    """
    files = {"json": json_file, "html": html_file, "junit": junit_file}
    for name, file in files.items():
        _check_writable(name, file)
    asked = tuple(dict.fromkeys(backend or ()))
    if mutants:
        given = {"--html": html_file, "--junit": junit_file, "--layout": layout, "--case": case}
        given |= {"--dtype": dtype, "--target": target, "--interpret": interpret, "--full": full}
        if unused := [name for name, value in given.items() if value]:
            raise ValueError(f"mutants: --mutants takes no {', '.join(unused)}")
        is_fine = _mutants(asked or ("xla",), seed, json_file)
    else:
        is_fine = _conform(
            asked, files, layout, case, dtype, interpret, full=full, seed=seed, target=target
        )
    if not is_fine:
        raise typer.Exit(1)


def _conform(
    asked: tuple[str, ...],
    files: dict[str, str | None],
    layouts: Sequence[str] | None,
    cases: Sequence[str] | None,
    dtypes: Sequence[str] | None,
    interpret: bool,
    *,
    full: bool,
    seed: int,
    target: str | None,
) -> bool:
    # Here, so that `paged --help` does not wait for jax.
    from paged.backends.registry import TARGETS
    from paged.cli.conform_text import show_left_out, show_run
    from paged.conformance import run_conformance, select
    from paged.conformance.environment import Environment
    from paged.conformance.html import to_html
    from paged.conformance.junit import to_junit
    from paged.conformance.lookup import find_backend, runs_anywhere, usable_backends
    from paged.conformance.run import Run
    from paged.dtypes import COMPUTE_DTYPES
    from paged.layouts import get_layout

    # All that can be wrong is told before the first case runs.
    if target is not None and target not in TARGETS:
        raise ValueError(f"target: got {target!r}, expected one of {', '.join(TARGETS)}")
    for name in dtypes or ():
        if name not in COMPUTE_DTYPES:
            raise ValueError(f"dtype: got {name!r}, expected one of {', '.join(COMPUTE_DTYPES)}")
    for name in layouts or ():
        get_layout(name)
    names = [name for name in asked if name != BLOCKS]
    if names:
        select(cases)
    backends, left_out = (
        ({name: find_backend(name, interpret=interpret) for name in names}, {})
        if asked
        else usable_backends(interpret=interpret)
    )
    environment = Environment.here(command=_command_line(), seed=seed)
    is_quiet = files["json"] == STDOUT
    for name, reason in left_out.items():
        note(f"{name} left out: {reason}")
    if interpret:
        for name in (name for name, found in backends.items() if runs_anywhere(found)):
            if not hasattr(backends[name], "interpreted"):
                note(f"{name} has nothing to interpret: it runs here as it is")

    runs: list[Run] = []
    for name, found in backends.items():
        start = time.perf_counter()
        with _progress(name) as on_result:
            report = run_conformance(
                found,
                cases=cases or None,
                layouts=layouts or None,
                dtypes=dtypes or None,
                full=full,
                seed=seed,
                target=target,
                on_result=on_result,
            )
        run = Run(report, name, target, interpret, time.perf_counter() - start)
        runs.append(run)
        if not is_quiet:
            show_run(run)
    if not is_quiet:
        show_left_out(left_out)
    if files["json"]:
        _write_json(files["json"], [run.report.as_json() for run in runs])
    if files["html"]:
        _write("html", files["html"], to_html(runs, environment, left_out=left_out))
    if files["junit"]:
        _write("junit", files["junit"], to_junit(runs))
    return all(run.report.ok for run in runs)


def _mutants(names: tuple[str, ...], seed: int, json_file: str | None) -> bool:
    from paged.cli.conform_text import show_mutants
    from paged.conformance import mutants
    from paged.conformance.lookup import find_backend

    backends = {name: find_backend(name) for name in names}
    for backend in backends.values():
        mutants.select_mutants(backend.name)
    reports: list[mutants.MutationReport] = []
    for name, backend in backends.items():
        with _progress(f"{name}, mutants") as on_result:
            reports.append(mutants.run_mutants(backend, seed=seed, on_result=on_result))
        if json_file != STDOUT:
            show_mutants(reports[-1])
    if json_file:
        _write_json(json_file, [report.as_json() for report in reports])
    return all(report.ok for report in reports)


@contextmanager
def _progress(title: str) -> Iterator[OnResult]:
    """A bar on stderr while something runs; nothing where nobody watches."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[now]}"),
    )
    failed = 0
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(title, total=None, now="")

        def on_result(result: Any, done: int, total: int) -> None:
            nonlocal failed
            failed += getattr(result, "status", "") == "failed"
            now = f"{failed} failed" if failed else ""
            bar.update(task, completed=done, total=total, now=now)

        yield on_result


def _check_writable(option: str, file: str | None) -> None:
    """Refuses a file that could not be written after minutes of work."""
    if file is None or (option == "json" and file == STDOUT):
        return
    path = Path(file)
    if path.is_dir() or not path.parent.is_dir():
        what = "a folder" if path.is_dir() else f"no folder {path.parent}"
        raise ValueError(f"{option}: cannot write {file}: {what}")


def _write_json(file: str, forms: list[Any]) -> None:
    """One object for one backend, a list for several."""
    _write("json", file, json.dumps(forms[0] if len(forms) == 1 else forms, indent=2))


def _write(option: str, file: str, text: str) -> None:
    if option == "json" and file == STDOUT:
        typer.echo(text)
        return
    Path(file).write_text(text, encoding="utf-8")
    note(f"{option} written to {file}")


def _command_line() -> str:
    return shlex.join(["paged", *sys.argv[1:]])
