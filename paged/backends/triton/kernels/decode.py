"""Decode: one query a sequence, its keys in parts that run side by side (split KV)."""

import triton
import triton.language as tl

from paged.backends.triton.kernels.numbers import anew
from paged.backends.triton.kernels.rows import first_seen, tile_rows
from paged.backends.triton.kernels.softmax import natural_lse
from paged.backends.triton.kernels.splits import part_of_keys
from paged.backends.triton.kernels.tile import attend_tile, store_results, store_rows


@triton.jit
def decode(
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
    out_ptr,
    lse_ptr,
    FORM: tl.constexpr,
):
    """One KV head and part of the keys of a sequence with a single query; grid (S, tiles, parts).

    With one part the results are final. With several `out` and `lse` are `[parts, S, heads, ...]`
    float32, each part by itself, without sinks and without the scale of values.
    """
    sequence = tl.program_id(0)
    head_tile = tl.program_id(1)
    part = tl.program_id(2)
    start = tl.load(starts_ptr + sequence)
    num_queries = tl.load(starts_ptr + sequence + 1) - start
    if num_queries != 1:
        return
    seq_len = tl.load(seq_lens_ptr + sequence)
    kv_head = head_tile // FORM.head_tiles
    query, head, is_row = tile_rows(0, 1, head_tile % FORM.head_tiles * FORM.tile_heads, FORM)
    head = kv_head * FORM.group + head
    result_row = start
    if FORM.splits > 1:
        result_row = anew(part * tl.num_programs(0) + sequence, FORM)
    position = seq_len - 1
    first_key, end_key = part_of_keys(first_seen(position, FORM), seq_len, part, FORM)
    if first_key >= end_key:
        return
    weighted, peak, total = attend_tile(
        query_ptr, start + query, head, is_row, tl.where(is_row, position, -1), position,
        position, first_key, end_key, table_ptr + sequence.to(tl.int64) * FORM.table_row,
        cache_ptr, kv_head, k_scale_ptr, FORM,
    )  # fmt: skip
    if not FORM.is_latent:
        # For a latent it would be the value that there is no register for.
        head = anew(head, FORM)
    if FORM.splits == 1:
        store_results(
            weighted, peak, total, result_row + query, head, is_row, kv_head, v_scale_ptr,
            sinks_ptr, out_ptr, lse_ptr, FORM,
        )  # fmt: skip
    else:
        store_rows(
            weighted / total[:, None], natural_lse(peak, total), result_row + query, head, is_row,
            out_ptr, lse_ptr, FORM,
        )  # fmt: skip
