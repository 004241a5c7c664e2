"""`paged generate`: text from a model over the paged cache."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paged.cli.console import JsonOption, note, print_json

if TYPE_CHECKING:
    from paged.engine import LLM, SamplingParams


def generate(
    model: Annotated[
        str, typer.Argument(help="A built-in model or a Hugging Face folder.")
    ] = "tiny-gqa",
    prompt: Annotated[
        list[str] | None, typer.Option(help="Text to continue; may be repeated.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 32,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest up to this mass.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Makes sampled tokens repeatable.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text that ends the output; may be repeated.")
    ] = None,
    layout: Annotated[str, typer.Option(help="How blocks lie in memory.")] = "auto",
    backend: Annotated[str, typer.Option(help="The attention kernel.")] = "auto",
    block_size: Annotated[int, typer.Option(help="Tokens per block.")] = 16,
    num_blocks: Annotated[
        int | None, typer.Option(help="Blocks in the pool, the null block included.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Of parameters and cache; the model's by default.")
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Print as it comes; with --json one object a line.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Generate text from one or more prompts.

    \b
    Example:
      paged generate tiny-gqa --prompt "First Citizen:" --max-tokens 32 --temperature 0
      paged generate tiny-gqa --prompt "ROMEO:" --layout pallas --backend xla --json
    """
    if not prompt:
        raise ValueError("prompt: got none, expected --prompt TEXT at least once")
    if stream and not as_json and len(prompt) > 1:
        raise ValueError(f"stream: got {len(prompt)} prompts, expected one (or --json)")
    # Here, so that `paged plan` and `--help` wait for no engine.
    from paged.engine import LLM, SamplingParams

    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
    )
    llm = LLM(
        model,
        layout=layout,
        backend=backend,
        block_size=block_size,
        num_blocks=num_blocks,
        dtype=dtype,
    )
    if stream:
        _stream(llm, prompt, params, as_json)
        return
    outputs = llm.generate(prompt, params, progress=False if as_json else None)
    if as_json:
        listed = [
            {
                "prompt": output.prompt,
                "text": output.text,
                "token_ids": list(output.token_ids),
                "finish_reason": output.finish_reason,
            }
            for output in outputs
        ]
        print_json({"outputs": listed, "stats": _stats(llm)})
        return
    for index, output in enumerate(outputs):
        typer.echo(f"{'' if index == 0 else '---' + chr(10)}{output.prompt}{output.text}")
    note(_summary(llm))


def _stream(llm: "LLM", prompts: list[str], params: "SamplingParams", as_json: bool) -> None:
    if not as_json:
        typer.echo(prompts[0], nl=False)
    for increment in llm.stream(prompts, params):
        if not as_json:
            typer.echo(increment.text, nl=False)
            continue
        row = {
            "index": increment.index,
            "text": increment.text,
            "token_ids": list(increment.token_ids),
            "finish_reason": increment.finish_reason,
        }
        typer.echo(json.dumps(row))
    if as_json:
        typer.echo(json.dumps({"stats": _stats(llm)}))
    else:
        typer.echo()
        note(_summary(llm))


def _stats(llm: "LLM") -> dict[str, Any]:
    from paged.engine.resolving import names

    return {**llm.stats.as_dict(), **names(llm.resolutions)}


def _summary(llm: "LLM") -> str:
    stats = _stats(llm)
    return (
        f"[{stats['output_tokens']} tokens, {stats['output_tokens_per_second']:.0f} tokens/s after "
        f"{stats['compile_seconds']:.1f} s of compiling; layout {stats['layout']}, backend "
        f"{stats['backend']}]"
    )
