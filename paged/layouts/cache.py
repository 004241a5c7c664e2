"""`KVCache`: an array that knows its layout and its scales."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from paged.dtypes import dtype_name, storage_dtype
from paged.layouts import arrays
from paged.layouts.catalog import get_layout
from paged.layouts.layout import Layout
from paged.spec import KVCacheSpec

_SCALE_RANGE = float(np.finfo(np.float32).smallest_normal), float(np.finfo(np.float32).max)
"""Below the smallest normal number XLA takes 0, by which nothing can be divided."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("data", "k_scale", "v_scale"),
    meta_fields=("layout",),
)
@dataclass(frozen=True, slots=True)
class KVCache:
    """One layer's cache: a JAX pytree whose layout is static.

    Attributes:
        data: the array, in `layout`; numpy, JAX or torch.
        layout: how blocks lie in it.
        k_scale: scale of stored keys, a scalar or `[num_kv_heads]` float32; key = stored * scale.
            None means 1. Not 1 only for quantised caches.
        v_scale: the same for values. The two differ in general.
    """

    data: Any
    layout: Layout = field(metadata={"static": True})
    k_scale: Any = None
    v_scale: Any = None

    @classmethod
    def allocate(
        cls,
        spec: KVCacheSpec,
        layout: str | Layout,
        num_blocks: int,
        *,
        k_scale: Any = None,
        v_scale: Any = None,
        sharding: jax.sharding.Sharding | None = None,
    ) -> "KVCache":
        """A zero-filled JAX cache.

        Raises:
            ValueError: the layout cannot hold the spec's cache, slots would not fit int32, a scale
                is not positive and finite or of another shape, or an argument is of another kind.
        """
        if not isinstance(spec, KVCacheSpec):
            raise ValueError(f"spec: got {spec!r}, expected a KVCacheSpec")
        layout = get_layout(layout)
        check_slots_fit(num_blocks, spec.block_size)
        check_scale_values(spec.num_kv_heads, k_scale=k_scale, v_scale=v_scale)
        if not isinstance(sharding, jax.sharding.Sharding | jax.Device | None):
            raise ValueError(f"sharding: got {sharding!r}, expected a Sharding, a Device or None")
        data = jnp.zeros(layout.shape(num_blocks, spec), storage_dtype(spec.dtype), device=sharding)
        return cls(data, layout, k_scale, v_scale)

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis of the layout, by name, padding of the layout included."""
        return self.layout.sizes(arrays.shape(self.data))

    @property
    def num_blocks(self) -> int:
        """Physical blocks, the null block included."""
        return self.sizes["block"]

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.sizes["slot"]

    @property
    def num_kv_heads(self) -> int:
        """KV heads; 1 for a latent cache. As stored: see `Layout` on padding."""
        return self.sizes.get("head", 1)

    @property
    def head_dim(self) -> int:
        """Width of a key (the latent's for a latent cache), as stored."""
        sizes = self.sizes
        return sizes["latent"] if "latent" in sizes else sizes["dim"]

    @property
    def dtype(self) -> str:
        """Name of the storage type."""
        return dtype_name(self.data.dtype)

    def with_data(self, data: Any) -> "KVCache":
        """The same cache over another array."""
        return replace(self, data=data)


def check_slots_fit(num_blocks: int, block_size: int) -> None:
    """Refuses a pool whose slot numbers would overflow int32.

    Raises:
        ValueError: num_blocks * block_size is 2^31 or more, no block beside the null block, or
            num_blocks is no integer.
    """
    if isinstance(num_blocks, bool) or not isinstance(num_blocks, int | np.integer):
        raise ValueError(f"num_blocks: got {num_blocks!r}, expected an integer of at least 2")
    if num_blocks < 2:
        raise ValueError(
            f"num_blocks: got {num_blocks}, expected at least 2 (block 0 is the null block)"
        )
    if int(num_blocks) * block_size >= 2**31:
        raise ValueError(
            f"num_blocks: got {num_blocks} blocks of {block_size} slots, expected fewer than "
            f"{2**31} slots in all so that a slot fits int32"
        )


def check_scale(name: str, scale: Any, num_kv_heads: int) -> None:
    """A scale is a number, or an array of one or of one per KV head; its values are not looked at.

    Raises:
        ValueError: naming the scale, what it is and what is accepted.
    """
    if isinstance(scale, int | float) and not isinstance(scale, bool):
        return
    if isinstance(scale, bool) or not (hasattr(scale, "shape") and hasattr(scale, "dtype")):
        raise ValueError(f"{name}: got {type(scale).__name__}, expected a number, an array or None")
    if not dtype_name(scale.dtype).startswith(("float", "bfloat", "int", "uint")):
        raise ValueError(f"{name}: got dtype {dtype_name(scale.dtype)}, expected float32")
    if (shape := arrays.shape(scale)) not in ((), (num_kv_heads,)):
        raise ValueError(
            f"{name}: got shape {shape}, expected () or ({num_kv_heads},) (num_kv_heads)"
        )


def check_scale_values(num_kv_heads: int, **scales: Any) -> None:
    """Scales are what `check_scale` says, and positive and finite where their values are known.

    Raises:
        ValueError: naming the scale, the value and what is accepted.
    """
    least, most = _SCALE_RANGE
    for name, scale in scales.items():
        if scale is None:
            continue
        check_scale(name, scale, num_kv_heads)
        # Traced, or spread over hosts: nothing here knows the numbers.
        if isinstance(scale, Tracer) or not getattr(scale, "is_fully_addressable", True):
            continue
        values = scale.tolist() if hasattr(scale, "tolist") else scale
        places = values if isinstance(values, list) else [values]
        for index, value in enumerate(places):
            if not least <= value <= most:
                where = f"[{index}]" if places is values else ""
                raise ValueError(
                    f"{name}{where}: got {value!r}, expected a positive number, from {least:.7g} "
                    f"to {most:.7g} (float32)"
                )
