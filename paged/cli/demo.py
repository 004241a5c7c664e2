"""`paged demo`: the same text from every layout and backend, and how long each took."""

from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.console import Console

from paged.cli.console import JsonOption, note, print_json, print_table

PROMPTS = ("First Citizen:\n", "ROMEO:\n", "What say you")


@dataclass(frozen=True, slots=True)
class Row:
    """One combination.

    Attributes:
        layout: how blocks lie in memory.
        backend: the attention kernel.
        seconds_per_token: of all steps over tokens generated, compilation excluded.
        compile_seconds: time spent to compile.
        same_tokens: whether its tokens are those of the first row.
    """

    layout: str
    backend: str
    seconds_per_token: float
    compile_seconds: float
    same_tokens: bool


def demo(
    model: Annotated[
        str, typer.Argument(help="A built-in model or a Hugging Face folder.")
    ] = "tiny-gqa",
    max_tokens: Annotated[int, typer.Option(help="Tokens to generate for each prompt.")] = 24,
    as_json: JsonOption = False,
) -> None:
    """Generate the same text through every layout and backend; exit code 1 if any differs.

    \b
    Example:
      paged demo
      paged demo tiny-gqa --max-tokens 8 --json
    """
    texts, rows = compare(model, max_tokens)
    same = all(row.same_tokens for row in rows)
    if as_json:
        print_json({"texts": texts, "rows": [asdict(row) for row in rows], "same_tokens": same})
    else:
        for text in texts:
            typer.echo(f"{text}\n---")
        print_table(
            ("layout", "backend", "ms per token", "same tokens"),
            [
                (
                    row.layout,
                    row.backend,
                    f"{1000 * row.seconds_per_token:.2f}",
                    "yes" if row.same_tokens else "NO",
                )
                for row in rows
            ],
        )
        typer.echo(
            f"All {len(rows)} rows gave the same tokens."
            if same
            else f"{sum(not row.same_tokens for row in rows)} of {len(rows)} rows differ."
        )
    if not same:
        raise typer.Exit(1)


def compare(model: str, max_tokens: int) -> tuple[list[str], list[Row]]:
    """The greedy texts of the first combination, and a row for each one.

    Backends that this host cannot use are left out, with a remark on stderr.
    """
    from paged.backends import Unavailable, UnsupportedError, backend_names, load_backend
    from paged.engine import LLM, SamplingParams
    from paged.models import load_model, load_tokenizer, resolve_model

    # Loaded once for all: a combination changes the cache, not the weights.
    folder = resolve_model(model)
    loaded, tokenizer = load_model(folder, dtype="float32"), load_tokenizer(folder)
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    texts: list[str] = []
    expected: list[list[int]] = []
    rows: list[Row] = []
    for name in backend_names():
        backend = load_backend(name)
        if isinstance(backend, Unavailable):
            note(f"{name} left out: {backend.reason}")
            continue
        refused: dict[str, str] = {}
        for layout in backend.layouts:
            try:
                # No more rows, hence blocks, than there are prompts: `reference` moves them all.
                llm = LLM(
                    loaded,
                    tokenizer=tokenizer,
                    layout=layout,
                    backend=backend,
                    max_num_seqs=len(PROMPTS),
                )
            except UnsupportedError as error:
                # A latent layout for a model with keys and values is no loss worth a remark.
                if layout.is_latent == loaded.attention_specs[0].is_latent:
                    refused[layout.name] = str(error)
                continue
            with Console(stderr=True).status(f"{layout.name}, {name}"):
                outputs = llm.generate(list(PROMPTS), params, progress=False)
            tokens = [list(output.token_ids) for output in outputs]
            if not expected:
                expected = tokens
                texts = [f"{output.prompt}{output.text}" for output in outputs]
            stats = llm.stats
            seconds = stats.prefill_seconds + stats.decode_seconds
            rows.append(
                Row(
                    layout=layout.name,
                    backend=name,
                    seconds_per_token=seconds / max(stats.output_tokens, 1),
                    compile_seconds=stats.compile_seconds,
                    same_tokens=tokens == expected,
                )
            )
        if refused:
            # What one is refused for, the others are as a rule: the platform.
            note(f"{name} on {', '.join(refused)} left out: {next(iter(refused.values()))}")
    if not rows:
        raise ValueError(f"model: no backend on this host serves {model!r}")
    return texts, rows
