"""Faults of the numpy reference. The suite's own oracle is not touched: a clone has the fault.

Nothing is compiled, so that all of these together take seconds.
"""

from functools import partial

from paged.conformance.mutants.mutant import Mutant

_attend = partial(Mutant, module="paged.backends.reference.attention")
_write = partial(Mutant, module="paged.backends.reference.writing")
_address = partial(Mutant, module="paged.backends.reference.addressing")
_backend = partial(Mutant, module="paged.backends.reference.backend")

_FIRST = "max(0, last + 1 - spec.window)"
_LOGITS = "logits = spec.scale * (keys * query).sum(axis=-1)"
_CAP = "logits = spec.soft_cap * np.tanh(logits / spec.soft_cap)"
_TOTAL = "total = weights.sum() + (0.0 if sink is None else np.exp(sink - largest))"
_OUT = "out = (weights[:, None] * values).sum(axis=0) / total"
_LSE = "return out, float(largest + np.log(total))"
_HISTORY = "first_position = seq_len - (end - start)"
_BLOCK = "physical = blocks[logical]"
_TABLE_KEYS = "keys = _rows(numbers, where, table[sequence], oldest, newest, kv_head, KEYS)"
_TABLE_VALUES = "values = _rows(numbers, where, table[sequence], oldest, newest, kv_head, VALUES)"
_SLOTS = "slots = to_numpy(slot_mapping).astype(np.int64)"
_KEPT = "kept = slots >= 0"
_ROUNDED = "np.rint(clipped) if"
_CLIP = "np.clip(rows.astype(np.float64) / scale, -limit, limit)"

