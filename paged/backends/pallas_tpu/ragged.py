"""The ragged kernel: decode, chunked prefill and mixed steps in one call.

One grid step a tile of queries. For each tile the kernel walks over the blocks that it sees, a
chunk of several blocks at a time: while one chunk is computed, the next is on its way from HBM
into the other buffer, the first chunk of the next tile included. Whole chunks that every query of
the tile sees take a path without masks; what is left is taken in shorter, masked steps. Blocks that
no query sees are not copied: those after the last query, and those before a window.

The softmax is online (Milakov and Gimelshein, arXiv:1805.02867), in float32 and to base 2, from
(out 0, maximum -inf, sum 0).
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Float

from paged.backends.pallas_tpu.cells import KEY, VALUE, Cells
from paged.backends.pallas_tpu.tiles import (
    Walk,
    by_row,
    head_rows,
    query_index,
    to_matrices,
    to_tokens,
    walk,
)
from paged.backends.pallas_tpu.tiling import Tiling
from paged.layouts import KVCache
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec

_LANES = 128
_LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True)
class _Plan:
    """All that is static about one call."""

    spec: AttentionSpec
    cells: Cells
    tiling: Tiling
    block_size: int
    table_width: int
    compute_dtype: Any

    @property
    def steps(self) -> int:
        """Matrix products over the KV heads."""
        return self.spec.num_kv_heads // self.cells.heads_per_step

    @property
    def height(self) -> int:
        """Rows of such a product."""
        return self.cells.heads_per_step * head_rows(self.spec, self.cells, self.tiling.rows)

    @property
    def columns(self) -> int:
        """Columns of its operands."""
        return self.cells.heads_per_step * self.cells.lanes

    @property
    def chunk_blocks(self) -> int:
        """Blocks in a chunk."""
        return self.tiling.chunk // self.block_size

    @property
    def block_rows(self) -> int:
        """Rows of a block."""
        return self.block_size * self.cells.rows

    @property
    def precision(self) -> lax.Precision | None:
        """float32 products in float32, not in bfloat16 passes."""
        return lax.Precision.HIGHEST if self.compute_dtype == jnp.float32 else None


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
    plan = _Plan(
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
    blocks = cache.data.reshape(cache.num_blocks, plan.block_rows, cells.lanes)
    out, lse = pl.pallas_call(
        partial(_kernel, plan),
        name="paged_ragged",
        grid_spec=_grid(plan, matrices.shape[0]),
        out_shape=(
            jax.ShapeDtypeStruct((*matrices.shape[:3], cells.lanes), query.dtype),
            jax.ShapeDtypeStruct((matrices.shape[0], plan.height, _LANES), jnp.float32),
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


def _grid(plan: _Plan, num_tiles: int) -> pltpu.PrefetchScalarGridSpec:
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
            pl.BlockSpec((1, plan.height, _LANES), lambda tile, *_: (tile, 0, 0)),
        ],
        scratch_shapes=[
            pltpu.VMEM((2, tiling.chunk * cells.rows, cells.lanes), cells.dtype),
            pltpu.VMEM((_padded(tiling.chunk * cells.pitch), cells.lanes), cells.word_dtype),
            pltpu.VMEM((*state, plan.columns), jnp.float32),
            pltpu.VMEM((*state, _LANES), jnp.float32),
            pltpu.VMEM((*state, _LANES), jnp.float32),
            pltpu.SMEM((1,), jnp.int32),
            pltpu.SemaphoreType.DMA((2,)),
        ],
    )


def _padded(rows: int) -> int:
    """Whole registers of rows."""
    return -(-rows // 8) * 8


def _vmem_limit(plan: _Plan) -> int:
    """Bytes of VMEM asked for: buffers, state, tiles twice, and logits between the products."""
    cells, rows = plan.cells, plan.steps * plan.height
    buffers = plan.tiling.chunk * cells.vmem_bytes_per_token
    state = rows * 4 * (plan.columns + 2 * _LANES)
    tiles = 2 * rows * 4 * (plan.columns + max(cells.lanes, _LANES) + 4 * _LANES)
    logits = rows * plan.tiling.chunk * 6
    return buffers + state + tiles + logits + (6 << 20)


def _row_numbers(
    plan: _Plan, cache: KVCache, sinks: Float[jax.Array, " num_heads"] | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Factor of the logits, factor of the output, and sink, at each row of the matrices."""
    spec = plan.spec

    def per_head(scale: Any) -> jax.Array:
        scale = jnp.asarray(1.0 if scale is None else scale, jnp.float32)
        by_kv_head = jnp.broadcast_to(scale, (spec.num_kv_heads,))
        return jnp.repeat(by_kv_head, spec.group_size)

    # To base 2, unless a cap comes in between.
    unit = _LOG2_E if spec.soft_cap is None else 1.0 / spec.soft_cap
    sink = jnp.full((spec.num_heads,), -jnp.inf, jnp.float32)
    if sinks is not None:
        sink = sinks.astype(jnp.float32) * jnp.float32(_LOG2_E)
    numbers = per_head(cache.k_scale) * jnp.float32(spec.scale * unit), per_head(cache.v_scale)
    factor, out_factor, sink = (
        by_row(each, spec, plan.cells, plan.tiling.rows) for each in (*numbers, sink)
    )
    return factor, out_factor, sink


