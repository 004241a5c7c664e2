"""Capabilities as data, and the checks that every kernel of this project makes with them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from paged.backends.api import AttentionOutput, UnsupportedError
from paged.dtypes import COMPUTE_DTYPES, STORAGE_DTYPES, dtype_name, is_quantized
from paged.layouts import KVCache, Layout, check_scale
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec, KVCacheSpec


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend claims. None among the sizes means any.

    What is not claimed is refused, and the conformance suite asserts both.
    """

    window: bool = True
    soft_cap: bool = True
    sinks: bool = True
    lse: bool = True
    per_head_scales: bool = True
    batch_invariant: bool = False
    query_dtypes: tuple[str, ...] = COMPUTE_DTYPES
    cache_dtypes: tuple[str, ...] = STORAGE_DTYPES
    head_dims: tuple[int, ...] | None = None
    group_sizes: tuple[int, ...] | None = None
    block_sizes: tuple[int, ...] | None = None


def capability_reasons(
    capabilities: Capabilities,
    spec: AttentionSpec,
    *,
    cache_spec: KVCacheSpec | None,
    query_dtype: str | None,
) -> list[str]:
    """Each way in which an ask goes beyond what is claimed."""
    reasons = [
        f"no {feature.replace('_', ' ')}"
        for feature, asked in (
            ("window", spec.window is not None),
            ("soft_cap", spec.soft_cap is not None),
            ("sinks", spec.has_sinks),
        )
        if asked and not getattr(capabilities, feature)
    ]
    sizes = [
        ("head_dim", spec.head_dim, capabilities.head_dims),
        ("group size", spec.group_size, capabilities.group_sizes),
        ("query dtype", query_dtype, capabilities.query_dtypes),
    ]
    if cache_spec is not None:
        sizes += [
            ("block_size", cache_spec.block_size, capabilities.block_sizes),
            ("cache dtype", cache_spec.dtype, capabilities.cache_dtypes),
        ]
    for name, asked, allowed in sizes:
        if asked is not None and allowed is not None and asked not in allowed:
            accepted = ", ".join(str(size) for size in allowed)
            reasons.append(f"{name} {asked}, accepted: {accepted}")
    return reasons


class KernelBackend(ABC):
    """A `Backend` whose refusals follow from declared capabilities.

    A subclass states `name`, `platform`, `layouts` and `capabilities` and implements `_write` and
    `_attend`, which see only asks that were checked. One that reads its cache only through what
    a `Layout` offers sets `any_layout`, and serves users' own layouts too.
    """

    name: ClassVar[str]
    platform: str
    layouts: ClassVar[tuple[Layout, ...]]
    any_layout: ClassVar[bool] = False
    capabilities: Capabilities = Capabilities()

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
        reasons: list[str] = []
        if self.platform not in ("any", target):
            reasons.append(f"runs on {self.platform}, not on {target}")
        if not self._reads(layout):
            known = ", ".join(known.name for known in self.layouts)
            reasons.append(f"no layout {layout.name}, accepted: {known}")
        elif layout.is_latent != spec.is_latent:
            wanted = "a latent (MLA) spec" if layout.is_latent else "keys and values"
            reasons.append(f"layout {layout.name} is for {wanted}")
        return reasons + capability_reasons(
            self.capabilities, spec, cache_spec=cache_spec, query_dtype=query_dtype
        )

    def write(self, cache: KVCache, key: Any, value: Any, slot_mapping: Any) -> KVCache:
        """See `Backend.write`."""
        check_cache(cache)
        check_arrays(key=key, slot_mapping=slot_mapping)
        if value is not None:
            check_arrays(value=value)
        reasons = [] if self._reads(cache.layout) else [f"no layout {cache.layout.name}"]
        if cache.dtype not in self.capabilities.cache_dtypes:
            reasons.append(f"no cache dtype {cache.dtype}")
        self._refuse(reasons)
        check_write(cache, key, value, slot_mapping)
        return self._write(cache, key, value, slot_mapping)

    def attend(
        self,
        query: Any,
        cache: KVCache,
        metadata: AttentionMetadata,
        spec: AttentionSpec,
        *,
        sinks: Any = None,
    ) -> AttentionOutput:
        """See `Backend.attend`."""
        check_cache(cache)
        check_arrays(query=query)
        check_metadata(metadata)
        target = jax.default_backend() if self.platform == "any" else self.platform
        cache_spec = KVCacheSpec.of(spec, block_size=cache.block_size, dtype=cache.dtype)
        reasons = self.unsupported(
            spec,
            cache.layout,
            target,
            cache_spec=cache_spec,
            query_dtype=dtype_name(query.dtype),
        )
        scales = [scale for scale in (cache.k_scale, cache.v_scale) if scale is not None]
        if not self.capabilities.per_head_scales and any(_rank(scale) for scale in scales):
            reasons.append("no per-head scales")
        self._refuse(reasons)
        metadata.static_validate(query=query, cache=cache, spec=spec)
        check_scales(cache, spec.num_kv_heads)
        check_sinks(sinks, spec)
        return self._attend(query, cache, metadata, spec, sinks)

    def _reads(self, layout: Layout) -> bool:
        return self.any_layout or layout in self.layouts

    def _refuse(self, reasons: list[str]) -> None:
        if reasons:
            raise UnsupportedError(f"backend {self.name}: {'; '.join(reasons)}")

    @abstractmethod
    def _write(self, cache: KVCache, key: Any, value: Any, slot_mapping: Any) -> KVCache: ...

    @abstractmethod
    def _attend(
        self,
        query: Any,
        cache: KVCache,
        metadata: AttentionMetadata,
        spec: AttentionSpec,
        sinks: Any,
    ) -> AttentionOutput: ...


