"""Which keys a part of a split decode has."""

import triton
import triton.language as tl


@triton.jit
def part_of_keys(first_key, seq_len, part, FORM: tl.constexpr):
    """(first, end) of one part's keys; a part past the last one has none.

    Parts are whole steps, so that only the first and the last step of a sequence need a mask.
    """
    first_step = first_key // FORM.tile_tokens
    end_step = (seq_len + FORM.tile_tokens - 1) // FORM.tile_tokens
    steps = steps_of_part(end_step - first_step, FORM)
    begin = (first_step + part * steps) * FORM.tile_tokens
    return tl.maximum(begin, first_key), tl.minimum(begin + steps * FORM.tile_tokens, seq_len)


@triton.jit
def used_parts(first_key, seq_len, FORM: tl.constexpr):
    """How many parts have keys."""
    first_step = first_key // FORM.tile_tokens
    num_steps = (seq_len + FORM.tile_tokens - 1) // FORM.tile_tokens - first_step
    steps = steps_of_part(num_steps, FORM)
    return (num_steps + steps - 1) // steps


@triton.jit
def steps_of_part(num_steps, FORM: tl.constexpr):
    """Steps of each part but the last."""
    if FORM.split_steps > 0:
        return num_steps * 0 + FORM.split_steps
    else:
        return tl.maximum((num_steps + FORM.splits - 1) // FORM.splits, 1)
