"""The backend around the jax.numpy kernel."""

from typing import Any

import jax
import jax.numpy as jnp

from paged.backends.api import AttentionOutput
from paged.backends.base import Capabilities, KernelBackend
from paged.backends.loops import LoopTrips
from paged.backends.xla.attend import ragged_attention
from paged.backends.xla.quantize import to_storage
from paged.backends.xla.trips import loop_trips
from paged.layouts import LAYOUTS, KVCache
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec


class XlaBackend(KernelBackend):
    """Always works, on whatever device JAX has; not fast."""

    name = "xla"
    platform = "any"
    layouts = tuple(LAYOUTS.values())
    any_layout = True
    capabilities = Capabilities()

    def _write(self, cache: KVCache, key: Any, value: Any, slot_mapping: Any) -> KVCache:
        stored_key = to_storage(jnp.asarray(key), cache.k_scale, cache.dtype)
        stored_value = (
            None if value is None else to_storage(jnp.asarray(value), cache.v_scale, cache.dtype)
        )
        data = cache.layout.write(
            jnp.asarray(cache.data), stored_key, stored_value, jnp.asarray(slot_mapping)
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
        on_device = jax.tree.map(jnp.asarray, (query, cache, metadata, sinks))
        query, cache, metadata, sinks = on_device
        return AttentionOutput(*ragged_attention(query, cache, metadata, spec, sinks))

    def lab_trips(
        self, query: Any, cache: KVCache, metadata: AttentionMetadata, spec: AttentionSpec
    ) -> tuple[LoopTrips, ...]:
        """How often its loops run in a full step, for `paged lab`; see `paged.backends.loops`."""
        return loop_trips(query, cache, metadata, spec)
