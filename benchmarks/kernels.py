"""Attention kernels of one device in one run: ours, peers, and what the machine could do.

    python benchmarks/kernels.py --device cpu
    python benchmarks/kernels.py --device cpu --case "decode/*" --runs 10 --json -

Each case runs every variant in turns, in another order each turn, so that each runs as often after
every other, and takes medians; on a machine that others use too, `--figure fastest` shows the
fastest turns instead. In its turn a variant runs twice, and the second run is timed: the first one
also writes back to memory what the variant before it left in the caches, and wakes its threads.
Two more variants are what the machine could do: `limit` reads as many bytes as the case's keys and
values have, with all cores, as a sum of float32, and `matmul` multiplies matrices of float32.
`share` is the part of the lower of these two roofs that a variant reaches: of the time that the
case's bytes take at the one rate, or its operations at the other, whichever is longer. `times` are
a variant's time over that of `cpu`, or of the fastest layout.
`sdpa` is torch's attention over a dense cache, the query group packed into the query axis:
(requests, KV heads, group, width), no paging. `flex` is torch's paged attention of today,
`flex_attention` compiled over its `PagedAttention`, in decodes; each case compiles for some 15 s
first.
As in a model, a run is several layers with a cache each, one after the other in one program; times
are of one layer. All that is read lies on large pages where the system has them, as a cache does
that the backend allocated.
vLLM is named where it can be imported, and not measured.
"""

import argparse
import importlib.util
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

# torch's threads would spin between operations, against XLA's. Read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from paged import AttentionSpec, KVCacheSpec, MetadataBuilder
from paged.backends.cpu.backend import CpuBackend
from paged.backends.cpu.pages import large_pages_at, use_large_pages
from paged.backends.xla import XlaBackend
from paged.dtypes import is_quantized
from paged.layouts import LAYOUTS, KVCache
from paged.metadata import AttentionMetadata

Call = Callable[[], Any]

LATENT = AttentionSpec(16, 1, 576, 576**-0.5, kv_lora_rank=512, qk_rope_head_dim=64)
HEADS = AttentionSpec(32, 8, 128, 128**-0.5)
ROOFS = ("limit", "matmul")
LAYERS = 4
MATRIX = 2048  # rows and columns
KV_LAYOUTS = [layout.name for layout in LAYOUTS.values() if not layout.is_latent]


@dataclass(frozen=True, slots=True)
class Case:
    """One step: sequences of one length, the same number of queries in each."""

    name: str
    num_seqs: int
    seq_len: int
    dtype: str
    query_len: int = 1
    layout: str | None = "flashinfer"  # None: all of them, as variants
    block_size: int = 16
    spec: AttentionSpec = HEADS

    @property
    def bytes_read(self) -> int:
        cache = KVCacheSpec.of(self.spec, block_size=self.block_size, dtype=self.dtype)
        return self.num_seqs * self.seq_len * cache.bytes_per_token

    @property
    def flops(self) -> int:
        """Of both products, below the causal edge."""
        seen = self.query_len * self.seq_len - self.query_len * (self.query_len - 1) // 2
        per_key = 2 * self.spec.num_heads * (self.spec.head_dim + self.spec.value_dim)
        return self.num_seqs * seen * per_key


def cases() -> Iterator[Case]:
    for dtype in ("bfloat16", "float32", "int8"):
        for num_seqs, seq_len in ((16, 1024), (1, 32768), (64, 256)):
            yield Case(f"decode/{num_seqs}x{seq_len}/{dtype}", num_seqs, seq_len, dtype)
    for size in (1, 16, 128):
        yield Case(f"layouts/block_{size}", 16, 1024, "bfloat16", layout=None, block_size=size)
    yield Case("prefill/1x1024/float32", 1, 1024, "float32", query_len=1024)
    for dtype in ("bfloat16", "float32"):
        yield Case(f"mla/16x1024/{dtype}", 16, 1024, dtype, layout="mla", spec=LATENT)


def variants(case: Case) -> dict[str, Call]:
    """All that run a case in turns."""
    if case.layout is not None:
        return {**ours(case, case.layout), **peers(case)}
    layouts = {layout: ours(case, layout)["cpu"] for layout in KV_LAYOUTS}
    return {**layouts, **roofs(case)}


