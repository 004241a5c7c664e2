"""The three array libraries behind one small interface, so that each test runs on all of them."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

from paged.dtypes import storage_dtype


@dataclass(frozen=True)
class Library:
    """Moves arrays between numpy and one library, bit by bit."""

    name: str

    def array(self, values):
        """The library's array with the bits of a numpy one (a view of them, except for JAX)."""
        if self.name == "numpy":
            return values
        if self.name == "jax":
            return jnp.asarray(values)
        import torch

        bits = torch.from_numpy(values.view(f"i{values.dtype.itemsize}"))
        return bits.view(getattr(torch, values.dtype.name))

    def bits(self, array):
        """The array's bits as numpy integers of the same shape."""
        if self.name == "torch":
            import torch

            width = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[array.dtype.itemsize]
            values = array.contiguous().view(width).numpy()
        else:
            values = np.ascontiguousarray(np.asarray(array))
        return values.view(f"u{values.dtype.itemsize}")

    def address(self, array):
        """Where the array's first byte lies."""
        return array.data_ptr() if self.name == "torch" else array.ctypes.data


@pytest.fixture(params=["numpy", "jax", "torch"])
def library(request):
    if request.param == "torch":
        pytest.importorskip("torch", reason="torch is not installed in this lane")
    return Library(request.param)


@pytest.fixture
def random_bits():
    """Arrays of any type filled with random bits: NaNs and infinities among them."""
    rng = np.random.default_rng(0)

    def make(shape, dtype):
        dtype = storage_dtype(dtype)
        count = int(np.prod(shape)) * dtype.itemsize
        return rng.integers(0, 256, count, np.uint8).view(dtype).reshape(shape)

    return make
