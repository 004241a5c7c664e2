"""How a number becomes a stored number."""

from typing import Any

import jax
import jax.numpy as jnp

from paged.dtypes import is_quantized, largest_finite


def to_storage(rows: jax.Array, scale: Any, dtype: str) -> jax.Array:
    """New keys or values as the cache stores them.

    Args:
        rows: `[tokens, num_kv_heads, head_dim]`.
        scale: None (1), a scalar or `[num_kv_heads]`; stored = rows / scale.
        dtype: storage type by name.

    Returns:
        Rows of the storage type. Quantised types round to nearest even and clip to the largest
        finite magnitude, so that int8 stays in [-127, 127] and float8 never becomes infinite.
    """
    if not is_quantized(dtype):
        return rows.astype(dtype)
    scaled = rows.astype(jnp.float32)
    if scale is not None:
        scaled = scaled / per_head(scale)
    limit = largest_finite(dtype)
    clipped = jnp.clip(scaled, -limit, limit)
    return (jnp.round(clipped) if dtype == "int8" else clipped).astype(dtype)


def per_head(scale: Any) -> jax.Array:
    """A scale shaped to multiply `[tokens, num_kv_heads, head_dim]`."""
    scale = jnp.asarray(scale, jnp.float32)
    return scale[None, :, None] if scale.ndim else scale
