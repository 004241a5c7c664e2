"""Native kernels for the CPU: C++ behind `jax.ffi`, for any layout by its strides."""

from paged.backends.cpu.backend import CpuBackend

__all__ = ["CpuBackend"]
