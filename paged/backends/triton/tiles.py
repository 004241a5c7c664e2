"""Sizes of tiles: the one place where they are chosen."""

from dataclasses import dataclass

_LEAST_ROWS = 16
"""Rows and columns of the smallest matrix product that every target has."""

_MOST_TILE_HEADS = 64


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


def decode_tiles(*, group: int, width: int, itemsize: int, is_latent: bool) -> Tiles:
    """Tiles of a decode: the heads of a group are the rows, one query each.

    Args:
        group: query heads per KV head.
        width: entries of a key, up to a power of two.
        itemsize: bytes of an operand of a product.
        is_latent: whether the cache has latents.
    """
    heads = min(max(power_of_two(group), _LEAST_ROWS), _MOST_TILE_HEADS)
    if is_latent:
        # A latent is 1.1 kB: its tile of values, [heads, 512] in float32, fills 8 warps' registers.
        tokens = 32 if itemsize == 2 else 16
        return Tiles(1, heads, tokens, warps=8 if heads > 16 else 4, stages=2)
    tokens = _step_tokens(width, itemsize)
    return Tiles(1, heads, tokens, warps=4, stages=3)


def prefill_tiles(*, group: int, width: int, itemsize: int, is_latent: bool) -> Tiles:
    """Tiles of a prefill: as many queries as the rows of a large product have room for."""
    heads = min(power_of_two(group), _MOST_TILE_HEADS)
    if itemsize == 4:
        rows, warps = 32, 4
    elif is_latent:
        rows, warps = 64, 8
    else:
        rows, warps = (128, 8) if width <= 128 else (64, 4)
    rows = max(rows, heads)
    tokens = (32 if itemsize == 2 else 16) if is_latent else _step_tokens(width, itemsize)
    return Tiles(rows // heads, heads, tokens, warps, stages=2)


def power_of_two(value: int) -> int:
    """The smallest power of two that is no smaller."""
    return 1 << (value - 1).bit_length()


def _step_tokens(width: int, itemsize: int) -> int:
    # 16 kB of keys and as much of values a step, in 16-bit types.
    return max(16, min(64, 8192 * 2 // (width * itemsize)))
