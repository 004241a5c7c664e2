"""Storage types by name: one spelling for numpy, JAX and torch.

A spec names its type by string, so that it stays hashable and imports no array library. numpy
learns bfloat16 and the 8-bit floats from `ml_dtypes`, which every jaxlib brings.
"""

from typing import Any

import ml_dtypes
import numpy as np

_STORAGE: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "int8": np.dtype(np.int8),
}

STORAGE_DTYPES = tuple(_STORAGE)
"""Names of the types a KV cache may be stored in."""

COMPUTE_DTYPES = ("float32", "float16", "bfloat16")
"""Names of the types a query, and a key or value to be written, may have."""


def dtype_name(dtype: Any) -> str:
    """The name of a numpy, JAX or torch dtype: `torch.float16` and `np.float16` are "float16"."""
    name = str(dtype)
    return name.removeprefix("torch.") if name.startswith("torch.") else np.dtype(dtype).name


def storage_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of a storage type.

    Raises:
        ValueError: `name` is not in `STORAGE_DTYPES`.
    """
    if not isinstance(name, str) or name not in _STORAGE:
        raise ValueError(f"dtype: got {name!r}, expected one of {', '.join(STORAGE_DTYPES)}")
    return _STORAGE[name]


def is_quantized(name: str) -> bool:
    """Whether values of this type are stored as `value / scale` (one byte each)."""
    return storage_dtype(name).itemsize == 1


def largest_finite(name: str) -> float:
    """The largest finite magnitude that a storage type holds; what quantising clips to."""
    dtype = storage_dtype(name)
    info = np.iinfo(dtype) if dtype.kind == "i" else ml_dtypes.finfo(dtype)
    return float(info.max)
