"""`paged lab`: compile kernels for hardware that is not there, and count what they cost."""

import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paged.cli.console import JsonOption, help_alone, note, print_columns, print_json, wrapped
from paged.cli.lab_grid import refuse_sizes, show_grid
from paged.cli.lab_table import COLUMNS, by_cost, markdown_table, text_table
from paged.cli.lab_triton import triton

if TYPE_CHECKING:
    from paged.lab.grid import Checked
    from paged.lab.measure import Measurement
    from paged.lab.tune import Choice

app = typer.Typer(
    help="Compile kernels for hardware that is not there, and count what they cost.",
    rich_markup_mode=None,
)
app.callback(invoke_without_command=True)(help_alone)

TargetOption = Annotated[
    str, typer.Option(help="Some of v4, v5e, v5p, v6e, v7x, h100, b200, a100; 'all' is every TPU.")
]
LayoutOption = Annotated[
    str, typer.Option(help="Names with commas; 'auto' is the backend's first, 'all' all of them.")
]
BlockSizeOption = Annotated[str, typer.Option(help="Tokens per block, with commas.")]
NumHeadsOption = Annotated[
    int | None, typer.Option(help="Query heads; 32 by default, 128 for a latent.", min=1)
]
NumKvHeadsOption = Annotated[int, typer.Option(help="KV heads; a latent has 1.", min=1)]
HeadDimOption = Annotated[int, typer.Option(help="Width of a key; a latent has 576.", min=1)]
KvTokensOption = Annotated[int, typer.Option(help="Tokens of each sequence.", min=1)]
NumSeqsOption = Annotated[int, typer.Option(help="Sequences.", min=1)]
QueryLenOption = Annotated[
    int, typer.Option(help="Queries of each sequence: 1 decodes, kv-tokens prefills.", min=1)
]
DtypeOption = Annotated[str, typer.Option(help="Storage type of the cache.")]
QueryDtypeOption = Annotated[str, typer.Option(help="Type of queries and results.")]
WindowOption = Annotated[int | None, typer.Option(help="A token sees its last WINDOW keys.")]
SoftCapOption = Annotated[float | None, typer.Option(help="Cap of the logits.")]
SinksOption = Annotated[bool, typer.Option("--sinks", help="One logit per head more.")]
ReportOption = Annotated[
    Path | None, typer.Option(help="Also write all that was read, as JSON: loops, slots, reasons.")
]


