"""The backend around the Pallas kernels for TPUs."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from paged.backends.api import AttentionOutput
from paged.backends.base import Capabilities, KernelBackend
from paged.backends.loops import LoopTrips
from paged.backends.pallas_tpu.cells import Cells
from paged.backends.pallas_tpu.interpreting import strict, watching
from paged.backends.pallas_tpu.latent import latent_cells
from paged.backends.pallas_tpu.plan import LANES
from paged.backends.pallas_tpu.ragged import ragged_attention
from paged.backends.pallas_tpu.tiling import Tilings, choose_tilings
from paged.backends.pallas_tpu.trips import loop_trips
from paged.backends.pallas_tpu.tuned import Call, call_shape, candidates, sizes_of, tuned_sizes
from paged.backends.pallas_tpu.write import write_cells
from paged.backends.pallas_tpu.write_latents import write_latents
from paged.backends.tuned import Candidate, Candidates
from paged.backends.xla.quantize import to_storage
from paged.layouts import PALLAS, TPU_MLA, TPU_PACKED, KVCache, Layout
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec, KVCacheSpec

_MOST_LANES = 256
"""Widest head: a key and its query's products fill a matrix unit of a v6e or v7x."""


class PallasTpuBackend(KernelBackend):
    """Ragged attention on TPUs v4 to v7x.

    Both calls are kernels; writing is in place where the cache is donated.

    Args:
        interpret: True, or `InterpretParams`, runs the kernels by an interpreter on any host.
        tilings: sizes instead of those of `tuned.json` and `choose_tilings`.

    Raises:
        ValueError: an `interpret` that is neither.
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
        if not isinstance(interpret, bool | pltpu.InterpretParams):
            raise ValueError(f"interpret: got {interpret!r}, expected a bool or InterpretParams")
        self.interpret = interpret
        if interpret:
            self.platform = "any"
        self.tilings = tilings

    def interpreted(self) -> "PallasTpuBackend":
        """The same kernels on any host, by the interpreter that looks for races."""
        return PallasTpuBackend(interpret=strict(), tilings=self.tilings)

    def watching(self) -> AbstractContextManager[list[str]]:
        """What an interpreter says of the calls made meanwhile; see `paged.conformance`."""
        is_strict = isinstance(self.interpret, pltpu.InterpretParams)
        return watching() if is_strict else nullcontext([])

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
        if not reasons and cache_spec is not None:
            reasons += _gaps(layout, cache_spec)
        return reasons

    def _write(self, cache: KVCache, key: Any, value: Any, slot_mapping: Any) -> KVCache:
        self._refuse(_gaps(cache.layout, _cache_spec(cache)))
        stored_key = to_storage(jnp.asarray(key), cache.k_scale, cache.dtype)
        data, slots = jnp.asarray(cache.data), jnp.asarray(slot_mapping)
        if cache.layout.is_latent:
            cells = cache.layout.cells(data, stored_key, None)
            written = write_latents(data, cells, slots, interpret=self.interpret)
        else:
            stored_value = to_storage(jnp.asarray(value), cache.v_scale, cache.dtype)
            cells = cache.layout.cells(data, stored_key, stored_value)
            written = write_cells(data, cells, slots, interpret=self.interpret)
        return cache.with_data(written)

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
        result = ragged_attention(
            query,
            cache,
            metadata,
            spec,
            sinks,
            cells=self._cells(query, cache, spec),
            tilings=self._tilings(query, cache, metadata, spec),
            interpret=self.interpret,
        )
        return AttentionOutput(*result)

    def lab_trips(
        self, query: Any, cache: KVCache, metadata: AttentionMetadata, spec: AttentionSpec
    ) -> tuple[LoopTrips, ...]:
        """How often its loops run in a full step, for `paged lab`; see `paged.backends.loops`."""
        tilings = self._tilings(query, cache, metadata, spec)
        return loop_trips(metadata, spec, cache.block_size, tilings)

    def lab_candidates(
        self, query: Any, cache: KVCache, metadata: AttentionMetadata, spec: AttentionSpec
    ) -> Candidates:
        """Its sizes for `paged lab tune`; see `paged.backends.tuned`."""
        cells = self._cells(query, cache, spec)
        call: Call = "decode" if metadata.max_query_len == 1 else "prefill"
        options: dict[str, Candidate] = {}
        for tilings in candidates(spec, cells, cache.block_size, metadata):
            sizes = sizes_of(tilings, call)
            name = ", ".join(f"{what} {size}" for what, size in sizes.items())
            options[name] = Candidate(PallasTpuBackend(tilings=tilings), sizes)
        return Candidates(call_shape(spec, cells, call), options)

    def _cells(self, query: Any, cache: KVCache, spec: AttentionSpec) -> Cells:
        if spec.is_latent:
            return latent_cells(query, cache, spec)
        return Cells(
            num_kv_heads=spec.num_kv_heads,
            rows=2 * cache.num_kv_heads,
            lanes=cache.head_dim,
            dtype=cache.dtype,
            by_value=isinstance(self.interpret, pltpu.InterpretParams),
            is_interpreted=bool(self.interpret),
        )

    def _tilings(
        self, query: Any, cache: KVCache, metadata: AttentionMetadata, spec: AttentionSpec
    ) -> Tilings:
        if self.tilings is not None:
            return self.tilings
        cells = self._cells(query, cache, spec)
        return choose_tilings(
            spec,
            cells,
            cache.block_size,
            metadata,
            query_bytes=query.dtype.itemsize,
            is_interpreted=bool(self.interpret),
            tuned={} if self.interpret else tuned_sizes(spec, cells),
        )


def _gaps(layout: Layout, cache_spec: KVCacheSpec) -> list[str]:
    """Why the kernels cannot serve a cache whose rows a TPU pads; [] where it does not.

    Rows of 256 are not padded, but lie in tiles of 8 rows by 128, words of two rows apart.

    XLA keeps a larger cache of that kind in an order of dimensions that saves the padding, with
    blocks or slots innermost, and copies all of it before and after each call of a kernel.
    Compiled for v4 and v6e: 6 and 12 rows of 128 from 64 blocks on, 16 rows of 64 from 1,024
    blocks on; libtpu 0.0.52, 2026-11-30.
    """
    if layout.is_latent:
        return []
    if cache_spec.head_dim > _MOST_LANES:
        return [f"head_dim {cache_spec.head_dim}, accepted: up to {_MOST_LANES}"]
    is_dense = layout.page_bytes(cache_spec, target="tpu") == layout.page_bytes(cache_spec)
    if layout.words or (is_dense and cache_spec.head_dim == LANES):
        return []
    return [
        f"layout {layout.name} with {2 * cache_spec.num_kv_heads} rows of {cache_spec.head_dim} "
        f"{cache_spec.dtype} a token, not whole words of {LANES} lanes, accepted: "
        f"{TPU_PACKED.name}"
    ]


def _cache_spec(cache: KVCache) -> KVCacheSpec:
    """What the cache keeps, its padding counted."""
    return KVCacheSpec(
        num_kv_heads=cache.num_kv_heads,
        head_dim=cache.head_dim,
        block_size=cache.block_size,
        dtype=cache.dtype,
    )
