"""Writing new tokens into their slots, in place: one copy within HBM for each token.

A token's cell, all dimensions of the cache after block and slot, is one contiguous range of whole
tiles where the layout leaves no gaps. XLA arranges the new tokens as such cells, so that the kernel
moves bytes and computes nothing but addresses. Many copies are on their way at a time.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Int

# Tokens of one pass of the loop. A copy under a condition is predicated, not branched around, so
# that the scheduler packs several together: bundles scheduled a token went from 28 to 8.9 on v4,
# from 34 to 8.8 on v5e, from 33 to 7.3 on v6e (v5p: 7.3) and from 28 to 7.6 on v7x. v6e's HBM takes
# 8.7 cycles to move 8 KV heads of 128 in bfloat16 there and back. One copy for 8 consecutive slots
# would save nothing: that choice is predicated too, and a pass took 69 bundles on v6e, not 58.
# libtpu 0.0.52, 2026-11-30.
_GROUP = 8

# Copies that may be on their way, at least two groups. 128 of 4 KiB are 512 KiB, what 1,640 GB/s
# (v6e, see `paged.lab.targets`) moves in 320 ns; how long a copy takes could not be measured.
_IN_FLIGHT = 128

# Slots in SMEM at a time, twice because the next ones are on their way: 32 KiB of the 1 MiB that
# each TPU from v4 on has (jax's `pltpu.get_tpu_info().smem_capacity_bytes`).
_CHUNK = 4096


@partial(jax.jit, static_argnames="interpret")
def write_cells(
    data: jax.Array,
    cells: jax.Array,
    slot_mapping: Int[jax.Array, " tokens"],
    *,
    interpret: Any = False,
) -> jax.Array:
    """Writes token t's cell at slot `slot_mapping[t]`; one outside the cache writes nothing.

    In place where `data` is donated; no other byte of it changes. A slot occurs at most once.

    Args:
        data: `[num_blocks, block_size, *cell]`, of any storage type, the cell of at least two
            dimensions and stored without gaps.
        cells: `[tokens, *cell]` of the same type.
        slot_mapping: block * block_size + offset, or negative.
        interpret: False compiles for a TPU; True or `InterpretParams` runs anywhere.

    Raises:
        ValueError: a cell of one dimension, which shares its tiles with its neighbours; or cells
            of another shape or type than the cache's, or not one for each slot.
    """
    if data.ndim < 4:
        raise ValueError(
            f"data: got shape {data.shape}, expected (num_blocks, block_size, *cell) with a cell "
            "of at least two dimensions"
        )
    expected = (*slot_mapping.shape, *data.shape[2:])
    if cells.shape != expected or cells.dtype != data.dtype:
        raise ValueError(
            f"cells: got {cells.dtype}{cells.shape}, expected {data.dtype}{expected} "
            "(tokens, *cell)"
        )
    tokens = cells.shape[0]
    if not tokens:
        return data
    # Blocks and slots are not tiled: on a TPU this is no copy (asserted in the tests).
    flat = data.reshape(-1, *data.shape[2:])
    chunk = min(_CHUNK, -(-tokens // _GROUP) * _GROUP)
    slots = jnp.pad(slot_mapping, (0, -tokens % chunk), constant_values=-1).reshape(-1, 1, chunk)
    in_smem = pl.BlockSpec((None, 1, chunk), lambda i: (i, 0, 0), memory_space=pltpu.SMEM)
    in_hbm = pl.BlockSpec(memory_space=pl.ANY)
    written = pl.pallas_call(
        _kernel,
        name="paged_write",
        grid=(slots.shape[0],),
        in_specs=[in_smem, in_hbm, in_hbm],
        out_specs=in_hbm,
        out_shape=jax.ShapeDtypeStruct(flat.shape, flat.dtype),
        scratch_shapes=[pltpu.SemaphoreType.DMA],
        input_output_aliases={2: 0},
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",),
            # The kernel compares slots with the cache's size itself.
            disable_bounds_checks=True,
        ),
        interpret=interpret,
    )(slots, cells, flat)
    return written.reshape(data.shape)


def _kernel(slots: Any, cells: Any, _: Any, data: Any, semaphore: Any) -> None:
    """One chunk of slots. The cache is named by the output, whose memory is the input's."""
    chunk = slots.shape[-1]
    first = pl.program_id(0) * chunk

    def wait_for(size: int) -> None:
        # For the bytes of so many cells, whichever they are. A cache of fewer slots than a group
        # never has one in flight, but the code for it must still be in bounds.
        some = data.at[pl.ds(0, min(size, data.shape[0]))]
        pltpu.make_async_copy(some, some, semaphore).wait()

    def take(group: Any, in_flight: Any) -> Any:
        is_full = in_flight > _IN_FLIGHT - _GROUP
        in_flight -= jnp.where(is_full, _GROUP, 0)

        @pl.when(is_full)
        def _() -> None:
            wait_for(_GROUP)

        for index in range(_GROUP):
            token = group * _GROUP + index
            slot = slots[0, token]
            # One comparison for both ends: as unsigned numbers, negative ones are large.
            is_written = slot.astype(jnp.uint32) < data.shape[0]
            in_flight += is_written.astype(jnp.int32)

            @pl.when(is_written)
            def _(token: Any = token, slot: Any = slot) -> None:
                pltpu.make_async_copy(cells.at[first + token], data.at[slot], semaphore).start()

        return in_flight

    in_flight = lax.fori_loop(0, chunk // _GROUP, take, jnp.int32(0))
    lax.fori_loop(0, lax.div(in_flight, _GROUP), lambda *_: wait_for(_GROUP), None)
    lax.fori_loop(0, lax.rem(in_flight, _GROUP), lambda *_: wait_for(1), None)
