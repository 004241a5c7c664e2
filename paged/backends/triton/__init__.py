"""Triton kernels for CUDA and ROCm, for torch tensors and for JAX arrays.

form.py, plan.py     what is launched, as plain values
planning.py          from the shapes of a call to its plan; tiles.py and splitting.py choose
kernels/             the kernels
on_torch.py          `TritonBackend`: runs a plan over torch tensors
on_jax.py            `TritonJaxBackend`: the same over JAX arrays, by jax-triton
interpreting.py      runs a plan by triton's interpreter, for both
"""
