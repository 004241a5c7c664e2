"""The ragged kernel: decode, chunked prefill and mixed steps in one call.

One grid step a tile of queries. For each tile the kernel walks over the blocks that it sees, a
chunk of several blocks at a time: while one chunk is computed, the next is on its way from HBM
into the other buffer, the first chunk of the next tile included. Whole chunks that every query of
the tile sees take a path without masks; what is left is taken in shorter, masked steps. Blocks that
no query sees are not copied: those after the last query, and those before a window.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Float

from paged.backends.pallas_tpu import decode, latent_decode, prefill
from paged.backends.pallas_tpu.cells import Cells
from paged.backends.pallas_tpu.plan import LANES, Plan
from paged.backends.pallas_tpu.products import LOG2_E
from paged.backends.pallas_tpu.rows import Rows, finish
from paged.backends.pallas_tpu.state import State
from paged.backends.pallas_tpu.stream import Stream, Walk
from paged.backends.pallas_tpu.tiles import (
    by_row,
    query_index,
    to_matrices,
    to_tokens,
    walk,
)
from paged.backends.pallas_tpu.tiling import Tiling, Tilings
from paged.backends.xla.tiles import Tiles, cut
from paged.layouts import KVCache
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec


@partial(jax.jit, static_argnames=("spec", "cells", "tilings", "interpret"))
def ragged_attention(
    query: Float[jax.Array, "T num_heads head_dim"],
    cache: KVCache,
    metadata: AttentionMetadata,
    spec: AttentionSpec,
    sinks: Float[jax.Array, " num_heads"] | None,
    *,
    cells: Cells,
    tilings: Tilings,
    interpret: Any = False,
) -> tuple[Float[jax.Array, "T num_heads head_dim"], Float[jax.Array, "T num_heads"]]:
    """Output in the query's dtype, and the log-sum-exp in float32; see `Backend.attend`.

    Args:
        query: queries of this step.
        cache: in layout `pallas`, `tpu_packed` or `tpu_mla`.
        metadata: the step.
        spec: the arithmetic.
        sinks: where the spec has them.
        cells: the shape of a token in the cache.
        tilings: tile sizes.
        interpret: False compiles for a TPU; True or `InterpretParams` runs anywhere.
    """
    call = partial(_attend, query, cache, metadata, spec, sinks, cells=cells, interpret=interpret)
    if metadata.max_query_len == 1:
        return call(cut(metadata, 1), tilings.decode)
    # A sequence of one query would pay for all rows of a tile.
    is_decode = jnp.diff(metadata.query_start_loc) == 1
    decodes = cut(metadata, 1, of=is_decode)
    out, lse = call(decodes, tilings.decode)
    others_out, others_lse = call(
        cut(metadata, tilings.prefill.rows, of=~is_decode), tilings.prefill
    )
    is_decoded = decodes.is_query[:, None]
    return jnp.where(is_decoded[..., None], out, others_out), jnp.where(is_decoded, lse, others_lse)


def _attend(
    query: Float[jax.Array, "T num_heads head_dim"],
    cache: KVCache,
    metadata: AttentionMetadata,
    spec: AttentionSpec,
    sinks: Float[jax.Array, " num_heads"] | None,
    tiles: Tiles,
    tiling: Tiling,
    *,
    cells: Cells,
    interpret: Any,
) -> tuple[Float[jax.Array, "T num_heads head_dim"], Float[jax.Array, "T num_heads"]]:
    """Attention of the queries in some tiles; other tokens get out 0 and lse -inf."""
    is_narrow = query.dtype == jnp.bfloat16 and cells.dtype != "float32"
    plan = Plan(
        spec=spec,
        cells=cells,
        tiling=tiling,
        block_size=cache.block_size,
        table_width=metadata.block_table.shape[1],
        compute_dtype=jnp.bfloat16 if is_narrow else jnp.float32,
    )
    scalars = walk(metadata, tiles, spec, plan.block_size, tiling)
    num_items = scalars.blocks.shape[0]
    matrices = to_matrices(query.astype(plan.compute_dtype), tiles, spec, cells)
    matrices = jnp.pad(matrices, ((0, num_items - matrices.shape[0]), (0, 0), (0, 0), (0, 0)))
    out, lse = pl.pallas_call(
        partial(_kernel, plan),
        name="paged_decode" if tiling.rows == 1 else "paged_prefill",
        grid_spec=_grid(plan, num_items),
        out_shape=(
            jax.ShapeDtypeStruct((*matrices.shape[:3], cells.value_lanes), query.dtype),
            jax.ShapeDtypeStruct((num_items, plan.height, LANES), jnp.float32),
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",),
            # Block ids are the contract's; checking each copy costs 16 scalar operations.
            disable_bounds_checks=True,
            vmem_limit_bytes=_vmem_limit(plan),
        ),
        interpret=interpret,
    )(
        *scalars,
        matrices,
        *_row_numbers(plan, cache, sinks),
        jnp.asarray(query_index(spec, cells, tiling.rows)),
        cells.tokens(cache.data),
    )
    return to_tokens(out, lse[:, :, : plan.steps], tiles, spec, cells)


def _grid(plan: Plan, num_items: int) -> pltpu.PrefetchScalarGridSpec:
    cells, tiling = plan.cells, plan.tiling
    item = (plan.steps, plan.height)
    state = (tiling.group, *item)
    per_row = pl.BlockSpec((*item, 1), lambda group, *_: (0, 0, 0))
    return pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=len(Walk._fields),
        grid=(num_items // tiling.group,),
        in_specs=[
            pl.BlockSpec((*state, plan.columns), lambda group, *_: (group, 0, 0, 0)),
            per_row,
            per_row,
            per_row,
            pl.BlockSpec((plan.height, 1), lambda group, *_: (0, 0)),
            pl.BlockSpec(memory_space=pl.ANY),
        ],
        out_specs=[
            pl.BlockSpec((*state, cells.value_lanes), lambda group, *_: (group, 0, 0, 0)),
            pl.BlockSpec((tiling.group, plan.height, LANES), lambda group, *_: (group, 0, 0)),
        ],
        scratch_shapes=[
            pltpu.VMEM((2, *cells.buffer_shape(tiling.chunk)), jnp.dtype(cells.dtype)),
            pltpu.VMEM((*state, cells.value_lanes), jnp.float32),
            pltpu.VMEM((*state, LANES), jnp.float32),
            pltpu.VMEM((*state, LANES), jnp.float32),
            pltpu.SMEM((1 + Stream.state_size(plan.pieces),), jnp.int32),
            pltpu.SemaphoreType.DMA((2,)),
        ],
    )


def _vmem_limit(plan: Plan) -> int:
    """Bytes of VMEM asked for: buffers, state, queries and results twice, logits."""
    cells, tiling = plan.cells, plan.tiling
    rows = tiling.group * plan.steps * plan.height
    lanes = max(cells.value_lanes, LANES)
    buffers = 2 * tiling.chunk * cells.vmem_bytes_per_token
    state = rows * 4 * (lanes + 2 * LANES)
    blocks = 2 * rows * 4 * (plan.columns + lanes + LANES)
    logits = plan.steps * plan.height * tiling.chunk * 6
    return buffers + state + blocks + logits + (6 << 20)


def _row_numbers(
    plan: Plan, cache: KVCache, sinks: Float[jax.Array, " num_heads"] | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Factor of the logits, factor of the output, and sink, at each row of the matrices."""
    spec = plan.spec

    def per_head(scale: Any) -> jax.Array:
        scale = jnp.asarray(1.0 if scale is None else scale, jnp.float32)
        by_kv_head = jnp.broadcast_to(scale, (spec.num_kv_heads,))
        return jnp.repeat(by_kv_head, spec.group_size)

    # To base 2, unless a cap comes in between.
    unit = LOG2_E if spec.soft_cap is None else 1.0 / spec.soft_cap
    sink = jnp.full((spec.num_heads,), -jnp.inf, jnp.float32)
    if sinks is not None:
        sink = sinks.astype(jnp.float32) * jnp.float32(LOG2_E)
    # A latent is key and value in one.
    v_scale = cache.k_scale if spec.is_latent else cache.v_scale
    numbers = per_head(cache.k_scale) * jnp.float32(spec.scale * unit), per_head(v_scale)
    factor, out_factor, sink = (
        by_row(each, spec, plan.cells, plan.tiling.rows) for each in (*numbers, sink)
    )
    return factor, out_factor, sink


