"""`paged generate`: text from a model over the paged cache."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paged.cli.compiling import CacheOption, keep_programs
from paged.cli.console import JsonOption, note, print_json, wrapped

if TYPE_CHECKING:
    from paged.engine import LLM, RequestOutput, SamplingParams

_MOST_SEQS = 64


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
    n: Annotated[int, typer.Option(help="Samples of each prompt.")] = 1,
    best_of: Annotated[
        int | None, typer.Option(help="Draw as many samples, give back the n likeliest.")
    ] = None,
    beam_width: Annotated[
        int | None, typer.Option(help="Search for the likeliest texts instead of sampling.")
    ] = None,
    length_penalty: Annotated[
        float, typer.Option(help="With beams: larger prefers longer texts.")
    ] = 1.0,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text that ends the output; may be repeated.")
    ] = None,
    layout: Annotated[str, typer.Option(help="How blocks lie in memory.")] = "auto",
    backend: Annotated[
        str, typer.Option(help="The attention kernel; `paged backends` says which run here.")
    ] = "auto",
    block_size: Annotated[int, typer.Option(help="Tokens per block.")] = 16,
    num_blocks: Annotated[
        int | None,
        typer.Option(
            help="Blocks in the pool, the null block included; by default enough for all rows at "
            "full length, within 1 GiB."
        ),
    ] = None,
    prefix_caching: Annotated[
        bool, typer.Option(help="Whether prompts share what they have in common.")
    ] = True,
    dtype: Annotated[
        str | None, typer.Option(help="Of parameters and cache; the model's by default.")
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Print as it comes; with --json one object a line.")
    ] = False,
    warm_up: Annotated[
        bool, typer.Option("--warm-up", help="First compile every shape that steps may have.")
    ] = False,
    compilation_cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Generate text from one or more prompts.

    \b
    Example:
      paged generate tiny-gqa --prompt "First Citizen:" --max-tokens 32 --temperature 0
      paged generate tiny-gqa --prompt "ROMEO:" --n 4 --temperature 0.8
      paged generate tiny-gqa --prompt "ROMEO:" --beam-width 4 --max-tokens 16
      paged generate tiny-gqa --prompt "ROMEO:" --layout pallas --backend xla --json
    """
    if not prompt:
        raise ValueError("prompt: got none, expected --prompt TEXT at least once")
    if stream and best_of is not None:
        raise ValueError(
            f"stream: got it beside --best-of {best_of}, expected one of the two: the best are "
            "known last"
        )
    if stream and not as_json and len(prompt) > 1:
        raise ValueError(f"stream: got {len(prompt)} prompts, expected one (or --json)")
    if stream and not as_json and n > 1:
        raise ValueError(f"stream: got {n} samples, expected one (or --json)")
    if beam_width is not None:
        _refuse_beside_beams(
            beam_width,
            {
                "n": n != 1,
                "best-of": best_of is not None,
                "temperature": temperature != 1,
                "top-k": top_k != 0,
                "top-p": top_p != 1,
                "seed": seed is not None,
                "stop": bool(stop),
                "stream": stream,
                "warm-up": warm_up,
            },
        )
    keep_programs(compilation_cache)
    # Here, so that `paged plan` and `--help` wait for no engine.
    from paged.engine import LLM, SamplingParams

    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
        n=n,
        best_of=best_of,
    )
    llm = LLM(
        model,
        layout=layout,
        backend=backend,
        block_size=block_size,
        num_blocks=num_blocks,
        dtype=dtype,
        enable_prefix_caching=prefix_caching,
        # Fewer rows have fewer shapes.
        max_num_seqs=min(len(prompt) * params.num_samples, _MOST_SEQS) if warm_up else _MOST_SEQS,
    )
    if warm_up:
        llm.warm_up(params, progress=False if as_json else None)
    if stream:
        _stream(llm, prompt, params, as_json)
        return
    if beam_width is not None:
        outputs = llm.beam_search(
            prompt, beam_width=beam_width, max_tokens=max_tokens, length_penalty=length_penalty
        )
    else:
        outputs = llm.generate(prompt, params, progress=False if as_json else None)
    if as_json:
        print_json({"outputs": [_as_json(output) for output in outputs], "stats": _stats(llm)})
        return
    texts = [f"{output.prompt}{sample.text}" for output in outputs for sample in output.samples]
    typer.echo("\n---\n".join(texts))
    ends = [(len(s.token_ids), s.finish_reason) for output in outputs for s in output.samples]
    _note_cut(ends, max_tokens, llm)
    note(wrapped(_summary(llm)))


def _refuse_beside_beams(beam_width: int, asked: dict[str, bool]) -> None:
    """A beam search draws nothing and ends at the model's own end tokens alone."""
    if wrong := ", ".join(f"--{name}" for name, is_asked in asked.items() if is_asked):
        raise ValueError(f"beam-width: got {beam_width} beside {wrong}, expected it alone")


def _as_json(output: "RequestOutput") -> dict[str, Any]:
    samples = [
        {
            "text": sample.text,
            "token_ids": list(sample.token_ids),
            "finish_reason": sample.finish_reason,
        }
        for sample in output.samples
    ]
    # The first stands for the prompt's output; the others are there where they were asked for.
    others = {"samples": samples} if len(samples) > 1 else {}
    return {"prompt": output.prompt, **samples[0], **others}


def _stream(llm: "LLM", prompts: list[str], params: "SamplingParams", as_json: bool) -> None:
    if not as_json:
        typer.echo(prompts[0], nl=False)
    count, reason = 0, None
    for increment in llm.stream(prompts, params):
        if not as_json:
            typer.echo(increment.text, nl=False)
            count, reason = count + len(increment.token_ids), increment.finish_reason
            continue
        row = {
            "index": increment.index,
            "sample": increment.sample,
            "text": increment.text,
            "token_ids": list(increment.token_ids),
            "finish_reason": increment.finish_reason,
        }
        typer.echo(json.dumps(row))
    if as_json:
        typer.echo(json.dumps({"stats": _stats(llm)}))
    else:
        typer.echo()
        _note_cut([(count, reason)], params.max_tokens, llm)
        note(wrapped(_summary(llm)))


def _note_cut(ends: Sequence[tuple[int, str | None]], max_tokens: int, llm: "LLM") -> None:
    """Says which outputs ended before `max_tokens` because the model's length did."""
    if num_cut := sum(reason == "length" and count < max_tokens for count, reason in ends):
        limit = llm.model.config.max_position_embeddings
        note(
            f"[{num_cut} of {len(ends)} outputs cut before --max-tokens {max_tokens}: prompt and "
            f"output have the model's {limit} tokens]"
        )


def _stats(llm: "LLM") -> dict[str, Any]:
    from paged.engine.resolving import names

    return {**llm.stats.as_dict(), **names(llm.resolutions)}


def _summary(llm: "LLM") -> str:
    stats = _stats(llm)
    blocks = stats["blocks"]
    return (
        f"[{stats['output_tokens']} tokens, {stats['output_tokens_per_second']:.0f} tokens/s after "
        f"{stats['compile_seconds']:.1f} s of compiling; layout {stats['layout']}, backend "
        f"{stats['backend']}; of {blocks['blocks']} blocks {stats['peak_blocks']} used at most, "
        f"{blocks['write_copies']} copied; {blocks['hit_tokens']} prompt tokens from the cache]"
    )
