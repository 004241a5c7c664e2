"""Sizes of tiles: the one place where they are chosen."""

from dataclasses import dataclass, replace

_LEAST_ROWS = 16
"""Rows and columns of the smallest matrix product that every target has."""

_MOST_TILE_HEADS = 64

_LATENT_SHARED_BYTES = 144 << 10
"""What 64 latents of 576 and 32 queries take, in 8 bits and converted to 16 beside it."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Sizes of one kernel.

    Attributes:
        queries: queries of a tile.
        heads: heads of a tile, a power of two.
        tokens: keys of a step, a power of two.
        warps: of a program.
        stages: steps whose keys are under way at once.
    """

    queries: int
    heads: int
    tokens: int
    warps: int
    stages: int


def decode_tiles(
    *, group: int, width: int, itemsize: int, is_latent: bool, is_quantized: bool, shared_bytes: int
) -> Tiles:
    """Tiles of a decode: the heads of a group are the rows, one query each.

    Args:
        group: query heads per KV head.
        width: entries of a key, up to a power of two.
        itemsize: bytes of an operand of a product.
        is_latent: whether the cache has latents.
        is_quantized: whether it has 8-bit numbers.
        shared_bytes: shared memory that a program may have.
    """
    if is_latent:
        tiles = _latent_tiles(group, itemsize, shared_bytes)
        return replace(tiles, stages=min(tiles.stages, _decode_stages(is_quantized)))
    heads = min(max(power_of_two(group), _LEAST_ROWS), _MOST_TILE_HEADS)
    return Tiles(1, heads, _step_tokens(width, itemsize), 4, _decode_stages(is_quantized))


def prefill_tiles(
    *, group: int, width: int, itemsize: int, is_latent: bool, is_quantized: bool, shared_bytes: int
) -> Tiles:
    """Tiles of a prefill: as many queries as the rows of a large product have room for."""
    if is_latent:
        tiles = _latent_tiles(group, itemsize, shared_bytes)
        heads = min(power_of_two(group), tiles.heads)
        return replace(tiles, heads=heads, queries=tiles.heads // heads)
    heads = min(power_of_two(group), _MOST_TILE_HEADS)
    if itemsize == 4:
        rows, warps = 32, 4
    else:
        rows, warps = (128, 8) if width <= 128 else (64, 4)
    rows = max(rows, heads)
    return Tiles(rows // heads, heads, _step_tokens(width, itemsize), warps, stages=2)


def _decode_stages(is_quantized: bool) -> int:
    # The third stage is for the entries of the block table, which are then under way as well. With
    # 8-bit numbers it costs 2 to 4 registers more than there are (triton 3.9.0, sm_90, 2026-11-30).
    return 2 if is_quantized else 3


def _latent_tiles(group: int, itemsize: int, shared_bytes: int) -> Tiles:
    # 32 rows of 512 values in float32 take 64 registers a thread of 8 warps. 64 rows would have
    # Hopper's larger matrix instructions, but 8 to 24 registers too many (triton 3.9.0, sm_90,
    # 2026-11-30: 96 bytes of spills for 32 keys a step, 256 for 64).
    heads = min(max(power_of_two(group), _LEAST_ROWS), 32)
    if shared_bytes < _LATENT_SHARED_BYTES:
        return Tiles(1, heads, 32 if itemsize == 2 else 16, warps=8, stages=2)
    if itemsize == 4:
        return Tiles(1, heads, 16, warps=8, stages=2)
    return Tiles(1, heads, 64, warps=8, stages=3)


def power_of_two(value: int) -> int:
    """The smallest power of two that is no smaller."""
    return 1 << (value - 1).bit_length()


def _step_tokens(width: int, itemsize: int) -> int:
    # 16 kB of keys and as much of values a step, in 16-bit types.
    return max(16, min(64, 8192 * 2 // (width * itemsize)))