def _kernel(
    plan: Plan,
    # In SMEM, see `Walk`.
    sequence: Any,
    first: Any,
    queries: Any,
    start_block: Any,
    blocks: Any,
    chunks: Any,
    block_table: Any,
    # In VMEM, but for the cache.
    query: Any,
    factor: Any,
    out_factor: Any,
    sink: Any,
    row_query: Any,
    cache: Any,
    out: Any,
    lse: Any,
    # Scratch.
    buffers: Any,
    total_out: Any,
    peak: Any,
    total: Any,
    counters: Any,
    semaphores: Any,
) -> None:
    group = pl.program_id(0)
    stream = Stream(
        Walk(sequence, first, queries, start_block, blocks, chunks, block_table),
        cache,
        buffers,
        semaphores,
        counters,
        group=plan.tiling.group,
        pieces=plan.pieces,
        piece_blocks=plan.piece_blocks,
        table_width=plan.table_width,
    )
    rows = Rows(factor, out_factor, sink, row_query)
    state = State(total_out, peak, total)
    one_query = latent_decode if plan.spec.is_latent else decode
    take_in = one_query.take_in if plan.tiling.rows == 1 else prefill.take_in
    # Chunks used so far.
    used = Stream.state_size(plan.pieces)

    @pl.when(group == 0)
    def _() -> None:
        counters[used] = 0
        stream.open()

    def one(_index: Any, _: None) -> None:
        slot = jnp.bitwise_and(counters[used], 1)
        stream.wait(slot)
        take_in(plan, stream, slot, query, rows, state)
        stream.start_next()
        counters[used] += 1

    @pl.when(chunks[group] > 0)
    def _() -> None:
        state.clear()
        lax.fori_loop(0, chunks[group], one, None)
        for item in range(plan.tiling.group):
            finish(plan, item, rows, state, out, lse)
