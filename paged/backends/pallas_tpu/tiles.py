"""Queries arranged as the kernel reads them, and its results back in the order of tokens.

The cut into tiles is that of `paged.backends.xla.tiles`. A tile of `rows` queries becomes, for each
step of `heads_per_step` KV heads, one matrix: rows ordered by (KV head, query, query head of the
group), columns by (KV head, lane), zero where the KV heads differ.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from paged.backends.pallas_tpu.cells import Cells
from paged.backends.pallas_tpu.stream import Walk, count_chunks
from paged.backends.pallas_tpu.tiling import Tiling
from paged.backends.xla.tiles import Tiles
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec

_SUBLANES = 8


def head_rows(spec: AttentionSpec, cells: Cells, rows: int) -> int:
    """Rows of one KV head in a tile's matrix, so that all of a step fill whole sublanes."""
    unit = max(1, _SUBLANES // cells.heads_per_step)
    return -(-rows * spec.group_size // unit) * unit


def walk(
    metadata: AttentionMetadata, tiles: Tiles, spec: AttentionSpec, block_size: int, tiling: Tiling
) -> Walk:
    """What the kernel reads for each tile, empty tiles added to fill the last group."""
    first = jnp.maximum(tiles.position[:, 0], 0)
    last = jnp.max(tiles.position, axis=1)
    queries = jnp.sum(tiles.position >= 0, axis=1, dtype=jnp.int32)
    start_block = jnp.zeros_like(first)
    if spec.window is not None:
        start_block = jnp.maximum(first - (spec.window - 1), 0) // block_size
    blocks = jnp.where(last < 0, 0, last // block_size + 1 - start_block)

    def whole_groups(each: jax.Array) -> jax.Array:
        return jnp.pad(each, (0, -first.shape[0] % tiling.group))

    blocks = whole_groups(blocks)
    pieces, piece_blocks = tiling.chunk // tiling.piece, tiling.piece // block_size
    return Walk(
        sequence=whole_groups(tiles.sequence),
        first=whole_groups(first),
        queries=whole_groups(queries),
        start_block=whole_groups(start_block),
        blocks=blocks,
        chunks=count_chunks(blocks, tiling.group, pieces, piece_blocks),
        block_table=metadata.block_table.reshape(-1),
    )


def query_index(spec: AttentionSpec, cells: Cells, rows: int) -> Int[np.ndarray, "M 1"]:
    """Which query of its tile each row of a matrix is."""
    height = head_rows(spec, cells, rows)
    index = np.minimum(np.arange(height) // spec.group_size, rows - 1)
    return np.tile(index, cells.heads_per_step).astype(np.int32)[:, None]


def to_matrices(
    query: Float[jax.Array, "T num_heads head_dim"],
    tiles: Tiles,
    spec: AttentionSpec,
    cells: Cells,
) -> Float[jax.Array, "tiles steps M columns"]:
    """The queries of each tile, one matrix for each step of KV heads."""
    together, height = cells.heads_per_step, head_rows(spec, cells, tiles.token.shape[1])
    rows = tiles.token.shape[1]
    steps = spec.num_kv_heads // together
    gathered = query[tiles.token].reshape(-1, rows, steps, together, spec.group_size, spec.head_dim)
    by_head = gathered.transpose(0, 2, 3, 1, 4, 5).reshape(
        -1, steps, together, rows * spec.group_size, spec.head_dim
    )
    padding = (height - rows * spec.group_size, cells.lanes - spec.head_dim)
    padded = jnp.pad(by_head, ((0, 0), (0, 0), (0, 0), (0, padding[0]), (0, padding[1])))
    before_after = [
        (index * cells.lanes, (together - 1 - index) * cells.lanes) for index in range(together)
    ]
    diagonal = [
        jnp.pad(padded[:, :, index], ((0, 0), (0, 0), (0, 0), lanes))
        for index, lanes in enumerate(before_after)
    ]
    return jnp.concatenate(diagonal, axis=2)


def by_row(
    per_head: Float[jax.Array, " num_heads"], spec: AttentionSpec, cells: Cells, rows: int
) -> Float[jax.Array, "steps M 1"]:
    """A number for each query head, at each row of the matrices."""
    together, height = cells.heads_per_step, head_rows(spec, cells, rows)
    steps = spec.num_kv_heads // together
    grouped = per_head.reshape(steps, together, 1, spec.group_size)
    repeated = jnp.broadcast_to(grouped, (steps, together, rows, spec.group_size))
    flat = repeated.reshape(steps, together, rows * spec.group_size)
    padded = jnp.pad(flat, ((0, 0), (0, 0), (0, height - flat.shape[2])))
    return padded.reshape(steps, together * height, 1)


def to_tokens(
    out: Float[jax.Array, "tiles steps M lanes"],
    lse: Float[jax.Array, "tiles M LANES"],
    tiles: Tiles,
    spec: AttentionSpec,
    cells: Cells,
) -> tuple[Float[jax.Array, "T num_heads head_dim"], Float[jax.Array, "T num_heads"]]:
    """Each token's row; tokens of no sequence have out 0 and lse -inf."""
    num_tiles, steps, height, _ = out.shape
    together, rows = cells.heads_per_step, tiles.token.shape[1]
    used = rows * spec.group_size
    split = (num_tiles, steps, together, height // together)
    heads = out[..., : spec.value_dim].reshape(*split, spec.value_dim)[:, :, :, :used]
    heads = heads.reshape(num_tiles, steps, together, rows, spec.group_size, spec.value_dim)
    heads = heads.transpose(0, 3, 1, 2, 4, 5).reshape(-1, spec.num_heads, spec.value_dim)
    sums = lse[:, :, :steps].transpose(0, 2, 1).reshape(split)[:, :, :, :used]
    sums = sums.reshape(num_tiles, steps, together, rows, spec.group_size)
    sums = sums.transpose(0, 3, 1, 2, 4).reshape(-1, spec.num_heads)
    is_query = tiles.is_query[:, None]
    return (
        jnp.where(is_query[..., None], heads[tiles.home], 0),
        jnp.where(is_query, sums[tiles.home], -jnp.inf),
    )