def ours(case: Case, layout: str) -> dict[str, Call]:
    """Backends of this project over one paged cache, compiled."""
    rng = np.random.default_rng(0)
    spec, blocks = case.spec, -(-case.seq_len // case.block_size)
    num_blocks = case.num_seqs * blocks + 1
    table = rng.permutation(np.arange(1, num_blocks, dtype=np.int32))
    step = MetadataBuilder(case.block_size).build(
        [(row, case.query_len) for row in range(case.num_seqs)],
        block_table=table.reshape(case.num_seqs, blocks),
        num_computed=np.full(case.num_seqs, case.seq_len - case.query_len),
    )
    metadata = step.metadata.map(jnp.asarray)
    caches = [filled(case, layout, num_blocks, rng) for _ in range(LAYERS)]
    query_dtype = "bfloat16" if is_quantized(case.dtype) else case.dtype
    shape = (metadata.num_tokens, spec.num_heads, spec.head_dim)
    query = jnp.asarray(rng.standard_normal(shape, np.float32), query_dtype)

    def call(backend: Any) -> Call:
        @jax.jit
        def layers(query: jax.Array, caches: list[KVCache], metadata: AttentionMetadata):
            for cache in caches:
                out = backend.attend(query, cache, metadata, spec).out
                # The next layer's, so that none can begin before.
                query = query.at[..., : spec.value_dim].set(out)
            return query

        return lambda: jax.block_until_ready(layers(query, caches, metadata))

    return {"cpu": call(CpuBackend()), "xla": call(XlaBackend())}


def filled(case: Case, layout: str, num_blocks: int, rng: np.random.Generator) -> KVCache:
    cache_spec = KVCacheSpec.of(case.spec, block_size=case.block_size, dtype=case.dtype)
    scale = jnp.float32(0.03) if is_quantized(case.dtype) else None
    cache = KVCache.allocate(cache_spec, layout, num_blocks, k_scale=scale, v_scale=scale)
    data = rng.standard_normal(cache.data.shape, np.float32) * (40 if scale is not None else 1)
    cache = cache.with_data(jnp.asarray(data).astype(cache.data.dtype))
    use_large_pages(cache.data)
    return cache


def roofs(case: Case) -> dict[str, Call]:
    """What the machine does at most."""
    import torch

    torch.set_num_threads(os.cpu_count() or 1)
    numbers = torch.ones(LAYERS * bytes_summed(case) // 4)
    large_pages_at(numbers.data_ptr(), numbers.nbytes)
    square = jnp.ones((MATRIX, MATRIX))
    multiply = jax.jit(lambda a: a @ a)
    return {
        "limit": lambda: numbers.sum(),
        "matmul": lambda: jax.block_until_ready(multiply(square)),
    }


def peers(case: Case) -> dict[str, Call]:
    """What the machine does at most, and torch over a dense cache."""
    import torch

    found = roofs(case)
    if is_quantized(case.dtype):
        return found
    dtype, spec = getattr(torch, case.dtype), case.spec
    rows = spec.group_size if case.query_len == 1 else case.query_len
    heads = spec.num_kv_heads if case.query_len == 1 else spec.num_heads
    query = torch.randn(case.num_seqs, heads, rows, spec.head_dim).to(dtype)
    keys, values = (
        [torch.randn(case.num_seqs, heads, case.seq_len, width).to(dtype) for _ in range(LAYERS)]
        for width in (spec.head_dim, spec.value_dim)
    )
    for held in (*keys, *values):
        large_pages_at(held.data_ptr(), held.nbytes)
    attend = torch.nn.functional.scaled_dot_product_attention

    def sdpa() -> Any:
        return [
            attend(query, key, value, scale=spec.scale, is_causal=case.query_len > 1)
            for key, value in zip(keys, values, strict=True)
        ]

    found["sdpa"] = sdpa
    if case.name.startswith("decode/"):
        found["flex"] = flex(case, query, keys, values)
    return found


def flex(case: Case, query: Any, keys: list[Any], values: list[Any]) -> Call:
    """The same numbers in torch's pages, in an order of their own."""
    import torch
    from torch.nn.attention.experimental._paged_attention import PagedAttention
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention, noop_mask

    seqs, width, tokens = case.num_seqs, case.seq_len, case.num_seqs * case.seq_len
    pages = PagedAttention(tokens // case.block_size, case.block_size, seqs, device="cpu")
    for seq in random.Random(0).sample(range(seqs), seqs):
        pages.reserve(torch.tensor([seq]), torch.tensor([width]))
    positions = torch.arange(width).expand(seqs, width).contiguous()
    caches = []
    for key, value in zip(keys, values, strict=True):
        cache = [
            torch.zeros(1, each.shape[1], tokens, each.shape[3]).to(key) for each in (key, value)
        ]
        pages.assign(torch.arange(seqs), positions, key, value, *cache)
        for held in cache:
            large_pages_at(held.data_ptr(), held.nbytes)
        caches.append(cache)
    mask = create_block_mask(
        noop_mask, seqs, 1, 1, width, device="cpu", BLOCK_SIZE=(1, case.block_size)
    )
    mask = pages.convert_logical_block_mask(mask)
    heads = query.reshape(seqs, case.spec.num_heads, 1, -1)
    attend = torch.compile(flex_attention)

    def layers() -> Any:
        with torch.no_grad():
            return [
                attend(heads, *cache, block_mask=mask, scale=case.spec.scale, enable_gqa=True)
                for cache in caches
            ]

    return layers


def bytes_summed(case: Case) -> int:
    """What `limit` reads for a layer: enough that no cache holds all layers'."""
    return max(case.bytes_read, 32 << 20)


def in_turns(calls: dict[str, Call], runs: int) -> dict[str, list[float]]:
    names = list(calls)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for call in calls.values():
        call()
    order = random.Random(0)
    for _ in range(runs):
        order.shuffle(names)
        for name in names:
            calls[name]()
            start = time.perf_counter()
            calls[name]()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def measured(case: Case, runs: int) -> dict[str, Any]:
    seconds = in_turns(variants(case), runs)
    return {
        "case": case.name,
        "median": figures(case, {name: statistics.median(each) for name, each in seconds.items()}),
        "fastest": figures(case, {name: min(each) for name, each in seconds.items()}),
    }


def figures(case: Case, seconds: dict[str, float]) -> dict[str, dict[str, float]]:
    """What each variant's time comes to."""
    seconds = {name: each if name == "matmul" else each / LAYERS for name, each in seconds.items()}
    bytes_of = dict.fromkeys(seconds, case.bytes_read) | {"limit": bytes_summed(case), "matmul": 0}
    flops_of = dict.fromkeys(seconds, case.flops) | {"limit": 0, "matmul": 2 * MATRIX**3}
    roof = max(
        case.bytes_read * seconds["limit"] / bytes_of["limit"],
        case.flops * seconds["matmul"] / flops_of["matmul"],
    )
    compared_to = seconds.get("cpu") or min(seconds[name] for name in KV_LAYOUTS)
    return {
        name: {
            "milliseconds": each * 1e3,
            "gb_per_s": bytes_of[name] / each / 1e9,
            "gflop_per_s": flops_of[name] / each / 1e9,
            "share": 1.0 if name in ROOFS else roof / each,
            "times": each / compared_to,
        }
        for name, each in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=["cpu"], default="cpu")
    parser.add_argument("--case", default="*", help='a pattern, for example "decode/*"')
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--figure", choices=["median", "fastest"], default="median")
    parser.add_argument("--json", metavar="FILE", help="also writes JSON; - for stdout")
    asked = parser.parse_args()
    chosen = [case for case in cases() if fnmatchcase(case.name, asked.case)]
    if not chosen:
        sys.exit(f"case: got {asked.case!r}, expected a pattern of {[c.name for c in cases()]}")
    backend = CpuBackend()
    if backend.path is None:
        sys.exit("; ".join(backend.unsupported(HEADS, LAYOUTS["flashinfer"], "cpu")))
    console = Console(stderr=True)
    table = Table("case", "variant", "ms", "GB/s", "share", "GFLOP/s", "times")
    rows = []
    for case in chosen:
        rows.append(measured(case, asked.runs))
        for name, found in rows[-1][asked.figure].items():
            table.add_row(
                case.name,
                name,
                f"{found['milliseconds']:.2f}",
                f"{found['gb_per_s']:.1f}",
                f"{found['share']:.2f}",
                f"{found['gflop_per_s']:.0f}",
                "" if name in ROOFS else f"{found['times']:.2f}",
            )
    console.print(table)
    has_vllm = importlib.util.find_spec("vllm") is not None
    console.print(
        f"kernels: {backend.path}; vllm: {'not measured' if has_vllm else 'not installed'}"
    )
    if asked.json:
        facts = {"kernels": backend.path, "runs": asked.runs, "host": platform.processor()}
        text = json.dumps({**facts, "jax": jax.__version__, "cases": rows}, indent=2)
        if asked.json == "-":
            print(text)
        else:
            with open(asked.json, "w") as file:
                file.write(text + "\n")


if __name__ == "__main__":
    main()