def _kernel(
    plan: _Plan,
    sequence: Any,
    first: Any,
    queries: Any,
    start_block: Any,
    blocks: Any,
    table: Any,
    query: Any,
    factor: Any,
    out_factor: Any,
    sink: Any,
    row_query: Any,
    cache: Any,
    out: Any,
    lse: Any,
    buffer: Any,
    words: Any,
    accumulator: Any,
    peak: Any,
    total: Any,
    parity: Any,
    semaphore: Any,
) -> None:
    tile = pl.program_id(0)
    chunk_blocks = plan.chunk_blocks
    last_tile = pl.num_programs(0) - 1
    copies = _Copies(plan, cache, buffer, semaphore)

    def start(tile: Any, chunk: Any, slot: Any) -> None:
        offset = chunk * chunk_blocks
        entry = sequence[tile] * plan.table_width + start_block[tile] + offset
        copies.start(table, entry, jnp.minimum(blocks[tile] - offset, chunk_blocks), slot)

    @pl.when(tile == 0)
    def _():
        parity[0] = 0

        @pl.when(queries[0] > 0)
        def _():
            start(0, 0, 0)

    @pl.when(queries[tile] > 0)
    def _():
        accumulator[...] = jnp.zeros_like(accumulator)
        peak[...] = jnp.full_like(peak, -jnp.inf)
        total[...] = jnp.zeros_like(total)
        num_chunks = lax.div(blocks[tile] + (chunk_blocks - 1), chunk_blocks)
        parity_before = parity[0]
        next_tile = jnp.minimum(tile + 1, last_tile)
        has_next = jnp.logical_and(tile < last_tile, queries[next_tile] > 0)
        softmax = _Softmax(plan, query, factor, row_query, words, accumulator, peak, total)
        start_position = start_block[tile] * plan.block_size
        last_position = first[tile] + queries[tile] - 1

        def arrive(chunk: Any) -> Any:
            """Starts the next chunk and waits for this one; the slot where it is."""
            slot = jnp.bitwise_and(parity_before + chunk, 1)
            is_last = chunk + 1 >= num_chunks

            @pl.when(jnp.logical_not(is_last))
            def _():
                start(tile, chunk + 1, 1 - slot)

            @pl.when(jnp.logical_and(is_last, has_next))
            def _():
                start(next_tile, 0, 1 - slot)

            copies.wait(jnp.minimum(blocks[tile] - chunk * chunk_blocks, chunk_blocks), slot)
            return slot

        def whole(chunk: Any, _: None) -> None:
            slot = arrive(chunk)
            softmax.keys(buffer.at[slot], 0, plan.tiling.chunk)

        def partly(chunk: Any, _: None) -> None:
            slot = arrive(chunk)
            origin = start_position + chunk * plan.tiling.chunk
            seen = jnp.minimum(last_position + 1 - origin, plan.tiling.chunk)

            def step(index: Any, _: None) -> None:
                offset = index * plan.tiling.step
                softmax.keys(
                    buffer.at[slot],
                    offset,
                    plan.tiling.step,
                    positions=(origin + offset, first[tile], last_position),
                )

            lax.fori_loop(0, lax.div(seen + (plan.tiling.step - 1), plan.tiling.step), step, None)

        # Every query sees a chunk that ends at or before the first one. A window has an edge at
        # each query, so that all of its chunks take the masked path.
        num_whole = 0
        if plan.spec.window is None:
            num_whole = lax.div(first[tile] + 1, plan.tiling.chunk)
            lax.fori_loop(0, num_whole, whole, None)
        lax.fori_loop(num_whole, num_chunks, partly, None)
        parity[0] = jnp.bitwise_and(parity_before + num_chunks, 1)
        _finish(plan, accumulator, peak, total, out_factor, sink, out, lse)


