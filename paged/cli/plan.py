"""`paged plan`: what a model's cache costs, and what fits."""

from typing import Annotated, Any

import typer

from paged.cli.console import JsonOption, print_json, print_table
from paged.cli.models import model_cache


def plan(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="A preset, a config.json, a Hugging Face folder or a built-in; several side by "
            "side.",
        ),
    ],
    memory: Annotated[str, typer.Option(help="Bytes for the cache on one rank: 50GiB, 24GB.")],
    dtype: Annotated[
        str | None, typer.Option(help="Storage type; the model's own by default.")
    ] = None,
    block_size: Annotated[int, typer.Option(help="Tokens per block.")] = 16,
    tp: Annotated[int, typer.Option(help="Ranks of tensor parallelism.")] = 1,
    layout: Annotated[
        str, typer.Option(help="Whose pages to count; auto is the first that can hold the cache.")
    ] = "auto",
    target: Annotated[str, typer.Option(help="Platform; a TPU pads pages.")] = "cpu",
    requests_of: Annotated[
        int | None, typer.Option(help="Also say how many requests of this many tokens fit.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Bytes per token and per block of a model's cache, and what fits into a memory budget.

    All figures are of one rank. num_blocks and num_tokens count the null block, which requests
    cannot have; num_usable_tokens is what they have room for. Layers with a window count as if they
    kept every token, but for bytes_per_token_past_window.

    \b
    Example:
      paged plan llama-2-13b --memory 50GiB --dtype float16 --block-size 16 --tp 1 --json
      paged plan llama-2-13b llama-3-70b deepseek-v3 gemma-3-27b --memory 50GiB
    """
    found = [
        _figures(
            model,
            requests_of,
            memory=memory,
            dtype=dtype,
            block_size=block_size,
            tp=tp,
            layout=None if layout == "auto" else layout,
            target=target,
        )
        for model in models
    ]
    if as_json:
        print_json(found[0] if len(found) == 1 else found)
        return
    print_table(
        ("", *(["value"] if len(models) == 1 else models)),
        [(name, *(_shown(figures[name]) for figures in found)) for name in found[0]],
    )


def _figures(
    model: str, requests_of: int | None, *, memory: str, block_size: int, **options: Any
) -> dict[str, Any]:
    from paged import capacity

    found = capacity.plan(model_cache(model), memory, block_size=block_size, **options)
    figures = found.as_dict()
    if requests_of is not None:
        figures["blocks_per_request"] = capacity.blocks_for(requests_of, block_size)
        figures["num_requests"] = found.num_requests(requests_of)
    return figures


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)
