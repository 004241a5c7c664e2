"""`paged conform`: what the conformance suite says of a backend, as text, JSON, HTML and JUnit."""

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from paged.cli.console import note

if TYPE_CHECKING:
    from paged.conformance.run import Run

STDOUT = "-"

# Two cores of an AMD EPYC, jax 0.10.2, 2026-12: 22, 38 and 233 s.
_HOW_LONG = "on a CPU reference and cpu take half a minute each, xla 4 minutes of CPU time"

OnResult = Callable[[Any, int, int], None]


def conform(
    backend: Annotated[
        list[str] | None,
        typer.Argument(
            help="A listed backend or package.module:Class; 'blocks' for this project's block "
            "manager, blocks=package.module:Class for another. By default every backend that "
            f"this host can run, one after another: {_HOW_LONG}."
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
    full: Annotated[
        bool, typer.Option("--full", help="Also the large cases; code is compiled as in use.")
    ] = False,
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
        typer.Option(
            "--mutants",
            help="Seed faults into the backend and count what is caught, by whatever case; takes "
            "--seed and --json alone.",
        ),
    ] = False,
) -> None:
    """Test backends, or block managers, against the contract.

    The exit code is 1 if anything fails, or if no case ran.

    \b
    Example:
      paged conform xla --layout flashinfer
      paged conform my_pkg.my_mod:MyBackend --case "window/*" --dtype bfloat16 --html report.html
      paged conform xla --json -
      paged conform blocks
      paged conform --mutants xla
      paged conform --mutants blocks
    """
    files = {"json": json_file, "html": html_file, "junit": junit_file}
    for name, file in files.items():
        _check_writable(name, file)
    asked = tuple(dict.fromkeys(backend or ()))
    if mutants:
        given = {"--html": html_file, "--junit": junit_file, "--layout": layout, "--case": case}
        given |= {"--dtype": dtype, "--target": target, "--interpret": interpret, "--full": full}
        if unused := [name for name, value in given.items() if value]:
            raise ValueError(
                f"mutants: got {', '.join(unused)} too, expected beside it only --seed and --json: "
                "each fault chooses its own layout, type and cases"
            )
        is_fine = _mutants(asked or ("xla",), seed, json_file)
    else:
        ask = _Ask(
            layouts=tuple(layout or ()),
            cases=tuple(case or ()) or None,
            dtypes=tuple(dtype or ()) or None,
            interpret=interpret,
            full=full,
            seed=seed,
            target=target,
        )
        is_fine = _conform(asked, ask, files)
    if not is_fine:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Ask:
    """What each subject is asked, see `run_conformance`."""

    layouts: tuple[str, ...]
    cases: tuple[str, ...] | None
    dtypes: tuple[str, ...] | None
    interpret: bool
    full: bool
    seed: int
    target: str | None


def _conform(asked: tuple[str, ...], ask: _Ask, files: dict[str, str | None]) -> bool:
    # Here, so that `paged --help` does not wait for jax.
    from paged.cli.conform_text import show_left_out, show_run
    from paged.conformance.environment import Environment
    from paged.conformance.html import to_html
    from paged.conformance.junit import to_junit
    from paged.conformance.lookup import find_backend, has_nothing_to_interpret, usable_backends
    from paged.conformance.run import is_manager

    # All that can be wrong is told before the first case runs.
    managers = [name for name in asked if is_manager(name)]
    backends, left_out = (
        (
            {
                name: find_backend(name, interpret=ask.interpret)
                for name in asked
                if name not in managers
            },
            {},
        )
        if asked
        else usable_backends(interpret=ask.interpret)
    )
    _check(ask, backends, named=bool(asked))
    if not asked:
        whole = not (ask.cases or ask.layouts or ask.dtypes or ask.interpret or ask.full)
        how_long = f"; {_HOW_LONG}" if whole else ""
        names = ", ".join(backends) or "none"
        note(f"no backend is named, so all that this host can run: {names}{how_long}")
    for name, reason in left_out.items():
        note(f"{name} left out: {reason}")
    if ask.interpret:
        for name, backend in backends.items():
            if has_nothing_to_interpret(backend):
                note(f"{name} has nothing to interpret: it runs here as it is")

    environment = Environment.here(command=shlex.join(["paged", *sys.argv[1:]]), seed=ask.seed)
    runs: list[Run] = []
    for name in asked or backends:
        is_backend = name in backends
        runs.append(
            _run_backend(name, backends[name], ask) if is_backend else _run_manager(name, ask)
        )
        if files["json"] != STDOUT:
            show_run(runs[-1])
    if files["json"] != STDOUT:
        show_left_out(left_out)
    if file := files["json"]:
        _write_json(file, [run.form for run in runs])
    if file := files["html"]:
        _write("html", file, to_html(runs, environment, left_out=left_out))
    if file := files["junit"]:
        _write("junit", file, to_junit(runs))
    empty = [run.name for run in runs if not run.has_tested]
    for name in empty:
        note(f"{name}: no case was run, so that nothing is shown; the table says why")
    return bool(runs) and not empty and not any(run.failures for run in runs)


def _check(ask: _Ask, backends: dict[str, Any], *, named: bool) -> None:
    from paged.backends.registry import TARGETS
    from paged.conformance import select
    from paged.dtypes import COMPUTE_DTYPES
    from paged.layouts import get_layout

    if ask.target is not None and ask.target not in TARGETS:
        raise ValueError(f"target: got {ask.target!r}, expected one of {', '.join(TARGETS)}")
    for name in ask.dtypes or ():
        if name not in COMPUTE_DTYPES:
            raise ValueError(f"dtype: got {name!r}, expected one of {', '.join(COMPUTE_DTYPES)}")
    for name in ask.layouts:
        layout = get_layout(name)
        for backend in backends.values():
            if (
                named
                and layout not in backend.layouts
                and not getattr(backend, "any_layout", False)
            ):
                claimed = ", ".join(layout.name for layout in backend.layouts)
                raise ValueError(
                    f"layout: got {name!r}, which backend {backend.name} does not claim, expected "
                    f"one of {claimed}"
                )
    if backends:
        select(ask.cases)


def _run_backend(name: str, backend: Any, ask: _Ask) -> "Run":
    import jax

    from paged.conformance import Report, run_conformance
    from paged.conformance.lookup import subject_of
    from paged.conformance.run import of_backend
    from paged.layouts import get_layout

    start = time.perf_counter()
    reports: list[Report] = []
    layouts = tuple(map(get_layout, ask.layouts)) or tuple(backend.layouts)
    for layout in layouts:
        with _progress(f"{name} on {layout.name}") as on_result:
            report = run_conformance(
                subject_of(backend, target=ask.target, full=ask.full),
                cases=ask.cases,
                layouts=[layout],
                dtypes=ask.dtypes,
                full=ask.full,
                seed=ask.seed,
                on_result=on_result,
            )
        reports.append(report)
        # No other layout uses its programs, which take a gigabyte.
        jax.clear_caches()
    results = tuple(result for report in reports for result in report.results)
    return of_backend(
        Report(str(backend.name), tuple(layout.name for layout in layouts), results),
        name,
        target=ask.target,
        interpret=ask.interpret,
        full=ask.full,
        seconds=time.perf_counter() - start,
    )


def _run_manager(name: str, ask: _Ask) -> "Run":
    from paged.conformance.lookup import find_in_current_folder
    from paged.conformance.managers import run_manager_conformance
    from paged.conformance.run import of_manager

    find_in_current_folder()
    start = time.perf_counter()
    factory = name.partition("=")[2] or None
    with _progress(name) as on_result:
        try:
            report = run_manager_conformance(
                factory, cases=ask.cases, seed=ask.seed, on_result=on_result
            )
        except TypeError as error:
            # What is found under the name is no manager: the caller's mistake.
            raise ValueError(f"backend: {name} makes no manager: {error}") from error
    return of_manager(report, name, seconds=time.perf_counter() - start)


def _mutants(names: tuple[str, ...], seed: int, json_file: str | None) -> bool:
    from paged.cli.conform_text import show_mutants
    from paged.conformance import mutants
    from paged.conformance.lookup import find_backend
    from paged.conformance.run import BLOCKS

    # A kernel for hardware has its faults tried by its interpreter.
    backends = {name: find_backend(name, interpret=True) for name in names if name != BLOCKS}
    for backend in backends.values():
        mutants.select_mutants(backend.name)
    reports: list[mutants.MutationReport] = []
    for name in names:
        with _progress(f"{name}, mutants") as on_result:
            reports.append(
                mutants.run_manager_mutants(seed=seed, on_result=on_result)
                if name == BLOCKS
                else mutants.run_mutants(backends[name], seed=seed, on_result=on_result)
            )
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
    """Refuses a file that could not be written after minutes of work; leaves none behind."""
    if file is None or (option == "json" and file == STDOUT):
        return
    path = Path(file)
    if path.is_dir() or not path.parent.is_dir():
        what = "a folder" if path.is_dir() else f"no folder {path.parent}"
        raise ValueError(f"{option}: cannot write {file}: {what}, expected a file to write")
    is_new = not path.exists()
    if not is_new and not path.is_file():
        # To open a pipe and close it again would end it for its reader.
        if not os.access(path, os.W_OK):
            raise ValueError(f"{option}: cannot write {file}: expected a file to write")
        return
    try:
        path.open("a", encoding="utf-8").close()
    except OSError as error:
        raise ValueError(
            f"{option}: cannot write {file}: {error.strerror}, expected a file to write"
        ) from error
    if is_new:
        path.resolve().unlink()


def _write_json(file: str, forms: list[Any]) -> None:
    """One object for one backend, a list for several."""
    _write("json", file, json.dumps(forms[0] if len(forms) == 1 else forms, indent=2))


def _write(option: str, file: str, text: str) -> None:
    if option == "json" and file == STDOUT:
        typer.echo(text)
        return
    Path(file).write_text(text, encoding="utf-8")
    note(f"{option} written to {file}")
