"""The online softmax, its precision, and the lse that comes of it.

Left out, because no valid input tells them from the original:

- `_finish` with another lse or divisor for rows without keys: a query sees its own key at least,
  so that such rows belong to tiles of padding, and `_back_to_tokens` reads none of them.
- A first sum of 1: the first maximum is -inf, so that exp(-inf - m) takes it back to 0.
- A masked logit of -1e30: it loses against every float32 logit that a finite input can give.
- `lax.Precision.DEFAULT`: on a CPU it is the same program.
"""

from functools import partial

from paged.conformance.mutants.mutant import Mutant

_mutant = partial(Mutant, module="paged.backends.xla.attend")

_OUT = "out=state.out * kept[..., None] + product"
_TOTAL = "total=state.total * kept + jnp.sum(weights, axis=-1)"
_PEAK = "peak = jnp.maximum(state.peak, jnp.max(logits, axis=-1))"
_WEIGHTS = "weights = jnp.exp(logits - origin[..., None])"
_KEPT = "kept = jnp.exp(state.peak - origin)\n    product"
_PRODUCT = (
    'product = jnp.einsum("ghrk,ghkv->ghrv", weights, values, precision=lax.Precision.HIGHEST)'
)
_LOGITS = 'jnp.einsum("ghrd,ghkd->ghrk", scaled, keys, precision=lax.Precision.HIGHEST)'
_LSE = "lse = jnp.where(is_empty, -jnp.inf, state.peak + jnp.log(divisor))"
_ROWS = "return jnp.where(is_query[..., None], out, 0), jnp.where(is_query, lse, -jnp.inf)"
_FIRST_PEAK = "peak=jnp.full(heads_rows, -jnp.inf, jnp.float32)"

