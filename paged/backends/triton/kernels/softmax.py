"""The state of an online softmax: weighted values, largest logit, sum of weights; float32.

Logits are in units of log 2 throughout, since exp2 is what hardware has. An empty state is
(0, -inf, 1): the first key multiplies its sum by exp2(-inf) = 0, and one that stays empty gives
0 and a logarithm of -inf, without a branch.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def empty_state(FORM: tl.constexpr):
    """(weighted values `[rows, dim_pad]`, peak `[rows]`, total `[rows]`) of no keys."""
    ROWS: tl.constexpr = FORM.rows
    WIDTH: tl.constexpr = FORM.dim_pad
    return (
        tl.zeros([ROWS, WIDTH], tl.float32),
        tl.full([ROWS], float("-inf"), tl.float32),
        tl.full([ROWS], 1.0, tl.float32),
    )


@triton.jit
def finite_peak(peak):
    """A peak that may be subtracted: 0 for a row that has seen nothing."""
    return tl.where(peak == float("-inf"), 0.0, peak)


@triton.jit
def capped_logits(products, logit_scale, FORM: tl.constexpr):
    """Products of queries and keys as logits, soft cap included, in units of log 2."""
    if FORM.soft_cap is None:
        return products * (logit_scale * LOG2_E)
    else:
        # tanh by exp: every target has it, and the interpreter too. Near 0, where 1 - 1 has no
        # digits left, by its series: a cap far above the logits is to change nothing.
        logits = products * logit_scale
        share = logits / FORM.soft_cap
        square = share * share
        near = logits * (1.0 - square * (1.0 / 3.0 - square * (2.0 / 15.0)))
        far = (1.0 - 2.0 / (tl.exp(2.0 * share) + 1.0)) * FORM.soft_cap
        return tl.where(square < 0.01, near, far) * LOG2_E


@triton.jit
def weighed(logits, peak, total):
    """Weights of new keys, the factor on what was accumulated, and peak and total with them."""
    new_peak = tl.maximum(peak, tl.max(logits, 1))
    base = finite_peak(new_peak)
    weights = tl.exp2(logits - base[:, None])
    factor = tl.exp2(peak - base)
    return weights, factor, new_peak, total * factor + tl.sum(weights, 1)


@triton.jit
def with_sinks(weighted, peak, total, sink):
    """The state with one logit more in the denominator, natural units, `[ROWS]`."""
    sink = sink * LOG2_E
    new_peak = tl.maximum(peak, sink)
    base = finite_peak(new_peak)
    factor = tl.exp2(peak - base)
    return weighted * factor[:, None], new_peak, total * factor + tl.exp2(sink - base)


@triton.jit
def natural_lse(peak, total):
    """Natural logarithm of the sum of exp(logit)."""
    return peak * LN_2 + tl.log(total)