class _Copies:
    """Copies of a chunk's blocks from HBM into one of two buffers."""

    def __init__(self, plan: _Plan, cache: Any, buffer: Any, semaphore: Any) -> None:
        self.plan, self.cache, self.buffer, self.semaphore = plan, cache, buffer, semaphore

    def start(self, table: Any, entry: Any, count: Any, slot: Any) -> None:
        """Starts `count` copies, of the blocks from one entry of the flat table on."""

        def one(index: Any, _: None = None) -> None:
            # Only entries that a query sees are read; those past the end may hold anything.
            block = table[entry + index]
            self._copy(block, index, slot).start()

        @pl.when(count == self.plan.chunk_blocks)
        def _():
            for index in range(self.plan.chunk_blocks):
                one(index)

        @pl.when(count < self.plan.chunk_blocks)
        def _():
            lax.fori_loop(0, count, one, None)

    def wait(self, count: Any, slot: Any) -> None:
        """Waits for as many copies."""

        @pl.when(count == self.plan.chunk_blocks)
        def _():
            # One wait for the bytes of all.
            whole = self.buffer.at[slot]
            pltpu.make_async_copy(whole, whole, self.semaphore.at[slot]).wait()

        @pl.when(count < self.plan.chunk_blocks)
        def _():
            def one(index: Any, _: None) -> None:
                self._copy(0, index, slot).wait()

            lax.fori_loop(0, count, one, None)

    def _copy(self, block: Any, index: Any, slot: Any) -> Any:
        rows = self.plan.block_rows
        target = self.buffer.at[slot, pl.ds(index * rows, rows)]
        return pltpu.make_async_copy(self.cache.at[block], target, self.semaphore.at[slot])


