"""Prefill and mixed steps: a tile has several queries of one sequence, and their heads."""

import triton
import triton.language as tl

from paged.backends.triton.kernels.rows import first_seen, sequence_of_tile, tile_rows
from paged.backends.triton.kernels.tile import attend_tile, store_results


@triton.jit
def prefill(
    query_ptr,
    cache_ptr,
    table_ptr,
    seq_lens_ptr,
    starts_ptr,
    k_scale_ptr,
    v_scale_ptr,
    sinks_ptr,
    out_before_ptr,
    lse_before_ptr,
    num_seqs,
    out_ptr,
    lse_ptr,
    FORM: tl.constexpr,
):
    """One tile of queries of a sequence; grid (tiles of queries, tiles of heads)."""
    # Later queries see more keys: the longest tiles first, so that none is left for the end.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head_tile = tl.program_id(1)
    sequence, own_tile = sequence_of_tile(tile, starts_ptr, num_seqs, FORM)
    start = tl.load(starts_ptr + sequence)
    num_queries = tl.load(starts_ptr + sequence + 1) - start
    first_query = own_tile * FORM.tile_queries
    if first_query >= num_queries:
        return
    if FORM.skips_decodes and num_queries == 1:
        return
    seq_len = tl.load(seq_lens_ptr + sequence)
    kv_head = head_tile // FORM.head_tiles
    group_head = head_tile % FORM.head_tiles * FORM.tile_heads
    query, head, is_row = tile_rows(first_query, num_queries, group_head, FORM)
    head = kv_head * FORM.group + head
    history = seq_len - num_queries
    first_position = history + first_query
    last_position = history + tl.minimum(first_query + FORM.tile_queries, num_queries) - 1
    weighted, peak, total = attend_tile(
        query_ptr, start + query, head, is_row, tl.where(is_row, history + query, -1),
        first_position, last_position, first_seen(first_position, FORM), last_position + 1,
        table_ptr + sequence.to(tl.int64) * FORM.table_row, cache_ptr, kv_head, k_scale_ptr,
        FORM,
    )  # fmt: skip
    store_results(
        weighted, peak, total, start + query, head, is_row, kv_head, v_scale_ptr, sinks_ptr,
        out_ptr, lse_ptr, FORM,
    )  # fmt: skip