@app.command("compile")
def compile_(
    context: typer.Context,
    backend: Annotated[str, typer.Argument(help="A listed backend, or package.module:Class.")],
    target: TargetOption = "all",
    grid: Annotated[
        bool,
        typer.Option(
            "--grid",
            help="Instead of one problem a grid of them on every layout, and how many compile; "
            "nothing is counted.",
        ),
    ] = False,
    layout: LayoutOption = "auto",
    block_size: BlockSizeOption = "16",
    num_heads: NumHeadsOption = None,
    num_kv_heads: NumKvHeadsOption = 8,
    head_dim: HeadDimOption = 128,
    kv_tokens: KvTokensOption = 4096,
    num_seqs: NumSeqsOption = 32,
    query_len: QueryLenOption = 1,
    dtype: DtypeOption = "bfloat16",
    query_dtype: QueryDtypeOption = "bfloat16",
    window: WindowOption = None,
    soft_cap: SoftCapOption = None,
    sinks: SinksOption = False,
    write: Annotated[
        bool, typer.Option(help="Also compile the write; its failures are told on stderr.")
    ] = True,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compile a backend's attend and write; exit code 1 if what it claims does not compile.

    What the backend refuses is a row without figures, and its reason on stderr.

    \b
    Example:
      paged lab compile pallas_tpu --target all --grid
      paged lab compile xla --target v5e,v6e --json
      paged lab compile pallas_tpu --target all --layout all --block-size 16,64
      paged lab compile my_pkg.my_mod:MyBackend --target v6e --report counts.json
    """
    from paged.lab import get_targets
    from paged.lab.asks import Sizes, asks, chosen_block_sizes, chosen_layouts
    from paged.lab.lookup import find_backend
    from paged.lab.measure import measure
    from paged.lab.requirements import require

    if grid:
        refuse_sizes(context)
        _compile_grid(backend, target, "all" if layout == "auto" else layout, write, as_json)
        return
    sizes = Sizes(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        window=window,
        soft_cap=soft_cap,
        has_sinks=sinks,
        num_seqs=num_seqs,
        kv_tokens=kv_tokens,
        query_len=query_len,
        cache_dtype=dtype,
        query_dtype=query_dtype,
    )
    targets = get_targets(target)
    for one in targets:
        require(one)
    found = find_backend(backend)
    wanted = asks(found, chosen_layouts(found, layout), chosen_block_sizes(block_size), sizes)
    attended: list[Measurement] = []
    written: list[Measurement] = []
    for one in targets:
        note(f"{one.name}: {len(wanted)} to compile")
        attended += measure(one, wanted)
        if write:
            written += measure(one, wanted, call="write")
    _show(attended, as_json)
    _tell_reasons((*attended, *written))
    _write_report(report, (*attended, *written))
    if any(m.status == "failed" for m in (*attended, *written)):
        raise typer.Exit(1)


def _compile_grid(backend: str, target: str, layout: str, write: bool, as_json: bool) -> None:
    from paged.lab import get_targets
    from paged.lab.asks import chosen_layouts
    from paged.lab.grid import check_grid, grid
    from paged.lab.lookup import find_backend
    from paged.lab.requirements import require

    targets = get_targets(target)
    for one in targets:
        require(one)
    found = find_backend(backend)
    problems = grid(chosen_layouts(found, layout))
    checked: list[Checked] = []
    for one in targets:
        note(f"{one.name}: {len(problems)} problems")
        checked += check_grid(one, found, problems, write=write)
    if as_json:
        print_json([each.row() for each in checked])
    else:
        show_grid(checked)
    if any(each.status == "failed" for each in checked):
        raise typer.Exit(1)


@app.command()
def compare(
    target: TargetOption = "v6e",
    backend: Annotated[
        list[str] | None,
        typer.Option(
            help="Listed backends or package.module:Class, with commas or repeated. By default "
            "every listed backend of the target's platform."
        ),
    ] = None,
    layout: LayoutOption = "all",
    block_size: BlockSizeOption = "16,64,128",
    num_heads: NumHeadsOption = None,
    num_kv_heads: NumKvHeadsOption = 8,
    head_dim: HeadDimOption = 128,
    kv_tokens: KvTokensOption = 4096,
    num_seqs: NumSeqsOption = 32,
    query_len: QueryLenOption = 1,
    dtype: DtypeOption = "bfloat16",
    plot: Annotated[
        Path | None, typer.Option(help="Draw the rooflines; the suffix says SVG, PNG or PDF.")
    ] = None,
    report: ReportOption = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="A table for a document, targets side by side.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Kernels, layouts and block sizes side by side, best first; what is refused is left out.

    \b
    Example:
      paged lab compare --target v6e --json
      paged lab compare --target v5e,v6e,v7x --backend pallas_tpu,xla --plot roofline.svg
      paged lab compare --target v5e,v6e --block-size 64 --markdown
    """
    from paged.lab import get_targets
    from paged.lab.asks import Sizes, asks, chosen_block_sizes, chosen_layouts, split
    from paged.lab.lookup import backends_for, find_backend
    from paged.lab.measure import measure
    from paged.lab.requirements import require

    sizes = Sizes(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        num_seqs=num_seqs,
        kv_tokens=kv_tokens,
        query_len=query_len,
        cache_dtype=dtype,
    )
    targets = get_targets(target)
    for one in targets:
        require(one)
    block_sizes = chosen_block_sizes(block_size)
    chosen = [find_backend(name) for name in split(",".join(backend or ()))]
    found: list[Measurement] = []
    for one in targets:
        wanted = [
            ask
            for each in chosen or backends_for(one)
            for ask in asks(each, chosen_layouts(each, layout), block_sizes, sizes)
        ]
        note(f"{one.name}: {len(wanted)} to compile")
        measured = [m for m in measure(one, wanted) if m.status != "refused"]
        found += sorted(measured, key=by_cost)
    if markdown and not as_json:
        typer.echo("\n".join(markdown_table(found)))
    else:
        _show(found, as_json)
    _tell_reasons(found)
    _write_report(report, found)
    if plot is not None:
        from paged.lab.plot import plot_roofline

        plot_roofline(found, plot)
        note(f"plot written to {plot}")


@app.command()
def tune(
    context: typer.Context,
    backend: Annotated[str, typer.Argument(help="A listed backend, or package.module:Class.")],
    target: TargetOption = "all",
    layout: LayoutOption = "auto",
    block_size: BlockSizeOption = "64",
    num_heads: NumHeadsOption = None,
    num_kv_heads: NumKvHeadsOption = 8,
    head_dim: HeadDimOption = 128,
    kv_tokens: KvTokensOption = 4096,
    num_seqs: NumSeqsOption = 32,
    query_len: QueryLenOption = 1,
    dtype: DtypeOption = "bfloat16",
    query_dtype: QueryDtypeOption = "bfloat16",
    window: WindowOption = None,
    soft_cap: SoftCapOption = None,
    sinks: SinksOption = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the choices into this file; its other entries stay."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Choose a backend's tile sizes by their counts; exit code 1 if none could be counted.

    Problems that differ in layout and block size alone are chosen for together.

    \b
    Example:
      paged lab tune pallas_tpu --target v6e
      paged lab tune pallas_tpu --target all --out paged/backends/pallas_tpu/tuned.json
    """
    from paged.backends.tuned import read_tuned
    from paged.lab import get_targets
    from paged.lab.asks import Sizes, asks, chosen_block_sizes, chosen_layouts
    from paged.lab.baseline import installed_versions
    from paged.lab.lookup import find_backend
    from paged.lab.requirements import require
    from paged.lab.tune import tune as choose
    from paged.lab.tune import updated, write_tuned

    sizes = Sizes(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        window=window,
        soft_cap=soft_cap,
        has_sinks=sinks,
        num_seqs=num_seqs,
        kv_tokens=kv_tokens,
        query_len=query_len,
        cache_dtype=dtype,
        query_dtype=query_dtype,
    )
    targets = get_targets(target)
    for one in targets:
        require(one)
    known = read_tuned(out) if out is not None and out.exists() else None
    found = find_backend(backend)
    wanted = asks(found, chosen_layouts(found, layout), chosen_block_sizes(block_size), sizes)
    choices = [choice for one in targets for choice in choose(one, wanted, tell=note)]
    _show_choices(choices, as_json)
    if out is not None:
        write_tuned(out, updated(known, choices, _command(context), installed_versions()))
        note(f"choices written to {out}")
    if any(choice.chosen is None for choice in choices):
        raise typer.Exit(1)


@app.command()
def baseline(
    file: Annotated[Path, typer.Argument(help="The baseline.")],
    update: Annotated[
        str | None,
        typer.Option(metavar="REASON", help="Write what is counted now into the file, and why."),
    ] = None,
) -> None:
    """Count again what a baseline holds; exit code 1 if anything is worse.

    \b
    Example:
      paged lab baseline benchmarks/lab_baseline.json
      paged lab baseline benchmarks/lab_baseline.json --update "tiles of 512: fewer spills"
    """
    from paged.lab.baseline import (
        Baseline,
        check_versions,
        counts_of,
        installed_versions,
        measure_again,
        read_baseline,
        worse,
        write_baseline,
    )
    from paged.lab.requirements import require
    from paged.lab.targets import TARGETS

    if update is not None and not update.strip():
        raise ValueError("update: got nothing, expected the reason")
    known = read_baseline(file)
    for name in dict.fromkeys(ask.target for ask, _ in known.entries):
        require(TARGETS[name])
    versions = installed_versions()
    if update is None:
        check_versions(known, versions)
    measured = measure_again([ask for ask, _ in known.entries])
    if update is not None:
        _tell_reasons(measured)
        if any(m.status != "compiled" for m in measured):
            raise typer.Exit(1)
        entries = tuple(
            (ask, counts_of(m)) for (ask, _), m in zip(known.entries, measured, strict=True)
        )
        write_baseline(file, Baseline(versions, update.strip(), entries))
        note(f"baseline written to {file}")
        return
    lines = worse(known, measured)
    for line in lines:
        typer.echo(line)
    if lines:
        raise typer.Exit(1)
    typer.echo(f"{len(measured)} counted, none worse")


app.command()(triton)


def _show(measurements: Sequence["Measurement"], as_json: bool) -> None:
    if as_json:
        print_json([m.row() for m in measurements])
        return
    from paged.lab import BLIND_SPOTS

    title = f"{measurements[0].problem.label}; cycles per KV token" if measurements else ""
    typer.echo(title)
    print_columns(text_table(measurements))
    typer.echo(wrapped(BLIND_SPOTS))


_TRIED: dict[str, Callable[[dict[str, Any]], str]] = {
    "candidate": lambda row: row["candidate"],
    "target": lambda row: row["target"],
    "of": lambda row: "untuned" if row["untuned"] else "",
    **{
        name: COLUMNS[name]
        for name in ("scheduled", "issued", "bound", "HBM", "spills", "VMEM KiB")
    },
    "chosen": lambda row: "yes" if row["chosen"] else ("failed" if row["reason"] else ""),
}


def _show_choices(choices: Sequence["Choice"], as_json: bool) -> None:
    rows = [row for choice in choices for row in choice.rows()]
    for row in rows:
        if row["reason"]:
            note(f"{row['target']}, {row['candidate']}: {row['reason']}")
    if as_json:
        print_json(rows)
        return
    from paged.lab import BLIND_SPOTS

    for choice in choices:
        shape = ", ".join(f"{name} {value}" for name, value in choice.shape.items())
        typer.echo(f"{choice.target.name}: {shape}; cycles per KV token")
        cells = [[cell(row) for cell in _TRIED.values()] for row in choice.rows()]
        print_columns([[*_TRIED], *cells])
    typer.echo(wrapped(BLIND_SPOTS))


def _command(context: typer.Context) -> str:
    """The command as it can be repeated, without where its results went."""
    words = ["paged", "lab", "tune"]
    for param in context.command.params:
        value = context.params.get(param.name or "")
        if param.param_type_name == "argument":
            words.append(str(value))
        elif param.name not in ("out", "as_json") and value != param.get_default(context):
            words += [param.opts[0]] if value is True else [param.opts[0], str(value)]
    return shlex.join(words)


def _tell_reasons(measurements: Sequence["Measurement"]) -> None:
    for m in measurements:
        # A write has no cost per KV token, which needs no reason.
        if m.reason and not (m.call == "write" and m.status == "compiled"):
            note(
                f"{m.target.name}, {m.problem.layout.name}, blocks of {m.problem.block_size}, "
                f"{m.call}: {m.reason}"
            )


def _write_report(path: Path | None, measurements: Sequence["Measurement"]) -> None:
    if path is not None:
        path.write_text(json.dumps([m.report() for m in measurements], indent=2) + "\n")
        note(f"report written to {path}")
