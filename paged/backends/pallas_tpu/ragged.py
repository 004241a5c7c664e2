"""The ragged kernel: decode, chunked prefill and mixed steps in one call.

One grid step a tile of queries. For each tile the kernel walks over the blocks that it sees, a
chunk of several blocks at a time: while one chunk is computed, the next is on its way from HBM
into the other buffer, the first chunk of the next tile included. Whole chunks that every query of
the tile sees take a path without masks; what is left is taken in shorter, masked steps. Blocks that
no query sees are not copied: those after the last query, and those before a window.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Float

from paged.backends.pallas_tpu import (
    columns,
    decode,
    latent_decode,
    latent_prefill,
    prefill,
    tiles,
)
from paged.backends.pallas_tpu.cells import Cells
from paged.backends.pallas_tpu.plan import LANES, Plan
from paged.backends.pallas_tpu.products import LOG2_E
from paged.backends.pallas_tpu.rows import Rows, finish
from paged.backends.pallas_tpu.state import State
from paged.backends.pallas_tpu.stream import Stream, Walk
from paged.backends.pallas_tpu.tiling import Tiling, Tilings, vmem_bytes
from paged.backends.xla.tiles import Tiles, cut
from paged.layouts import KVCache
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec

# Stands for any larger cap, whose inverse may lie below the smallest number. In float32 it changes
# no logit up to 2^88.
_FAR_CAP = 2.0**100


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
    cut_tiles: Tiles,
    tiling: Tiling,
    *,
    cells: Cells,
    interpret: Any,
) -> tuple[Float[jax.Array, "T num_heads head_dim"], Float[jax.Array, "T num_heads"]]:
    """Attention of the queries in some tiles; other tokens get out 0 and lse -inf."""
    is_narrow = query.dtype == jnp.bfloat16 and cells.dtype != "float32"
    if spec.soft_cap is not None:
        spec = replace(spec, soft_cap=min(spec.soft_cap, _FAR_CAP))
    plan = Plan(
        spec=spec,
        cells=cells,
        tiling=tiling,
        block_size=cache.block_size,
        table_width=metadata.block_table.shape[1],
        compute_dtype=jnp.bfloat16 if is_narrow else jnp.float32,
    )
    arrangement = _arrangement(plan)
    scalars = tiles.walk(metadata, cut_tiles, spec, plan.block_size, tiling)
    num_items = scalars.blocks.shape[0]
    matrices = arrangement.to_matrices(query.astype(plan.compute_dtype), cut_tiles, spec, cells)
    matrices = jnp.pad(matrices, ((0, num_items - matrices.shape[0]), (0, 0), (0, 0), (0, 0)))
    out_shape, number_shape, lse_shape = _shapes(plan)
    numbers = (
        *_row_numbers(plan, cache, sinks),
        jnp.asarray(arrangement.query_index(spec, cells, tiling.rows)),
    )
    state = [
        pltpu.VMEM((tiling.group, *shape), jnp.float32)
        for shape in (out_shape, number_shape, number_shape)
    ]
    out, lse = pl.pallas_call(
        partial(_kernel, plan),
        name="paged_decode" if tiling.rows == 1 else "paged_prefill",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(Walk._fields),
            grid=(num_items // tiling.group,),
            in_specs=[
                _of_group(tiling.group, matrices.shape[1:]),
                *(_whole(each.shape) for each in numbers),
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=[
                _of_group(tiling.group, out_shape),
                _of_group(tiling.group, lse_shape),
            ],
            scratch_shapes=[
                pltpu.VMEM((2, *cells.buffer_shape(tiling.chunk)), jnp.dtype(cells.dtype)),
                *state,
                pltpu.SMEM((1 + Stream.state_size(plan.pieces),), jnp.int32),
                pltpu.SemaphoreType.DMA((2,)),
                *(columns.scratch(plan) if plan.by_columns else []),
            ],
        ),
        out_shape=(
            jax.ShapeDtypeStruct((num_items, *out_shape), query.dtype),
            jax.ShapeDtypeStruct((num_items, *lse_shape), jnp.float32),
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",),
            # Block ids are the contract's; checking each copy costs 16 scalar operations.
            disable_bounds_checks=True,
            vmem_limit_bytes=_vmem_limit(plan),
        ),
        interpret=interpret,
    )(*scalars, matrices, *numbers, cells.tokens(cache.data))
    return arrangement.to_tokens(out, lse, cut_tiles, spec, cells)


def _arrangement(plan: Plan) -> Any:
    """The module that arranges queries for the kernel and results for the caller."""
    return columns if plan.by_columns else tiles


def _shapes(plan: Plan) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Of an item's output, of the numbers kept beside it, and of its lse."""
    if plan.by_columns:
        return columns.shapes(plan)
    item = (plan.steps, plan.height)
    return (*item, plan.cells.value_lanes), (*item, LANES), (plan.height, LANES)


