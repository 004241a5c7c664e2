"""The two forms of latent attention against query length: operations, bytes, time, and the choice.

    python benchmarks/latent_forms.py
    python benchmarks/latent_forms.py --backend xla --json --repeats 9

One layer with the widths of DeepSeek-V2-Lite (16 heads, latent of 512 + 64, heads of 128 + 64 and
128; hidden 2,048), random fp32 weights, one sequence in blocks of 64. The whole layer is timed,
projections from and to the residual stream included, which both forms share. The three runs
alternate; the figure is the least of them, for what else the machine does only adds to it.
`chosen / best` is what the model's own choice costs beside the faster form. The backend attends
where the form is absorbed; the expanded form is XLA's.

XLA:CPU allocates a program's working memory at each run, and glibc maps what is above 32 MiB anew
each time. The program with both forms passes that where one of a single form does not, which then
looks like a wrong choice (1.5 at 64 queries without history); a whole model's step passes it in
any form. So memory is kept here.
"""

import argparse
import ctypes
import json
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from rich.console import Console
from rich.table import Table

from paged import MetadataBuilder, Resolution, resolve
from paged.metadata import AttentionMetadata
from paged.models import DeepseekConfig, RouterConfig
from paged.models.deepseek import absorbed_cost, expanded_cost, prefers_expanded
from paged.models.deepseek.mla import LatentAttention
from paged.models.paged_attention import PagedAttention
from paged.models.rope import inverse_frequencies, rotation

BLOCK_SIZE = 64
FORMS = ("absorbed", "expanded", "auto")
LENGTHS = tuple(
    (query_len, history)
    for history in (0, 1024, 4096)
    for query_len in (1, 4, 16, 64, 256, 1024)
    if query_len * (history + query_len) <= 1 << 21
)
CONFIG = DeepseekConfig(
    vocab_size=128,
    hidden_size=2048,
    intermediate_size=128,
    moe_intermediate_size=64,
    num_layers=1,
    num_dense_layers=1,
    num_heads=16,
    q_lora_rank=None,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    router=RouterConfig("greedy", 4, 2),
)


def keep_memory() -> None:
    """Have the C library keep freed memory; nothing happens where it is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        most_mapped, trim_threshold = -4, -1
        mallopt(most_mapped, 0)
        mallopt(trim_threshold, 1 << 30)


def step_of(query_len: int, history: int) -> AttentionMetadata:
    blocks = -(-(query_len + history) // BLOCK_SIZE)
    step = MetadataBuilder(BLOCK_SIZE).build(
        [(0, query_len)],
        block_table=np.arange(1, blocks + 1)[None],
        num_computed=np.array([history]),
    )
    return step.metadata.map(jnp.asarray)


def runner(form: str, metadata: AttentionMetadata, resolution: Resolution) -> Callable[[], float]:
    """One run of the layer in a form; its seconds."""
    layer = LatentAttention(CONFIG, 0, dtype=jnp.float32, rngs=nnx.Rngs(0))
    layer.form = form
    num_blocks = metadata.block_table.shape[1] + 1
    cache = resolution.allocate(num_blocks, BLOCK_SIZE, dtype="float32")
    cache = cache.with_data(jax.random.normal(jax.random.key(0), cache.data.shape) * 0.1)
    tokens = metadata.num_tokens
    x = jax.random.normal(jax.random.key(1), (tokens, CONFIG.hidden_size))
    frequencies = inverse_frequencies(CONFIG.rope, CONFIG.qk_rope_head_dim)
    cos, sin = rotation(jnp.arange(tokens), frequencies, CONFIG.rope.amplitude)
    graph, state = nnx.split(layer)

    @jax.jit
    def call(state: Any, cache: Any, metadata: AttentionMetadata) -> jax.Array:
        attention = PagedAttention([resolution], [cache], metadata)
        return nnx.merge(graph, state)(x, cos, sin, attention)

    def run() -> float:
        start = time.perf_counter()
        call(state, cache, metadata).block_until_ready()
        return time.perf_counter() - start

    run()
    return run


def measured(query_len: int, history: int, repeats: int, resolution: Resolution) -> dict[str, Any]:
    metadata = step_of(query_len, history)
    runs = {form: runner(form, metadata, resolution) for form in FORMS}
    seconds: dict[str, list[float]] = {form: [] for form in FORMS}
    for _ in range(repeats):
        for form, run in runs.items():
            seconds[form].append(run())
    least = {form: min(times) for form, times in seconds.items()}
    lengths = (query_len, history + query_len)
    prefers = prefers_expanded(
        CONFIG,
        *lengths,
        itemsize=4,
        target=resolution.target,
        operation_cost=resolution.operation_cost,
    )
    costs = {"absorbed": absorbed_cost, "expanded": expanded_cost}
    return {
        "backend": resolution.backend.name,
        "query_len": query_len,
        "history": history,
        "operations": {f: cost(CONFIG, *lengths).operations for f, cost in costs.items()},
        "bytes": {f: cost(CONFIG, *lengths, itemsize=4).num_bytes for f, cost in costs.items()},
        "milliseconds": {form: round(least[form] * 1e3, 2) for form in FORMS},
        "chosen": "expanded" if prefers else "absorbed",
        "chosen_over_best": round(least["auto"] / min(least["absorbed"], least["expanded"]), 3),
    }


def show(rows: list[dict[str, Any]]) -> None:
    title = f"latent attention, one layer, fp32, on {rows[0]['backend']}"
    table = Table("queries", "history", "chosen", title=title)
    for name in ("Mop", "MB", "ms"):
        for form in ("absorbed", "expanded"):
            table.add_column(f"{form}\n{name}", justify="right")
    table.add_column("auto\nms", justify="right")
    table.add_column("chosen\n/ best", justify="right")
    for row in rows:
        cells = [str(row["query_len"]), str(row["history"]), row["chosen"]]
        for name, unit in (("operations", 1e6), ("bytes", 1e6), ("milliseconds", 1)):
            cells += [f"{row[name][form] / unit:,.1f}" for form in ("absorbed", "expanded")]
        table.add_row(*cells, f"{row['milliseconds']['auto']:,.1f}", f"{row['chosen_over_best']}")
    # As wide as its columns: rich would cut them at 80 where nobody watches.
    Console(width=140).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--backend", default="auto", help="what attends in the absorbed form")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    keep_memory()
    resolution = resolve(CONFIG.attention_specs[0], layout="mla", backend=options.backend)
    rows = [measured(*lengths, options.repeats, resolution) for lengths in LENGTHS]
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        show(rows)


if __name__ == "__main__":
    main()
