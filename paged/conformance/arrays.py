"""From numpy to the library that a backend under test works with, and stand-ins without numbers.

A backend says which by an attribute `arrays`: "jax" (the default), "numpy" or "torch".
"""

import sys
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from paged.backends.reference.arrays import to_numpy

__all__ = ["ARRAYS", "differing", "given", "stand_in", "to_numpy"]

ARRAYS = ("jax", "numpy", "torch")
_BITS = {1: "uint8", 2: "int16", 4: "int32"}


def given(array: np.ndarray, arrays: str, device: Any = None) -> Any:
    """A copy of the numbers in that library, on a torch device where one is named."""
    if arrays == "jax":
        # Never an alias: a backend that writes into what it was given must not reach the problem.
        # `jnp.array(copy=True)` compiles a program for every shape: half of those of a run.
        return jax.device_put(array.copy())
    if arrays == "numpy":
        return array.copy()
    import torch

    # ascontiguousarray makes a scalar array one of one dimension: reshape it back.
    bits = np.ascontiguousarray(array).view(_BITS[array.dtype.itemsize]).reshape(array.shape)
    return torch.from_numpy(bits.copy()).view(getattr(torch, array.dtype.name)).to(device)


class TouchedError(TypeError):
    """Somebody asked a stand-in for its numbers."""


@dataclass(frozen=True, slots=True)
class _Untouchable:
    """Like `jax.ShapeDtypeStruct`, but numpy and JAX cannot take it for an array of any kind."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TouchedError("the numbers of an array were read")

    def __jax_array__(self) -> jax.Array:
        raise TouchedError("the numbers of an array were read")

    def __getitem__(self, _: Any) -> Any:
        raise TouchedError("the numbers of an array were read")


def stand_in(array: np.ndarray, arrays: str) -> Any:
    """Shape and dtype without numbers: touching them is an error."""
    if arrays != "torch":
        return _Untouchable(array.shape, array.dtype)
    torch = sys.modules["torch"]
    return torch.empty(array.shape, dtype=getattr(torch, array.dtype.name), device="meta")


def differing(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Where two arrays of a type differ in a bit; every NaN is one and the same."""
    one, other = np.ascontiguousarray(one), np.ascontiguousarray(other)  # at least one dimension
    bits = f"uint{8 * one.dtype.itemsize}"
    differs = one.view(bits) != other.view(bits)
    if one.dtype.kind not in "iub" and differs.any():
        # Moving a NaN may change its payload on some hardware; that is no write.
        is_nan = np.isnan(one.astype(np.float32)) & np.isnan(other.astype(np.float32))
        differs &= ~is_nan
    return differs
