"""Blocks, tiles and rows: where keys and queries are, and where results go.

Left out, because no valid input tells them from the original:

- Tiles of padding with position 0 instead of -1: their rows are nobody's results.
- Tokens of a tile not clipped to the batch: `home` names rows inside it only.
- Other sizes of tile, chunk and group: they are a matter of speed.
"""

from functools import partial

from paged.conformance.mutants.mutant import Mutant

_mutant = partial(Mutant, module="paged.backends.xla.attend")
_tile = partial(Mutant, module="paged.backends.xla.tiles")

_COLUMN = "column = jnp.where(is_read, logical, 0)"
_TABLE = "metadata.block_table[sequence]"
_BY_HEAD = "merged = gathered.transpose(0, 3, 1, 2, 4)"
_SPLIT = (
    "split = scaled.reshape(num_tiles, rows, spec.num_kv_heads, spec.group_size, spec.head_dim)"
)
_POSITION = "first_position = (metadata.seq_lens - query_lens)[sequence]"
_IS_ROW = "is_row = (offset < query_lens[sequence][:, None]) & (tile < ends[-1])[:, None]"
_HOME = "home = (firsts[owner] + within // rows) * rows + within % rows"
_GATHERED = "return by_head(keys), by_head(values)"
_LONG = ("lengths/tiles_normal", "lengths/*")

