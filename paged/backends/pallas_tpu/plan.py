"""All that is static about one call of the ragged kernel."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from paged.backends.pallas_tpu.cells import Cells
from paged.backends.pallas_tpu.tiles import head_rows
from paged.backends.pallas_tpu.tiling import Tiling
from paged.spec import AttentionSpec

LANES = 128
"""Lanes of a register: numbers of a row are kept in all of them, so that nothing moves."""

SUBLANES = 8
"""Sublanes of a register."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is static about one call."""

    spec: AttentionSpec
    cells: Cells
    tiling: Tiling
    block_size: int
    table_width: int
    compute_dtype: Any

    @property
    def steps(self) -> int:
        """Matrix products over the KV heads."""
        return self.spec.num_kv_heads // self.cells.heads_per_step

    @property
    def head_height(self) -> int:
        """Rows of one KV head in such a product."""
        return head_rows(self.spec, self.cells, self.tiling.rows)

    @property
    def height(self) -> int:
        """Rows of such a product."""
        return self.cells.heads_per_step * self.head_height

    @property
    def columns(self) -> int:
        """Columns of its operands."""
        return self.cells.heads_per_step * self.cells.lanes

    @property
    def by_columns(self) -> bool:
        """Whether a query is a column of a matrix (`columns`), not a row (`tiles`)."""
        return self.tiling.rows > 1 and not self.spec.is_latent

    @property
    def pieces(self) -> int:
        """Pieces of a chunk; see `stream`."""
        return self.tiling.chunk // self.tiling.piece

    @property
    def piece_blocks(self) -> int:
        """Blocks in a piece."""
        return self.tiling.piece // self.block_size

    @property
    def precision(self) -> lax.Precision | None:
        """float32 products in float32, not in bfloat16 passes."""
        return lax.Precision.HIGHEST if self.compute_dtype == jnp.float32 else None
