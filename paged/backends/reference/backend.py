"""The oracle as a backend: rounded to the query's type, for numpy, torch and JAX alike."""

from typing import Any

import jax
import numpy as np

from paged.backends.api import AttentionOutput
from paged.backends.base import Capabilities, KernelBackend
from paged.backends.reference.arrays import is_traced, like
from paged.backends.reference.attention import oracle
from paged.backends.reference.writing import written
from paged.dtypes import dtype_name, storage_dtype
from paged.layouts import LAYOUTS, KVCache
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec


class ReferenceBackend(KernelBackend):
    """Every layout and feature, slowly. Under `jax.jit` it runs on the host as a callback.

    `write` returns a new cache and leaves its argument as it was, whatever the library.
    """

    name = "reference"
    platform = "cpu"
    layouts = tuple(LAYOUTS.values())
    any_layout = True
    capabilities = Capabilities(batch_invariant=True)
    arrays = "numpy"

    def _write(self, cache: KVCache, key: Any, value: Any, slot_mapping: Any) -> KVCache:
        if not is_traced(cache, key, value, slot_mapping):
            return cache.with_data(like(written(cache, key, value, slot_mapping), cache.data))
        shape = jax.ShapeDtypeStruct(cache.data.shape, cache.data.dtype)
        data = jax.pure_callback(
            written, shape, cache, key, value, slot_mapping, vmap_method="sequential"
        )
        return cache.with_data(data)

    def _attend(
        self,
        query: Any,
        cache: KVCache,
        metadata: AttentionMetadata,
        spec: AttentionSpec,
        sinks: Any,
    ) -> AttentionOutput:
        if not is_traced(query, cache, metadata, sinks):
            out, lse = _rounded(query, cache, metadata, spec, sinks)
            return AttentionOutput(like(out, query), like(lse, query))
        rows = (query.shape[0], spec.num_heads)
        shapes = (
            jax.ShapeDtypeStruct((*rows, spec.value_dim), query.dtype),
            jax.ShapeDtypeStruct(rows, np.float32),
        )
        out, lse = jax.pure_callback(
            lambda query, cache, metadata, sinks: _rounded(query, cache, metadata, spec, sinks),
            shapes,
            query,
            cache,
            metadata,
            sinks,
            vmap_method="sequential",
        )
        return AttentionOutput(out, lse)


def _rounded(
    query: Any, cache: KVCache, metadata: AttentionMetadata, spec: AttentionSpec, sinks: Any
) -> tuple[np.ndarray, np.ndarray]:
    out, lse = oracle(query, cache, metadata, spec, sinks)
    return out.astype(storage_dtype(dtype_name(query.dtype))), lse.astype(np.float32)
