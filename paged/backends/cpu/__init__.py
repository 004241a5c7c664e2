"""Native kernels for the CPU: C++ behind `jax.ffi`, for any layout by its strides.

backend.py    `CpuBackend`
library.py    finds the compiled kernels, and makes them known to XLA
build.py      compiles them: `python -m paged.backends.cpu.build`
src/          the kernels
"""
