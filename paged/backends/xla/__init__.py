"""Paged attention in plain jax.numpy and lax: any JAX device, every layout, every feature."""

from paged.backends.xla.backend import XlaBackend

__all__ = ["XlaBackend"]
