"""What a backend promises beside its arithmetic: types, inputs, offsets and refusals.

Left out, because no valid input tells it from the original: the type of the query not among the
reasons. This backend claims every type that the checks of the metadata let pass.
"""

from functools import partial

from paged.conformance.mutants.mutant import Mutant

_mutant = partial(Mutant, module="paged.backends.xla.attend")
_backend = partial(Mutant, module="paged.backends.xla.backend")
_claim = partial(Mutant, kind="claim", module="paged.backends.base")

_TAKEN = 'jnp.take(array, indices, axis=axis, mode="clip")'
_ON_DEVICE = "query, cache, metadata, sinks = on_device"

MUTANTS: tuple[Mutant, ...] = (
    _mutant(
        "output in float32 whatever the query",
        "output",
        before="return out.astype(dtype), lse",
        after="return out, lse",
        dtype="bfloat16",
    ),
    _mutant(
        "lse in the query's type",
        "output",
        before="return out.astype(dtype), lse",
        after="return out.astype(dtype), lse.astype(dtype)",
        dtype="bfloat16",
    ),
    _backend(
        "no lse, though it is claimed",
        "output",
        before="AttentionOutput(*ragged_attention(query, cache, metadata, spec, sinks))",
        after="AttentionOutput(ragged_attention(query, cache, metadata, spec, sinks)[0], None)",
    ),
    _backend(
        "write gives an array",
        "output",
        before="return cache.with_data(data)",
        after="return data",
    ),
    _backend(
        "scales lost in the write",
        "output",
        before="return cache.with_data(data)",
        after="return KVCache(data, cache.layout)",
        likely=("quantised/int8",),
    ),
    _backend(
        "metadata changed by the call",
        "inputs",
        before=_ON_DEVICE,
        after="object.__setattr__(metadata, 'seq_lens', metadata.seq_lens + 1)\n        "
        + _ON_DEVICE,
    ),
    _backend(
        "scale replaced in the caller's cache",
        "inputs",
        before="data = cache.layout.write(",
        after="object.__setattr__(cache, 'k_scale', jnp.float32(2.0))\n        "
        "data = cache.layout.write(",
    ),
    Mutant(
        "gather over one long dimension",
        "offsets",
        "paged.layouts.arrays",
        _TAKEN,
        "(lambda rows, width: rows.reshape(-1).at[indices[..., None] * width "
        "+ jnp.arange(width).reshape((1,) * indices.ndim + (width,))]"
        ".get(mode='promise_in_bounds', wrap_negative_indices=False)"
        ".reshape(*indices.shape, *rows.shape[1:]) if axis == 0 else "
        f"{_TAKEN})(array, array.size // array.shape[0])",
    ),
    Mutant(
        "scatter over one long dimension",
        "offsets",
        "paged.layouts.arrays",
        'return data.at[index].set(rows, mode="drop")',
        "return data.reshape(-1).at[slots].set(0, mode='promise_in_bounds', "
        "wrap_negative_indices=False).reshape(data.shape)",
    ),
    _claim(
        "sinks not checked",
        before="        check_sinks(sinks, spec)\n",
        after="",
        likely=("refuse/sinks_unasked", "refuse/*"),
    ),
    _claim(
        "metadata and query not checked",
        before="        metadata.static_validate(query=query, cache=cache, spec=spec)\n",
        after="",
        likely=("refuse/query_tokens", "refuse/*"),
    ),
    _claim(
        "scales not checked before attention",
        before="        check_scales(cache, spec.num_kv_heads)\n        check_sinks",
        after="        check_sinks",
        likely=("refuse/scale_of_floats", "refuse/*"),
    ),
    _claim(
        "new rows not checked",
        before="        check_write(cache, key, value, slot_mapping)\n",
        after="",
        likely=("refuse/key_dtype", "refuse/*"),
    ),
    _claim(
        "types of new rows not checked",
        before="        if dtype_name(rows.dtype) not in COMPUTE_DTYPES:",
        after="        if False:",
        likely=("refuse/key_dtype", "refuse/*"),
    ),
    _claim(
        "kind of the layout not looked at",
        before="elif layout.is_latent != spec.is_latent:",
        after="elif False:",
        likely=("refuse/layout_kind", "refuse/*"),
    ),
    _claim(
        "reasons forgotten",
        before="        if reasons:\n            raise",
        after="        if False:\n            raise",
        likely=("refuse/cache_dtype", "refuse/*"),
    ),
)
