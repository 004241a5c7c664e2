"""Tile sizes, all in one place, each with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from jax.experimental.pallas import tpu as pltpu

from paged.backends.pallas_tpu.cells import Cells
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec

# Tokens of a product. A weight tile of a v6e or v7x matrix unit has 256 columns.
_PIECE = 256
_INTERPRETED_PIECE = 64
# A matrix unit has latencies of 100 to 250 bundles, which a chunk pays once.
_DECODE_CHUNK = 2048
_PREFILL_CHUNK = 1024
_PREFILL_STEP = 512

# Sequences whose queries and results are in VMEM together.
_GROUP = 32

# Queries of one KV head group in a tile, times the group size: rows of one matrix product. 256 rows
# use the matrix unit in full on every generation, and their float32 logits stay small beside VMEM.
_ROWS = 256

# Two buffers of a chunk: as much as 2,048 tokens of 8 KV heads of 128 in bfloat16 take, and no more
# than this part of VMEM, which is 16 MiB on v4 and 64 or 128 MiB elsewhere.
_CHUNK_BYTES = 20 << 20
_CHUNK_SHARE = 0.6
_LEAST_VMEM = 16 << 20


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
    is_interpreted: bool = False,
    tuned: Mapping[str, Sizes] = MappingProxyType({}),
) -> Tilings:
    """The sizes for these shapes; an interpreter gets small ones, to end in reasonable time.

    Args:
        spec: the attention.
        cells: the shape of a token in the cache.
        block_size: tokens per block.
        metadata: the step.
        is_interpreted: whether an interpreter runs the kernels.
        tuned: sizes to take for "decode" and "prefill", cut down to this step and to VMEM;
            those of a decode are left aside where blocks or sequences do not fit its piece.
    """
    capacity = max(block_size, metadata.block_table.shape[1] * block_size)
    piece = max(_INTERPRETED_PIECE if is_interpreted else _PIECE, block_size)
    longest = 2 * piece if is_interpreted else _DECODE_CHUNK
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
    most = sizes.get("rows", _ROWS // (spec.group_size * cells.heads_per_step))
    rows = max(1, min(metadata.max_query_len, most))
    # Whole sublanes: 8 queries of any group size fill them.
    rows = max(8, rows // 8 * 8)
    piece = max(_INTERPRETED_PIECE if is_interpreted else _PIECE, block_size)
    longest = 2 * piece if is_interpreted else _PREFILL_CHUNK
    chunk = _fit(sizes.get("chunk", longest), piece, cells, capacity, _CHUNK_BYTES)
    step = piece if is_interpreted else min(sizes.get("step", _PREFILL_STEP), chunk)
    prefill = Tiling(rows=rows, chunk=chunk, piece=chunk, step=step, group=1)
    return Tilings(decode, prefill)


def _fit(chunk: int, least: int, cells: Cells, tokens: int, room: int) -> int:
    """No more than VMEM and `room` hold, and not twice the tokens that there are."""
    room = min(room, int(_CHUNK_SHARE * vmem_bytes()))
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
