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

from paged.backends.pallas_tpu.cells import Cells
from paged.backends.pallas_tpu.plan import LANES, Plan
from paged.backends.pallas_tpu.softmax import LOG2_E, Positions, Rows, Softmax
from paged.backends.pallas_tpu.stream import STATE_SIZE, Stream, Tables
from paged.backends.pallas_tpu.tiles import (
    Walk,
    by_row,
    query_index,
    to_matrices,
    to_tokens,
    walk,
)
from paged.backends.pallas_tpu.tiling import Tiling
from paged.layouts import KVCache
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec


@partial(jax.jit, static_argnames=("spec", "cells", "tiling", "interpret"))
def ragged_attention(
    query: Float[jax.Array, "T num_heads head_dim"],
    cache: KVCache,
    metadata: AttentionMetadata,
    spec: AttentionSpec,
    sinks: Float[jax.Array, " num_heads"] | None,
    *,
    cells: Cells,
    tiling: Tiling,
    interpret: Any = False,
) -> tuple[Float[jax.Array, "T num_heads head_dim"], Float[jax.Array, "T num_heads"]]:
    """Output in the query's dtype, and the log-sum-exp in float32; see `Backend.attend`.

    Args:
        query: queries of this step.
        cache: in layout `pallas` or `tpu_packed`.
        metadata: the step.
        spec: the arithmetic.
        sinks: where the spec has them.
        cells: the shape of a token in the cache.
        tiling: tile sizes.
        interpret: False compiles for a TPU; True or `InterpretParams` runs anywhere.
    """
    is_narrow = query.dtype == jnp.bfloat16 and cells.dtype != "float32"
    plan = Plan(
        spec=spec,
        cells=cells,
        tiling=tiling,
        block_size=cache.block_size,
        table_width=metadata.block_table.shape[1],
        compute_dtype=jnp.bfloat16 if is_narrow else jnp.float32,
    )
    tiles, scalars = walk(metadata, spec, plan.block_size, tiling.rows)
    matrices = to_matrices(query.astype(plan.compute_dtype), tiles, spec, cells)
    # The bytes lie in this order already: on a TPU this is no copy (asserted in the tests).
    blocks = cache.data.reshape(cache.num_blocks, plan.block_size, cells.words, cells.packing, cells.lanes)
    out, lse = pl.pallas_call(
        partial(_kernel, plan),
        name="paged_ragged",
        grid_spec=_grid(plan, matrices.shape[0]),
        out_shape=(
            jax.ShapeDtypeStruct((*matrices.shape[:3], cells.lanes), query.dtype),
            jax.ShapeDtypeStruct((matrices.shape[0], plan.height, LANES), jnp.float32),
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
        metadata.block_table.reshape(-1),
        matrices,
        *_row_numbers(plan, cache, sinks),
        jnp.asarray(query_index(spec, cells, tiling.rows)),
        blocks,
    )
    return to_tokens(out, lse[:, :, : plan.steps], tiles, spec, cells)


def _grid(plan: Plan, num_tiles: int) -> pltpu.PrefetchScalarGridSpec:
    cells, tiling = plan.cells, plan.tiling
    state = (plan.steps, plan.height)
    per_row = pl.BlockSpec((plan.steps, plan.height, 1), lambda tile, *_: (0, 0, 0))
    return pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=len(Walk._fields) + 1,
        grid=(num_tiles,),
        in_specs=[
            pl.BlockSpec((1, *state, plan.columns), lambda tile, *_: (tile, 0, 0, 0)),
            per_row,
            per_row,
            per_row,
            pl.BlockSpec((plan.height, 1), lambda tile, *_: (0, 0)),
            pl.BlockSpec(memory_space=pl.ANY),
        ],
        out_specs=[
            pl.BlockSpec((1, *state, cells.lanes), lambda tile, *_: (tile, 0, 0, 0)),
            pl.BlockSpec((1, plan.height, LANES), lambda tile, *_: (tile, 0, 0)),
        ],
        scratch_shapes=[
            pltpu.VMEM((2, *cells.buffer_shape(tiling.chunk)), cells.dtype),
            pltpu.VMEM((*state, plan.columns), jnp.float32),
            pltpu.VMEM((*state, LANES), jnp.float32),
            pltpu.VMEM((*state, LANES), jnp.float32),
            pltpu.SMEM((STATE_SIZE + 1,), jnp.int32),
            pltpu.SemaphoreType.DMA((2,)),
        ],
    )