def check_cache(cache: Any) -> None:
    """A cache is a `KVCache` of an array.

    Raises:
        ValueError: naming what was given instead.
    """
    if not isinstance(cache, KVCache):
        raise ValueError(f"cache: got {_named(cache)}, expected a KVCache")
    check_arrays(**{"cache.data": cache.data})


def check_metadata(metadata: Any) -> None:
    """Metadata is an `AttentionMetadata`.

    Raises:
        ValueError: naming what was given instead.
    """
    if not isinstance(metadata, AttentionMetadata):
        within = getattr(metadata, "metadata", None)
        hint = "; its `metadata` is one" if isinstance(within, AttentionMetadata) else ""
        raise ValueError(f"metadata: got {_named(metadata)}, expected an AttentionMetadata{hint}")


def check_arrays(**arguments: Any) -> None:
    """What has no shape and dtype is no array.

    Raises:
        ValueError: naming the argument and what was given instead.
    """
    for name, array in arguments.items():
        if not (hasattr(array, "shape") and hasattr(array, "dtype")):
            raise ValueError(
                f"{name}: got {_named(array)}, expected an array of numpy, JAX or torch"
            )


def check_sinks(sinks: Any, spec: AttentionSpec) -> None:
    """Sinks are there exactly where the spec says so, one logit per query head.

    Raises:
        ValueError: naming what was given and what the spec expects.
    """
    if sinks is not None:
        check_arrays(sinks=sinks)
    shape = None if sinks is None else tuple(sinks.shape)
    expected = (spec.num_heads,) if spec.has_sinks else None
    if shape != expected:
        raise ValueError(
            f"sinks: got {'None' if shape is None else f'shape {shape}'}, expected "
            f"{'None' if expected is None else f'shape {expected}'} "
            f"(spec.has_sinks is {spec.has_sinks})"
        )
    if sinks is not None and dtype_name(sinks.dtype) not in COMPUTE_DTYPES:
        raise ValueError(
            f"sinks: got dtype {dtype_name(sinks.dtype)}, expected one of "
            f"{', '.join(COMPUTE_DTYPES)}"
        )


def check_scales(cache: KVCache, num_kv_heads: int) -> None:
    """Scales are scalars or one number per KV head, and only quantised caches have them.

    Where a layout pads, the cache does not tell how many heads that is: the call does.

    Raises:
        ValueError: naming the scale, its shape and what is accepted.
    """
    for name, scale in (("k_scale", cache.k_scale), ("v_scale", cache.v_scale)):
        if scale is None:
            continue
        check_scale(name, scale, num_kv_heads)
        if not is_quantized(cache.dtype):
            raise ValueError(
                f"{name}: given for a cache of {cache.dtype}, expected None unless the cache "
                "is quantised (int8, float8)"
            )
        if name == "v_scale" and cache.layout.is_latent:
            raise ValueError("v_scale: given for a latent cache, expected None: a value is a key")


def check_write(cache: KVCache, key: Any, value: Any, slot_mapping: Any) -> None:
    """Shapes and dtypes of new rows against the cache.

    Raises:
        ValueError: naming the argument, what it is and what was expected.
    """
    if len(slot_mapping.shape) != 1 or dtype_name(slot_mapping.dtype) != "int32":
        raise ValueError(
            f"slot_mapping: got {dtype_name(slot_mapping.dtype)}{tuple(slot_mapping.shape)}, "
            "expected int32 of one dimension"
        )
    given = [(name, rows) for name, rows in (("key", key), ("value", value)) if rows is not None]
    # Before the layout compares the two with each other: slots say which of them is wrong.
    for name, rows in given:
        if len(rows.shape) == 3 and rows.shape[0] != slot_mapping.shape[0]:
            raise ValueError(
                f"{name}: got {rows.shape[0]} tokens, expected {slot_mapping.shape[0]} as in "
                "slot_mapping"
            )
    cache.layout.check_rows(tuple(cache.data.shape), key, value)
    check_scales(cache, key.shape[1])
    for name, rows in given:
        if dtype_name(rows.dtype) not in COMPUTE_DTYPES:
            raise ValueError(
                f"{name}: got dtype {dtype_name(rows.dtype)}, expected one of "
                f"{', '.join(COMPUTE_DTYPES)}"
            )


def _named(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _rank(scale: Any) -> int:
    return len(getattr(scale, "shape", ()))