MUTANTS: tuple[Mutant, ...] = (
    _mutant(
        "output not rescaled as the maximum grows",
        "softmax",
        before=_OUT,
        after="out=state.out + product",
    ),
    _mutant(
        "sum not rescaled as the maximum grows",
        "softmax",
        before=_TOTAL,
        after="total=state.total + jnp.sum(weights, axis=-1)",
    ),
    _mutant(
        "nothing rescaled as the maximum grows",
        "softmax",
        before=_KEPT,
        after="kept = jnp.where(jnp.isneginf(state.peak), 0.0, 1.0)\n    product",
    ),
    _mutant(
        "rescaled by the reciprocal",
        "softmax",
        before=_KEPT,
        after="kept = jnp.where(jnp.isneginf(state.peak), 0.0, jnp.exp(origin - state.peak))"
        "\n    product",
    ),
    _mutant(
        "maximum of the last chunk",
        "softmax",
        before=_PEAK,
        after="peak = jnp.max(logits, axis=-1)",
    ),
    _mutant(
        "no maximum",
        "softmax",
        before=_PEAK,
        after="peak = jnp.maximum(state.peak * 0, 0.0) * 0",
        likely=("logits/same", "logits/*"),
    ),
    _mutant(
        "first maximum 0",
        "softmax",
        before=_FIRST_PEAK,
        after="peak=jnp.zeros(heads_rows, jnp.float32)",
        likely=("logits/opposite", "logits/*"),
    ),
    _mutant(
        "first maximum -1e4",
        "softmax",
        before=_FIRST_PEAK,
        after="peak=jnp.full(heads_rows, -1e4, jnp.float32)",
        likely=("logits/opposite", "logits/*"),
    ),
    _mutant(
        "each chunk forgets the output before it",
        "softmax",
        before=_OUT,
        after="out=product",
        likely=("lengths/tiles_normal", "lengths/*"),
    ),
    _mutant(
        "maximum shared by all rows",
        "softmax",
        before=_PEAK,
        after="peak = jnp.maximum(state.peak, jnp.max(logits, axis=(2, 3), keepdims=True)[..., 0])",
        likely=("logits/both_signs", "logits/*", "lengths/*", "soft_cap/*"),
    ),
    _mutant(
        "weights not divided by their sum",
        "softmax",
        before="out = state.out / divisor[..., None]",
        after="out = state.out",
        likely=("batch/mixed",),
    ),
    _mutant(
        "a little added to the sum",
        "softmax",
        before="out = state.out / divisor[..., None]",
        after="out = state.out / (divisor + 1e-2)[..., None]",
        likely=("batch/mixed",),
    ),
    _mutant(
        "base 2 softmax",
        "softmax",
        before=_WEIGHTS,
        after="weights = jnp.exp2(logits - origin[..., None])",
        likely=("batch/mixed",),
    ),
    _mutant(
        "products of weights and values in bfloat16",
        "precision",
        before=_PRODUCT,
        after='product = jnp.einsum("ghrk,ghkv->ghrv", weights.astype(jnp.bfloat16), '
        "values.astype(jnp.bfloat16)).astype(jnp.float32)",
    ),
    _mutant(
        "output accumulated in bfloat16",
        "precision",
        before=_OUT,
        after="out=(state.out * kept[..., None] + product).astype(jnp.bfloat16)"
        ".astype(jnp.float32)",
    ),
    _mutant(
        "sum accumulated in bfloat16",
        "precision",
        before=_TOTAL,
        after="total=(state.total * kept + jnp.sum(weights, axis=-1)).astype(jnp.bfloat16)"
        ".astype(jnp.float32)",
    ),
    _mutant(
        "sum accumulated in float16",
        "precision",
        before=_TOTAL,
        after="total=(state.total * kept + jnp.sum(weights.astype(jnp.float16), axis=-1))"
        ".astype(jnp.float32)",
    ),
    _mutant(
        "logits in bfloat16",
        "precision",
        before=_LOGITS,
        after=f"{_LOGITS}.astype(jnp.bfloat16).astype(jnp.float32)",
    ),
    _mutant(
        "logits in float16",
        "precision",
        before=_LOGITS,
        after=f"{_LOGITS}.astype(jnp.float16).astype(jnp.float32)",
    ),
    _mutant(
        "logits in the query's type",
        "precision",
        before=_LOGITS,
        after=f"{_LOGITS}.astype(query.dtype).astype(jnp.float32)",
        dtype="bfloat16",
        likely=("logits/both_signs", "batch/mixed", "logits/*", "dtype/*"),
    ),
    _mutant("lse to base 2", "lse", before=_LSE, after=_LSE.replace("jnp.log(", "jnp.log2(")),
    _mutant(
        "all of lse to base 2",
        "lse",
        before=_LSE,
        after=_LSE.replace(
            "state.peak + jnp.log(divisor)", "(state.peak + jnp.log(divisor)) / 0.6931472"
        ),
    ),
    _mutant("lse without the maximum", "lse", before=_LSE, after=_LSE.replace("state.peak + ", "")),
    _mutant(
        "the maximum for lse", "lse", before=_LSE, after=_LSE.replace(" + jnp.log(divisor)", "")
    ),
    _mutant(
        "lse in bfloat16",
        "lse",
        before=_ROWS,
        after="lse = lse.astype(jnp.bfloat16).astype(jnp.float32)\n    " + _ROWS,
    ),
    _mutant(
        "lse of an empty row 0",
        "lse",
        before=_ROWS,
        after="return jnp.where(is_query[..., None], out, 0), jnp.where(is_query, lse, 0.0)",
    ),
    _mutant(
        "lse of an empty row a large negative number",
        "lse",
        before=_ROWS,
        after="return jnp.where(is_query[..., None], out, 0), jnp.where(is_query, lse, -1e30)",
    ),
    _mutant(
        "lse of an empty row some other row's",
        "lse",
        before=_ROWS,
        after="return jnp.where(is_query[..., None], out, 0), lse",
    ),
    _mutant(
        "empty rows not written",
        "lse",
        before=_ROWS,
        after="return out, jnp.where(is_query, lse, -jnp.inf)",
    ),
)
