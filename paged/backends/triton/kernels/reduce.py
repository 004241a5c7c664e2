"""The parts of a split decode, put together."""

import triton
import triton.language as tl

from paged.backends.triton.kernels.numbers import rounded, v_scale_of
from paged.backends.triton.kernels.rows import first_seen
from paged.backends.triton.kernels.softmax import LN_2, LOG2_E, finite_peak
from paged.backends.triton.kernels.splits import used_parts


@triton.jit
def reduce(
    part_out_ptr,
    part_lse_ptr,
    seq_lens_ptr,
    starts_ptr,
    v_scale_ptr,
    sinks_ptr,
    out_before_ptr,
    lse_before_ptr,
    out_ptr,
    lse_ptr,
    FORM: tl.constexpr,
):
    """One head of one sequence; grid (S, heads)."""
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    num_seqs = tl.num_programs(0)
    start = tl.load(starts_ptr + sequence)
    if tl.load(starts_ptr + sequence + 1) - start != 1:
        return
    seq_len = tl.load(seq_lens_ptr + sequence)
    parts = used_parts(first_seen(seq_len - 1, FORM), seq_len, FORM)
    dim = tl.arange(0, FORM.dim_pad)
    is_dim = dim < FORM.value_dim
    WIDTH: tl.constexpr = FORM.dim_pad
    out = tl.zeros([WIDTH], tl.float32)
    peak = tl.full([], float("-inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)
    for part in tl.range(0, parts):
        row = (part * num_seqs + sequence).to(tl.int64) * FORM.num_heads + head
        lse = tl.load(part_lse_ptr + row) * LOG2_E
        values = tl.load(part_out_ptr + row * FORM.value_dim + dim, mask=is_dim, other=0)
        new_peak = tl.maximum(peak, lse)
        base = finite_peak(new_peak)
        weight = tl.exp2(lse - base)
        factor = tl.exp2(peak - base)
        out = out * factor + values * weight
        total = total * factor + weight
        peak = new_peak
    if FORM.has_sinks:
        sink = tl.load(sinks_ptr + head).to(tl.float32) * LOG2_E
        new_peak = tl.maximum(peak, sink)
        base = finite_peak(new_peak)
        factor = tl.exp2(peak - base)
        out = out * factor
        total = total * factor + tl.exp2(sink - base)
        peak = new_peak
    out = out / total * v_scale_of(v_scale_ptr, head // FORM.group, FORM)
    DTYPE: tl.constexpr = out_ptr.dtype.element_ty
    at = start.to(tl.int64) * FORM.num_heads + head
    tl.store(
        out_ptr + at * FORM.value_dim + dim,
        rounded(out, DTYPE, FORM),
        mask=is_dim,
    )
    tl.store(lse_ptr + at, peak * LN_2 + tl.log(total))
