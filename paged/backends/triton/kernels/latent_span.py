"""Attention of a tile over a span of latents: a key is the whole, a value its first part."""

import triton
import triton.language as tl

from paged.backends.triton.kernels.numbers import decoded, kept_in_place, rounded
from paged.backends.triton.kernels.products import added_product, product
from paged.backends.triton.kernels.rows import seen, slot_ptrs, whole_steps
from paged.backends.triton.kernels.softmax import capped_logits, empty_state, weighed


@triton.jit
def load_latents(slots, dim, width, is_held, MASKED: tl.constexpr, FORM: tl.constexpr):
    """Entries `dim` of the latents in slots, 0 past a width and where nothing is held."""
    at = slots[:, None] + dim[None, :] * FORM.dim
    if MASKED:
        return tl.load(at, mask=is_held[:, None] & (dim < width)[None, :], other=0)
    return tl.load(at, mask=(dim < width)[None, :], other=0)


@triton.jit
def attend_latent_span(
    query,
    query_rope,
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
    """The state with the latents from `begin` to `end` in it.

    Args:
        query: `[rows, dim_pad]`, what meets the part of a latent that is its value.
        query_rope: `[rows, rope_pad]`, what meets the rest; not looked at where there is none.

    The others are as for `paged.backends.triton.kernels.span.attend_span`.
    """
    dim = tl.arange(0, FORM.dim_pad)
    for start in tl.range(begin, end, FORM.tile_tokens):
        token = start + tl.arange(0, FORM.tile_tokens)
        is_held = (token >= first_key) & (token < end_key)
        slots = slot_ptrs(cache_ptr, start, table_ptr, first_key, end_key, MASKED, FORM)
        stored = load_latents(slots, dim, FORM.value_dim, is_held, MASKED, FORM)
        latents = decoded(stored, query.dtype, FORM.storage, FORM.native_float8)
        products = product(query, tl.trans(latents))
        if FORM.rope_pad > 0:
            rest = FORM.value_dim + tl.arange(0, FORM.rope_pad)
            stored_rope = load_latents(slots, rest, FORM.head_dim, is_held, MASKED, FORM)
            ropes = decoded(stored_rope, query.dtype, FORM.storage, FORM.native_float8)
            products = added_product(query_rope, tl.trans(ropes), products)
        logits = capped_logits(products, logit_scale, FORM.soft_cap)
        if MASKED:
            sees = seen(token, position, first_key, end_key, FORM)
            logits = tl.where(sees, logits, float("-inf"))
        weights, factor, peak, total = weighed(logits, peak, total)
        weights = rounded(weights, DTYPE, FORM.interpreted).to(query.dtype)
        latents = kept_in_place(latents, FORM)
        weighted = added_product(weights, latents, weighted * factor[:, None])
    return weighted, peak, total


@triton.jit
def attend_latents(
    query,
    query_rope,
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
    """The state of a tile after all latents from `first_key` to `end_key`."""
    weighted, peak, total = empty_state(FORM.tile_queries * FORM.tile_heads, FORM.dim_pad)
    begin, whole_begin, whole_end = whole_steps(
        first_key, end_key, first_position, last_position, FORM
    )
    if FORM.window is not None:
        weighted, peak, total = attend_latent_span(
            query, query_rope, weighted, peak, total, position, begin, whole_begin, first_key,
            end_key, table_ptr, cache_ptr, logit_scale, DTYPE, True, FORM,
        )  # fmt: skip
    weighted, peak, total = attend_latent_span(
        query, query_rope, weighted, peak, total, position, whole_begin, whole_end, first_key,
        end_key, table_ptr, cache_ptr, logit_scale, DTYPE, False, FORM,
    )  # fmt: skip
    return attend_latent_span(
        query, query_rope, weighted, peak, total, position, whole_end, end_key, first_key,
        end_key, table_ptr, cache_ptr, logit_scale, DTYPE, True, FORM,
    )  # fmt: skip
