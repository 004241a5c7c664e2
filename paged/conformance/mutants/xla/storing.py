"""Writing new tokens: which slots, in which axis order, rounded how.

Left out: an index out of range clipped or wrapped in `take`, because none is ever followed.
"""

from functools import partial

from paged.conformance.mutants.mutant import Mutant

_scatter = partial(Mutant, kind="slots", module="paged.layouts.arrays")
# bfloat16 pools are written by a loop of their own.
_narrow = partial(_scatter, dtype="bfloat16")
_layout = partial(Mutant, module="paged.layouts.layout")
_backend = partial(Mutant, module="paged.backends.xla.backend")
_storage = partial(Mutant, kind="quantised", module="paged.backends.xla.quantize")

_PAST_END = "slots = jnp.where(slots < 0, past_end, slots)"
_SLOT = "index[slot_axis] = slots % block_size"
_BLOCK = "index[block_axis] = slots // block_size"
_IS_WRITTEN = "is_written = (slots >= 0) &"
_SLOTS = "jnp.asarray(slot_mapping)\n"
_SATURATING = ("quantised/int8_saturating", "quantised/*_saturating")

MUTANTS: tuple[Mutant, ...] = (
    _scatter("slot -1 written", before=_PAST_END, after="slots = slots"),
    _scatter(
        "null block written for slot -1",
        before=_PAST_END,
        after="slots = jnp.where(slots < 0, 0, slots)",
    ),
    _scatter(
        "slot -1 sent to the last slot",
        before=_PAST_END,
        after="slots = jnp.where(slots < 0, past_end - 1, slots)",
    ),
    _scatter(
        "slots past the end clipped",
        before='data.at[index].set(rows, mode="drop")',
        after='data.at[index].set(rows, mode="clip")',
    ),
    _scatter("slot + 1", before=_SLOT, after="index[slot_axis] = (slots + 1) % block_size"),
    _scatter(
        "block of the next slot",
        before=_BLOCK,
        after="index[block_axis] = (slots + 1) // block_size",
    ),
    _scatter(
        "written slots of a block in reverse",
        before=_SLOT,
        after="index[slot_axis] = block_size - 1 - slots % block_size",
    ),
    _scatter(
        "rows of tokens added to the pool",
        before="data.at[index].set(rows",
        after="data.at[index].add(rows",
    ),
    _narrow("slot -1 written (bfloat16)", before=_IS_WRITTEN, after="is_written = (slots >= -1) &"),
    _narrow(
        "first slot of each block left out (bfloat16)",
        before=_IS_WRITTEN,
        after="is_written = (slots % block_size > 0) &",
    ),
    _narrow(
        "stale last token (bfloat16)",
        before="jax.lax.fori_loop(0, jnp.sum(is_written),",
        after="jax.lax.fori_loop(0, jnp.sum(is_written) - 1,",
    ),
    _narrow(
        "tokens after the first padding left out (bfloat16)",
        before="order = jnp.argsort(~is_written)",
        after="order = jnp.arange(slots.shape[0])",
        likely=("slots/half_minus_one", "slots/*"),
    ),
    _narrow(
        "rows not in the order of their slots (bfloat16)",
        before="row_bits[order], (slots // block_size)[order]",
        after="row_bits, (slots // block_size)[order]",
        likely=("slots/half_minus_one", "slots/*"),
    ),
    _narrow(
        "slot + 1 (bfloat16)",
        before="(slots % block_size)[order]",
        after="((slots + 1) % block_size)[order]",
    ),
    _backend(
        "stale first token",
        "slots",
        before=_SLOTS,
        after="jnp.asarray(slot_mapping).at[0].set(-1)\n",
    ),
    _backend(
        "stale last token",
        "slots",
        before=_SLOTS,
        after="jnp.where(jnp.arange(len(slot_mapping)) == jnp.sum(jnp.asarray(slot_mapping) >= 0) "
        "- 1, -1, slot_mapping)\n",
    ),
    _backend(
        "tokens of a step in reverse",
        "slots",
        before=_SLOTS,
        after="jnp.asarray(slot_mapping)[::-1]\n",
    ),
    _backend(
        "scale of K for the stored V",
        "quantised",
        before="to_storage(jnp.asarray(value), cache.v_scale, cache.dtype)",
        after="to_storage(jnp.asarray(value), cache.k_scale, cache.dtype)",
    ),
    _backend(
        "latents stored without their scale",
        "latent",
        before="to_storage(jnp.asarray(key), cache.k_scale, cache.dtype)",
        after="to_storage(jnp.asarray(key), cache.v_scale, cache.dtype)",
        layout="mla",
        likely=("quantised/int8", "quantised/*"),
    ),
    _backend(
        "keys and values swapped in the write",
        "keys_and_values",
        before="jnp.asarray(cache.data), stored_key, stored_value,",
        after="jnp.asarray(cache.data), stored_value, stored_key,",
    ),
    _layout(
        "keys and values swapped in the layout's write",
        "keys_and_values",
        before="einops.rearrange([key, value],",
        after="einops.rearrange([value, key],",
        layout="pallas",
    ),
    _layout(
        "keys and values swapped in the layout's gather",
        "keys_and_values",
        before="return both[0], both[1]",
        after="return both[1], both[0]",
        layout="packed",
    ),
    _layout(
        "value of a latent is its end",
        "latent",
        before="return keys, keys[..., :value_dim]",
        after="return keys, keys[..., -value_dim:]",
        layout="mla",
    ),
    _storage(
        "stored rows multiplied by their scale",
        before="scaled = scaled / per_head(scale)",
        after="scaled = scaled * per_head(scale)",
    ),
    _storage("rounded towards zero", before="jnp.round(clipped)", after="jnp.trunc(clipped)"),
    _storage(
        "ties rounded up",
        before="jnp.round(clipped)",
        after="jnp.floor(clipped + 0.5)",
        dtype="bfloat16",
    ),
    _storage(
        "not clipped",
        before="jnp.clip(scaled, -limit, limit)",
        after="scaled",
        likely=("quantised/float8_e4m3fn_saturating", "quantised/*_saturating"),
    ),
    _storage(
        "int8 clipped to -128",
        before="jnp.clip(scaled, -limit, limit)",
        after="jnp.clip(scaled, -limit - (dtype == 'int8'), limit)",
        likely=_SATURATING,
    ),
    _storage(
        "clipped one step too early",
        before="limit = largest_finite(dtype)",
        after="limit = largest_finite(dtype) * 0.9",
        likely=_SATURATING,
    ),
    _storage(
        "divided in the type of the rows",
        before="scaled = scaled / per_head(scale)",
        after="scaled = (rows / per_head(scale).astype(rows.dtype)).astype(jnp.float32)",
        dtype="bfloat16",
        likely=("quantised/odd_scales", "quantised/*"),
    ),
    _storage(
        "stored scales of the heads in reverse",
        before="scale[None, :, None] if scale.ndim",
        after="scale[None, ::-1, None] if scale.ndim",
        likely=("quantised/int8_per_head", "quantised/*per_head"),
    ),
    _storage(
        "rows rounded to bfloat16 on their way",
        before="return rows.astype(dtype)",
        after="return rows.astype(jnp.bfloat16).astype(dtype)",
        likely=("batch/mixed",),
    ),
)