MUTANTS: tuple[Mutant, ...] = (
    _attend(
        "window one key too long",
        "window",
        before=_FIRST,
        after="max(0, last - spec.window)",
    ),
    _attend(
        "window one key too short",
        "window",
        before=_FIRST,
        after="max(0, min(last, last + 2 - spec.window))",
    ),
    _attend(
        "window ignored",
        "window",
        before="first = 0 if spec.window is None else",
        after="first = 0 if spec.window is not None else 0 if spec.window is None else",
    ),
    _attend("scale * 0.9", "scale", before=_LOGITS, after=f"{_LOGITS} * 0.9"),
    _attend("scale * 1.01", "scale", before=_LOGITS, after=f"{_LOGITS} * 1.01"),
    _attend(
        "scale left out", "scale", before=_LOGITS, after="logits = (keys * query).sum(axis=-1)"
    ),
    _attend(
        "last key dropped",
        "mask",
        before="weights = np.exp(logits - largest)",
        after="weights = np.exp(logits - largest) * (np.arange(len(logits)) < len(logits) - 1)",
    ),
    _attend(
        "first key dropped",
        "mask",
        before="weights = np.exp(logits - largest)",
        after="weights = np.exp(logits - largest) * (np.arange(len(logits)) > 0)",
    ),
    _attend(
        "one future key seen",
        "mask",
        before="last = first_position + token - start",
        after="last = min(first_position + token - start + 1, seq_len - 1)",
    ),
    _attend(
        "no causal mask",
        "mask",
        before="last = first_position + token - start",
        after="last = seq_len - 1",
    ),
    _attend(
        "second logical block read as the first",
        "blocks",
        before=_BLOCK,
        after="physical = blocks[np.where(logical == 1, 0, logical)]",
    ),
    _attend(
        "physical blocks taken for neighbours",
        "blocks",
        before=_BLOCK,
        after="physical = (blocks[0] + logical) % where.size['block']",
    ),
    _attend(
        "table row of the neighbour",
        "blocks",
        before=_TABLE_KEYS,
        after=_TABLE_KEYS.replace("table[sequence]", "table[max(sequence - 1, 0)]"),
    ),
    _attend(
        "values by the neighbour's table row",
        "blocks",
        before=_TABLE_VALUES,
        after=_TABLE_VALUES.replace("table[sequence]", "table[max(sequence - 1, 0)]"),
    ),
    _attend(
        "slots of a block in reverse",
        "blocks",
        before="where.rows(physical, slots, head, kind)",
        after="where.rows(physical, where.size['slot'] - 1 - slots, head, kind)",
    ),
    _attend(
        "neighbouring KV heads swapped",
        "heads",
        before=_TABLE_KEYS,
        after=_TABLE_KEYS.replace("kv_head", "spec.num_kv_heads - 1 - kv_head"),
    ),
    _attend(
        "query heads dealt out in turn",
        "heads",
        before="range(kv_head * spec.group_size, (kv_head + 1) * spec.group_size)",
        after="range(kv_head, spec.num_heads, spec.num_kv_heads)",
    ),
    _attend(
        "keys and values swapped",
        "keys_and_values",
        before="KEYS, VALUES, Addresses, addresses\n",
        after="VALUES as KEYS, KEYS as VALUES, Addresses, addresses\n",
    ),
    _attend(
        "K scale used for V",
        "quantised",
        before="k_scale if spec.is_latent else _per_head(cache.v_scale, spec.num_kv_heads)",
        after="k_scale",
    ),
    _attend(
        "V scale used for K",
        "quantised",
        before="spec.head_dim] * k_scale[kv_head]",
        after="spec.head_dim] * v_scale[kv_head]",
    ),
    _attend(
        "scale of the first head for all heads",
        "quantised",
        before="* v_scale[kv_head]",
        after="* v_scale[0]",
        likely=("quantised/int8_per_head",),
    ),
    _attend("soft cap ignored", "soft_cap", before=_CAP, after="logits = logits"),
    _attend(
        "soft cap by clipping",
        "soft_cap",
        before=_CAP,
        after="logits = np.clip(logits, -spec.soft_cap, spec.soft_cap)",
    ),
    _attend("sinks ignored", "sinks", before=_TOTAL, after="total = weights.sum()"),
    _attend(
        "sink added to the numerator",
        "sinks",
        before=_OUT,
        after="out = ((weights[:, None] * values).sum(axis=0) + (0.0 if sink is None else "
        "np.exp(sink - largest))) / total",
    ),
    _attend(
        "sink not rescaled",
        "sinks",
        before=_TOTAL,
        after=_TOTAL.replace("np.exp(sink - largest)", "np.exp(sink)"),
    ),
    _attend(
        "no maximum",
        "softmax",
        before="largest = logits.max() if sink is None else max(logits.max(), sink)",
        after="largest = 0.0",
        likely=("logits/opposite", "logits/same"),
    ),
    _attend(
        "weights in bfloat16",
        "precision",
        before="weights = np.exp(logits - largest)",
        after="weights = __import__('ml_dtypes').bfloat16(np.exp(logits - largest))"
        ".astype(np.float64)",
    ),
    _attend(
        "queries in float16",
        "precision",
        before="queries[token, head].astype(np.float64)",
        after="queries[token, head].astype(np.float16).astype(np.float64)",
    ),
    _attend("lse to base 2", "lse", before=_LSE, after=_LSE.replace("np.log(", "np.log2(")),
    _attend(
        "lse without the maximum", "lse", before=_LSE, after="return out, float(np.log(total))"
    ),
    _attend(
        "lse of an empty row finite",
        "lse",
        before="spec.num_heads), -np.inf)",
        after="spec.num_heads), -1e30)",
    ),
    _attend(
        "empty rows not written",
        "lse",
        before="out = np.zeros(",
        after="out = np.nan * np.zeros(",
    ),
    _attend(
        "query_len taken for seq_len",
        "positions",
        before=_HISTORY,
        after="first_position = 0",
    ),
    _attend(
        "positions one too low",
        "positions",
        before=_HISTORY,
        after="first_position = max(seq_len - (end - start) - 1, 0)",
    ),
    _attend(
        "position from the padded index",
        "positions",
        before="last = first_position + token - start",
        after="last = min(first_position + token, seq_len - 1)",
    ),
    _attend(
        "last sequence left out",
        "rows",
        before="for sequence in range(num_seqs):",
        after="for sequence in range(num_seqs - 1):",
    ),
    _attend(
        "rows of a sequence in reverse",
        "rows",
        before="queries[token, head].astype",
        after="queries[end - 1 - token + start, head].astype",
    ),
    _attend(
        "value of a latent is its end",
        "latent",
        before="values[:, : spec.value_dim]",
        after="values[:, -spec.value_dim :]",
        layout="mla",
    ),
    _write(
        "slot -1 written",
        "slots",
        before=_SLOTS,
        after=f"{_SLOTS} % capacity",
    ),
    _write(
        "null block written for slot -1",
        "slots",
        before=_SLOTS,
        after=f"{_SLOTS}.clip(0)",
    ),
    _write(
        "slot + 1",
        "slots",
        before="np.divmod(slots[kept], where.size",
        after="np.divmod((slots[kept] + 1) % capacity, where.size",
    ),
    _write(
        "stale last token",
        "slots",
        before=_KEPT,
        after=f"{_KEPT}; kept &= slots != slots.max(initial=0)",
    ),
    _write(
        "only the first head written",
        "slots",
        before="for head in range(rows.shape[1]):",
        after="for head in range(1):",
    ),
    _write("rounded towards zero", "quantised", before=_ROUNDED, after="np.trunc(clipped) if"),
    _write(
        "ties rounded up",
        "quantised",
        before=_ROUNDED,
        after="np.floor(clipped + 0.5) if",
        dtype="bfloat16",
    ),
    _write(
        "not clipped",
        "quantised",
        before=_CLIP,
        after="rows.astype(np.float64) / scale",
        likely=("quantised/float8_e4m3fn_saturating", "quantised/*_saturating"),
    ),
    _write(
        "int8 clipped to -128",
        "quantised",
        before=_CLIP,
        after="np.clip(rows.astype(np.float64) / scale, -limit - (dtype.kind == 'i'), limit)",
        likely=("quantised/int8_saturating",),
    ),
    _write(
        "stored scale of the first head for all heads",
        "quantised",
        before="head if len(scales) > 1 else 0",
        after="0",
        likely=("quantised/int8_per_head",),
    ),
    _address(
        "offsets in int32",
        "offsets",
        before='return start[..., None] + np.arange(width or self.width) * stride["dim"]',
        after="return (start[..., None] + np.arange(width or self.width) * "
        'stride["dim"]).astype("i4")',
    ),
    _address(
        "keys and values lie the other way round",
        "keys_and_values",
        before='kind * stride["kv"]',
        after='(1 - kind) * stride["kv"]',
    ),
    _address(
        "axes that are merged in the wrong order",
        "keys_and_values",
        before="axes = dimension.split()",
        after="axes = dimension.split()[::-1]",
        layout="pallas",
    ),
    _backend(
        "output in float32 whatever the query",
        "output",
        before="out.astype(storage_dtype(dtype_name(query.dtype)))",
        after="out.astype(np.float32)",
        dtype="bfloat16",
    ),
    _backend(
        "metadata changed by the call",
        "inputs",
        before="out, lse = oracle(query, cache, metadata, spec, sinks)",
        after="out, lse = oracle(query, cache, metadata, spec, sinks)\n"
        "    metadata.seq_lens[0] += 1",
        likely=("batch/mixed",),
    ),
    _backend(
        "result depends on an earlier call",
        "repeat",
        before="out, lse = oracle(query, cache, metadata, spec, sinks)",
        after="out, lse = oracle(query, cache, metadata, spec, sinks)\n"
        "    calls = globals().setdefault('calls', [])\n"
        "    out = out + 1e-6 * len(calls)\n"
        "    calls.append(1)",
    ),
)
