"""How often the loops of `ragged_attention` run, for `paged lab`; see `paged.backends.loops`."""

import math
from typing import Any

from paged.backends.loops import LoopTrips
from paged.backends.xla.attend import chunking
from paged.backends.xla.tiles import count_tiles, tile_rows
from paged.layouts import KVCache
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec


def loop_trips(
    query: Any, cache: KVCache, metadata: AttentionMetadata, spec: AttentionSpec
) -> tuple[LoopTrips, ...]:
    """One loop over groups of tiles where there are several, and in it one over chunks."""
    del query
    rows = tile_rows(metadata.max_query_len)
    num_tiles = count_tiles(metadata, rows)
    chunk_blocks, group = chunking(num_tiles, cache, spec, metadata)
    groups = -(-num_tiles // group)
    longest = metadata.max_seq_len
    if spec.window is not None:
        # The window of a tile's first query up to the tile's last; a block may stick out.
        longest = min(longest, spec.window + rows - 1 + cache.block_size - 1)
    chunk_tokens = chunk_blocks * cache.block_size
    chunks: float = math.ceil(longest / chunk_tokens)
    if metadata.max_query_len > rows and spec.window is None:
        # Tiles further up in a prefill see fewer keys: the average, and half a chunk cut off.
        seen = metadata.max_seq_len - (metadata.max_query_len - 1) / 2
        chunks = min(chunks, seen / chunk_tokens + 0.5)
    per_depth = (groups, groups * chunks) if group < num_tiles else (chunks,)
    return tuple(
        LoopTrips(depth, runs, where="program") for depth, runs in enumerate(per_depth, start=1)
    )
