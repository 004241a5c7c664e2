"""Attention of a tile over a span of its sequence's keys and values, step by step."""

import triton
import triton.language as tl

from paged.backends.triton.kernels.numbers import decoded, kept_in_place, rounded
from paged.backends.triton.kernels.products import added_product, product
from paged.backends.triton.kernels.rows import seen, slot_ptrs, whole_steps
from paged.backends.triton.kernels.softmax import capped_logits, empty_state, weighed


@triton.jit
def attend_span(
    query,
    weighted,
    peak,
    total,
    position,
    begin,
    end,
    first_key,
    end_key,
    table_ptr,
    cache_ptr,
    logit_scale,
    DTYPE: tl.constexpr,
    MASKED: tl.constexpr,
    FORM: tl.constexpr,
):
    """The state with the keys from `begin` to `end` in it.

    Args:
        query: `[rows, dim_pad]`.
        weighted: of the state, `[rows, dim_pad]`.
        peak: of the state.
        total: of the state.
        position: of each row in its sequence; -1 where there is no such row.
        begin: a multiple of a step's tokens.
        end: likewise where every key counts, else anything.
        first_key: the first key that any row sees.
        end_key: the key after the last one.
        table_ptr: the sequence's row of the block table.
        cache_ptr: the cache, at the head's first key.
        logit_scale: factor on products, the scale of keys included.
        DTYPE: to which weights are rounded.
        MASKED: False where every row sees every key of the span.
        FORM: see `AttendForm`.
    """
    dim = tl.arange(0, FORM.dim_pad)
    is_dim = (dim < FORM.head_dim)[None, :]
    for start in tl.range(begin, end, FORM.tile_tokens):
        token = start + tl.arange(0, FORM.tile_tokens)
        is_held = (token >= first_key) & (token < end_key)
        slots = slot_ptrs(cache_ptr, start, table_ptr, first_key, end_key, MASKED, FORM)
        at = slots[:, None] + dim[None, :] * FORM.dim
        # What is not held reads as 0: it may be NaN, and 0 * NaN is NaN.
        if MASKED:
            stored_keys = tl.load(at, mask=is_held[:, None] & is_dim, other=0)
            stored_values = tl.load(at + FORM.to_value, mask=is_held[:, None] & is_dim, other=0)
        elif FORM.head_dim == FORM.dim_pad:
            stored_keys = tl.load(at)
            stored_values = tl.load(at + FORM.to_value)
        else:
            stored_keys = tl.load(at, mask=is_dim, other=0)
            stored_values = tl.load(at + FORM.to_value, mask=is_dim, other=0)
        keys = decoded(stored_keys, query.dtype, FORM.storage, FORM.native_float8)
        logits = capped_logits(product(query, tl.trans(keys)), logit_scale, FORM.soft_cap)
        if MASKED:
            sees = seen(token, position, first_key, end_key, FORM)
            logits = tl.where(sees, logits, float("-inf"))
        weights, factor, peak, total = weighed(logits, peak, total)
        values = decoded(stored_values, query.dtype, FORM.storage, FORM.native_float8)
        weights = rounded(weights, DTYPE, FORM.interpreted).to(query.dtype)
        values = kept_in_place(values, FORM)
        weighted = added_product(weights, values, weighted * factor[:, None])
    return weighted, peak, total


@triton.jit
def attend_keys(
    query,
    position,
    first_position,
    last_position,
    first_key,
    end_key,
    table_ptr,
    cache_ptr,
    logit_scale,
    DTYPE: tl.constexpr,
    FORM: tl.constexpr,
):
    """The state of a tile after all keys from `first_key` to `end_key`; see `attend_span`."""
    weighted, peak, total = empty_state(FORM.tile_queries * FORM.tile_heads, FORM.dim_pad)
    begin, whole_begin, whole_end = whole_steps(
        first_key, end_key, first_position, last_position, FORM
    )
    if FORM.window is not None:
        weighted, peak, total = attend_span(
            query, weighted, peak, total, position, begin, whole_begin, first_key, end_key,
            table_ptr, cache_ptr, logit_scale, DTYPE, True, FORM,
        )  # fmt: skip
    weighted, peak, total = attend_span(
        query, weighted, peak, total, position, whole_begin, whole_end, first_key, end_key,
        table_ptr, cache_ptr, logit_scale, DTYPE, False, FORM,
    )  # fmt: skip
    return attend_span(
        query, weighted, peak, total, position, whole_end, end_key, first_key, end_key,
        table_ptr, cache_ptr, logit_scale, DTYPE, True, FORM,
    )  # fmt: skip
