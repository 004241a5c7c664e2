"""`paged lab triton`: the Triton kernels, compiled for GPUs that are not there."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paged.cli.console import JsonOption, note, print_columns, print_json, wrapped

if TYPE_CHECKING:
    from paged.lab.triton.run import CompiledKernel

_WHAT_IS_COUNTED = (
    "Registers of a thread; spills: registers kept in memory; load: fewest bytes of one thread's "
    "load of keys or values. Static counts, not time."
)


def triton(
    target: Annotated[
        str, typer.Option(help="Some of sm_80, sm_90, sm_100, gfx942, or 'all'.")
    ] = "all",
    kernel: Annotated[
        str,
        typer.Option(help="Some of decode, prefill, reduce, write, with mla_ before, or 'all'."),
    ] = "all",
    full: Annotated[
        bool, typer.Option("--full", help="The whole grid, not its representative cases.")
    ] = False,
    baseline: Annotated[
        Path | None, typer.Option(help="Compare with this file; exit code 1 if anything is worse.")
    ] = None,
    update: Annotated[
        str | None,
        typer.Option(metavar="REASON", help="Write what is counted into the baseline, and why."),
    ] = None,
    summary: Annotated[
        bool, typer.Option("--summary", help="The range of each figure by target and kernel.")
    ] = False,
    workers: Annotated[int, typer.Option(help="Processes side by side.", min=1, max=2)] = 2,
    as_json: JsonOption = False,
) -> None:
    """Compile the Triton kernels ahead of time; exit code 1 if one does not compile.

    By default at most 30 representative cases a target: one axis at a time around bfloat16 heads of
    128 in groups of 4, blocks of 16. Windows, soft caps and split keys are named behind the kernel.

    \b
    Example:
      paged lab triton --target sm_90 --json
      paged lab triton --target sm_90 --kernel decode,mla_decode --full --summary
      paged lab triton --baseline benchmarks/triton_baseline.json
    """
    from paged.lab.triton.grid import chosen_cases
    from paged.lab.triton.run import compile_cases, require_triton
    from paged.lab.triton.targets import get_gpu_targets

    _check(baseline, update)
    targets = get_gpu_targets(target)
    cases = chosen_cases(kernel, full=full)
    require_triton()
    if baseline is not None and update is None:
        _require_comparable(baseline)
    found: list[CompiledKernel] = []
    for one in targets:
        note(f"{one.name}: {len(cases)} to compile")
        found += compile_cases(one, cases, workers=workers)
    _show(found, as_json, summary)
    failed = [one for one in found if one.counts is None]
    for one in failed:
        note(f"{one.target.name}: {one.case.label}: {one.reason}")
    is_worse = baseline is not None and not _held(baseline, update, found)
    if failed or is_worse:
        raise typer.Exit(1)


def _check(baseline: Path | None, update: str | None) -> None:
    if update is not None and not update.strip():
        raise ValueError("update: got nothing, expected the reason")
    if update is not None and baseline is None:
        raise ValueError("update: expected a file with --baseline")


def _require_comparable(path: Path) -> None:
    """Before anything is compiled, which takes minutes."""
    from paged.lab.triton.baseline import (
        check_triton_versions,
        read_triton_baseline,
        triton_versions,
    )

    check_triton_versions(read_triton_baseline(path), triton_versions())


def _held(path: Path, update: str | None, found: Sequence["CompiledKernel"]) -> bool:
    """Compares with a baseline, or writes it; whether nothing got worse."""
    from paged.lab.triton.baseline import (
        compared,
        read_triton_baseline,
        triton_versions,
        updated,
        worse,
        write_triton_baseline,
    )

    if update is not None:
        known = read_triton_baseline(path) if path.exists() else None
        compiled = [one for one in found if one.counts is not None]
        new = updated(known, compiled, update.strip(), triton_versions())
        write_triton_baseline(path, new)
        note(f"baseline written to {path}")
        return True
    known = read_triton_baseline(path)
    lines = worse(known, found)
    for line in lines:
        note(line)
    if not lines:
        note(f"{compared(known, found)} compared, none worse")
    return not lines


def _show(found: Sequence["CompiledKernel"], as_json: bool, summary: bool) -> None:
    if as_json:
        print_json([one.row() for one in found])
        return
    if summary:
        from paged.lab.triton.summary import COLUMNS, summarised

        print_columns([COLUMNS, *summarised(found)])
    else:
        print_columns([_HEADS, *([_cell(value) for value in one.row().values()] for one in found)])
    typer.echo(wrapped(_WHAT_IS_COUNTED))


_HEADS = (
    *("kernel", "layout", "target", "dtype", "head_dim", "group", "block"),
    *("registers", "spills", "shared", "mma", "load"),
)


def _cell(value: str | int | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else value
