"""The few array operations that layouts need, for numpy, JAX and torch alike."""

import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Types are Any throughout: three libraries, no common protocol that says what is needed here.


def is_jax(array: Any) -> bool:
    """Whether this is a JAX array or tracer."""
    return isinstance(array, jax.Array)


def is_torch(array: Any) -> bool:
    """Whether this is a torch tensor. torch is not imported to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def shape(array: Any) -> tuple[int, ...]:
    """The array's shape as a plain tuple."""
    return tuple(array.shape)


def dtype(array: Any) -> Any:
    """The array's dtype, in its own library's words."""
    return array.dtype


def reshape(array: Any, new_shape: tuple[int, ...]) -> Any:
    """The same memory under another shape.

    Raises:
        ValueError: a numpy or torch array whose strides would force a copy, which a later write
            would miss.
    """
    if is_jax(array):
        return array.reshape(new_shape)
    if is_torch(array):
        try:
            return array.view(new_shape)
        except RuntimeError as error:
            raise ValueError(
                f"data: strides {array.stride()} do not allow a view: {error}"
            ) from None
    try:
        return np.reshape(array, new_shape, copy=False)
    except ValueError:
        raise ValueError(
            f"data: strides {array.strides} do not allow a view of shape {new_shape}"
        ) from None


def pad(array: Any, new_shape: tuple[int, ...]) -> Any:
    """The array with zeros after the end of each axis, up to a shape; itself where it has that."""
    widths = [(0, new - old) for new, old in zip(new_shape, array.shape, strict=True)]
    if not any(after for _, after in widths):
        return array
    if is_jax(array):
        # Bits: XLA:CPU pads narrow floats in float32, which changes the payload of a NaN.
        return jax.lax.bitcast_convert_type(jnp.pad(as_bits(array), widths), array.dtype)
    inner = tuple(slice(0, length) for length in array.shape)
    if is_torch(array):
        torch = sys.modules["torch"]
        wide = torch.zeros(new_shape, dtype=array.dtype, device=array.device)
    else:
        wide = np.zeros(new_shape, array.dtype)
    # Bits: neither library assigns all 8-bit floats.
    as_bits(wide)[inner] = as_bits(array)
    return wide


def cut(array: Any, rows: int, width: int) -> Any:
    """The first entries of the two last axes; a view for numpy and torch."""
    if is_jax(array):
        # Bits, as in `pad`.
        return jax.lax.bitcast_convert_type(as_bits(array)[..., :rows, :width], array.dtype)
    return array[..., :rows, :width]


def take(array: Any, indices: Any, *, axis: int) -> Any:
    """Entries along one axis; JAX clips indices out of range, the others raise."""
    if is_jax(array):
        return _take_jax(array, indices, axis)
    return array[(slice(None),) * axis + (indices,)]


@partial(jax.jit, static_argnames="axis")
def _take_jax(array: jax.Array, indices: Any, axis: int) -> jax.Array:
    def by_numbers(array: jax.Array, indices: jax.Array) -> jax.Array:
        return jnp.take(array, indices, axis=axis, mode="clip")

    def by_bits(array: jax.Array, indices: jax.Array) -> jax.Array:
        # XLA:CPU would convert the whole array to float32 before it gathers. The barrier keeps
        # the reinterpretation beside the gather, where it fuses; in a loop over chunks XLA would
        # hoist it, and materialise the whole array once more.
        array, indices = jax.lax.optimization_barrier((array, indices))
        return jax.lax.bitcast_convert_type(by_numbers(as_bits(array), indices), array.dtype)

    if not _is_widened_on_cpu(array):
        return by_numbers(array, indices)
    return jax.lax.platform_dependent(array, indices, cpu=by_bits, default=by_numbers)


