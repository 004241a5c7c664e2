"""New tokens into their slots, one token and head at a time."""

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
    data = np.array(to_numpy(cache.data), order="C")
    numbers = data.reshape(-1)
    where = addresses(cache.layout, data.shape)
    storage = dtype_name(data.dtype)
    capacity = where.size["block"] * where.size["slot"]
    kinds = [(KEYS, to_numpy(key), cache.k_scale)]
    if value is not None:
        kinds.append((VALUES, to_numpy(value), cache.v_scale))
    for token, slot in enumerate(to_numpy(slot_mapping).tolist()):
        if slot < 0:
            continue
        if slot >= capacity:
            raise ValueError(f"slot_mapping[{token}]: got {slot}, expected less than {capacity}")
        block, offset = divmod(slot, where.size["slot"])
        for kind, rows, scale in kinds:
            for head, row in enumerate(rows[token]):
                stored = quantized(row, _scale_of(scale, head), storage)
                numbers[where.rows(block, offset, head, kind, row.size)] = stored
    return data


def quantized(row: np.ndarray, scale: float, storage: str) -> np.ndarray:
    """A row as the cache stores it.

    One-byte types keep row / scale, clipped to their range and rounded to nearest, ties to even.
    The range is symmetric: int8 holds -127..127 (-128 is never written), float8 up to its
    largest finite number either side. Other types keep the row itself, rounded likewise.
    """
    dtype = storage_dtype(storage)
    if not is_quantized(storage):
        return row.astype(dtype)
    limit = largest_finite(storage)
    clipped = np.clip(row.astype(np.float64) / scale, -limit, limit)
    return (np.rint(clipped) if dtype.kind == "i" else clipped).astype(dtype)


def _scale_of(scale: Any, head: int) -> float:
    if scale is None:
        return 1.0
    scales = to_numpy(scale).astype(np.float32).reshape(-1)
    return float(scales[head if len(scales) > 1 else 0])
