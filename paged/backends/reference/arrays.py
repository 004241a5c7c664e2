"""In and out of numpy, bit by bit, for the libraries that callers bring."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from paged.dtypes import dtype_name, storage_dtype

_BITS = {1: "uint8", 2: "int16", 4: "int32"}


def is_traced(*values: Any) -> bool:
    """Whether any leaf of these is a JAX tracer, which has no numbers yet."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(values))


def to_numpy(array: Any) -> np.ndarray:
    """The same numbers in numpy; a view where the library allows one."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        return np.asarray(array)
    array = array.detach().cpu().contiguous()
    if array.dtype not in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        return array.numpy()
    # numpy has no such types of its own: hand over the bits.
    bits = array.view(getattr(torch, _BITS[array.dtype.itemsize])).numpy()
    return bits.view(storage_dtype(dtype_name(array.dtype)))


def like(array: np.ndarray, original: Any) -> Any:
    """The numbers in the library of `original`, on its device, with their own dtype."""
    if isinstance(original, jax.Array):
        return jnp.asarray(array)
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(original, torch.Tensor):
        return array
    bits = torch.from_numpy(np.ascontiguousarray(array).view(_BITS[array.dtype.itemsize]))
    return bits.view(getattr(torch, array.dtype.name)).to(original.device)