def put(array: Any, entries: Any, indices: Any, *, axis: int) -> Any:
    """The reverse of `take`: writes entries along one axis; a negative index writes nothing.

    In place for numpy and torch, and under JAX where `array` is donated. Bits stay as they are.

    Args:
        array: to write to.
        entries: as `take` gives them, of the same dtype.
        indices: `[count]` int, those that are not negative distinct.
        axis: which axis of `array` they count.
    """
    if is_jax(array):
        return _put_jax(array, entries, indices, axis)
    kept = indices >= 0
    index = (slice(None),) * axis
    as_bits(array)[(*index, indices[kept])] = as_bits(entries)[(*index, kept)]
    return array


@partial(jax.jit, static_argnames="axis")
def _put_jax(array: jax.Array, entries: Any, indices: Any, axis: int) -> jax.Array:
    def on_device(array: jax.Array, entries: jax.Array, indices: jax.Array) -> jax.Array:
        # A negative index would wrap: send it past the end, where the scatter drops it.
        indices = jnp.where(indices < 0, array.shape[axis], indices)
        return array.at[(slice(None),) * axis + (indices,)].set(entries, mode="drop")

    def on_cpu(array: jax.Array, entries: jax.Array, indices: jax.Array) -> jax.Array:
        # One entry at a time, for the reasons that `_scatter_bits` gives.
        order = jnp.argsort(indices < 0)
        bits, indices = jax.lax.optimization_barrier(
            (jnp.take(as_bits(entries), order, axis=axis), indices[order])
        )

        def write_one(place: jax.Array, array: jax.Array) -> jax.Array:
            start = [jnp.int32(0)] * array.ndim
            start[axis] = indices[place]
            one = jax.lax.dynamic_slice_in_dim(bits, place, 1, axis)
            updated = jax.lax.dynamic_update_slice(as_bits(array), one, start)
            return jax.lax.bitcast_convert_type(updated, array.dtype)

        return jax.lax.fori_loop(0, jnp.sum(indices >= 0), write_one, array)

    if not _is_widened_on_cpu(array):
        return on_device(array, entries, indices)
    return jax.lax.platform_dependent(array, entries, indices, cpu=on_cpu, default=on_device)


def scatter(data: Any, rows: Any, slots: Any, *, block_axis: int, slot_axis: int) -> Any:
    """Writes token t's row at (block, slot) of slots[t]; a negative slot writes nothing.

    In place for numpy and torch, and under JAX where `data` is donated.

    Args:
        data: any axes, two of them block and slot.
        rows: `[tokens, *the other axes of data, in order]`.
        slots: `[tokens]` int, block * (length of the slot axis) + offset.
        block_axis: which axis of `data` counts blocks.
        slot_axis: which axis of `data` counts slots in a block.
    """
    rows = cast(rows, data)
    if is_jax(data):
        return _scatter_jax(data, rows, slots, block_axis, slot_axis)
    kept = slots >= 0
    _scatter_host(data, rows[kept], slots[kept], block_axis, slot_axis)
    return data


@partial(jax.jit, static_argnames=("block_axis", "slot_axis"))
def _scatter_jax(
    data: jax.Array, rows: Any, slots: Any, block_axis: int, slot_axis: int
) -> jax.Array:
    def on_device(data: jax.Array, rows: jax.Array, slots: jax.Array) -> jax.Array:
        # A negative index would wrap: send it past the end, where the scatter drops it.
        past_end = data.shape[block_axis] * data.shape[slot_axis]
        slots = jnp.where(slots < 0, past_end, slots)
        index, rows = _placed(data, rows, slots, block_axis, slot_axis)
        return data.at[index].set(rows, mode="drop")

    def on_cpu(data: jax.Array, rows: jax.Array, slots: jax.Array) -> jax.Array:
        return _scatter_bits(data, rows, slots, block_axis, slot_axis)

    if not _is_widened_on_cpu(data):
        return on_device(data, rows, slots)
    return jax.lax.platform_dependent(data, rows, slots, cpu=on_cpu, default=on_device)