def _padded(rows: int) -> int:
    """Whole registers of rows."""
    return -(-rows // 8) * 8


def _vmem_limit(plan: Plan) -> int:
    """Bytes of VMEM asked for: buffers, state, tiles twice, and logits between the products."""
    cells, rows = plan.cells, plan.steps * plan.height
    buffers = plan.tiling.chunk * cells.vmem_bytes_per_token
    state = rows * 4 * (plan.columns + 2 * LANES)
    tiles = 2 * rows * 4 * (plan.columns + max(cells.lanes, LANES) + 4 * LANES)
    logits = rows * plan.tiling.chunk * 6
    return buffers + state + tiles + logits + (6 << 20)


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
    numbers = per_head(cache.k_scale) * jnp.float32(spec.scale * unit), per_head(cache.v_scale)
    factor, out_factor, sink = (
        by_row(each, spec, plan.cells, plan.tiling.rows) for each in (*numbers, sink)
    )
    return factor, out_factor, sink


def _kernel(
    plan: Plan,
    # In SMEM.
    sequence: Any,
    first: Any,
    queries: Any,
    start_block: Any,
    blocks: Any,
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
    accumulator: Any,
    peak: Any,
    total: Any,
    state: Any,
    semaphores: Any,
) -> None:
    tile = pl.program_id(0)
    chunk_tokens, step_tokens = plan.tiling.chunk, plan.tiling.step
    stream = Stream(
        Tables(sequence, first, queries, start_block, blocks, block_table),
        cache,
        buffers,
        semaphores,
        state,
        chunk_blocks=plan.chunk_blocks,
        table_width=plan.table_width,
    )
    rows = Rows(factor, out_factor, sink, row_query)
    softmax = Softmax(plan, query, rows, accumulator, peak, total)
    # The number of this tile's first chunk.
    used = STATE_SIZE

    @pl.when(tile == 0)
    def _() -> None:
        state[used] = 0
        stream.open()

    @pl.when(queries[tile] > 0)
    def _() -> None:
        softmax.open()
        base = state[used]
        num_chunks = lax.div(blocks[tile] + (plan.chunk_blocks - 1), plan.chunk_blocks)
        origin = start_block[tile] * plan.block_size
        last = first[tile] + queries[tile] - 1

        def whole(chunk: Any, _: None) -> None:
            number = base + chunk
            stream.wait(number)
            softmax.take_in(buffers.at[jnp.bitwise_and(number, 1)], chunk_tokens)
            stream.start_next()

        def partly(chunk: Any, _: None) -> None:
            number = base + chunk
            slot = jnp.bitwise_and(number, 1)
            stream.wait(number)
            start = origin + chunk * chunk_tokens
            seen = jnp.minimum(last + 1 - start, chunk_tokens)

            def step(index: Any, _: None) -> None:
                offset = pl.multiple_of(index * step_tokens, step_tokens)
                tokens = buffers.at[slot, pl.ds(offset, step_tokens)]
                positions = Positions(start + offset, first[tile], last)
                softmax.take_in(tokens, step_tokens, positions)

            lax.fori_loop(0, lax.div(seen + (step_tokens - 1), step_tokens), step, None)
            stream.start_next()

        # Every query sees a chunk that ends at or before the first one. A window has an edge at
        # each query, so that all of its chunks take the masked path.
        num_whole = 0
        if plan.spec.window is None:
            num_whole = lax.div(first[tile] + 1, chunk_tokens)
            lax.fori_loop(0, num_whole, whole, None)
        lax.fori_loop(num_whole, num_chunks, partly, None)
        state[used] = base + num_chunks
        softmax.close(out, lse)
