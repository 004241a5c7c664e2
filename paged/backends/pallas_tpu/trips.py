"""How often the kernels' loops run in a full step, for `paged lab`; see `paged.backends.loops`.

The stream of chunks is gone through as the kernel does it, in plain numbers.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paged.backends.loops import LoopTrips
from paged.backends.pallas_tpu.latent_decode import STRIP
from paged.backends.pallas_tpu.prefill import BLANKED
from paged.backends.pallas_tpu.tiling import Tiling, Tilings
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec


@dataclass(frozen=True, slots=True)
class Item:
    """What a tile of queries reads, see `stream.Walk`."""

    first: int
    queries: int
    start_block: int
    blocks: int


@dataclass(slots=True)
class Chunks:
    """Of all groups.

    Attributes:
        full: chunks whose blocks are all of one item.
        mixed: other chunks, of which each piece is looked at by itself.
        mixed_blocks: their blocks that do not fill a piece, copied and waited for one by one.
        begun: what the first two of the call are; `None` where there are fewer.
    """

    full: int = 0
    mixed: int = 0
    mixed_blocks: int = 0
    begun: tuple[int | None, int | None] = (None, None)


def loop_trips(
    metadata: AttentionMetadata, spec: AttentionSpec, block_size: int, tilings: Tilings
) -> tuple[LoopTrips, ...]:
    """Trips of the loops of both kernels."""
    is_decode = metadata.max_query_len == 1
    decode = _items(metadata, spec, block_size, 1) if is_decode else []
    rules = list(_decode_trips(decode, metadata.num_seqs, spec, block_size, tilings.decode))
    if not is_decode:
        tiles = _items(metadata, spec, block_size, tilings.prefill.rows)
        of_prefill = _latent_prefill_trips if spec.is_latent else _prefill_trips
        rules += of_prefill(tiles, spec, block_size, tilings.prefill)
    return tuple(rules)


def _items(
    metadata: AttentionMetadata, spec: AttentionSpec, block_size: int, rows: int
) -> list[Item]:
    """The tiles of a full step, every sequence having all its tokens and queries."""
    items: list[Item] = []
    history = metadata.max_seq_len - metadata.max_query_len
    for offset in range(0, metadata.max_query_len, rows):
        queries = min(rows, metadata.max_query_len - offset)
        first = history + offset
        seen_from = 0 if spec.window is None else max(first - (spec.window - 1), 0)
        start = seen_from // block_size
        items.append(Item(first, queries, start, (first + queries - 1) // block_size + 1 - start))
    return items * metadata.num_seqs


def stream_of(blocks: Sequence[int], block_size: int, tiling: Tiling) -> Chunks:
    """The chunks of items with so many blocks."""
    piece_blocks = tiling.piece // block_size
    chunk_blocks = tiling.chunk // block_size
    found = Chunks()
    begun: list[int | None] = []
    for start in range(0, len(blocks), tiling.group):
        left = [count for count in blocks[start : start + tiling.group] if count]
        while left:
            taken = 0
            if left[0] >= chunk_blocks:
                left[0] -= chunk_blocks
                found.full += 1
                begun.append(None)
            else:
                for _ in range(tiling.chunk // tiling.piece):
                    if left and not left[0]:
                        left.pop(0)
                    if left:
                        count = min(left[0], piece_blocks)
                        left[0] -= count
                        taken += count if count < piece_blocks else 0
                found.mixed += 1
                found.mixed_blocks += taken
                begun.append(taken)
            left = [count for count in left if count]
    first, second, *_ = (*begun, None, None)
    found.begun = (first, second)
    return found


def _decode_trips(
    items: Sequence[Item], num_seqs: int, spec: AttentionSpec, block_size: int, tiling: Tiling
) -> Iterator[LoopTrips]:
    """The chunk loop, and in it pieces and blocks; before it the same for the first two chunks.

    The grid is a loop only where there is more than one group. Its pipeline adds a step before and
    one after, in which none of the kernel runs and which are left out. Over latents each piece has
    a loop that blanks what is not seen; all their trips are told of the first.
    """
    chunks = stream_of([item.blocks for item in items], block_size, tiling)
    pieces = tiling.chunk // tiling.piece
    depth = 1 if num_seqs <= tiling.group else 2

    def trips(depth: int, runs: float, nth: int) -> LoopTrips:
        return LoopTrips(depth, runs, nth=nth, kernel="paged_decode")

    if depth == 2:
        # Groups that are not in use are skipped.
        yield LoopTrips(1, -(-len(items) // tiling.group), kernel="paged_decode")
    yield LoopTrips(depth, chunks.full + chunks.mixed, holds="matmul", kernel="paged_decode")
    started, inner, innermost = chunks.mixed, depth + 1, depth + 2
    blanks = pieces if spec.is_latent else 0
    waits = 3 if pieces > 1 else 1
    for index in range(blanks):
        runs = 0 if index else _blanked(items, chunks, spec, block_size, tiling)
        yield trips(inner, runs, waits + index)
    if pieces > 1:
        for nth, taken in enumerate(chunks.begun):
            yield trips(depth, pieces if taken is not None else 0, nth)
            yield trips(depth + 1, taken or 0, nth)
            started -= taken is not None
        yield trips(inner, pieces * chunks.mixed, 2)
        yield trips(inner, pieces * started, waits + blanks)
        yield trips(innermost, chunks.mixed_blocks, 0)
        yield trips(innermost, chunks.mixed_blocks - sum(t or 0 for t in chunks.begun), 1)
        return
    yield from _without_pieces(chunks, depth, "paged_decode")


def _blanked(
    items: Sequence[Item], chunks: Chunks, spec: AttentionSpec, block_size: int, tiling: Tiling
) -> int:
    """Strips of tokens that `latent_decode` overwrites, those of unused pieces included."""
    strip = math.gcd(tiling.piece, STRIP)
    strips, blanked, used = tiling.piece // strip, 0, 0
    for item in items:
        start = item.start_block * block_size
        for piece in range(start, start + item.blocks * block_size, tiling.piece):
            end = min(item.first + 1 - piece, tiling.piece)
            begin = 0 if spec.window is None else item.first + 1 - spec.window - piece
            used += 1
            if begin > 0 or end < tiling.piece:
                blanked += strips - (end // strip if spec.window is None else 0)
    unused = (chunks.full + chunks.mixed) * (tiling.chunk // tiling.piece) - used
    return blanked + unused * strips


def _copies(chunks: Chunks, kernel: str) -> Iterator[LoopTrips]:
    """The first tile starts two chunks, each chunk one more; blocks that do not fill one singly."""
    begun = sum(taken or 0 for taken in chunks.begun)
    yield LoopTrips(2, 2, nth=0, kernel=kernel)
    yield LoopTrips(3, begun, nth=0, kernel=kernel)
    yield LoopTrips(3, chunks.mixed_blocks - begun, holds="copy", kernel=kernel)


def _without_pieces(chunks: Chunks, depth: int, kernel: str) -> Iterator[LoopTrips]:
    """Waits and copies of blocks one by one, where a chunk is one piece."""
    for nth, taken in enumerate(chunks.begun):
        yield LoopTrips(depth, taken or 0, nth=nth, kernel=kernel)
    copied = chunks.mixed_blocks - sum(taken or 0 for taken in chunks.begun)
    yield LoopTrips(depth + 1, copied, holds="copy", kernel=kernel)
    yield LoopTrips(depth + 1, chunks.mixed_blocks, nth=0, kernel=kernel)


def _prefill_trips(
    tiles: Sequence[Item], spec: AttentionSpec, block_size: int, tiling: Tiling
) -> Iterator[LoopTrips]:
    """The grid, its chunks, both parts of each, and in them whole, masked and short steps.

    Before the chunk loop the first chunk of a tile arrives, in it each later one: blocks that do
    not fill it are waited for one by one, and what no query sees is blanked, after the last query
    and before a window.
    """
    kernel = "paged_prefill"
    chunks = stream_of([tile.blocks for tile in tiles], block_size, tiling)
    has_window = spec.window is not None
    steps = [0, 0, 0]
    arrivals = ([0, 0, 0], [0, 0, 0])
    for tile in tiles:
        start = tile.start_block * block_size
        for chunk in range(start, start + tile.blocks * block_size, tiling.chunk):
            end = min(tile.first + tile.queries - chunk, tiling.chunk)
            whole = min(max(tile.first + 1 - chunk, 0), tiling.chunk) // tiling.step
            whole = 0 if has_window else whole
            all_steps = -(-end // tiling.step)
            steps[0] += whole
            is_last = end < tiling.chunk or chunk + end == tile.first + tile.queries
            is_short = is_last and all_steps * tiling.step - end >= tiling.step // 2
            steps[1] += all_steps - whole - is_short
            steps[2] += is_short
            blocks = -(-end // block_size)
            arrival = arrivals[chunk > start]
            arrival[0] += blocks if blocks < tiling.chunk // block_size else 0
            arrival[1] += all_steps * tiling.step // BLANKED - end // BLANKED
            if spec.window is not None:
                arrival[2] += -(-max(tile.first + 1 - spec.window - chunk, 0) // BLANKED)
    count = 3 if has_window else 2
    # Tiles that are not in use are skipped.
    yield LoopTrips(1, len(tiles), kernel=kernel)
    for depth, arrival in zip((2, 4), arrivals, strict=True):
        for nth, runs in enumerate(arrival[:count], start=1 if depth == 2 else 0):
            yield LoopTrips(depth, runs, nth=nth, kernel=kernel)
    yield LoopTrips(2, chunks.full + chunks.mixed, nth=1 + count, kernel=kernel)
    yield LoopTrips(3, 2 * (chunks.full + chunks.mixed), nth=1, kernel=kernel)
    for nth, runs in enumerate(steps[has_window:], start=count):
        yield LoopTrips(4, runs, holds="matmul", nth=nth, kernel=kernel)
    yield from _copies(chunks, kernel)


def _latent_prefill_trips(
    tiles: Sequence[Item], spec: AttentionSpec, block_size: int, tiling: Tiling
) -> Iterator[LoopTrips]:
    """The grid, its chunks, and in each the steps without a mask, then those with one."""
    chunks = stream_of([tile.blocks for tile in tiles], block_size, tiling)
    whole = masked = 0
    for tile in tiles:
        start = tile.start_block * block_size
        for chunk in range(start, start + tile.blocks * block_size, tiling.chunk):
            end = min(tile.first + tile.queries - chunk, tiling.chunk)
            before = min(max(tile.first + 1 - chunk, 0), tiling.chunk) // tiling.step
            before = before if spec.window is None else 0
            whole += before
            masked += -(-end // tiling.step) - before
    kernel = "paged_prefill"
    yield LoopTrips(2, chunks.full + chunks.mixed, nth=1, kernel=kernel)
    steps = (whole, masked) if spec.window is None else (masked,)
    for nth, runs in enumerate(steps, start=1):
        yield LoopTrips(3, runs, holds="matmul", nth=nth, kernel=kernel)
    yield LoopTrips(3, chunks.mixed_blocks, nth=1, kernel=kernel)
    yield from _copies(chunks, kernel)
