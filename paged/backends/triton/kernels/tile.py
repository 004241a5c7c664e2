"""A tile from its queries to its results: what decode and prefill have in common."""

import triton
import triton.language as tl

from paged.backends.triton.kernels.latent_span import attend_latents
from paged.backends.triton.kernels.numbers import k_scale_of, rounded, v_scale_of
from paged.backends.triton.kernels.rows import query_offsets
from paged.backends.triton.kernels.softmax import natural_lse, with_sinks
from paged.backends.triton.kernels.span import attend_keys


@triton.jit
def load_queries(query_ptr, at, dim, is_dim, is_row, DTYPE: tl.constexpr, FORM: tl.constexpr):
    """Entries `dim` of the rows' queries, `[rows, dims]`; 0 where there is no entry or no row."""
    where = (query_ptr + at)[:, None] + dim[None, :] * FORM.query_dim
    return tl.load(where, mask=is_row[:, None] & is_dim[None, :], other=0).to(DTYPE)


@triton.jit
def attend_tile(
    query_ptr,
    token,
    head,
    is_row,
    position,
    first_position,
    last_position,
    first_key,
    end_key,
    table_ptr,
    cache_ptr,
    kv_head,
    k_scale_ptr,
    FORM: tl.constexpr,
):
    """The state of a tile over keys and values of one KV head, after all of its keys.

    Args:
        query_ptr: all queries.
        token: each row's token, counted over the step.
        head: each row's query head.
        is_row: whether there is such a row.
        position: each row's position in its sequence, -1 where there is no row.
        first_position: of the tile's first query.
        last_position: of its last.
        first_key: the first key that any row sees.
        end_key: the key after the last one.
        table_ptr: the sequence's row of the block table.
        cache_ptr: the cache.
        kv_head: of all rows.
        k_scale_ptr: scales of keys, see `AttendForm.k_scale`.
        FORM: see `AttendForm`.
    """
    DTYPE: tl.constexpr = tl.float32 if FORM.in_float32 else query_ptr.dtype.element_ty
    # The interpreter has no arithmetic of bfloat16: it multiplies the same numbers in float32.
    OPERAND: tl.constexpr = tl.float32 if FORM.interpreted else DTYPE
    logit_scale = k_scale_of(k_scale_ptr, kv_head, FORM) * FORM.scale
    at = query_offsets(token, head, FORM)
    dim = tl.arange(0, FORM.dim_pad)
    if not FORM.is_latent:
        query = load_queries(query_ptr, at, dim, dim < FORM.head_dim, is_row, OPERAND, FORM)
        return attend_keys(
            query, position, first_position, last_position, first_key, end_key, table_ptr,
            cache_ptr + kv_head.to(tl.int64) * FORM.head, logit_scale, DTYPE, FORM,
        )  # fmt: skip
    else:
        query = load_queries(query_ptr, at, dim, dim < FORM.value_dim, is_row, OPERAND, FORM)
        query_rope = query
        if FORM.rope_pad > 0:
            rest = FORM.value_dim + tl.arange(0, FORM.rope_pad)
            query_rope = load_queries(
                query_ptr, at, rest, rest < FORM.head_dim, is_row, OPERAND, FORM
            )
        return attend_latents(
            query, query_rope, position, first_position, last_position, first_key, end_key,
            table_ptr, cache_ptr, logit_scale, DTYPE, FORM,
        )  # fmt: skip


@triton.jit
def store_results(
    weighted,
    peak,
    total,
    row,
    head,
    is_row,
    kv_head,
    v_scale_ptr,
    sinks_ptr,
    out_ptr,
    lse_ptr,
    FORM: tl.constexpr,
):
    """Sinks, scale of values and division, then `out[row, head]` and `lse[row, head]`."""
    if FORM.has_sinks:
        sink = tl.load(sinks_ptr + head, mask=is_row, other=0).to(tl.float32)
        weighted, peak, total = with_sinks(weighted, peak, total, sink)
    store_rows(
        weighted / total[:, None] * v_scale_of(v_scale_ptr, kv_head, FORM),
        natural_lse(peak, total),
        row,
        head,
        is_row,
        out_ptr,
        lse_ptr,
        FORM,
    )


@triton.jit
def store_rows(out, lse, row, head, is_row, out_ptr, lse_ptr, FORM: tl.constexpr):
    """Writes `out[row, head]` and `lse[row, head]` of contiguous arrays."""
    DTYPE: tl.constexpr = out_ptr.dtype.element_ty
    at = row.to(tl.int64) * FORM.num_heads + head
    dim = tl.arange(0, FORM.dim_pad)
    tl.store(
        (out_ptr + at * FORM.value_dim)[:, None] + dim[None, :],
        rounded(out, DTYPE, FORM),
        mask=is_row[:, None] & (dim < FORM.value_dim)[None, :],
    )
    tl.store(lse_ptr + at, lse, mask=is_row)
