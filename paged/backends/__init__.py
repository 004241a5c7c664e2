"""Attention kernels, each for some layouts on some platform, and the registry that finds them."""

from paged.backends.api import AttentionOutput, Backend, UnsupportedError
from paged.backends.base import Capabilities, KernelBackend
from paged.backends.merge import merge_states
from paged.backends.registry import (
    Resolution,
    Unavailable,
    backend_names,
    import_backend,
    load_backend,
    resolve,
)
from paged.backends.sharding import HeadSharded

__all__ = [
    "AttentionOutput",
    "Backend",
    "Capabilities",
    "HeadSharded",
    "KernelBackend",
    "Resolution",
    "Unavailable",
    "UnsupportedError",
    "backend_names",
    "import_backend",
    "load_backend",
    "merge_states",
    "resolve",
]
