"""The backend around the Pallas kernels for TPUs."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from paged.backends.api import AttentionOutput
from paged.backends.base import Capabilities, KernelBackend
from paged.backends.pallas_tpu.cells import Cells
from paged.backends.pallas_tpu.latent import latent_cells
from paged.backends.pallas_tpu.ragged import ragged_attention
from paged.backends.pallas_tpu.tiling import Tilings, choose_tilings
from paged.backends.xla.quantize import to_storage
from paged.layouts import PALLAS, TPU_MLA, TPU_PACKED, KVCache, Layout
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec, KVCacheSpec

# Widths of keys and values; a latent has any.
_HEAD_DIMS = (64, 128, 256)


class PallasTpuBackend(KernelBackend):
    """Ragged attention on TPUs v4 to v7x.

    Writing is XLA's scatter through the layout, in place where the cache is donated.

    Args:
        interpret: True, or `InterpretParams`, runs the kernels by an interpreter on any host.
        tilings: sizes instead of those of `choose_tilings`.
    """

    name = "pallas_tpu"
    platform = "tpu"
    layouts = (TPU_PACKED, PALLAS, TPU_MLA)
    capabilities = Capabilities(
        query_dtypes=("float32", "bfloat16"),
        cache_dtypes=("float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"),
        block_sizes=(16, 32, 64, 128, 256),
    )

    def __init__(self, *, interpret: Any = False, tilings: Tilings | None = None) -> None:
        self.interpret = interpret
        self.tilings = tilings

    def interpreted(self) -> "PallasTpuBackend":
        """The same kernels on any host."""
        return PallasTpuBackend(interpret=True, tilings=self.tilings)

    def unsupported(
        self,
        spec: AttentionSpec,
        layout: Layout,
        target: str,
        *,
        cache_spec: KVCacheSpec | None = None,
        query_dtype: str | None = None,
    ) -> list[str]:
        """See `Backend.unsupported`."""
        reasons = super().unsupported(
            spec, layout, target, cache_spec=cache_spec, query_dtype=query_dtype
        )
        if not spec.is_latent and spec.head_dim not in _HEAD_DIMS:
            accepted = ", ".join(str(size) for size in _HEAD_DIMS)
            reasons.append(f"head_dim {spec.head_dim}, accepted: {accepted}")
        if reasons or cache_spec is None or spec.is_latent:
            return reasons
        return _row_reasons(layout, cache_spec)

    def _write(self, cache: KVCache, key: Any, value: Any, slot_mapping: Any) -> KVCache:
        stored_key = to_storage(jnp.asarray(key), cache.k_scale, cache.dtype)
        if value is not None:
            value = to_storage(jnp.asarray(value), cache.v_scale, cache.dtype)
        data = cache.layout.write(
            jnp.asarray(cache.data), stored_key, value, jnp.asarray(slot_mapping)
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
        if spec.is_latent:
            cells: Cells = latent_cells(query, cache, spec)
        else:
            cells = Cells(
                num_kv_heads=spec.num_kv_heads,
                rows=2 * cache.num_kv_heads,
                lanes=cache.head_dim,
                dtype=cache.dtype,
                by_value=isinstance(self.interpret, pltpu.InterpretParams),
            )
        tilings = self.tilings or choose_tilings(
            spec, cells, cache.block_size, metadata, is_interpreted=bool(self.interpret)
        )
        result = ragged_attention(
            query,
            cache,
            metadata,
            spec,
            sinks,
            cells=cells,
            tilings=tilings,
            interpret=self.interpret,
        )
        return AttentionOutput(*result)


def _row_reasons(layout: Layout, cache_spec: KVCacheSpec) -> list[str]:
    if _is_dense(layout, cache_spec):
        return []
    rows = 2 * cache_spec.num_kv_heads
    return [
        f"layout {layout.name} with {rows} rows of {cache_spec.dtype} a token, which a TPU "
        f"pads between tokens, accepted: {TPU_PACKED.name}"
    ]


def _is_dense(layout: Layout, cache_spec: KVCacheSpec) -> bool:
    """Whether a block's rows lie without gaps, so that the kernel may read them as one matrix.

    Lanes are not rows: a head_dim of 64 leaves half of each row empty, and every row is whole.
    """
    whole_lanes = KVCacheSpec(
        num_kv_heads=cache_spec.num_kv_heads,
        head_dim=max(cache_spec.head_dim, 128),
        block_size=cache_spec.block_size,
        dtype=cache_spec.dtype,
    )
    return layout.page_bytes(whole_lanes, target="tpu") == layout.page_bytes(whole_lanes)
