"""Faults of the Triton kernels, tried by triton's interpreter over torch tensors."""

from functools import partial

from paged.conformance.mutants.mutant import Mutant

_PACKAGE = "paged.backends.triton.kernels"
_span = partial(Mutant, module=f"{_PACKAGE}.span")
_latents = partial(Mutant, module=f"{_PACKAGE}.latent_span", layout="mla")
_rows = partial(Mutant, module=f"{_PACKAGE}.rows")
_softmax = partial(Mutant, module=f"{_PACKAGE}.softmax")
_splits = partial(Mutant, module=f"{_PACKAGE}.splits")
_reduce = partial(Mutant, module=f"{_PACKAGE}.reduce")
_tile = partial(Mutant, module=f"{_PACKAGE}.tile")
_decode = partial(Mutant, module=f"{_PACKAGE}.decode")
_prefill = partial(Mutant, module=f"{_PACKAGE}.prefill")
_numbers = partial(Mutant, module=f"{_PACKAGE}.numbers")
_write = partial(Mutant, module=f"{_PACKAGE}.write")

_DECODES = ("batch/decode_only", "batch/mixed")
_SPLIT = ("lengths/decode", "lse/split_3072_and_64", "lengths/*")

MUTANTS: tuple[Mutant, ...] = (
    _rows(
        "one future key seen",
        "mask",
        before="token[None, :] <= position[:, None])",
        after="token[None, :] <= position[:, None] + 1)",
    ),
    _rows(
        "own key not seen",
        "mask",
        before="token[None, :] <= position[:, None])",
        after="token[None, :] < position[:, None])",
    ),
    _rows(
        "keys past the end count",
        "mask",
        before="((token >= first_key) & (token < end_key))[None, :]",
        after="(token >= first_key)[None, :]",
        likely=_DECODES,
    ),
    _rows(
        "window one too long",
        "window",
        before="token[None, :] > position[:, None] - FORM.window",
        after="token[None, :] >= position[:, None] - FORM.window",
    ),
    _rows(
        "window one too short",
        "window",
        before="token[None, :] > position[:, None] - FORM.window",
        after="token[None, :] > position[:, None] - FORM.window + 1",
    ),
    _rows(
        "a decode's window begins one too early",
        "window",
        before="return tl.maximum(position + 1 - FORM.window, 0)",
        after="return tl.maximum(position - FORM.window, 0)",
        likely=("window/decode", "window/*"),
    ),
    _rows(
        "no mask where the last query of a tile sees all",
        "mask",
        before="tl.minimum(first_position + 1, end_key)",
        after="tl.minimum(last_position + 1, end_key)",
        likely=("lengths/query_tiles", "lengths/*"),
    ),
    _rows(
        "the mask of a window ends a step too early",
        "window",
        before="(first + FORM.tile_tokens - 1) // FORM.tile_tokens * FORM.tile_tokens",
        after="first // FORM.tile_tokens * FORM.tile_tokens",
    ),
    _rows(
        "slot of the next token",
        "blocks",
        before="token % FORM.block_size * FORM.slot)",
        after="(token + 1) % FORM.block_size * FORM.slot)",
    ),
    _rows(
        "tile of the neighbouring sequence",
        "rows",
        before="        if first <= tile:\n",
        after="        if first < tile:\n",
    ),
    _rows(
        "heads beyond the group are rows",
        "heads",
        before="(query < num_queries) & (head < FORM.group)",
        after="(query < num_queries)",
        likely=("heads/group_5", "heads/*"),
    ),
    _span(
        "values of unseen tokens not zeroed",
        "memory",
        before="tl.load(at + FORM.to_value, mask=is_held[:, None] & is_dim, other=0)",
        after="tl.load(at + FORM.to_value)",
        likely=_DECODES,
    ),
    _span(
        "keys and values swapped",
        "keys_and_values",
        before="stored_keys = tl.load(at, mask=is_held[:, None] & is_dim, other=0)\n"
        "            stored_values = tl.load(at + FORM.to_value, "
        "mask=is_held[:, None] & is_dim, other=0)",
        after="stored_values = tl.load(at, mask=is_held[:, None] & is_dim, other=0)\n"
        "            stored_keys = tl.load(at + FORM.to_value, "
        "mask=is_held[:, None] & is_dim, other=0)",
    ),
    _span(
        "earlier output not rescaled",
        "softmax",
        before="weighted * factor[:, None]",
        after="weighted",
    ),
    _softmax(
        "earlier sum not rescaled",
        "softmax",
        before="new_peak, total * factor + tl.sum(weights, 1)",
        after="new_peak, total + tl.sum(weights, 1)",
    ),
    _softmax(
        "a row without keys measured from -inf",
        "softmax",
        before='tl.where(peak == float("-inf"), 0.0, peak)',
        after="peak",
        likely=("lengths/query_tiles", "window/8", "window/*"),
    ),
    _softmax(
        "lse to base 2",
        "lse",
        before="return peak * LN_2 + tl.log(total)",
        after="return peak + tl.log(total) * LOG2_E",
    ),
    _softmax(
        "soft cap of half the logits",
        "soft_cap",
        before="tl.exp(2.0 * share)",
        after="tl.exp(share)",
    ),
    _softmax(
        "soft cap without its series near 0",
        "soft_cap",
        before="tl.where(square < 0.01, near, far)",
        after="far",
        likely=("soft_cap/far",),
    ),
    _softmax(
        "sink forgotten in the denominator",
        "sinks",
        before="total * factor + tl.exp2(sink - base)",
        after="total * factor",
    ),
    _softmax(
        "a sink joins the numerator too",
        "sinks",
        before="return weighted * factor[:, None], new_peak",
        after="return weighted * factor[:, None] + tl.exp2(sink - base)[:, None], new_peak",
    ),
    _splits(
        "a part begins one step late",
        "blocks",
        before="begin = (first_step + part * steps) * FORM.tile_tokens",
        after="begin = (first_step + part * steps + (part > 0)) * FORM.tile_tokens",
        likely=_SPLIT,
    ),
    _splits(
        "last part forgotten",
        "blocks",
        before="return (num_steps + steps - 1) // steps",
        after="return tl.maximum(num_steps // steps, 1)",
        likely=("lengths/uneven_parts",),
    ),
    _reduce(
        "parts weigh the same",
        "softmax",
        before="weight = tl.exp2(lse - base)",
        after="weight = tl.exp2(lse - lse)",
        likely=_SPLIT,
    ),
    _reduce(
        "earlier parts not rescaled",
        "softmax",
        before="out = out * factor + values * weight",
        after="out = out + values * weight",
        likely=_SPLIT,
    ),
    _reduce(
        "sink of the first head for all",
        "sinks",
        before="sink = tl.load(sinks_ptr + head)",
        after="sink = tl.load(sinks_ptr)",
        likely=("sinks/mixed", "sinks/*"),
    ),
    _tile(
        "scale x 1.01",
        "scale",
        before="k_scale_of(k_scale_ptr, kv_head, FORM) * FORM.scale",
        after="k_scale_of(k_scale_ptr, kv_head, FORM) * (FORM.scale * 1.01)",
    ),
    _tile(
        "K scale left out",
        "quantised",
        before="k_scale_of(k_scale_ptr, kv_head, FORM) * FORM.scale",
        after="kv_head * 0.0 + FORM.scale",
    ),
    _tile(
        "K's first head for all",
        "heads",
        before="cache_ptr + kv_head.to(tl.int64) * FORM.head",
        after="cache_ptr",
    ),
    _tile(
        "V scale of the first head for all",
        "quantised",
        before="v_scale_of(v_scale_ptr, kv_head, FORM)",
        after="v_scale_of(v_scale_ptr, 0, FORM)",
        likely=("quantised/int8_per_head", "quantised/*"),
    ),
    _rows(
        "odd blocks are the even ones before",
        "blocks",
        before="entry = table_ptr + token // FORM.block_size * FORM.table_entry",
        after="entry = table_ptr + token // FORM.block_size // 2 * 2 * FORM.table_entry",
        likely=_DECODES,
    ),
    _decode(
        "position one too small",
        "positions",
        before="position = seq_len - 1",
        after="position = seq_len - 2",
        likely=("window/decode", "window/*"),
    ),
    _prefill(
        "query length taken for the sequence's",
        "positions",
        before="history = seq_len - num_queries",
        after="history = num_queries * 0",
    ),
    _prefill(
        "decodes left to a kernel that is not run for them",
        "rows",
        before="if FORM.skips_decodes and num_queries == 1:",
        after="if num_queries <= 2:",
        likely=("lengths/query_tiles", "lengths/*", "batch/*"),
    ),
    _numbers(
        "sign of float8 lost",
        "quantised",
        before="((x & 0x80).to(tl.uint16) << 8) | ",
        after="",
        likely=("quantised/float8_e4m3fn", "quantised/*"),
    ),
    _numbers(
        "float8 rounded up",
        "quantised",
        before="((bits + half + ((bits >> dropped) & 1)) >> dropped)",
        after="((bits + half + 1) >> dropped)",
        likely=("quantised/float8*", "quantised/*"),
    ),
    _numbers(
        "small float8 flushed to zero",
        "quantised",
        before="tl.where(size < smallest_normal, small, normal)",
        after="tl.where(size < smallest_normal, 0, normal)",
        likely=("quantised/float8*", "quantised/*"),
    ),
    _numbers(
        "int8 cut off instead of rounded",
        "quantised",
        before="((clipped + 12582912.0) - 12582912.0).to(tl.int8)",
        after="clipped.to(tl.int8)",
    ),
    _numbers(
        "int8 reaches -128",
        "quantised",
        before="0.0, x), -127.0)",
        after="0.0, x), -128.0)",
        likely=("quantised/int8_saturating", "quantised/*"),
    ),
    _numbers(
        "weights cut off instead of rounded",
        "precision",
        before="nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000",
        after="nearest = bits & 0xFFFF0000",
        dtype="bfloat16",
    ),
    _write(
        "slot -1 writes the last slot",
        "slots",
        before="    if (slot < 0) | (slot >= num_slots):\n        return\n",
        after="    slot = tl.where(slot < 0, num_slots - 1, slot)\n",
    ),
    _write(
        "K scale used for V",
        "quantised",
        before="scale = v_scale_of(v_scale_ptr, ",
        after="scale = v_scale_of(k_scale_ptr, ",
    ),
    _write(
        "values of the neighbouring head",
        "heads",
        before="value_at = token * FORM.value_token + head[:, None] * FORM.value_head",
        after="value_at = token * FORM.value_token + ((head + 1) % FORM.num_heads)[:, None]"
        " * FORM.value_head",
    ),
    _latents(
        "rotary part left out",
        "latent",
        before="products = added_product(query_rope, tl.trans(ropes), products)",
        after="products = products",
    ),
    _latents(
        "latents of unseen tokens not zeroed",
        "memory",
        before="tl.load(at, mask=is_held[:, None] & is_dim[None, :], other=0)",
        after="tl.load(at, mask=is_dim[None, :] & (slots[:, None] == slots[:, None]), other=0)",
        likely=_DECODES,
    ),
    _latents(
        "rotary part one entry off",
        "latent",
        before="rest = FORM.value_dim + tl.arange(0, FORM.rope_pad)",
        after="rest = FORM.value_dim - 1 + tl.arange(0, FORM.rope_pad)",
    ),
)
