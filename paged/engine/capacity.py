"""How many blocks an engine gives its caches when nobody says."""

from collections.abc import Sequence

from paged.backends import Resolution
from paged.spec import KVCacheSpec

DEFAULT_CACHE_BYTES = 1 << 30
"""Most bytes of cache, over all layers, that are taken without being asked for."""


def block_bytes(resolutions: Sequence[Resolution], *, block_size: int, dtype: str) -> int:
    """Bytes of a block over all layers."""
    return sum(
        r.layout.page_bytes(
            KVCacheSpec.of(r.spec, block_size=block_size, dtype=dtype), target=r.target
        )
        for r in resolutions
    )


def default_num_blocks(
    resolutions: Sequence[Resolution],
    *,
    block_size: int,
    dtype: str,
    max_num_seqs: int,
    max_model_len: int,
) -> int:
    """Blocks for all rows at full length, or as many as `DEFAULT_CACHE_BYTES` hold if that is less.

    Raises:
        ValueError: the budget holds no block that a request could use.
    """
    needed = block_bytes(resolutions, block_size=block_size, dtype=dtype)
    affordable = DEFAULT_CACHE_BYTES // needed
    if affordable < 2:
        raise ValueError(
            f"num_blocks: a block takes {needed} bytes over all layers and the default budget "
            f"is {DEFAULT_CACHE_BYTES}; say how many you want"
        )
    # And the null block.
    return min(affordable, max_num_seqs * -(-max_model_len // block_size) + 1)