class _Softmax:
    """The online softmax of one tile, over keys as they come."""

    def __init__(
        self,
        plan: _Plan,
        query: Any,
        factor: Any,
        row_query: Any,
        words: Any,
        accumulator: Any,
        peak: Any,
        total: Any,
    ) -> None:
        self.plan, self.query, self.factor, self.row_query = plan, query, factor, row_query
        self.words, self.accumulator, self.peak, self.total = words, accumulator, peak, total

    def keys(
        self,
        buffer: Any,
        offset: Any,
        tokens: int,
        *,
        positions: tuple[Any, Any, Any] | None = None,
    ) -> None:
        """Takes in some tokens of a buffer.

        Args:
            buffer: ref `[rows, lanes]`.
            offset: first token in it, a multiple of `tokens`.
            tokens: how many.
            positions: of the first token, and of the tile's first and last query; None where every
                query sees every token.
        """
        cells = self.plan.cells
        start = offset * cells.rows
        if not isinstance(offset, int):
            start = pl.multiple_of(start, tokens * cells.rows)
        cells.spread(buffer, start, self.words, tokens)
        mask, seen = (None, None) if positions is None else self._mask(tokens, *positions)
        # All logits first: the latencies of one step of heads hide behind the work of the others.
        logits = [self._logits(step, tokens, mask) for step in range(self.plan.steps)]
        for step, of_step in enumerate(logits):
            self._accumulate(step, of_step, tokens, seen)

    def _mask(
        self, tokens: int, origin: Any, first: Any, last: Any
    ) -> tuple[jax.Array, jax.Array]:
        """Which row sees which key, and which key any row sees."""
        window = self.plan.spec.window
        key = origin + lax.broadcasted_iota(jnp.int32, (self.plan.height, tokens), 1)
        row = jnp.minimum(first + self.row_query[...], last)
        mask = key <= row
        token = origin + lax.broadcasted_iota(jnp.int32, (tokens, self.plan.cells.lanes), 0)
        seen = token <= last
        if window is not None:
            mask = jnp.logical_and(mask, key > row - window)
            seen = jnp.logical_and(seen, token > first - window)
        return mask, seen

    def _side_by_side(self, step: int, kind: int, tokens: int, seen: Any) -> jax.Array:
        """Keys or values of the heads of one step, `[tokens, heads * lanes]`."""
        cells = self.plan.cells
        heads = range(step * cells.heads_per_step, (step + 1) * cells.heads_per_step)
        parts = [
            cells.take(self.words, head, kind, tokens, self.plan.compute_dtype, seen)
            for head in heads
        ]
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)

    def _logits(self, step: int, tokens: int, mask: Any) -> Float[jax.Array, "M tokens"]:
        """Logits to base 2."""
        keys = self._side_by_side(step, KEY, tokens, None)
        products = lax.dot_general(
            self.query[0, step],
            keys,
            (((1,), (1,)), ((), ())),
            precision=self.plan.precision,
            preferred_element_type=jnp.float32,
        )
        logits = products * self.factor[step]
        cap = self.plan.spec.soft_cap
        if cap is not None:
            logits = jnp.tanh(logits) * jnp.float32(cap * _LOG2_E)
        return logits if mask is None else jnp.where(mask, logits, -jnp.inf)

    def _accumulate(
        self, step: int, logits: Float[jax.Array, "M tokens"], tokens: int, seen: Any
    ) -> None:
        before = self.peak[step]
        peak = jnp.maximum(before, jnp.max(logits, axis=1, keepdims=True))
        origin = peak
        if seen is not None:
            # A row that has seen no key yet measures from 0: -inf - -inf is NaN.
            origin = jnp.where(peak == -jnp.inf, 0.0, peak)
        kept = jnp.exp2(before - origin)
        weights = jnp.exp2(logits - origin[:, :1])
        self.peak[step] = peak
        self.total[step] = self.total[step] * kept + jnp.sum(weights, axis=1, keepdims=True)
        products = lax.dot_general(
            weights.astype(self.plan.compute_dtype),
            self._side_by_side(step, VALUE, tokens, seen),
            (((1,), (0,)), ((), ())),
            precision=self.plan.precision,
            preferred_element_type=jnp.float32,
        )
        self.accumulator[step] = self.accumulator[step] * kept[:, :1] + products


def _finish(
    plan: _Plan,
    accumulator: Any,
    peak: Any,
    total: Any,
    out_factor: Any,
    sink: Any,
    out: Any,
    lse: Any,
) -> None:
    """Divides; sinks join the denominator."""
    lanes = plan.cells.lanes
    height_of_head = plan.height // plan.cells.heads_per_step
    row = lax.broadcasted_iota(jnp.int32, (plan.height, lanes), 0)
    lane = lax.broadcasted_iota(jnp.int32, (plan.height, _LANES), 1)
    sums = jnp.zeros((plan.height, _LANES), jnp.float32)
    for step in range(plan.steps):
        top, kept, denominator = peak[step], None, total[step]
        if plan.spec.has_sinks:
            top = jnp.maximum(peak[step], sink[step])
            kept = jnp.exp2(peak[step] - top)
            denominator = denominator * kept + jnp.exp2(sink[step] - top)
        # Each row takes the columns of its own KV head.
        mixed = accumulator[step, :, :lanes]
        for head in range(1, plan.cells.heads_per_step):
            columns = accumulator[step, :, head * lanes : (head + 1) * lanes]
            mixed = jnp.where(row >= head * height_of_head, columns, mixed)
        share = out_factor[step] / denominator[:, :1]
        mixed = mixed * (share if kept is None else share * kept[:, :1])
        out[0, step] = mixed.astype(out.dtype)
        natural = top * jnp.float32(1 / _LOG2_E) + jnp.log(denominator)
        sums = jnp.where(lane == step, natural, sums)
    lse[0] = sums
