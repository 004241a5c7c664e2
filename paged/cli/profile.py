"""`paged profile`: where the time of an engine's steps goes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paged.cli.compiling import CacheOption, keep_programs
from paged.cli.console import JsonOption, print_columns, print_json, require_folder

if TYPE_CHECKING:
    from paged.engine import LLM
    from paged.engine.phases import StepKind, StepProfile


@dataclass(frozen=True, slots=True)
class Profile:
    """What was measured.

    Attributes:
        kinds: the steps of each kind, waited for one by one.
        ahead_ms: of a decode step as it runs otherwise, the host one step ahead.
        parts: shares of the compiled decode step; None where it cannot be traced.
    """

    kinds: "Mapping[StepKind, StepProfile]"
    ahead_ms: float
    parts: dict[str, float] | None

    @property
    def outside(self) -> float:
        """The share of `ahead_ms` that calling the compiled program does not account for."""
        return max(0.0, 1 - 1e3 * self.kinds["decode"].called_seconds / self.ahead_ms)

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "steps": [kind.as_dict() for kind in self.kinds.values()],
            "decode_ms_ahead": self.ahead_ms,
            "outside_program": self.outside,
            "program_parts": self.parts,
        }


def profile(
    model: Annotated[
        str, typer.Argument(help="A built-in model or a Hugging Face folder.")
    ] = "tiny-gqa",
    requests: Annotated[int, typer.Option(help="Requests that run side by side.")] = 8,
    prompt_tokens: Annotated[int, typer.Option(help="Of each prompt, drawn at random.")] = 32,
    max_tokens: Annotated[int, typer.Option(help="Tokens to generate for each.")] = 32,
    layout: Annotated[str, typer.Option(help="How blocks lie in memory.")] = "auto",
    backend: Annotated[
        str, typer.Option(help="The attention kernel; `paged backends` says which run here.")
    ] = "auto",
    block_size: Annotated[int, typer.Option(help="Tokens per block.")] = 16,
    dtype: Annotated[
        str | None, typer.Option(help="Of parameters and cache; the model's by default.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw it: a .svg, .png or .pdf.")] = None,
    compilation_cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show where the time of a step goes: scheduling, metadata, dispatch, program, text.

    Each step is waited for before the next is planned, so that the phases add up. Otherwise the
    host works one step ahead and most of its time is hidden: the last lines say what is left.

    \b
    Example:
      paged profile tiny-gqa
      paged profile tiny-mla --requests 32 --plot step.svg
    """
    for name, value, least in (
        ("requests", requests, 1),
        ("prompt-tokens", prompt_tokens, 1),
        ("max-tokens", max_tokens, 3),
    ):
        if value < least:
            raise ValueError(f"{name}: got {value}, expected at least {least}")
    from paged.cli.profile_plot import draw, figure_class

    if plot is not None:
        figure_class(plot)
        require_folder(plot)
    keep_programs(compilation_cache)
    from paged.engine import LLM
    from paged.engine.resolving import names

    llm = LLM(
        model,
        layout=layout,
        backend=backend,
        block_size=block_size,
        max_num_seqs=requests,
        dtype=dtype,
        # The same prompts run again and again, and have to be computed each time.
        enable_prefix_caching=False,
    )
    if (most := llm.model.config.max_position_embeddings) < prompt_tokens + max_tokens:
        raise ValueError(
            f"prompt-tokens and max-tokens: got {prompt_tokens} and {max_tokens}, expected at most "
            f"{most} in all, the model's length"
        )
    found = measure(llm, requests, prompt_tokens, max_tokens)
    served = names(llm.resolutions)
    title = (
        f"{model}, {requests} x ({prompt_tokens} in, {max_tokens} out): {served['backend']} on "
        f"{served['layout']}, {llm.model.dtype}"
    )
    if plot is not None:
        draw(list(found.kinds.values()), found.parts, plot, title=title)
    if as_json:
        print_json({"model": model, **served, "dtype": str(llm.model.dtype), **found.as_dict()})
    else:
        _show(found, title)


def measure(llm: "LLM", requests: int, prompt_tokens: int, max_tokens: int) -> Profile:
    """Four runs of the same requests: compile, as it runs, step by step, traced."""
    import numpy as np

    from paged.engine import SamplingParams

    rng = np.random.default_rng(0)
    shape = (requests, prompt_tokens)
    prompts = rng.integers(0, llm.model.config.vocab_size, shape).tolist()
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)

    def run() -> None:
        llm.generate(prompts, params, progress=False)

    run()
    ahead_ms = _decode_ms(llm, run)
    with llm.profiled() as recording:
        run()
    return Profile(recording.profiles(), ahead_ms, llm.program_shares(run))


def _decode_ms(llm: "LLM", run: Callable[[], None]) -> float:
    before = llm.stats.as_dict()
    run()
    after = llm.stats.as_dict()
    seconds = after["decode_seconds"] - before["decode_seconds"]
    return 1e3 * seconds / (after["decode_steps"] - before["decode_steps"])


def _show(found: Profile, title: str) -> None:
    typer.echo(title)
    for kind in found.kinds.values():
        typer.echo(f"\n{kind.kind} steps: {kind.steps}")
        lines = [["phase", "ms per step", "share %", "count"]]
        rows = [(name, *own) for name, own in kind.phases.items()]
        for name, seconds, count in (*rows, ("all", kind.seconds, kind.steps)):
            ms, share = 1e3 * seconds / kind.steps, 100 * seconds / kind.seconds
            lines.append([name, f"{ms:.3f}", f"{share:.1f}", str(count)])
        print_columns(lines)
    if found.parts is not None:
        parts = ", ".join(f"{part} {100 * share:.0f} %" for part, share in found.parts.items())
        typer.echo(f"\nThe program of a decode step: {parts}.")
    typer.echo(
        f"With the host one step ahead a decode step takes {found.ahead_ms:.3f} ms,\n"
        f"{100 * found.outside:.0f} % of it outside dispatch and program."
    )
