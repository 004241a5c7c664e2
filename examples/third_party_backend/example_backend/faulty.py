"""Attention over gathered blocks: short, slow, and with two faults."""

from typing import Any

import jax
import jax.numpy as jnp

from paged.backends import AttentionOutput, Capabilities, KernelBackend
from paged.dtypes import COMPUTE_DTYPES
from paged.layouts import KVCache, get_layout
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec


class ExampleBackend(KernelBackend):
    """Gathers each token's whole sequence and attends to it in one piece."""

    name = "example-faulty"
    platform = "any"
    layouts = (get_layout("flashinfer"),)
    capabilities = Capabilities(soft_cap=False, sinks=False, cache_dtypes=COMPUTE_DTYPES)

    def _write(self, cache: KVCache, key: Any, value: Any, slot_mapping: Any) -> KVCache:
        key, value = key.astype(cache.data.dtype), value.astype(cache.data.dtype)
        return cache.with_data(cache.layout.write(cache.data, key, value, slot_mapping))

    def _attend(
        self,
        query: Any,
        cache: KVCache,
        metadata: AttentionMetadata,
        spec: AttentionSpec,
        sinks: Any,
    ) -> AttentionOutput:
        starts, token = metadata.query_start_loc, jnp.arange(len(query))
        sequence = jnp.searchsorted(starts, token, side="right") - 1
        position = metadata.seq_lens[sequence] - starts[sequence + 1] + token
        position = jnp.where(token < starts[-1], position, -1)[:, None]

        keys, values = (
            rows.reshape(len(query), -1, spec.num_kv_heads, spec.head_dim).astype(jnp.float32)
            for rows in cache.layout.gather(cache.data, metadata.block_table[sequence])
        )
        key_position = jnp.arange(keys.shape[1])[None]
        seen = key_position <= position
        if spec.window is not None:
            seen &= key_position >= position - spec.window
        # Memory that a sequence does not own may hold NaN, and 0 * NaN is NaN.
        values = jnp.where(seen[..., None, None], values, 0)

        grouped = query.reshape(len(query), spec.num_kv_heads, -1, spec.head_dim)
        grouped = grouped.astype(jnp.float32) * spec.scale
        logits = jnp.einsum("thgd,tkhd->thgk", grouped, keys, precision="highest")
        logits = jnp.where(seen[:, None, None], logits, -jnp.inf)
        lse = jax.nn.logsumexp(logits, axis=-1)
        weights = jnp.exp(logits - jnp.where(jnp.isneginf(lse), 0, lse)[..., None])
        out = jnp.einsum("thgk,tkhd->thgd", weights, values, precision="highest")
        out = out.reshape(query.shape).astype(query.dtype)
        return AttentionOutput(out, lse.reshape(query.shape[:2]))
