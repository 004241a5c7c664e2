"""Queries arranged as `prefill` reads them, and its results back in the order of tokens.

The transpose of what `tiles` makes: a tile becomes, for each KV head, one matrix with a column for
each (query, query head of the group), filled up to whole registers. Logits then have a row for each
key: maximum and sum over keys are plain operations on whole registers, what is kept of a query lies
along the lanes, and neither keys nor weights are ever transposed, only values.
"""

from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Float, Int

from paged.backends.pallas_tpu.cells import Cells
from paged.backends.pallas_tpu.plan import LANES, SUBLANES, Plan
from paged.backends.xla.tiles import Tiles
from paged.spec import AttentionSpec

# Columns of a weight tile of a v6e or v7x matrix unit, and of the logits computed at a time: 256
# keys of them fill the 64 registers. Without the ring, 512 at a time took 5% more bundles.
_UNIT = 256
# Units that the ring has room for, twice those that are computed ahead.
_RING = 8


def width(spec: AttentionSpec, rows: int) -> int:
    """Columns of a tile of `rows` queries."""
    used = rows * spec.group_size
    return -(-used // LANES) * LANES if used <= _UNIT else -(-used // _UNIT) * _UNIT


def unit(columns: int) -> int:
    """Columns computed at a time."""
    return min(columns, _UNIT)


def shapes(plan: Plan) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Of an item's output, of the numbers kept beside it, and of its lse."""
    heads, columns = plan.spec.num_kv_heads, width(plan.spec, plan.tiling.rows)
    lanes = plan.cells.lanes
    return (heads, lanes, columns), (heads, SUBLANES, columns), (heads, columns)


def scratch(plan: Plan) -> list[Any]:
    """What `prefill` computes in; see `prefill.Work`."""
    tokens, columns = plan.tiling.step, width(plan.spec, plan.tiling.rows)
    parts = columns // unit(columns)
    slots = parts * ring_heads(plan.spec.num_kv_heads, parts, _RING)
    return [
        pltpu.VMEM((slots, tokens, unit(columns)), jnp.float32),
        pltpu.VMEM((slots, SUBLANES, unit(columns)), jnp.float32),
        pltpu.VMEM((tokens, columns), jnp.float32),
    ]


def vmem_bytes(plan: Plan) -> int:
    """Bytes of VMEM: state, queries and results twice, what is computed in, spilled registers."""
    out, number, _ = (4 * prod(shape) for shape in shapes(plan))
    width = jnp.dtype(plan.compute_dtype).itemsize
    work = sum(prod(each.shape) * 4 for each in scratch(plan))
    return out + 2 * number + out * width + 2 * out + work + 2 * number


def ring_heads(heads: int, parts: int, units: int) -> int:
    """Heads of so many units: a divisor, so that each has the same slots in every step."""
    wanted = max(1, units // parts)
    return max(each for each in range(1, wanted + 1) if heads % each == 0)


def query_index(spec: AttentionSpec, cells: Cells, rows: int) -> Int[np.ndarray, "1 M"]:
    """Which query of its tile each column is."""
    del cells
    index = np.minimum(np.arange(width(spec, rows)) // spec.group_size, rows - 1)
    return index.astype(np.int32)[None, :]


def to_matrices(
    query: Float[jax.Array, "T num_heads head_dim"],
    tiles: Tiles,
    spec: AttentionSpec,
    cells: Cells,
) -> Float[jax.Array, "tiles num_kv_heads lanes M"]:
    """The queries of each tile, one matrix for each KV head."""
    rows = tiles.token.shape[1]
    split = (-1, rows, spec.num_kv_heads, spec.group_size, spec.head_dim)
    by_head = query[tiles.token].reshape(split).transpose(0, 2, 4, 1, 3)
    flat = by_head.reshape(-1, spec.num_kv_heads, spec.head_dim, rows * spec.group_size)
    padding = (cells.lanes - spec.head_dim, width(spec, rows) - flat.shape[-1])
    return jnp.pad(flat, ((0, 0), (0, 0), (0, padding[0]), (0, padding[1])))


def by_row(
    per_head: Float[jax.Array, " num_heads"], spec: AttentionSpec, cells: Cells, rows: int
) -> Float[jax.Array, "num_kv_heads 1 M"]:
    """A number for each query head, at each column of the matrices."""
    del cells
    grouped = per_head.reshape(spec.num_kv_heads, 1, spec.group_size)
    repeated = jnp.tile(grouped, (1, 1, rows))
    padding = width(spec, rows) - rows * spec.group_size
    return jnp.pad(repeated, ((0, 0), (0, 0), (0, padding)))


def to_tokens(
    out: Float[jax.Array, "tiles num_kv_heads lanes M"],
    lse: Float[jax.Array, "tiles num_kv_heads M"],
    tiles: Tiles,
    spec: AttentionSpec,
    cells: Cells,
) -> tuple[Float[jax.Array, "T num_heads head_dim"], Float[jax.Array, "T num_heads"]]:
    """Each token's row; tokens of no sequence have out 0 and lse -inf."""
    del cells
    rows, heads, group = tiles.token.shape[1], spec.num_kv_heads, spec.group_size
    used = rows * group
    split = out[:, :, : spec.head_dim, :used].reshape(-1, heads, spec.head_dim, rows, group)
    by_token = split.transpose(0, 3, 1, 4, 2).reshape(-1, spec.num_heads, spec.head_dim)
    sums = lse[:, :, :used].reshape(-1, heads, rows, group)
    sums = sums.transpose(0, 2, 1, 3).reshape(-1, spec.num_heads)
    is_query = tiles.is_query[:, None]
    return (
        jnp.where(is_query[..., None], by_token[tiles.home], 0),
        jnp.where(is_query, sums[tiles.home], -jnp.inf),
    )
