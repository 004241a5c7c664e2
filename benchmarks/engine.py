"""Tokens per second of the engine and of transformers' batched `generate`, in one run.

    python benchmarks/engine.py
    python benchmarks/engine.py --size 15M --json --repeats 5

Llamas of 15 M and of 102 M random weights (vocabulary 32,000, fp32) and 32 requests of 64 prompt
and 64 greedy output tokens, all of one length, which suits the static batch of `generate`. Both
engines have the same weights. Runs alternate, the figure is the median, and compilation happens
before the first and is reported beside them.

What a decode step takes outside the compiled program is the difference to the program's own time
in one more run, in which each step is waited for (`paged profile` shows more of it).

The limit says what the machine could do: a decode step reads every weight once and multiplies it
with 32 rows, so that it takes at least the longer of the two times.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

# torch's threads would spin between operations, and on a shared machine against each other: that
# made its runs several times slower. Read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from rich.console import Console
from rich.table import Table

from paged.engine import LLM, SamplingParams
from paged.engine.resolving import names
from paged.models import ModelConfig, Transformer, save_model

REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 32, 64, 64
CONFIGS = {
    "15M": ModelConfig(
        vocab_size=32_000,
        hidden_size=288,
        intermediate_size=768,
        num_layers=6,
        num_heads=6,
        num_kv_heads=6,
        head_dim=48,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    ),
    "100M": ModelConfig(
        vocab_size=32_000,
        hidden_size=768,
        intermediate_size=2048,
        num_layers=11,
        num_heads=12,
        num_kv_heads=12,
        head_dim=64,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    ),
}


def paged_runner(
    model: Transformer, prompts: list[list[int]], options: dict[str, Any]
) -> tuple[Callable[[], list[list[int]]], LLM]:
    # Each run would find the prompts of the one before.
    llm = LLM(model, max_num_seqs=REQUESTS, enable_prefix_caching=False, **options)
    params = SamplingParams(temperature=0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)

    def run() -> list[list[int]]:
        return [output.token_ids for output in llm.generate(prompts, params, progress=False)]

    return run, llm


def transformers_runner(
    model: Transformer, prompts: list[list[int]]
) -> Callable[[], list[list[int]]]:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    from transformers import LlamaForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        save_model(model, folder)
        # Any: the stubs of transformers do not bind `generate` to its own models.
        peer: Any = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor(prompts)

    def run() -> list[list[int]]:
        with torch.inference_mode():
            out = peer.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=OUTPUT_TOKENS,
                min_new_tokens=OUTPUT_TOKENS,
                pad_token_id=0,
            )
        return out[:, PROMPT_TOKENS:].tolist()

    return run


def seconds_of(function: Callable[[], Any]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def cpu_seconds_of(function: Callable[[], Any]) -> tuple[float, float]:
    """Wall seconds and CPU seconds of all threads; the latter hardly feel a busy machine."""
    started = time.process_time()
    seconds = seconds_of(function)
    return seconds, time.process_time() - started


def decode_limit(parameters: int, samples: int = 5) -> dict[str, float]:
    """What memory and arithmetic allow a decode step of all requests, measured through XLA."""
    data = jnp.ones(64 << 20, jnp.float32)
    total = jax.jit(jnp.sum)
    left, right = jnp.ones((1024, 1024)), jnp.ones((1024, 1024))
    product = jax.jit(jnp.matmul)
    for warm in (lambda: total(data), lambda: product(left, right)):
        warm().block_until_ready()
    read = min(seconds_of(lambda: total(data).block_until_ready()) for _ in range(samples))
    gemm = min(seconds_of(lambda: product(left, right).block_until_ready()) for _ in range(samples))
    bandwidth, rate = data.nbytes / read, 2 * 1024**3 / gemm
    step = max(4 * parameters / bandwidth, 2 * parameters * REQUESTS / rate)
    return {
        "read_gb_per_second": bandwidth / 1e9,
        "fp32_gflop_per_second": rate / 1e9,
        "decode_tokens_per_second": REQUESTS / step,
    }


def measure(
    config: ModelConfig, repeats: int, options: dict[str, Any], *, with_transformers: bool
) -> dict[str, Any]:
    model = Transformer(config, rngs=nnx.Rngs(0))
    parameters = sum(array.size for array in jax.tree.leaves(nnx.state(model, nnx.Param)))
    rng = np.random.default_rng(0)
    prompts = rng.integers(1, config.vocab_size, (REQUESTS, PROMPT_TOKENS)).tolist()
    paged, llm = paged_runner(model, prompts, options)
    runs = {"paged": paged}
    if with_transformers:
        runs["transformers"] = transformers_runner(model, prompts)
    warm_seconds, tokens = {}, {}
    for name, run in runs.items():
        started = time.perf_counter()
        tokens[name] = run()
        warm_seconds[name] = time.perf_counter() - started
    before = llm.stats.as_dict()
    times: dict[str, list[float]] = {name: [] for name in runs}
    cpu_times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            seconds, cpu_seconds = cpu_seconds_of(run)
            times[name].append(seconds)
            cpu_times[name].append(cpu_seconds)
    after = llm.stats.as_dict()
    # Apart from the runs that are timed: here each step is waited for.
    with llm.profiled() as recording:
        paged()
    program_ms = 1e3 * recording.profiles()["decode"].program_seconds
    rates = {name: REQUESTS * OUTPUT_TOKENS / statistics.median(own) for name, own in times.items()}
    steps = after["decode_steps"] - before["decode_steps"]
    step_ms = 1e3 * (after["decode_seconds"] - before["decode_seconds"]) / steps
    report: dict[str, Any] = {
        "parameters": parameters,
        "repeats": repeats,
        "tokens_per_second": rates,
        "seconds": times,
        "cpu_seconds": {name: statistics.median(own) for name, own in cpu_times.items()},
        "first_run_seconds": warm_seconds,
        "compile_seconds": after["compile_seconds"],
        "compiled_shapes": after["compiled_shapes"],
        "decode_step_ms": step_ms,
        "decode_program_ms": program_ms,
        "outside_program": max(0.0, 1 - program_ms / step_ms),
        "prefill_ms_per_run": 1e3
        * (after["prefill_seconds"] - before["prefill_seconds"])
        / repeats,
        **names(llm.resolutions),
        "cpus": os.cpu_count(),
        "limit": decode_limit(parameters),
    }
    if with_transformers:
        pairs = zip(tokens["paged"], tokens["transformers"], strict=True)
        report["ratio"] = rates["paged"] / rates["transformers"]
        report["equal_requests"] = sum(ours == theirs for ours, theirs in pairs)
    return report


def show(report: dict[str, Any]) -> None:
    table = Table(
        "engine", "tokens/s", "CPU s", "first run", title=f"{report['parameters']:,} parameters"
    )
    for name, rate in report["tokens_per_second"].items():
        cpu, first = report["cpu_seconds"][name], report["first_run_seconds"][name]
        table.add_row(name, f"{rate:,.0f}", f"{cpu:.2f}", f"{first:.1f} s")
    limit = report["limit"]
    table.add_row("limit of a decode step", f"{limit['decode_tokens_per_second']:,.0f}")
    console = Console()
    console.print(table)
    if "ratio" in report:
        console.print(
            f"ratio {report['ratio']:.2f}; same tokens in {report['equal_requests']} of "
            f"{REQUESTS} requests"
        )
    console.print(
        f"{report['backend']} on {report['layout']}: decode step {report['decode_step_ms']:.1f} ms,"
        f" {100 * report['outside_program']:.0f} % of it outside the program; prefill "
        f"{report['prefill_ms_per_run']:.0f} ms, {report['compiled_shapes']} shapes compiled in "
        f"{report['compile_seconds']:.1f} s"
    )
    console.print(
        f"machine: {report['cpus']} CPUs, reads {limit['read_gb_per_second']:.1f} GB/s, "
        f"multiplies {limit['fp32_gflop_per_second']:.0f} GFLOP/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--size", choices=list(CONFIGS), action="append", help="both by default")
    parser.add_argument("--layout", default="auto")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--without-transformers", action="store_true")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    arguments = parser.parse_args()
    options = {
        "layout": arguments.layout,
        "backend": arguments.backend,
        "block_size": arguments.block_size,
        "max_num_batched_tokens": arguments.max_num_batched_tokens,
    }
    sizes = arguments.size or list(CONFIGS)
    reports = {
        size: measure(
            CONFIGS[size],
            arguments.repeats,
            options,
            with_transformers=not arguments.without_transformers,
        )
        for size in sizes
    }
    if arguments.json:
        print(json.dumps(reports))
    else:
        for report in reports.values():
            show(report)


if __name__ == "__main__":
    main()
