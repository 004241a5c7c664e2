"""Settings that hold for every test: the platform, JAX's strictness, hypothesis."""

import os

# Before anything imports jax: a host with an accelerator, or with libtpu, tests the CPU by default.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Before anything imports triton, which decides then; what compiles does so in another process.
os.environ.setdefault("TRITON_INTERPRET", "1")

import hypothesis
import jax

# An array that is broadcast to a higher rank by accident is a fault, and a silent one.
jax.config.update("jax_numpy_rank_promotion", "raise")

# Examples that compile take seconds at first: no deadline. In CI the same examples every time.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")
