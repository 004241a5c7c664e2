"""Whole blocks from one place to another: within caches, out of them and into them, bit for bit.

A block is an entry of each layer's array along its block axis, whatever the layout. All layers go
in one call, so that under `jax.jit` they are one program.
"""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Int

from paged.layouts import arrays
from paged.layouts.cache import KVCache


def copy_blocks(
    caches: Sequence[KVCache], src: Int[Any, " copies"], dst: Int[Any, " copies"]
) -> tuple[KVCache, ...]:
    """Copy block src[i] to block dst[i] in every layer; all sources are read before a write.

    In place for numpy and torch, and under JAX where the caches are donated.

    Args:
        caches: one per layer.
        src: ids; those of padding may be any.
        dst: ids, distinct; -1 for padding, which copies nothing.

    Returns:
        The caches after it.
    """
    return put_blocks(caches, dst, take_blocks(caches, src))


def take_blocks(caches: Sequence[KVCache], block_ids: Int[Any, " blocks"]) -> tuple[Any, ...]:
    """For each layer an array of its own with the contents of some blocks.

    Each has the cache's shape, with `block_ids` in the place of its block axis.
    """
    return tuple(
        arrays.take(cache.data, block_ids, axis=cache.layout.block_axis) for cache in caches
    )


def put_blocks(
    caches: Sequence[KVCache], block_ids: Int[Any, " blocks"], contents: Sequence[Any]
) -> tuple[KVCache, ...]:
    """Write what `take_blocks` took into blocks.

    In place for numpy and torch, and under JAX where the caches are donated.

    Args:
        caches: one per layer.
        block_ids: where to, distinct; -1 for padding, which writes nothing.
        contents: one array per layer.

    Returns:
        The caches after it.
    """
    return tuple(
        cache.with_data(arrays.put(cache.data, blocks, block_ids, axis=cache.layout.block_axis))
        for cache, blocks in zip(caches, contents, strict=True)
    )
