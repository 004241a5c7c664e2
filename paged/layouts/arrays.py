"""The four array operations that layouts need, for numpy, JAX and torch alike."""

import sys
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


def take(array: Any, indices: Any, *, axis: int) -> Any:
    """Entries along one axis; JAX clips indices out of range, the others raise."""
    if is_jax(array):
        return _take_jax(array, indices, axis)
    return array[(slice(None),) * axis + (indices,)]


def _take_jax(array: jax.Array, indices: Any, axis: int) -> jax.Array:
    if array.dtype.itemsize == 4:
        return jnp.take(array, indices, axis=axis, mode="clip")
    # Bits, as in `scatter`: XLA:CPU would convert the whole array to float32 before it gathers.
    # The barrier keeps the reinterpretation beside the gather, where it fuses; in a loop over
    # chunks XLA would hoist it, and materialise the whole array once more.
    array, indices = jax.lax.optimization_barrier((array, indices))
    taken = jnp.take(as_bits(array), indices, axis=axis, mode="clip")
    return jax.lax.bitcast_convert_type(taken, array.dtype)


def scatter(data: Any, rows: Any, slots: Any, *, block_axis: int, slot_axis: int) -> Any:
    """Writes token t's row at (block, slot) of slots[t]; a negative slot writes nothing.

    Args:
        data: any axes, two of them block and slot.
        rows: `[tokens, *the other axes of data, in order]`.
        slots: `[tokens]` int, block * (length of the slot axis) + offset.
        block_axis: which axis of `data` counts blocks.
        slot_axis: which axis of `data` counts slots in a block.
    """
    block_size = data.shape[slot_axis]
    if is_jax(data):
        # A negative index would wrap: send it past the end, where the scatter drops it.
        past_end = data.shape[block_axis] * block_size
        slots = jnp.where(slots < 0, past_end, slots)
    else:
        kept = slots >= 0
        rows, slots = rows[kept], slots[kept]
    index: list[Any] = [slice(None)] * data.ndim
    index[block_axis] = slots // block_size
    index[slot_axis] = slots % block_size
    # numpy's rule: index arrays that are neighbours leave the token axis in their place.
    if abs(slot_axis - block_axis) == 1:
        rows = moveaxis(rows, 0, min(block_axis, slot_axis))
    rows = cast(rows, data)
    # Bits, not numbers: XLA:CPU scatters bfloat16 by converting the whole array to float32 and
    # back (250 ms for 134 MB, against 35 us), and no library has arithmetic for all 8-bit floats.
    target, source = as_bits(data), as_bits(rows)
    if is_jax(data):
        written = target.at[tuple(index)].set(source, mode="drop")
        return jax.lax.bitcast_convert_type(written, data.dtype)
    target[tuple(index)] = source
    return data


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