MUTANTS: tuple[Mutant, ...] = (
    _mutant(
        "second logical block read as the first",
        "blocks",
        before=_COLUMN,
        after="column = jnp.where(is_read & (logical != 1), logical, 0)",
    ),
    _mutant(
        "third physical block is the next one",
        "blocks",
        before="jnp.take_along_axis(tables, column, axis=1)",
        after="jnp.take_along_axis(tables, column, axis=1) + (logical == 2)",
    ),
    _mutant(
        "physical blocks taken for neighbours",
        "blocks",
        before="jnp.take_along_axis(tables, column, axis=1)",
        after="tables[:, :1] + column",
    ),
    _mutant(
        "last block lost where it holds one key",
        "blocks",
        before="last // block_size + 1 - first_block",
        after="-(-last // block_size) - first_block",
    ),
    _mutant(
        "half-full last block lost",
        "blocks",
        before="last // block_size + 1 - first_block",
        after="(last + 1) // block_size - first_block",
    ),
    _mutant(
        "last chunk lost",
        "blocks",
        before="num_chunks = -(-jnp.max(num_blocks) // chunk_blocks)",
        after="num_chunks = jnp.max(num_blocks) // chunk_blocks",
    ),
    _mutant(
        "as many chunks as the first sequence has",
        "blocks",
        before="num_chunks = -(-jnp.max(num_blocks) // chunk_blocks)",
        after="num_chunks = -(-num_blocks[0] // chunk_blocks)",
        likely=_LONG,
    ),
    _mutant(
        "chunks overlap by a block",
        "blocks",
        before="step = index * chunk_blocks +",
        after="step = index * (chunk_blocks - 1) +",
        likely=_LONG,
    ),
    _mutant(
        "chunks leave out a block",
        "blocks",
        before="step = index * chunk_blocks +",
        after="step = index * (chunk_blocks + 1) +",
        likely=_LONG,
    ),
    _mutant(
        "blocks counted from the first of another tile",
        "blocks",
        before="logical = first_block[:, None] + step[None, :]",
        after="logical = jnp.max(first_block) + step[None, :] + 0 * first_block[:, None]",
        likely=("window/8", "window/*"),
    ),
    _mutant(
        "table row of the neighbour before",
        "blocks",
        before=_TABLE,
        after="metadata.block_table[jnp.maximum(sequence - 1, 0)]",
    ),
    _mutant(
        "table row of the neighbour after",
        "blocks",
        before=_TABLE,
        after="jnp.roll(metadata.block_table, -1, axis=0)[sequence]",
    ),
    _mutant(
        "slots of a block in reverse",
        "blocks",
        before=_BY_HEAD,
        after="merged = gathered[:, :, ::-1].transpose(0, 3, 1, 2, 4)",
    ),
    _mutant(
        "neighbouring KV heads swapped",
        "heads",
        before=_BY_HEAD,
        after="merged = gathered[:, :, :, ::-1].transpose(0, 3, 1, 2, 4)",
    ),
    _mutant(
        "values of neighbouring KV heads swapped",
        "heads",
        before=_GATHERED,
        after="return by_head(keys), by_head(values[..., ::-1, :])",
    ),
    _mutant(
        "query heads dealt out in turn",
        "heads",
        before=_SPLIT,
        after="split = scaled.reshape(num_tiles, rows, spec.group_size, spec.num_kv_heads, "
        "spec.head_dim).swapaxes(2, 3)",
    ),
    _mutant(
        "query heads of a group in reverse",
        "heads",
        before="split = split.transpose(0, 2, 3, 1, 4)",
        after="split = split.transpose(0, 2, 3, 1, 4)[:, :, ::-1]",
    ),
    _mutant(
        "output heads dealt out in turn",
        "heads",
        before="out = out.transpose(0, 3, 1, 2, 4)",
        after="out = out.transpose(0, 3, 2, 1, 4)",
    ),
    _mutant(
        "lse of heads dealt out in turn",
        "heads",
        before="lse = lse.reshape(split).transpose(0, 3, 1, 2)",
        after="lse = lse.reshape(split).transpose(0, 3, 2, 1)",
    ),
    _mutant(
        "keys and values swapped",
        "keys_and_values",
        before=_GATHERED,
        after="return by_head(values), by_head(keys)",
    ),
    _mutant(
        "keys serve as values",
        "keys_and_values",
        before=_GATHERED,
        after="return by_head(keys), by_head(keys)",
    ),
    _mutant(
        "groups of tiles in reverse",
        "rows",
        before="out = out.reshape(num_groups * group, *out.shape[2:])",
        after="out = out[::-1].reshape(num_groups * group, *out.shape[2:])",
        likely=_LONG,
    ),
    _mutant(
        "tile of the next group",
        "rows",
        before="padded = jax.tree.map(partial(_pad_tiles, num_groups * group), per_tile)",
        after="padded = jax.tree.map(lambda a: jnp.roll(_pad_tiles(num_groups * group, a), 1, "
        "axis=0), per_tile)",
        likely=_LONG,
    ),
    _tile(
        "query_len taken for seq_len",
        "positions",
        before=_POSITION,
        after="first_position = (query_lens - query_lens)[sequence]",
    ),
    _tile(
        "seq_len taken for the history",
        "positions",
        before=_POSITION,
        after="first_position = metadata.seq_lens[sequence]",
    ),
    _tile(
        "positions one too high",
        "positions",
        before=_POSITION,
        after="first_position = (metadata.seq_lens - query_lens)[sequence] + 1",
    ),
    _tile(
        "positions of chunks one too low",
        "positions",
        before=_POSITION,
        after="first_position = (metadata.seq_lens - query_lens - (metadata.seq_lens > "
        "query_lens))[sequence]",
    ),
    _tile(
        "position from the padded index",
        "positions",
        before="jnp.where(is_row, first_position[:, None] + offset, -1)",
        after="jnp.where(is_row, starts[sequence][:, None] + offset, -1)",
    ),
    _tile(
        "position from the row of the tile",
        "positions",
        before="jnp.where(is_row, first_position[:, None] + offset, -1)",
        after="jnp.where(is_row, first_position[:, None] + row, -1)",
        likely=("batch/mixed", "lengths/query_tiles"),
    ),
    _tile(
        "a tile reaches into the next sequence",
        "rows",
        before=_IS_ROW,
        after="is_row = (offset <= query_lens[sequence][:, None]) & (tile < ends[-1])[:, None]",
    ),
    _tile(
        "the last query of a sequence lost",
        "rows",
        before=_IS_ROW,
        after="is_row = (offset + 1 < query_lens[sequence][:, None]) & (tile < ends[-1])[:, None]",
    ),
    _tile(
        "too few tiles",
        "rows",
        before="min(num_seqs, num_tokens) + (num_tokens // rows if rows > 1 else 0)",
        after="max(num_tokens // rows, 1)",
        likely=("batch/full", "batch/*"),
    ),
    _tile(
        "one tile too few",
        "rows",
        before="min(num_seqs, num_tokens) + (num_tokens // rows if rows > 1 else 0)",
        after="min(num_seqs, num_tokens) + (num_tokens // rows if rows > 1 else 0) - 1",
        likely=("batch/more_tokens_than_sequences", "batch/*"),
    ),
    _tile(
        "queries of a tile shifted by one token",
        "rows",
        before="jnp.clip(starts[sequence][:, None] + offset,",
        after="jnp.clip(starts[sequence][:, None] + offset + 1,",
    ),
    _tile(
        "results of a tile in reverse",
        "rows",
        before=_HOME,
        after="home = (firsts[owner] + within // rows) * rows + rows - 1 - within % rows",
    ),
    _tile(
        "results of the second tile lost",
        "rows",
        before=_HOME,
        after="home = firsts[owner] * rows + within % rows",
    ),
    _tile(
        "padding counted as a query",
        "rows",
        before="is_query = each < starts[-1]",
        after="is_query = each <= starts[-1]",
        likely=("batch/more_tokens_than_sequences", "batch/*"),
    ),
    _tile(
        "the last token counted as padding",
        "rows",
        before="is_query = each < starts[-1]",
        after="is_query = each + 1 < starts[-1]",
    ),
    _tile(
        "a token's sequence found from the left",
        "rows",
        before="owner = jnp.minimum(_count_at_most(starts[1:], each), num_seqs - 1)",
        after="owner = jnp.minimum(_count_at_most(starts[1:] + 1, each), num_seqs - 1)",
    ),
    _tile(
        "a tile's sequence found from the left",
        "rows",
        before="sequence = jnp.minimum(_count_at_most(ends, tile), num_seqs - 1)",
        after="sequence = jnp.minimum(_count_at_most(ends + 1, tile), num_seqs - 1)",
    ),
    _tile(
        "empty sequences not skipped",
        "rows",
        before="tiles_of = -(-query_lens // rows)",
        after="tiles_of = jnp.maximum(-(-query_lens // rows), 1)",
        likely=("batch/more_sequences_than_tokens", "batch/*"),
    ),
)
