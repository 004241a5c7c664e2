"""Faults of the C++ kernels, each compiled in for one number at a time."""

from functools import partial

from paged.conformance.mutants.mutant import Mutant

_SOURCES = "paged.backends.cpu:src"
_attend = partial(Mutant, module=f"{_SOURCES}/attend.h")
_products = partial(Mutant, module=f"{_SOURCES}/products.h")
_softmax = partial(Mutant, module=f"{_SOURCES}/softmax.h")
_finish = partial(Mutant, module=f"{_SOURCES}/finish.h")
_rows = partial(Mutant, module=f"{_SOURCES}/rows.h")
_schedule = partial(Mutant, module=f"{_SOURCES}/schedule.cc")
_step = partial(Mutant, module=f"{_SOURCES}/step.h")
_numbers = partial(Mutant, module=f"{_SOURCES}/numbers.h")
_write = partial(Mutant, module=f"{_SOURCES}/write.h")

_SPLIT = ("lse/split_3072_and_64",)
_FLOAT8 = ("quantised/float8_e4m3fn", "quantised/float8_*")

MUTANTS: tuple[Mutant, ...] = (
    _attend(
        "one future key seen",
        "mask",
        before="const int64_t last = position + 1 - begin;",
        after="const int64_t last = position + 2 - begin;",
    ),
    _attend(
        "own key not seen",
        "mask",
        before="const int64_t last = position + 1 - begin;",
        after="const int64_t last = position - begin;",
    ),
    _attend(
        "window one too long",
        "window",
        before="position + 1 - call.window - begin",
        after="position - call.window - begin",
    ),
    _attend(
        "window one too short",
        "window",
        before="position + 1 - call.window - begin",
        after="position + 2 - call.window - begin",
    ),
    _attend(
        "window ignored but for whole tiles",
        "window",
        before="call.window == 0 ? 0 : position",
        after="true ? 0 : position",
    ),
    _schedule(
        "a key before the window is read",
        "window",
        before="history + query + 1 - call.window",
        after="history + query - call.window",
        likely=("window/decode", "window/*"),
    ),
    _attend(
        "position of a later item from the first query",
        "positions",
        before="call.seq_lens[item.seq] - query_len + item.query_begin",
        after="call.seq_lens[item.seq] - query_len",
        likely=("heads/group_16",),
    ),
    _attend(
        "keys of the neighbouring head",
        "heads",
        before="static_cast<const Stored*>(call.cache) + head * call.strides.head",
        after="static_cast<const Stored*>(call.cache) + (head ^ 1) * call.strides.head",
    ),
    _attend(
        "queries of a head in the wrong order",
        "heads",
        before="call.heads() + head * call.group + r % call.group;",
        after="call.heads() + r % call.group * call.kv_heads + head;",
    ),
    _attend(
        "scale * 1.01",
        "scale",
        before="store(at + d, Q::read(query + row * call.dim + d) * call.scale * k_scale);",
        after="store(at + d, Q::read(query + row * call.dim + d) * call.scale * k_scale * 1.01f);",
    ),
    _attend(
        "K scale of the first head for all",
        "quantised",
        before="call.k_scale[head * call.k_scale_step]",
        after="call.k_scale[0]",
        likely=("quantised/int8_per_head",),
    ),
    _attend(
        "rotary part left out",
        "latent",
        before="queries, dim, rows, key_rows, count, call.dim, scratch.logits",
        after="queries, dim, rows, key_rows, count, call.value_dim, scratch.logits",
        layout="mla",
    ),
    _attend(
        "keys for values",
        "keys_and_values",
        before="stored_values{keys + call.strides.to_value,",
        after="stored_values{keys,",
    ),
    _attend(
        "a part's result goes to the first part's place",
        "blocks",
        before="(item.part * query_len + query)",
        after="(0 * item.part * query_len + query)",
        likely=_SPLIT,
    ),
    _products(
        "earlier values not rescaled",
        "softmax",
        before="kept[r] * load<Floats>(result",
        after="load<Floats>(result",
    ),
    _products(
        "last value of a tile dropped",
        "mask",
        before="  for (int64_t k = 0; k < count; ++k) {\n    const typename T::Stored* at",
        after="  for (int64_t k = 0; k + 1 < count; ++k) {\n    const typename T::Stored* at",
    ),
    _softmax(
        "sum of the weights not rescaled",
        "softmax",
        before="*total * kept + sum(added)",
        after="*total + sum(added)",
    ),
    _softmax("largest logit forgotten", "softmax", before="  *peak = now;\n", after=""),
    _softmax(
        "largest logit of the tile alone",
        "softmax",
        before="tile > before ? tile : before",
        after="tile",
    ),
    _softmax(
        "weights in bfloat16",
        "precision",
        before="    store(logits + k, weights);",
        after="    store(logits + k, as_floats(as_words(weights) & 0xffff0000u));",
    ),
    _softmax(
        "soft cap is not multiplied back",
        "soft_cap",
        before="cap * tanh(ratio)",
        after="tanh(ratio)",
    ),
    _softmax(
        "soft cap after the mask",
        "soft_cap",
        before="    store(logits + k, some);\n",
        after="    if (cap != 0.0f) some = capped(some, cap);\n    store(logits + k, some);\n",
    ),
    _finish(
        "lse to base 2",
        "lse",
        before="peak + std::log(total)",
        after="peak + std::log2(total)",
    ),
    _finish(
        "sink of the first head for all",
        "sinks",
        before="call.sinks[head]",
        after="call.sinks[0]",
    ),
    _finish(
        "sink left out of the sum",
        "sinks",
        before="total * factor + exp(splat(sink - most))[0]",
        after="total * factor",
    ),
    _finish(
        "K scale used for V",
        "quantised",
        before="call.v_scale[head / call.group * call.v_scale_step]",
        after="call.k_scale[head / call.group * call.k_scale_step]",
    ),
    _finish(
        "V scale of the query head",
        "quantised",
        before="head / call.group * call.v_scale_step",
        after="head % call.kv_heads * call.v_scale_step",
        likely=("quantised/int8_per_head",),
    ),
    _finish(
        "parts weigh the same",
        "softmax",
        before="weighted[d] * kept + added[d] * joined",
        after="weighted[d] * kept + added[d]",
        likely=_SPLIT,
    ),
    _finish(
        "last part dropped",
        "blocks",
        before="part < item.parts",
        after="part + 1 < item.parts",
        likely=_SPLIT,
    ),
    _schedule(
        "first key of a part dropped",
        "blocks",
        before="(first + item.part) * kPartKeys)",
        after="(first + item.part) * kPartKeys + (item.part > 0))",
        likely=_SPLIT,
    ),
    _schedule(
        "last key of an item dropped",
        "mask",
        before="item.key_end = std::min(key_end,",
        after="item.key_end = std::min(key_end - 1,",
        likely=_SPLIT,
    ),
    _step(
        "parts put together before the last is there",
        "blocks",
        before="--plan.parts_left[size_t(item.merge)] == 0",
        after="--plan.parts_left[size_t(item.merge)] == 1",
        likely=_SPLIT,
    ),
    _rows(
        "every second block twice",
        "blocks",
        before="table[column] * call.strides.block",
        after="table[column / 2 * 2] * call.strides.block",
    ),
    _rows(
        "packed keys of the first panel for all",
        "blocks",
        before="panel{panels + key * dim,",
        after="panel{panels + 0 * key * dim,",
    ),
    _step(
        "lse of padding is finite",
        "lse",
        before="call.lse[i] = -std::numeric_limits<float>::infinity();",
        after="call.lse[i] = 0.0f;",
    ),
    _numbers(
        "int8 rounded towards zero",
        "quantised",
        before="int8_t((x + 12582912.0f) - 12582912.0f)",
        after="int8_t(x)",
    ),
    _numbers(
        "int8 clipped to -128",
        "quantised",
        before="x < -127.0f ? -127.0f",
        after="x < -128.0f ? -128.0f",
        likely=("quantised/int8_saturating",),
    ),
    _numbers(
        "float8 not clipped",
        "quantised",
        before="  size = size > most ? most : size;\n",
        after="  (void)most;\n",
        likely=("quantised/float8_e4m3fn_saturating",),
    ),
    _numbers(
        "float8 ties away from zero",
        "quantised",
        before="- 1 + ((bits >> kDropped) & 1)) >> kDropped;",
        after=") >> kDropped;",
        dtype="bfloat16",
        likely=_FLOAT8,
    ),
    _numbers(
        "small float8 read as 0",
        "quantised",
        before="exponent == 0 ? small : bits",
        after="exponent == 0 ? Words{} : bits",
        likely=_FLOAT8,
    ),
    _numbers(
        "bfloat16 cut off",
        "precision",
        before="(bits >> 16) | 0x40 : nearest",
        after="(bits >> 16) | 0x40 : nearest * 0 + (bits >> 16)",
        dtype="bfloat16",
    ),
    _write(
        "slot -1 writes the null block",
        "slots",
        before="    const int64_t slot = call.slots[token];\n",
        after="    const int64_t slot = call.slots[token] < 0 ? 0 : call.slots[token];\n",
    ),
    _write(
        "the neighbouring slot",
        "slots",
        before="const int64_t slot = call.slots[token];",
        after="const int64_t slot = call.slots[token] < 0 ? -1 : call.slots[token] ^ 1;",
    ),
    _write(
        "multiplied by the scale",
        "quantised",
        before="number /= *scale;",
        after="number *= *scale;",
    ),
)
