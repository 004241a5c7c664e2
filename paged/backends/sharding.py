"""Attention shared out over devices: each holds some KV heads, and attends with their query heads.

Heads do not meet in attention, so that devices which share them out need not speak to each other.
With n devices, device i holds KV heads [i * num_kv_heads / n, (i + 1) * num_kv_heads / n) and the
query heads of their groups, which are neighbours as well. Its part of the cache is itself a cache
of num_kv_heads / n heads, and the backend that runs there sees no difference.

A latent cache (MLA) has one head that all query heads read: each device holds all of it, and
shares out the query heads alone.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Float, Int

from paged.backends.api import AttentionOutput, Backend, UnsupportedError
from paged.backends.base import check_scales, check_sinks, check_write
from paged.dtypes import dtype_name
from paged.layouts import KVCache, Layout, get_layout
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec, KVCacheSpec


class HeadSharded:
    """A backend whose heads are shared out over one axis of a mesh; itself a `Backend`.

    Arguments and results are those of the whole: `spec` counts all heads, arrays have all of
    them. Keys, values, queries, results, sinks and scales per head are split on their head axis,
    the cache as `cache_sharding` says, and everything else is on every device. What lies otherwise
    is moved first, the cache too: allocate it where it belongs. Over the mesh's other axes, if
    any, all devices do the same.

    Attributes:
        backend: the one that runs on each device.
        mesh: the devices.
        axis: the mesh axis over which heads are shared out.
        name: the inner backend's, with the axis and its size.
        platform: the inner backend's.
        layouts: those of the inner backend that can be split.
        capabilities: the inner backend's, where it has such an attribute; None otherwise.

    Raises:
        TypeError: `backend` is no backend, or `mesh` no mesh.
        ValueError: the mesh has no such axis, or its axes are of several types; or the backend
            takes other arrays than JAX's, or cannot be traced.
    """

    def __init__(self, backend: Backend, mesh: Mesh, axis: str) -> None:
        if isinstance(backend, type) or not isinstance(backend, Backend):
            raise TypeError(f"backend: got {backend!r}, expected an instance of a backend")
        if not isinstance(mesh, Mesh):
            raise TypeError(f"mesh: got {mesh!r}, expected a jax.sharding.Mesh")
        if axis not in mesh.axis_names:
            known = ", ".join(str(name) for name in mesh.axis_names)
            raise ValueError(f"axis: got {axis!r}, expected one of the mesh's: {known}")
        if len(set(mesh.axis_types)) > 1:
            raise ValueError(
                f"mesh: got axis types {', '.join(kind.name for kind in mesh.axis_types)}, "
                "expected one type for all"
            )
        arrays = getattr(backend, "arrays", "jax")
        if arrays != "jax" or not getattr(backend, "traceable", True):
            what = "cannot be traced" if arrays == "jax" else f"takes arrays of {arrays}"
            raise ValueError(
                f"backend: {backend.name} {what}, expected one for JAX's arrays that runs under "
                "jax.jit"
            )
        self.backend, self.mesh, self.axis = backend, mesh, axis
        self.name = f"{backend.name}[{axis}={self.num_shards}]"
        self.platform = backend.platform
        self.layouts = tuple(layout for layout in backend.layouts if not _unsplit(layout))
        self.capabilities = getattr(backend, "capabilities", None)

    @property
    def num_shards(self) -> int:
        """Devices among which the heads are shared out."""
        return self.mesh.shape[self.axis]

    def cache_sharding(self, layout: str | Layout) -> NamedSharding:
        """Where each part of a cache's array belongs, for `KVCache.allocate(sharding=...)`.

        Split over KV heads; a latent cache is on every device.

        Raises:
            UnsupportedError: the layout cannot be split over heads.
            ValueError: no layout of that name.
        """
        layout = get_layout(layout)
        self._refuse(_unsplit(layout))
        return NamedSharding(self.mesh, self._partition(layout))

    def unsupported(
        self,
        spec: AttentionSpec,
        layout: Layout,
        target: str,
        *,
        cache_spec: KVCacheSpec | None = None,
        query_dtype: str | None = None,
    ) -> list[str]:
        """See `Backend.unsupported`: why heads cannot be split, or what the inner backend says.

        The inner backend is asked about one device's share, which there is only where it splits.
        """
        heads = "num_heads" if spec.is_latent else "num_kv_heads"
        reasons = self._indivisible(heads, getattr(spec, heads)) + _unsplit(layout)
        if not reasons and not layout.is_latent and cache_spec is not None:
            reasons = self._padded(layout, cache_spec)
        if reasons:
            return reasons
        return self.backend.unsupported(
            self._share(spec),
            layout,
            target,
            cache_spec=None if cache_spec is None else self._cache_share(cache_spec),
            query_dtype=query_dtype,
        )

    def write(
        self,
        cache: KVCache,
        key: Float[Any, "tokens num_kv_heads head_dim"],
        value: Float[Any, "tokens num_kv_heads head_dim"] | None,
        slot_mapping: Int[Any, " tokens"],
    ) -> KVCache:
        """See `Backend.write`; in place on each device where the cache is donated.

        Raises:
            UnsupportedError: the cache cannot be split, or the inner backend does not write it.
            ValueError: shapes or dtypes that disagree with the cache.
        """
        self._refuse(_unsplit(cache.layout))
        check_write(cache, key, value, slot_mapping)
        if not cache.layout.is_latent:
            _, num_kv_heads, head_dim = key.shape
            kept = KVCacheSpec(num_kv_heads, head_dim, cache.block_size, cache.dtype)
            indivisible = self._indivisible("num_kv_heads", num_kv_heads)
            self._refuse(indivisible or self._padded(cache.layout, kept))
        return cache.with_data(self._write(cache, key, value, slot_mapping))

    def attend(
        self,
        query: Float[Any, "tokens num_heads head_dim"],
        cache: KVCache,
        metadata: AttentionMetadata,
        spec: AttentionSpec,
        *,
        sinks: Float[Any, " num_heads"] | None = None,
    ) -> AttentionOutput:
        """See `Backend.attend`; both results stay split over heads.

        Raises:
            UnsupportedError: an ask that `unsupported` gives a reason for.
            ValueError: shapes or dtypes that disagree with the spec.
        """
        reasons = self.unsupported(
            spec,
            cache.layout,
            self._target(),
            cache_spec=KVCacheSpec.of(spec, block_size=cache.block_size, dtype=cache.dtype),
            query_dtype=dtype_name(query.dtype),
        )
        takes_per_head = getattr(self.capabilities, "per_head_scales", True)
        if not takes_per_head and (_is_per_head(cache.k_scale) or _is_per_head(cache.v_scale)):
            reasons.append("no per-head scales")
        self._refuse(reasons)
        metadata.static_validate(query=query, cache=cache, spec=spec)
        check_scales(cache, spec.num_kv_heads)
        check_sinks(sinks, spec)
        return self._attend(query, cache, metadata, sinks, spec=spec)

    # Compiled also where the caller does not: piece by piece, a mapped function runs very slowly.
    @partial(jax.jit, static_argnames="self")
    def _write(self, cache: KVCache, key: Any, value: Any, slot_mapping: Any) -> jax.Array:
        rows = P() if cache.layout.is_latent else self._by_head
        return self._mapped(
            lambda *arguments: self.backend.write(*arguments).data,
            (self._cache_partition(cache), rows, rows, P()),
            self._partition(cache.layout),
        )(cache, key, value, slot_mapping)

    @partial(jax.jit, static_argnames=("self", "spec"))
    def _attend(
        self, query: Any, cache: KVCache, metadata: Any, sinks: Any, *, spec: AttentionSpec
    ) -> AttentionOutput:
        share = self._share(spec)

        def attend(query: Any, cache: KVCache, metadata: Any, sinks: Any) -> AttentionOutput:
            return self.backend.attend(query, cache, metadata, share, sinks=sinks)

        split = (self._by_head, self._cache_partition(cache), P(), P(self.axis))
        return self._mapped(attend, split, self._by_head)(query, cache, metadata, sinks)

    def _mapped(self, function: Any, in_specs: tuple[Any, ...], out_specs: Any) -> Any:
        """The function, run by each device on its share."""
        # What a kernel's results vary over is not checked: a `pallas_call` would have to state it.
        mapped = jax.shard_map(
            function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )
        if self.mesh.axis_types[0] is not AxisType.Explicit:
            return mapped

        def moved(*arguments: Any) -> Any:
            # Types say where arrays lie on such a mesh, and are not changed without a word.
            return mapped(
                *(
                    jax.reshard(argument, jax.tree.map(partial(NamedSharding, self.mesh), split))
                    for argument, split in zip(arguments, in_specs, strict=True)
                )
            )

        return moved

    @property
    def _by_head(self) -> P:
        """Of queries, keys, values and both results: tokens first, then heads."""
        return P(None, self.axis)

    def _partition(self, layout: Layout) -> P:
        """How the array of a cache is split."""
        if layout.sharding_axis is None:
            return P()
        return P(*(None,) * layout.sharding_axis, self.axis)

    def _cache_partition(self, cache: KVCache) -> KVCache:
        """How each array of a cache is split, in the array's place."""
        per_head = P() if cache.layout.is_latent else P(self.axis)
        return KVCache(
            self._partition(cache.layout),
            cache.layout,
            *(per_head if _is_per_head(scale) else P() for scale in (cache.k_scale, cache.v_scale)),
        )

    def _share(self, spec: AttentionSpec) -> AttentionSpec:
        """The attention of one device."""
        num_heads = spec.num_heads // self.num_shards
        return replace(spec, num_heads=num_heads, num_kv_heads=self._kv_heads(spec))

    def _cache_share(self, spec: KVCacheSpec) -> KVCacheSpec:
        """The cache of one device."""
        return replace(spec, num_kv_heads=self._kv_heads(spec))

    def _kv_heads(self, spec: AttentionSpec | KVCacheSpec) -> int:
        return spec.num_kv_heads // (1 if spec.is_latent else self.num_shards)

    def _indivisible(self, name: str, heads: int) -> list[str]:
        """Why so many heads cannot be shared out; [] where they can."""
        if not heads % self.num_shards:
            return []
        return [
            f"{name} {heads}, accepted: a multiple of {self.num_shards}, the size of mesh axis "
            f"{self.axis}"
        ]

    def _padded(self, layout: Layout, whole: KVCacheSpec) -> list[str]:
        """Why a part of a cache would be no cache; [] where it is one.

        Padding after the last head of all would be missing after each device's last.
        """
        if self.num_shards == 1:
            return []

        def stored(heads: int) -> int:
            share = replace(whole, num_kv_heads=heads)
            return layout.sizes(layout.shape(1, share))["head"]

        share = whole.num_kv_heads // self.num_shards
        if stored(share) == share:
            return []
        return [
            f"num_kv_heads {whole.num_kv_heads}, {share} on each of {self.num_shards} devices, "
            f"which layout {layout.name} pads in {whole.dtype}, accepted: a multiple of "
            f"{self.num_shards * stored(1)}"
        ]

    def _target(self) -> str:
        """The platform that the inner backend runs on."""
        if self.backend.platform != "any":
            return self.backend.platform
        platform = self.mesh.devices.flat[0].platform
        return "cuda" if platform == "gpu" else platform

    def _refuse(self, reasons: list[str]) -> None:
        if reasons:
            raise UnsupportedError(f"backend {self.name}: {'; '.join(reasons)}")


def _unsplit(layout: Layout) -> list[str]:
    """Why an array of this layout cannot be split over heads; [] where it can, or need not."""
    if layout.is_latent or layout.sharding_axis is not None:
        return []
    return [
        f"layout {layout.name} ({layout.pattern}) has no dimension that splits by heads, accepted: "
        "one that starts with head"
    ]


def _is_per_head(scale: Any) -> bool:
    return bool(getattr(scale, "shape", ()))
