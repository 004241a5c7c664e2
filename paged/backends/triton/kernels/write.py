"""Writes new keys and values into their slots."""

import triton
import triton.language as tl

from paged.backends.triton.kernels.numbers import encoded, k_scale_of, v_scale_of


@triton.jit
def write(
    key_ptr,
    value_ptr,
    slots_ptr,
    k_scale_ptr,
    v_scale_ptr,
    cache_before_ptr,
    num_slots,
    cache_ptr,
    FORM: tl.constexpr,
):
    """The heads of one tile of one token; grid (tokens, tiles of heads).

    A slot that is negative, or past the end, is not written.
    """
    DTYPE: tl.constexpr = cache_ptr.dtype.element_ty
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    if (slot < 0) | (slot >= num_slots):
        return
    head = tl.program_id(1) * FORM.heads_per_tile + tl.arange(0, FORM.heads_per_tile)
    dim = tl.arange(0, FORM.dim_pad)
    is_head = head < FORM.num_heads
    is_entry = is_head[:, None] & (dim < FORM.head_dim)[None, :]
    block = (slot // FORM.block_size).to(tl.int64)
    at = block * FORM.block + slot % FORM.block_size * FORM.slot
    at = cache_ptr + (at + head.to(tl.int64)[:, None] * FORM.head + dim[None, :] * FORM.dim)
    key_at = token * FORM.key_token + head[:, None] * FORM.key_head + dim[None, :] * FORM.key_dim
    keys = tl.load(key_ptr + key_at, mask=is_entry, other=0).to(tl.float32)
    if FORM.k_scale != "none":
        keys = _divided(keys, k_scale_of(k_scale_ptr, tl.where(is_head, head, 0), FORM), FORM)
    tl.store(at, encoded(keys, DTYPE, FORM), mask=is_entry)
    if not FORM.is_latent:
        value_at = token * FORM.value_token + head[:, None] * FORM.value_head
        value_at += dim[None, :] * FORM.value_dim
        values = tl.load(value_ptr + value_at, mask=is_entry, other=0).to(tl.float32)
        if FORM.v_scale != "none":
            scale = v_scale_of(v_scale_ptr, tl.where(is_head, head, 0), FORM)
            values = _divided(values, scale, FORM)
        tl.store(at + FORM.to_value, encoded(values, DTYPE, FORM), mask=is_entry)


@triton.jit
def _divided(numbers, scale, FORM: tl.constexpr):
    """Numbers over one scale, or over one for each row; the nearest float32."""
    zeros = tl.zeros_like(numbers)
    if scale.shape == ():
        return tl.div_rn(numbers, scale + zeros)
    else:
        return tl.div_rn(numbers, scale[:, None] + zeros)
