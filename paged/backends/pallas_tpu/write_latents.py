"""Writing new latents into their slots, in place, where tokens share the tiles of a TPU's memory.

A latent is one row of its block, and a TPU moves 8 such rows at a time: with 16-bit storage two
tokens even share each 32-bit word. So the kernel fetches the 8 rows around a new one, puts into
them all new ones that belong there, and sends them back. XLA sorts the slots first: then each 8
rows are visited once, no visit depends on another, and several are under way at a time.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Int, Shaped

# A decode of 640 numbers in bfloat16 takes, in bundles scheduled, 75 a visit and 39 for its token
# on v6e, 91 and 31 on v4; XLA's sort of 64 slots takes 2,810 and 1,761. libtpu 0.0.52, 2026-11-30.

# Rows of a tile in HBM, whatever the type; see `paged.layouts.layout` for the source.
_ROWS = 8
_LANES = 128
_WORD_BYTES = 4

# Visits under way: being fetched, filled, or sent back. A power of two. 16 of 8 x 640 in bfloat16
# are 160 KiB; how long a copy takes could not be measured.
_BUFFERS = 16

# Tokens of one call, whose slots, order and visits are in SMEM: 192 KiB of the 1 MiB that each TPU
# from v4 on has (jax's `pltpu.get_tpu_info().smem_capacity_bytes`).
_TOKENS = 16384


class _Visits(NamedTuple):
    """What the kernel reads of the slots, in SMEM.

    Attributes:
        slot: slots in ascending order, those outside the cache last.
        token: which token goes there.
        start: for each visit its first entry above; after the last visit the number of entries
            inside the cache.
        count: how many visits, one number.
    """

    slot: Any
    token: Any
    start: Any
    count: Any


def write_latents(
    data: Shaped[jax.Array, "num_blocks block_size width"],
    latents: Shaped[jax.Array, "tokens width"],
    slot_mapping: Int[jax.Array, " tokens"],
    *,
    interpret: Any = False,
) -> jax.Array:
    """Writes token t's latent at slot `slot_mapping[t]`; one outside the cache writes nothing.

    In place where `data` is donated; no other byte of it changes. A slot occurs at most once.

    Args:
        data: of any storage type, the width a multiple of 128, the block size one of 8.
        latents: of the same type.
        slot_mapping: block * block_size + offset, or negative.
        interpret: False compiles for a TPU; True or `InterpretParams` runs anywhere.

    Raises:
        ValueError: a cache of other sizes; or latents of another shape or type than the cache's,
            or not one for each slot.
    """
    if data.ndim != 3 or data.shape[1] % _ROWS or data.shape[2] % _LANES:
        raise ValueError(
            f"data: got shape {data.shape}, expected (num_blocks, block_size, width) with a block "
            f"size that is a multiple of {_ROWS} and a width that is one of {_LANES}"
        )
    expected = (*slot_mapping.shape, data.shape[2])
    if latents.shape != expected or latents.dtype != data.dtype:
        raise ValueError(
            f"latents: got {latents.dtype}{latents.shape}, expected {data.dtype}{expected} "
            "(tokens, width)"
        )
    for first in range(0, latents.shape[0], _TOKENS):
        some = slice(first, first + _TOKENS)
        data = _write(data, latents[some], slot_mapping[some], interpret=interpret)
    return data


@partial(jax.jit, static_argnames="interpret")
def _write(data: Any, latents: Any, slot_mapping: Any, *, interpret: Any) -> jax.Array:
    # A block is whole tiles: on a TPU this is no copy (asserted in the tests).
    flat = data.reshape(-1, data.shape[2])
    width = data.shape[2]
    bits = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[data.dtype.itemsize]
    # One word a number: a row by itself can be copied, and put beside others by shifting.
    words = lax.bitcast_convert_type(latents, bits).astype(jnp.uint32)
    in_hbm = pl.BlockSpec(memory_space=pl.ANY)
    visits = _visits(slot_mapping, flat.shape[0])
    written = pl.pallas_call(
        _kernel,
        name="paged_write_latents",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(visits),
            grid=(1,),
            in_specs=[in_hbm, in_hbm],
            out_specs=in_hbm,
            scratch_shapes=[
                pltpu.VMEM((_BUFFERS, _ROWS, width), data.dtype),
                pltpu.VMEM((_BUFFERS, _ROWS, width), jnp.uint32),
                pltpu.SemaphoreType.DMA((3, _BUFFERS)),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(flat.shape, flat.dtype),
        input_output_aliases={len(visits) + 1: 0},
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",),
            # Slots outside the cache belong to no visit.
            disable_bounds_checks=True,
        ),
        interpret=interpret,
    )(*visits, words, flat)
    return written.reshape(data.shape)


def _visits(slot_mapping: Int[jax.Array, " tokens"], num_slots: int) -> _Visits:
    tokens = slot_mapping.shape[0]
    is_inside = (slot_mapping >= 0) & (slot_mapping < num_slots)
    slot, token = lax.sort_key_val(
        jnp.where(is_inside, slot_mapping, num_slots), jnp.arange(tokens, dtype=jnp.int32)
    )
    is_inside = slot < num_slots
    tile = slot // _ROWS
    is_first = is_inside & jnp.concatenate([jnp.ones(1, bool), tile[1:] != tile[:-1]])
    # An entry that starts no visit is sent past the end, and dropped.
    visit = jnp.where(is_first, jnp.cumsum(is_first, dtype=jnp.int32) - 1, tokens + 1)
    start = jnp.full(tokens + 1, jnp.sum(is_inside, dtype=jnp.int32))
    start = start.at[visit].set(jnp.arange(tokens, dtype=jnp.int32), mode="drop")
    return _Visits(slot, token, start, jnp.sum(is_first, dtype=jnp.int32).reshape(1))


def _kernel(
    slots: Any,
    tokens: Any,
    starts: Any,
    count: Any,
    latents: Any,
    _: Any,
    data: Any,
    tiles: Any,
    rows: Any,
    semaphores: Any,
) -> None:
    """All visits. The cache is named by the output, whose memory is the input's."""
    fetching, filling, sending = range(3)
    packing = _WORD_BYTES // data.dtype.itemsize

    def buffer_of(visit: Any) -> Any:
        return jnp.bitwise_and(visit, _BUFFERS - 1)

    def place(visit: Any) -> Any:
        slot = slots[starts[visit]]
        return data.at[pl.ds(pl.multiple_of(slot - jnp.bitwise_and(slot, _ROWS - 1), _ROWS), _ROWS)]

    def fetch(visit: Any) -> Any:
        buffer = buffer_of(visit)
        return pltpu.make_async_copy(
            place(visit), tiles.at[buffer], semaphores.at[fetching, buffer]
        )

    def fill(visit: Any, entry: Any) -> Any:
        buffer = buffer_of(visit)
        word, part = _word_and_part(jnp.bitwise_and(slots[entry], _ROWS - 1), packing)
        row = part * (_ROWS // packing) + word
        return pltpu.make_async_copy(
            latents.at[pl.ds(tokens[entry], 1)],
            rows.at[buffer, pl.ds(row, 1)],
            semaphores.at[filling, buffer],
        )

    def send(visit: Any) -> Any:
        buffer = buffer_of(visit)
        return pltpu.make_async_copy(tiles.at[buffer], place(visit), semaphores.at[sending, buffer])

    def open_visit(visit: Any) -> None:
        @pl.when(visit >= _BUFFERS)
        def _() -> None:
            send(visit - _BUFFERS).wait()

        fetch(visit).start()
        entries = starts[visit], starts[visit + 1]
        lax.fori_loop(*entries, lambda entry, _: fill(visit, entry).start(), None)

    def close_visit(visit: Any) -> None:
        def arrived(entry: Any, present: Any) -> Any:
            fill(visit, entry).wait()
            return present | lax.shift_left(1, jnp.bitwise_and(slots[entry], _ROWS - 1))

        fetch(visit).wait()
        present = lax.fori_loop(starts[visit], starts[visit + 1], arrived, jnp.int32(0))
        buffer = buffer_of(visit)
        tiles[buffer] = _merged(tiles[buffer], rows[buffer], present)
        send(visit).start()

    ahead = _BUFFERS // 2

    def visit_one(visit: Any, _: None) -> None:
        @pl.when(visit + ahead < count[0])
        def _() -> None:
            open_visit(visit + ahead)

        close_visit(visit)

    lax.fori_loop(0, jnp.minimum(count[0], ahead), lambda visit, _: open_visit(visit), None)
    lax.fori_loop(0, count[0], visit_one, None)
    unsent = jnp.maximum(count[0] - _BUFFERS, 0)
    lax.fori_loop(unsent, count[0], lambda visit, _: send(visit).wait(), None)


def _word_and_part(row: Any, packing: int) -> tuple[Any, Any]:
    """Which 32-bit word of its column a row is in, and which part of it, the lowest bits first."""
    return lax.shift_right_logical(row, packing.bit_length() - 1), jnp.bitwise_and(row, packing - 1)


def _merged(tile: Any, rows: Any, present: Any) -> jax.Array:
    """A tile with new rows in it.

    Args:
        tile: `[8, width]` of the storage type.
        rows: `[8, width]` words of one number each, first the rows that are part 0 of their word,
            then those that are part 1, and so on; those that are not new hold anything.
        present: bit r is set where row r is new.
    """
    packing = _WORD_BYTES // tile.dtype.itemsize
    bits, height = 32 // packing, _ROWS // packing
    words = pltpu.bitcast(tile, jnp.uint32)
    row = lax.broadcasted_iota(jnp.int32, words.shape, 0) * packing
    for part in range(packing):
        is_new = jnp.bitwise_and(lax.shift_right_logical(present, row + part), 1) == 1
        new = rows[part * height : (part + 1) * height]
        shifted = lax.shift_left(new, jnp.full_like(new, bits * part))
        others = jnp.uint32(0xFFFFFFFF ^ (((1 << bits) - 1) << (bits * part)))
        words = jnp.where(is_new, (words & others) | shifted, words)
    return pltpu.bitcast(words, tile.dtype)