def _scatter_bits(
    data: jax.Array, rows: jax.Array, slots: jax.Array, block_axis: int, slot_axis: int
) -> jax.Array:
    """The scatter as a loop of one-token updates on bits.

    XLA:CPU computes such types in float32, a scatter's *whole operand* included (a pool of
    134 MB in 2,048 blocks: 290 ms), and reinterpreting the pool around a scatter copies it twice
    (90 ms). Around a one-token update inside a loop the reinterpretation fuses with it, and the
    loop runs in place: 80 to 150 us for 16 tokens. XLA's code for it still passes over the
    blocks, without touching them, about 5 ns a block and token. jax 0.10.2, two cores, 2026-11-30.
    """
    if not rows.shape[0]:
        return data
    block_size = data.shape[slot_axis]
    is_written = (slots >= 0) & (slots < data.shape[block_axis] * block_size)
    # Those written first, so that the loop can end before the others.
    order = jnp.argsort(~is_written)
    row_bits = jnp.expand_dims(
        as_bits(rows), (1 + min(block_axis, slot_axis), 1 + max(block_axis, slot_axis))
    )
    # The barrier has these computed before the loop, not entry by entry within it.
    row_bits, block, slot = jax.lax.optimization_barrier(
        (row_bits[order], (slots // block_size)[order], (slots % block_size)[order])
    )

    def write_one(index: jax.Array, data: jax.Array) -> jax.Array:
        start = [jnp.int32(0)] * data.ndim
        start[block_axis], start[slot_axis] = block[index], slot[index]
        updated = jax.lax.dynamic_update_slice(as_bits(data), row_bits[index], start)
        return jax.lax.bitcast_convert_type(updated, data.dtype)

    return jax.lax.fori_loop(0, jnp.sum(is_written), write_one, data)


def _scatter_host(data: Any, rows: Any, slots: Any, block_axis: int, slot_axis: int) -> None:
    index, rows = _placed(data, rows, slots, block_axis, slot_axis)
    # Bits: neither library assigns all 8-bit floats.
    as_bits(data)[index] = as_bits(rows)


def _placed(
    data: Any, rows: Any, slots: Any, block_axis: int, slot_axis: int
) -> tuple[tuple[Any, ...], Any]:
    """The index of the slots, and the rows with their token axis where such an index has it."""
    block_size = data.shape[slot_axis]
    index: list[Any] = [slice(None)] * data.ndim
    index[block_axis] = slots // block_size
    index[slot_axis] = slots % block_size
    # numpy's rule: index arrays that are neighbours leave the token axis in their place.
    if abs(slot_axis - block_axis) == 1:
        rows = moveaxis(rows, 0, min(block_axis, slot_axis))
    return tuple(index), rows


def _is_widened_on_cpu(array: jax.Array) -> bool:
    """Whether XLA:CPU converts a whole array of this type to gather from it or scatter into it."""
    native = ("bfloat16",) if jax.__version_info__ >= (0, 12) else ()
    return array.dtype.name.startswith(("bfloat16", "float8")) and array.dtype.name not in native


def moveaxis(array: Any, source: int, destination: int) -> Any:
    """`numpy.moveaxis` for any of the three."""
    if is_torch(array):
        return array.movedim(source, destination)
    return (jnp if is_jax(array) else np).moveaxis(array, source, destination)


def cast(array: Any, like: Any) -> Any:
    """The array converted to another one's dtype, and contiguous for numpy and torch."""
    if is_torch(array):
        return array.to(like.dtype).contiguous()
    if is_jax(array):
        return array.astype(like.dtype)
    return np.ascontiguousarray(array, like.dtype)


def as_bits(array: Any) -> Any:
    """The same bits as integers of the same width, without a copy."""
    width = array.dtype.itemsize
    if is_torch(array):
        torch = sys.modules["torch"]
        return array.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[width])
    bits = {1: np.uint8, 2: np.uint16, 4: np.uint32}[width]
    return jax.lax.bitcast_convert_type(array, bits) if is_jax(array) else array.view(bits)
