"""A token that is one latent (MLA): the key of every query head, its first entries the value.

Tokens lie in plain rows of whole lanes, so that keys and values are taken as they are: a value is
the first registers of its key.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float

from paged.backends.pallas_tpu.cells import KEY, Cells, from_float8
from paged.dtypes import storage_dtype
from paged.layouts import KVCache
from paged.spec import AttentionSpec

_LANES = 128


def latent_cells(query: jax.Array, cache: KVCache, spec: AttentionSpec) -> "LatentCells":
    """The tokens of a cache in layout `tpu_mla`."""
    return LatentCells(
        num_kv_heads=1,
        rows=1,
        lanes=cache.head_dim,
        dtype=cache.dtype,
        value_dim=spec.value_dim,
        is_wide="float32" in (cache.dtype, query.dtype.name),
    )


@dataclass(frozen=True, slots=True)
class LatentCells(Cells):
    """The shape of one latent in the cache.

    Attributes:
        value_dim: entries of a latent that are its value.
        is_wide: whether products are of float32, whose queries take twice the VMEM.
    """

    value_dim: int = _LANES
    is_wide: bool = False

    @property
    def heads_per_step(self) -> int:
        """There is one."""
        return 1

    @property
    def value_lanes(self) -> int:
        """Whole registers; what they hold beyond the value is cut from the result."""
        return -(-self.value_dim // _LANES) * _LANES

    @property
    def vmem_bytes_per_token(self) -> int:
        """Bytes of a token in VMEM."""
        return self.lanes * storage_dtype(self.dtype).itemsize

    def tokens(self, data: jax.Array) -> jax.Array:
        """The cache as it is."""
        return data

    def buffer_shape(self, tokens: int) -> tuple[int, ...]:
        """Tokens in VMEM."""
        return (tokens, self.lanes)

    def blank(self, buffer: Any, begin: Any, end: Any) -> None:
        """Overwrites tokens of a ref with zeros, but for those from `begin` to before `end`."""
        loaded = buffer[...]
        token = lax.broadcasted_iota(jnp.int32, loaded.shape, 0)
        kept = jnp.logical_and(token >= begin, token < end)
        if self.packing == 4:
            # 0 is 0 in each of the types.
            whole = lax.bitcast_convert_type(loaded, jnp.int8).astype(jnp.int32)
            buffer[...] = lax.bitcast_convert_type(
                jnp.where(kept, whole, 0).astype(jnp.int8), loaded.dtype
            )
        else:
            # Not every generation selects among 16-bit numbers.
            buffer[...] = jnp.where(kept, loaded.astype(jnp.float32), 0.0).astype(loaded.dtype)

    def take(
        self, buffer: Any, head: int, kind: int, dtype: Any, seen: Any = None
    ) -> Float[jax.Array, "tokens lanes"]:
        """Keys or values."""
        loaded = buffer[...] if kind == KEY else buffer[:, : self.value_lanes]
        if seen is None and self.dtype == jnp.dtype(dtype).name:
            return loaded
        wide = self._as_float32(loaded)
        if seen is not None:
            wide = jnp.where(seen, wide, 0.0)
        return wide.astype(dtype)

    def _as_float32(self, loaded: jax.Array) -> jax.Array:
        if self.packing < 4:
            return loaded.astype(jnp.float32)
        if self.dtype == "int8":
            return loaded.astype(jnp.int32).astype(jnp.float32)
        whole = lax.bitcast_convert_type(loaded, jnp.int8).astype(jnp.int32)
        byte = lax.bitcast_convert_type(whole, jnp.uint32) & jnp.uint32(0xFF)
        return from_float8(byte, self.dtype)
