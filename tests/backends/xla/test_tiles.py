"""Ragged queries cut into tiles: by hand, then against a plain loop."""

import dataclasses

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paged.backends.xla.tiles import cut, tile_rows
from paged.metadata import AttentionMetadata


def _metadata(lens: list[tuple[int, int]], num_seqs: int, num_tokens: int) -> AttentionMetadata:
    query_lens = [query for query, _ in lens] + [0] * (num_seqs - len(lens))
    seq_lens = [seq for _, seq in lens] + [0] * (num_seqs - len(lens))
    decodes = sum(query == 1 for query in query_lens)
    return AttentionMetadata(
        block_table=np.zeros((num_seqs, 4), np.int32),
        slot_mapping=np.full(num_tokens, -1, np.int32),
        seq_lens=np.array(seq_lens, np.int32),
        query_start_loc=np.concatenate([[0], np.cumsum(query_lens)]).astype(np.int32),
        distribution=np.array([decodes, decodes, len(lens)], np.int32),
        max_query_len=max(query_lens),
        max_seq_len=1024,
    )


def test_two_decodes_and_a_chunk_of_five_in_tiles_of_two():
    # Tokens 0 and 1 are decodes at positions 4 and 9; tokens 2..6 are positions 3..7 of a chunk.
    tiles = cut(_metadata([(1, 5), (1, 10), (5, 8)], num_seqs=4, num_tokens=8), rows=2)
    assert tiles.sequence[:5].tolist() == [0, 1, 2, 2, 2]
    assert tiles.position[:5].tolist() == [[4, -1], [9, -1], [3, 4], [5, 6], [7, -1]]
    assert (np.asarray(tiles.position[5:]) == -1).all()
    # Each token finds its result at tile * rows + row; token 7 is padding.
    assert tiles.home.tolist()[:7] == [0, 2, 4, 5, 6, 7, 8]
    assert tiles.is_query.tolist() == [True] * 7 + [False]


def test_a_decode_step_has_one_row_per_tile():
    assert tile_rows(1) == 1
    tiles = cut(_metadata([(1, 5), (1, 2)], num_seqs=2, num_tokens=2), rows=1)
    assert tiles.position.tolist() == [[4], [1]]


# One shape for all examples: what varies is the lengths, and each shape is a compilation.
_NUM_SEQS, _NUM_TOKENS = 8, 256
_cut = jax.jit(cut, static_argnames="rows")


@given(
    lens=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 50)), min_size=1, max_size=6),
    rows=st.sampled_from([1, 3, 16]),
)
def test_every_token_is_in_exactly_one_row(lens, rows):
    lens = sorted(((1 if rows == 1 else q), q + h) for q, h in lens)
    total = sum(query for query, _ in lens)
    metadata = dataclasses.replace(_metadata(lens, _NUM_SEQS, _NUM_TOKENS), max_query_len=64)
    tiles = jax.tree.map(np.asarray, _cut(metadata, rows=rows))
    token, position = tiles.token, tiles.position
    assert sorted(token[position >= 0].tolist()) == list(range(total))
    start = 0
    for sequence, (query_len, seq_len) in enumerate(lens):
        for i in range(query_len):
            tile, row = divmod(int(tiles.home[start + i]), rows)
            assert tiles.sequence[tile] == sequence
            assert token[tile, row] == start + i
            assert position[tile, row] == seq_len - query_len + i
        start += query_len
    assert tiles.is_query.tolist() == [True] * total + [False] * (_NUM_TOKENS - total)
