"""`paged replay`: a request trace served under each way to hand out memory."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paged.cli.console import JsonOption, note, print_columns, print_json, require_folder
from paged.cli.models import model_cache

if TYPE_CHECKING:
    from paged.replay import Figures

_MODEL = "llama-3-8b"
_POLICIES = "max,pow2,oracle,paged"
_BLOCK_SIZES = "1,4,8,16,32,64,128"


def replay(
    file: Annotated[
        Path, typer.Argument(help="A Mooncake trace (JSON lines) or an Azure one (CSV).")
    ],
    policy: Annotated[
        str, typer.Option(help=f"Some of {_POLICIES}: three guesses of contiguous allocation.")
    ] = _POLICIES,
    block_size: Annotated[
        str, typer.Option(help="Tokens per block of paged allocation, with commas.")
    ] = _BLOCK_SIZES,
    pool: Annotated[
        str | None,
        typer.Option(
            help="Bytes of the cache: 16GiB. By default so few that requests wait for memory: "
            "slots for four of the longest."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help=f"Whose bytes the pool's slots take, as for `paged plan`; {_MODEL}."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Platform of the pool, which a TPU pads; cpu.")
    ] = None,
    heap: Annotated[
        str, typer.Option(help="Of contiguous allocation: buddy or first-fit.")
    ] = "buddy",
    max_len: Annotated[
        int | None,
        typer.Option(help="Slots that 'max' reserves; by default those of the longest request."),
    ] = None,
    watermark: Annotated[
        float, typer.Option(help="Share of the blocks that paged admissions leave free.")
    ] = 0.01,
    max_requests: Annotated[int, typer.Option(help="Requests that run at once.")] = 256,
    max_step_tokens: Annotated[
        int, typer.Option(help="Tokens after which a step admits no more.")
    ] = 8192,
    step_ns: Annotated[int, typer.Option(help="Nanoseconds of each step.")] = 7_900_000,
    prompt_token_ns: Annotated[int, typer.Option(help="Of each prompt token computed.")] = 103_000,
    read_token_ns: Annotated[int, typer.Option(help="Of each cached token read.")] = 64,
    limit: Annotated[int | None, typer.Option(help="Only the trace's first requests.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw it: a .svg, .png or .pdf.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Serve a trace under each policy; what its memory held, and how many ran at once.

    No kernel runs: a step takes a stated time. Shares are means over time, in percent: 'of taken'
    is what held tokens of what was taken, the others are of the pool. docs/replay.md has the
    definitions.

    \b
    Example:
      paged replay AzureLLMInferenceTrace_conv.csv --plot conv.svg
      paged replay conversation_trace.jsonl --limit 1000 --block-size 16 --pool 64GiB
    """
    from paged.replay import Limits, Setting, StepTime, compare, default_pool, longest, read_trace
    from paged.replay.plot import draw, figure_class

    if plot is not None:
        figure_class(plot)
        require_folder(plot)
    sizes = _block_sizes(block_size)
    policies = policy.split(",")
    try:
        trace = read_trace(file, limit)
    except OSError as error:
        raise ValueError(
            f"file: got {str(file)!r}, expected a trace that can be read: {error.strerror}"
        ) from error
    most = longest(trace, max_len)
    slots, bought = _bought(pool, model, target)
    setting = Setting(
        pool_slots=default_pool(most, sizes if "paged" in policies else ())
        if slots is None
        else slots,
        max_len=most,
        heap=heap,
        watermark=watermark,
        time=StepTime(step_ns, prompt_token_ns, read_token_ns),
        limits=Limits(max_requests, max_step_tokens),
    )
    runs: list[Figures] = []
    for run in compare(trace, setting, policies, sizes):
        note(f"{run.label}: served in {run.seconds:,.0f} s of the service's time")
        runs.append(run)
    title = f"{trace.name}: {len(trace):,} requests, {setting.pool_slots:,} slots{bought}"
    if plot is not None:
        draw(runs, plot, title=title)
    if as_json:
        common = {"trace": trace.name, "requests": len(trace), "setting": asdict(setting)}
        print_json({**common, "runs": [run.as_dict() for run in runs]})
        return
    typer.echo(title)
    lines = [[column(run) for column in _COLUMNS.values()] for run in runs]
    print_columns([[*_COLUMNS], *lines])


def _percent(name: str) -> "Callable[[Figures], str]":
    return lambda run: f"{100 * getattr(run, name):.1f}"


_COLUMNS: "dict[str, Callable[[Figures], str]]" = {
    "policy": lambda run: run.label,
    "of taken": _percent("utilisation"),
    "used": _percent("used"),
    "reserved": _percent("reserved"),
    "internal": _percent("internal"),
    "external": _percent("external"),
    "free": _percent("idle"),
    "waits": _percent("blocked"),
    "batch": lambda run: f"{run.mean_batch:.1f}",
    "most": lambda run: str(run.max_batch),
    "hits": _percent("hit_rate"),
    "preempted": lambda run: f"{run.preemptions:,}",
    "again": lambda run: f"{run.recomputed_tokens:,}",
    "latency s": lambda run: f"{run.mean_latency:,.1f}",
    "end s": lambda run: f"{run.seconds:,.0f}",
}


def _block_sizes(text: str) -> list[int]:
    sizes = text.split(",")
    if bad := [size for size in sizes if not (size.isascii() and size.isdigit() and int(size))]:
        raise ValueError(
            f"block_size: got {bad[0]!r}, expected numbers of at least 1 separated by commas"
        )
    return [int(size) for size in sizes]


def _bought(pool: str | None, model: str | None, target: str | None) -> tuple[int | None, str]:
    """Slots that a pool of bytes has, and the words for it; None where no pool is asked for."""
    if pool is None:
        for name, value in (("model", model), ("target", target)):
            if value is not None:
                raise ValueError(
                    f"{name}: got {value!r} without --pool, expected both: it says what a slot of "
                    "the pool costs"
                )
        return None, ""
    from paged import capacity

    found = capacity.plan(model_cache(model or _MODEL), pool, target=target or "cpu")
    return found.num_tokens, f" ({pool} of {found.model} in {found.dtype}, on {found.target})"
