"""Tile sizes, all in one place, each with its reason."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from jax.experimental.pallas import tpu as pltpu

from paged.backends.pallas_tpu.cells import Cells
from paged.backends.pallas_tpu.latent import LatentCells
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec

# Tokens of a product. A weight tile of a v6e or v7x matrix unit has 256 columns.
_PIECE = 256
_INTERPRETED_PIECE = 64
_INTERPRETED_LATENT_PIECE = 32
# A matrix unit has latencies of 100 to 250 bundles, which a chunk pays once. A chunk is straight
# code, and a token of heads of 256 twice as much of it: these get half as many tokens.
_DECODE_CHUNK = 2048
_PREFILL_CHUNK = 1024

# Sequences whose queries and results are in VMEM together.
_GROUP = 32

# Columns of a tile's matrices: queries times the group size. What is done for each key or for each
# column alone counts less in larger tiles.
_COLUMNS = 512
_LANES = 128
# Two buffers of a chunk: as much as 2,048 tokens of 8 KV heads of 128 in bfloat16 take, and no more
# than this part of VMEM, which is 16 MiB on v4 and 64 or 128 MiB elsewhere. Heads in two parts
# leave more beside it: with 9 MiB of float8 heads of 256 a decode takes 16.3 on v4.
_CHUNK_BYTES = 20 << 20
_CHUNK_SHARE = 0.65
_PARTED_CHUNK_SHARE = 0.55
_LEAST_VMEM = 16 << 20
# Of VMEM, what a prefill's own arrays may take; the rest is for spilled registers.
_PREFILL_SHARE = 0.85

# Latents. Bundles a token of the decode, v6e, 128 heads, chunk/piece (paged lab, libtpu 0.0.52):
# 4096/2048 0.99, 4096/1024 1.02, 4096/512 1.23, 2048/1024 1.19, 2048/512 1.34, 2048/256 2.29.
_LATENT_CHUNK = 4096
_LATENT_PIECE = 1024
# Query heads times queries, in a tile or of all sequences in a group: at 512 + 64 a row takes 9 KB
# of VMEM. Two chunks of 4,096 in bfloat16 and these are 15 MiB, and 16.9 with what v4 spills of its
# 16, which therefore gets half of its VMEM for chunks.
_LATENT_ROWS = 512
_LATENT_CHUNK_BYTES = 10 << 20
_LATENT_CHUNK_SHARE = 0.5
_LATENT_PREFILL_CHUNK = 1024
_LATENT_PREFILL_STEP = 512

_SUBLANES = 8


@dataclass(frozen=True, slots=True)
class Tiling:
    """Sizes of one call.

    Attributes:
        rows: queries of one sequence in a tile; 1 is for sequences of one query.
        chunk: tokens copied from HBM at a time, while the chunk before is computed.
        piece: consecutive tokens of one sequence in a chunk: several short sequences share one.
            With several rows the chunk is one piece.
        step: tokens of a matrix product; with one row the piece is one step.
        group: tiles whose queries and results are in VMEM together; 1 with several rows.

    Raises:
        ValueError: sizes that do not divide each other.
    """

    rows: int
    chunk: int
    piece: int
    step: int
    group: int

    def __post_init__(self) -> None:
        for name in ("rows", "chunk", "piece", "step", "group"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected at least 1")
        if self.chunk % self.piece or self.piece % self.step or self.step % 16:
            raise ValueError(
                f"chunk: got {self.chunk} with pieces of {self.piece} and steps of {self.step}, "
                "expected a multiple of the piece, that of the step, and that of 16"
            )
        one_row = (self.piece == self.step,)
        several = (self.piece == self.chunk, self.group == 1)
        if not all(one_row if self.rows == 1 else several):
            raise ValueError(
                f"piece: got {self.piece} with rows {self.rows}, chunk {self.chunk}, step "
                f"{self.step} and group {self.group}, expected the step with one row, and the "
                "chunk and a group of 1 with several"
            )


class Tilings(NamedTuple):
    """Sizes for sequences of one query, and for those of several."""

    decode: Tiling
    prefill: Tiling


Sizes = Mapping[str, int]
"""Sizes of a tuned file: piece and chunk of a decode; rows, chunk and step of a prefill."""


def choose_tilings(
    spec: AttentionSpec,
    cells: Cells,
    block_size: int,
    metadata: AttentionMetadata,
    *,
    query_bytes: int = 2,
    is_interpreted: bool = False,
    tuned: Mapping[str, Sizes] = MappingProxyType({}),
) -> Tilings:
    """The sizes for these shapes; an interpreter gets small ones, to end in reasonable time.

    Args:
        spec: the attention.
        cells: the shape of a token in the cache.
        block_size: tokens per block.
        metadata: the step.
        query_bytes: of a number of the query.
        is_interpreted: whether an interpreter runs the kernels.
        tuned: sizes to take for "decode" and "prefill", cut down to this step and to VMEM;
            those of a decode are left aside where blocks or sequences do not fit its piece.
    """
    if isinstance(cells, LatentCells):
        return _latent_tilings(spec, cells, block_size, metadata, is_interpreted)
    capacity = max(block_size, metadata.block_table.shape[1] * block_size)
    piece = max(_INTERPRETED_PIECE if is_interpreted else _PIECE, block_size)
    longest = 2 * piece if is_interpreted else _DECODE_CHUNK // cells.parts
    room = _CHUNK_BYTES
    sizes = tuned.get("decode", {})
    # No sequence fills more than the power of two over its capacity. Another piece with the tuned
    # chunk was not chosen: 256 with 4,096 in place of 512 costs 1.33x (v6e, group 8; 2026-11-30).
    if block_size <= sizes.get("piece", 0) <= max(_PIECE, 1 << (capacity - 1).bit_length()):
        piece, longest, room = sizes["piece"], sizes["chunk"], vmem_bytes()
    chunk = _fit(longest, piece, cells, metadata.num_seqs * capacity, room)
    decode = Tiling(
        rows=1,
        chunk=chunk,
        piece=piece,
        step=piece,
        group=min(2 if is_interpreted else _GROUP, metadata.num_seqs),
    )
    sizes = tuned.get("prefill", {})
    piece = max(_INTERPRETED_PIECE if is_interpreted else _PIECE, block_size)
    longest = 2 * piece if is_interpreted else sizes.get("chunk", _PREFILL_CHUNK)
    chunk = _fit(longest, piece, cells, capacity)
    step = min(sizes.get("step", piece), chunk)
    most = min(_COLUMNS, sizes.get("rows", _COLUMNS) * spec.group_size)
    columns = _prefill_columns(min(most, metadata.max_query_len * spec.group_size))
    while _prefill_bytes(spec, cells, columns, chunk, step, query_bytes) > (
        _PREFILL_SHARE * vmem_bytes()
    ):
        if chunk > max(2 * step, 512):
            chunk //= 2
        elif columns > _LANES:
            columns //= 2
        elif chunk > max(step, block_size):
            chunk //= 2
        elif step > max(_LANES, block_size):
            chunk = step = step // 2
        else:
            break
    rows = max(2, columns // spec.group_size)
    prefill = Tiling(rows=rows, chunk=chunk, piece=chunk, step=step, group=1)
    return Tilings(decode, prefill)


def _prefill_columns(wanted: int) -> int:
    """No more than there are, in whole registers."""
    return next((each for each in (512, 256) if each <= wanted), _LANES)


def _prefill_bytes(
    spec: AttentionSpec, cells: Cells, columns: int, chunk: int, step: int, query_bytes: int
) -> int:
    """Bytes of VMEM of a prefill: state, queries and results twice, logits and bias, two chunks."""
    if cells.packing == 1:
        query_bytes = 4
    numbers = spec.num_kv_heads * columns
    state = numbers * (max(cells.lanes, _LANES) * (4 + 4 * query_bytes) + 2 * _SUBLANES * 4)
    logits = step * 4 * (8 * min(columns, 256) + columns)
    return state + logits + 2 * chunk * cells.vmem_bytes_per_token


def _latent_tilings(
    spec: AttentionSpec,
    cells: LatentCells,
    block_size: int,
    metadata: AttentionMetadata,
    is_interpreted: bool,
) -> Tilings:
    capacity = max(block_size, metadata.block_table.shape[1] * block_size)
    least = max(_INTERPRETED_LATENT_PIECE if is_interpreted else _PIECE, block_size)
    longest = least if is_interpreted else _LATENT_PIECE
    room = min(_LATENT_CHUNK_BYTES, int(_LATENT_CHUNK_SHARE * vmem_bytes()))
    piece = _fit(max(longest, least), least, cells, capacity, room)
    longest = 2 * piece if is_interpreted else max(_LATENT_CHUNK, piece)
    chunk = _fit(longest, piece, cells, metadata.num_seqs * capacity, room)
    heads = _LATENT_ROWS // (2 if cells.is_wide else 1)
    group = 2 if is_interpreted else max(1, heads // max(spec.group_size, _SUBLANES))
    decode = Tiling(
        rows=1, chunk=chunk, piece=piece, step=piece, group=min(group, metadata.num_seqs)
    )
    unit = _SUBLANES // math.gcd(_SUBLANES, spec.group_size)
    rows = max(2, min(metadata.max_query_len, heads // spec.group_size))
    rows = -(-rows // unit) * unit
    longest = 2 * least if is_interpreted else _LATENT_PREFILL_CHUNK
    chunk = _fit(longest, least, cells, capacity, room)
    step = least if is_interpreted else min(_LATENT_PREFILL_STEP, chunk)
    return Tilings(decode, Tiling(rows=rows, chunk=chunk, piece=chunk, step=step, group=1))


def _fit(chunk: int, least: int, cells: Cells, tokens: int, budget: int = _CHUNK_BYTES) -> int:
    """No more than VMEM and the budget hold, and not twice the tokens that there are."""
    share = _CHUNK_SHARE if cells.parts == 1 else _PARTED_CHUNK_SHARE
    room = min(budget, int(share * vmem_bytes()))
    while chunk > least and 2 * chunk * cells.vmem_bytes_per_token > room:
        chunk //= 2
    while chunk // 2 >= max(tokens, least):
        chunk //= 2
    return max(chunk, least)


def vmem_bytes() -> int:
    """VMEM of the TPU that is compiled for; the least of any where nobody says which it is."""
    try:
        return pltpu.get_tpu_info().vmem_capacity_bytes
    except ValueError:
        return _LEAST_VMEM
