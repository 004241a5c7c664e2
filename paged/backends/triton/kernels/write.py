"""Writes new keys and values into their slots."""

import triton
import triton.language as tl

from paged.backends.triton.kernels.numbers import encoded


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
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    if (slot < 0) | (slot >= num_slots):
        return
    head = tl.program_id(1) * FORM.heads_per_tile + tl.arange(0, FORM.heads_per_tile)
    dim = tl.arange(0, FORM.dim_pad)
    is_entry = (head < FORM.num_heads)[:, None] & (dim < FORM.head_dim)[None, :]
    block = (slot // FORM.block_size).to(tl.int64)
    at = block * FORM.block + slot % FORM.block_size * FORM.slot
    at = cache_ptr + (at + head.to(tl.int64)[:, None] * FORM.head + dim[None, :] * FORM.dim)
    key_at = token * FORM.key_token + head[:, None] * FORM.key_head + dim[None, :] * FORM.key_dim
    _store(key_ptr + key_at, at, k_scale_ptr, head, is_entry, FORM.k_scale, FORM)
    if FORM.to_value > 0:
        value_at = token * FORM.value_token + head[:, None] * FORM.value_head
        value_at += dim[None, :] * FORM.value_dim
        _store(
            value_ptr + value_at,
            at + FORM.to_value,
            v_scale_ptr,
            head,
            is_entry,
            FORM.v_scale,
            FORM,
        )


@triton.jit
def _store(source, target, scale_ptr, head, is_entry, SCALE: tl.constexpr, FORM: tl.constexpr):
    numbers = tl.load(source, mask=is_entry, other=0).to(tl.float32)
    if SCALE == "one":
        numbers = tl.div_rn(numbers, tl.load(scale_ptr) + tl.zeros_like(numbers))
    elif SCALE == "heads":
        scale = tl.load(scale_ptr + head, mask=head < FORM.num_heads, other=1.0)
        numbers = tl.div_rn(numbers, scale[:, None] + tl.zeros_like(numbers))
    stored = encoded(numbers, target.dtype.element_ty, FORM.storage, FORM.interpreted)
    tl.store(target, stored, mask=is_entry)