def _of_group(group: int, shape: tuple[int, ...]) -> pl.BlockSpec:
    """The items of one group."""
    return pl.BlockSpec((group, *shape), lambda index, *_: (index, *(0 for _ in shape)))


def _whole(shape: tuple[int, ...]) -> pl.BlockSpec:
    """All of an array, at each grid step."""
    return pl.BlockSpec(shape, lambda *_: tuple(0 for _ in shape))


def _vmem_limit(plan: Plan) -> int:
    """Bytes of VMEM asked for: buffers, state, queries and results twice, logits."""
    cells, tiling = plan.cells, plan.tiling
    buffers = 2 * tiling.chunk * cells.vmem_bytes_per_token
    if plan.by_columns:
        return buffers + columns.vmem_bytes(plan) + (2 << 20)
    rows = tiling.group * plan.steps * plan.height
    lanes = max(cells.value_lanes, LANES)
    state = rows * 4 * (lanes + 2 * LANES)
    blocks = 2 * rows * 4 * (plan.columns + lanes + LANES)
    logits = plan.steps * plan.height * tiling.chunk * 6
    return min(buffers + state + blocks + logits + (6 << 20), vmem_bytes())


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
        _arrangement(plan).by_row(each, spec, plan.cells, plan.tiling.rows)
        for each in (*numbers, sink)
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
    *work: Any,
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
    # Chunks used so far.
    used = Stream.state_size(plan.pieces)

    @pl.when(group == 0)
    def _() -> None:
        counters[used] = 0
        stream.reset()
        if plan.tiling.rows == 1:
            stream.start_next()
            stream.start_next()

    if plan.tiling.rows > 1:
        # The grid is a loop, and what the first tile alone does is small in it.
        begun = jnp.where(group == 0, 2, 0)
        lax.fori_loop(0, begun, lambda *_: stream.start_next(), None)

    def one(index: Any, _: None) -> None:
        slot = jnp.bitwise_and(counters[used], 1)
        if plan.by_columns:
            is_last = index == chunks[group] - 1
            room = prefill.Work(*work)
            prefill.take_in(plan, stream, slot, is_last, query, rows, state, room)
        else:
            stream.wait(slot)
            _by_rows(plan).take_in(plan, stream, slot, query, rows, state)
        stream.start_next()
        counters[used] += 1

    @pl.when(chunks[group] > 0)
    def _() -> None:
        if plan.by_columns:
            slot = jnp.bitwise_and(counters[used], 1)
            prefill.open_tile(plan, stream, slot, query, rows, state, prefill.Work(*work))
        else:
            state.clear()
        lax.fori_loop(0, chunks[group], one, None)
        if plan.by_columns:
            prefill.finish(plan, rows, state, out, lse)
        else:
            for item in range(plan.tiling.group):
                finish(plan, item, rows, state, out, lse)


def _by_rows(plan: Plan) -> Any:
    """The module that takes in a chunk, where a query is a row of a matrix."""
    if not plan.spec.is_latent:
        return decode
    return latent_decode if plan.tiling.rows == 1 else latent_prefill
