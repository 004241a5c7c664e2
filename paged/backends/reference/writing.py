"""New tokens into their slots, one head at a time."""

from typing import Any

import numpy as np

from paged.backends.reference.addressing import KEYS, VALUES, addresses
from paged.backends.reference.arrays import to_numpy
from paged.dtypes import dtype_name, is_quantized, largest_finite, storage_dtype
from paged.layouts import KVCache


def written(cache: KVCache, key: Any, value: Any, slot_mapping: Any) -> np.ndarray:
    """A copy of the cache's array with the new tokens in it; a negative slot writes nothing.

    Args:
        cache: any layout, concrete.
        key: `[tokens, num_kv_heads, head_dim]`, a latent cache's `[tokens, 1, latent]`.
        value: the same shape; None for a latent cache.
        slot_mapping: `[tokens]` int32.

    Raises:
        ValueError: a slot past the end of the pool.
    """
    copy = cache.with_data(np.array(to_numpy(cache.data), order="C"))
    write_into(copy, key, value, slot_mapping)
    return copy.data


def write_into(cache: KVCache, key: Any, value: Any, slot_mapping: Any) -> None:
    """The same into the cache's own array, which is contiguous and numpy's."""
    numbers = cache.data.reshape(-1)
    where = addresses(cache.layout, cache.data.shape)
    storage = dtype_name(cache.data.dtype)
    capacity = where.size["block"] * where.size["slot"]
    slots = to_numpy(slot_mapping).astype(np.int64)
    past_end = np.flatnonzero(slots >= capacity)
    if past_end.size:
        token = past_end[0]
        raise ValueError(
            f"slot_mapping[{token}]: got {slots[token]}, expected less than {capacity} "
            f"({where.size['block']} blocks of {where.size['slot']} slots)"
        )
    kept = slots >= 0
    block, offset = np.divmod(slots[kept], where.size["slot"])
    kinds = [(KEYS, to_numpy(key), cache.k_scale)]
    if value is not None:
        kinds.append((VALUES, to_numpy(value), cache.v_scale))
    for kind, rows, scale in kinds:
        for head in range(rows.shape[1]):
            stored = quantized(rows[kept, head], scale_of(scale, head), storage)
            numbers[where.rows(block, offset, head, kind, rows.shape[2])] = stored


def quantized(rows: np.ndarray, scale: float, storage: str) -> np.ndarray:
    """Rows as the cache stores them.

    One-byte types keep rows / scale, clipped to their range and rounded to nearest, ties to even.
    The range is symmetric: int8 holds -127..127 (-128 is never written), float8 up to its
    largest finite number either side. Other types keep the rows themselves, rounded likewise.
    """
    dtype = storage_dtype(storage)
    if not is_quantized(storage):
        return rows.astype(dtype)
    limit = largest_finite(storage)
    clipped = np.clip(rows.astype(np.float64) / scale, -limit, limit)
    return (np.rint(clipped) if dtype.kind == "i" else clipped).astype(dtype)


def scale_of(scale: Any, head: int) -> float:
    """One KV head's scale, in float64."""
    if scale is None:
        return 1.0
    scales = to_numpy(scale).astype(np.float32).reshape(-1)
    return float(scales[head if len(scales) > 1 else 0])
