"""Ragged queries cut into tiles of equal shape.

A tile is up to `rows` consecutive queries of one sequence. XLA needs shapes that do not depend on
values, so the number of tiles is a bound: sequence s takes ceil(query_len / rows) tiles, and over
all sequences that is at most one partly filled tile each plus the full ones.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Int

from paged.metadata import AttentionMetadata

# A tile's rows share one read of the keys. 16 rows keep the logits of a tile small beside its
# keys; more would make each decode of a mixed batch pay for rows that it does not have.
_MAX_TILE_ROWS = 16


class Tiles(NamedTuple):
    """Where each tile's queries are, and where each token's result is.

    Attributes:
        sequence: the sequence of each tile; of tiles in use only.
        token: the token of each row of a tile, clipped to the batch.
        position: position of each row in its sequence; -1 for a row that is no query.
        home: for each token (tile, row), flattened; where its result is.
        is_query: whether a token belongs to a sequence.
    """

    sequence: Int[jax.Array, " tiles"]
    token: Int[jax.Array, "tiles rows"]
    position: Int[jax.Array, "tiles rows"]
    home: Int[jax.Array, " T"]
    is_query: Bool[jax.Array, " T"]


def tile_rows(max_query_len: int) -> int:
    """Queries per tile."""
    return min(max_query_len, _MAX_TILE_ROWS)


def count_tiles(metadata: AttentionMetadata, rows: int) -> int:
    """How many tiles a batch of these shapes may need."""
    num_seqs, num_tokens = metadata.num_seqs, metadata.num_tokens
    return min(num_seqs, num_tokens) + (num_tokens // rows if rows > 1 else 0)


def cut(metadata: AttentionMetadata, rows: int, of: Bool[jax.Array, " S"] | None = None) -> Tiles:
    """Cuts a batch into tiles of `rows` queries; those in use come first.

    Args:
        metadata: the step.
        rows: queries in a tile.
        of: the sequences meant; all by default. Tokens of others are no queries here.
    """
    num_seqs, num_tokens = metadata.num_seqs, metadata.num_tokens
    num_tiles = count_tiles(metadata, rows)
    starts = metadata.query_start_loc
    query_lens = starts[1:] - starts[:-1]
    if of is not None:
        query_lens = jnp.where(of, query_lens, 0)
    tiles_of = -(-query_lens // rows)
    ends = jnp.cumsum(tiles_of)
    firsts = ends - tiles_of

    tile = jnp.arange(num_tiles, dtype=jnp.int32)
    sequence = jnp.minimum(_count_at_most(ends, tile), num_seqs - 1)
    row = jnp.arange(rows, dtype=jnp.int32)[None, :]
    offset = (tile - firsts[sequence])[:, None] * rows + row
    is_row = (offset < query_lens[sequence][:, None]) & (tile < ends[-1])[:, None]
    first_position = (metadata.seq_lens - query_lens)[sequence]
    position = jnp.where(is_row, first_position[:, None] + offset, -1)
    token = jnp.clip(starts[sequence][:, None] + offset, 0, num_tokens - 1)

    each = jnp.arange(num_tokens, dtype=jnp.int32)
    is_query = each < starts[-1]
    owner = jnp.minimum(_count_at_most(starts[1:], each), num_seqs - 1)
    within = each - starts[owner]
    if of is not None:
        is_query &= of[owner]
    home = (firsts[owner] + within // rows) * rows + within % rows
    return Tiles(sequence, token, position, jnp.where(is_query, home, 0), is_query)


def _count_at_most(
    ascending: Int[jax.Array, " ends"], values: Int[jax.Array, " values"]
) -> Int[jax.Array, " values"]:
    """How many of `ascending` are at most each value: `searchsorted` from the right.

    All pairs are compared: XLA's own form is a loop of log2(n) small steps, slower for the few
    hundred sequences of a batch.
    """
    return jnp.sum(ascending[None, :] <= values[:, None], axis=1, dtype=jnp.int32)
