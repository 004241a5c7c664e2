"""Tile sizes, all in one place, each with its reason."""

from dataclasses import dataclass

from paged.backends.pallas_tpu.cells import Cells
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec

# Both are bounded by powers of two, so that any block size from 16 to 256 divides them.
_DECODE_CHUNK = 1024
_PREFILL_CHUNK = 512

# A matrix unit has latencies of 100 to 250 bundles, which a chunk pays once. Per token and bundle
# scheduled for v6e, 8 KV heads of 128, decode: 2.8 at 512 tokens, 2.1 at 1,024, 2.1 at 2,048 (more
# spills then). libtpu 0.0.52, 2026-11-30.
# What is left of a sequence after its whole chunks is taken in steps of this many tokens, so that
# a short sequence does not pay for a chunk.
_STEP = 256

# Queries of one KV head group in a tile, times the group size: rows of one matrix product. 256 rows
# use the matrix unit in full on every generation, and their float32 logits over a chunk stay small
# beside VMEM (256 x 512 x 4 bytes = 512 KiB a head pair).
_ROWS = 256

# Two buffers of a chunk and its words. VMEM is 16 MiB on v4, the smallest; 64 to 128 MiB elsewhere.
_CHUNK_BYTES = 13 << 20


@dataclass(frozen=True, slots=True)
class Tiling:
    """Sizes of one call.

    Attributes:
        rows: queries of one sequence in a tile.
        chunk: tokens copied from HBM at a time, while the chunk before is computed.
        step: tokens of a step over what does not fill a chunk.

    Raises:
        ValueError: sizes that do not divide each other.
    """

    rows: int
    chunk: int
    step: int

    def __post_init__(self) -> None:
        for name in ("rows", "chunk", "step"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected at least 1")
        if self.chunk % self.step or self.step % 16:
            raise ValueError(
                f"chunk: got {self.chunk} with step {self.step}, expected a multiple of the step, "
                "and a step of a multiple of 16"
            )


def choose_tiling(
    spec: AttentionSpec, cells: Cells, block_size: int, metadata: AttentionMetadata
) -> Tiling:
    """The sizes for these shapes."""
    rows = max(1, min(metadata.max_query_len, _ROWS // (spec.group_size * cells.heads_per_step)))
    # Whole sublanes: 8 queries of any group size fill them.
    rows = 1 if metadata.max_query_len == 1 else max(8, rows // 8 * 8)
    chunk = _DECODE_CHUNK if rows == 1 else _PREFILL_CHUNK
    while chunk > _STEP and chunk * cells.vmem_bytes_per_token > _CHUNK_BYTES:
        chunk //= 2
    capacity = max(block_size, metadata.block_table.shape[1] * block_size)
    while chunk // 2 >= max(capacity, block_size, 128):
        chunk //= 2
    chunk = max(chunk, block_size)
    return Tiling(rows=rows, chunk=chunk, step=min(_STEP, chunk))
