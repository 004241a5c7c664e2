"""From any layout to any other, and several layouts over one pool."""

from collections.abc import Sequence
from typing import Any

import einops
import numpy as np

from paged.dtypes import dtype_name
from paged.layouts import arrays
from paged.layouts.catalog import get_layout
from paged.layouts.layout import Layout
from paged.spec import KVCacheSpec


def convert(
    data: Any, src: str | Layout, dst: str | Layout, *, spec: KVCacheSpec | None = None
) -> Any:
    """The same cache in another layout.

    Where both have their bytes in the same order the result is a view of the same memory (JAX:
    the compiler's bitcast), otherwise a contiguous copy.

    Args:
        data: numpy, JAX or torch array in layout `src`.
        src: the layout it is in.
        dst: the layout wanted.
        spec: what a token keeps. Needed where `src` pads, whose shape does not tell; without it
            padding counts as content.

    Raises:
        ValueError: one layout is latent and the other is not, or `data` is not in `src`, or `src`
            holds another cache than `spec` says.
    """
    src, dst = get_layout(src), get_layout(dst)
    if src.is_latent != dst.is_latent:
        raise ValueError(
            f"dst: cannot convert {src.name} ({src.pattern}) to {dst.name} ({dst.pattern}): "
            "keys and values cannot be told apart in a latent"
        )
    sizes = src.sizes(arrays.shape(data))
    if src == dst:
        return data
    if src.is_padded or dst.is_padded:
        return _convert_padded(data, src, dst, sizes, spec)
    if src.axes == dst.axes:
        merged = (np.prod([sizes[axis] for axis in dim]) for dim in dst.dimensions)
        return arrays.reshape(data, tuple(int(length) for length in merged))
    split = {} if src.is_latent else {"kv": 2}
    moved = einops.rearrange(data, f"{src.pattern} -> {dst.pattern}", **split)
    if arrays.is_jax(moved):
        return moved
    return moved.contiguous() if arrays.is_torch(moved) else np.ascontiguousarray(moved)


def _convert_padded(
    data: Any, src: Layout, dst: Layout, sizes: dict[str, int], spec: KVCacheSpec | None
) -> Any:
    """Without padding, into the other pattern, and with the padding that it asks for."""
    if spec is not None:
        expected = src.shape(sizes["block"], spec)
        if arrays.shape(data) != expected:
            raise ValueError(
                f"data: got shape {arrays.shape(data)}, expected {expected} in {src.name} for "
                f"{spec}"
            )
        sizes = {**sizes, "head": spec.num_kv_heads, "dim": spec.head_dim, "latent": spec.head_dim}
    plain = src.unpadded(data, sizes)
    split = {} if src.is_latent else {"kv": 2}
    if src.pattern != dst.pattern:
        plain = einops.rearrange(plain, f"{src.pattern} -> {dst.pattern}", **split)
    if not arrays.is_jax(plain):
        plain = plain.contiguous() if arrays.is_torch(plain) else np.ascontiguousarray(plain)
    return dst.padded(plain)


def share_pool(pool: Any, spec: KVCacheSpec, layouts: Sequence[str | Layout]) -> list[Any]:
    """One raw pool seen through several layouts, so that each block may use its own.

    Args:
        pool: `[values]`, one dimension, of the spec's storage type; numpy or torch for shared
            memory (JAX arrays are values: each result is then an array of its own).
        spec: what a token keeps; all layouts hold the same.
        layouts: block-major layouts.

    Returns:
        One array a layout; block b is the same range of the pool in each.

    Raises:
        ValueError: a layout whose blocks are not contiguous: block N of one would be block 2N of
            the other, and writes would destroy each other. Or a pool of another type or length.
    """
    resolved = [get_layout(layout) for layout in layouts]
    for layout in resolved:
        if not layout.is_block_major:
            raise ValueError(
                f"layouts: {layout.name} ({layout.pattern}) may not share a pool, expected "
                "layouts with 'block' outermost"
            )
    if dtype_name(pool.dtype) != spec.dtype:
        raise ValueError(f"pool: got dtype {dtype_name(pool.dtype)}, expected {spec.dtype}")
    block_values = spec.block_size * spec.values_per_token
    for layout in resolved:
        if layout.page_bytes(spec) != spec.block_size * spec.bytes_per_token:
            raise ValueError(
                f"layouts: {layout.name} pads a block to {layout.page_bytes(spec)} bytes and may "
                f"not share a pool of {spec.block_size * spec.bytes_per_token} bytes a block"
            )
    if len(arrays.shape(pool)) != 1 or pool.shape[0] % block_values:
        raise ValueError(
            f"pool: got shape {arrays.shape(pool)}, expected one dimension and a multiple of "
            f"{block_values} values (one block)"
        )
    num_blocks = pool.shape[0] // block_values
    return [arrays.reshape(pool, layout.shape(num_blocks, spec)) for layout in resolved]
