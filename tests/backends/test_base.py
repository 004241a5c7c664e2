"""What every kernel of this project checks before it runs, with a backend that only records."""

import dataclasses
import re

import jax.numpy as jnp
import numpy as np
import pytest

from paged import (
    AttentionMetadata,
    AttentionOutput,
    AttentionSpec,
    KVCache,
    KVCacheSpec,
    MetadataBuilder,
    resolve,
)
from paged.backends import Backend, Capabilities, KernelBackend, UnsupportedError
from paged.layouts import MLA, PACKED, PALLAS, TPU_PACKED, Layout

SPEC = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=8, scale=0.5)
LATENT = AttentionSpec(4, 1, 8, scale=0.5, kv_lora_rank=6, qk_rope_head_dim=2)


class Recorder(KernelBackend):
    """Records the calls that passed the checks."""

    name, platform, layouts = "recorder", "any", (PALLAS, MLA)

    def __init__(self, **capabilities):
        self.capabilities = Capabilities(**capabilities)
        self.calls = []

    def _write(self, cache, key, value, slot_mapping):
        self.calls.append("write")
        return cache

    def _attend(self, query, cache, metadata, spec, sinks):
        self.calls.append("attend")
        return AttentionOutput(query, None)


def cache_for(spec=SPEC, layout=PALLAS, dtype="float32", **scales):
    cache_spec = KVCacheSpec.of(spec, block_size=4, dtype=dtype)
    return dataclasses.replace(KVCache.allocate(cache_spec, layout, 5), **scales)


def metadata(tokens=3):
    return AttentionMetadata(
        block_table=np.array([[1, 2]], np.int32),
        slot_mapping=np.arange(4, 4 + tokens, dtype=np.int32),
        seq_lens=np.array([tokens], np.int32),
        query_start_loc=np.array([0, tokens], np.int32),
        distribution=np.array([0, 1, 1], np.int32),
        max_query_len=tokens,
        max_seq_len=8,
    )


def query(heads=4, dim=8, dtype=np.float32, tokens=3):
    return np.zeros((tokens, heads, dim), dtype)


def test_it_is_a_backend():
    assert isinstance(Recorder(), Backend)


def test_what_is_claimed_runs():
    backend = Recorder()
    rows = np.zeros((3, 2, 8), np.float32)
    backend.write(cache_for(), rows, rows, metadata().slot_mapping)
    backend.attend(query(), cache_for(), metadata(), SPEC)
    backend.write(cache_for(LATENT, MLA), rows[:, :1], None, metadata().slot_mapping)
    backend.attend(query(), cache_for(LATENT, MLA), metadata(), LATENT)
    assert backend.calls == ["write", "attend"] * 2


@pytest.mark.parametrize(
    ("capabilities", "change", "arguments", "reason"),
    [
        ({"window": False}, {"window": 3}, {}, "no window"),
        ({"soft_cap": False}, {"soft_cap": 30.0}, {}, "no soft cap"),
        ({"sinks": False}, {"has_sinks": True}, {}, "no sinks"),
        ({"head_dims": (64, 128)}, {}, {}, "head_dim 8, accepted: 64, 128"),
        ({"group_sizes": (1, 4)}, {}, {}, "group size 2, accepted: 1, 4"),
        ({"block_sizes": (16,)}, {}, {"block_size": 4}, "block_size 4, accepted: 16"),
        (
            {"cache_dtypes": ("bfloat16",)},
            {},
            {"dtype": "int8"},
            "cache dtype int8, accepted: bfloat16",
        ),
        (
            {"query_dtypes": ("bfloat16",)},
            {},
            {"query_dtype": "float16"},
            "query dtype float16, accepted: bfloat16",
        ),
    ],
)
def test_what_is_not_claimed_is_refused_with_the_reason(capabilities, change, arguments, reason):
    spec = dataclasses.replace(SPEC, **change)
    cache_spec = KVCacheSpec.of(
        spec,
        block_size=arguments.get("block_size", 16),
        dtype=arguments.get("dtype", "bfloat16"),
    )
    asked = {"cache_spec": cache_spec, "query_dtype": arguments.get("query_dtype", "bfloat16")}
    assert Recorder(**capabilities).unsupported(spec, PALLAS, "cpu", **asked) == [reason]
    assert Recorder().unsupported(spec, PALLAS, "cpu", **asked) == []


def test_every_reason_is_given_at_once():
    spec = dataclasses.replace(SPEC, window=3, soft_cap=30.0)
    backend = Recorder(window=False, soft_cap=False)
    assert backend.unsupported(spec, PACKED, "cpu") == [
        "no layout packed, accepted: pallas, mla",
        "no window",
        "no soft cap",
    ]
    with pytest.raises(UnsupportedError, match="backend recorder: no window; no soft cap"):
        backend.attend(query(), cache_for(), metadata(), spec)
    assert not backend.calls


def test_what_is_not_known_yet_is_not_refused():
    backend = Recorder(block_sizes=(16,), cache_dtypes=("bfloat16",), query_dtypes=("bfloat16",))
    assert backend.unsupported(SPEC, PALLAS, "cpu") == []


@pytest.mark.parametrize("target", ["cpu", "cuda", "rocm", "tpu"])
def test_the_platform_is_the_targets(target):
    class OnTpu(Recorder):
        platform = "tpu"

    expected = [] if target == "tpu" else [f"runs on tpu, not on {target}"]
    assert OnTpu().unsupported(SPEC, PALLAS, target) == expected
    assert Recorder().unsupported(SPEC, PALLAS, target) == []


def test_a_layout_is_for_one_kind_of_cache():
    backend = Recorder()
    assert backend.unsupported(LATENT, PALLAS, "cpu") == ["layout pallas is for keys and values"]
    assert backend.unsupported(SPEC, MLA, "cpu") == ["layout mla is for a latent (MLA) spec"]


def test_only_who_reads_any_layout_takes_an_own_one():
    class Any(Recorder):
        any_layout = True

    own = Layout("own", "block head (dim kv) slot")
    assert Recorder().unsupported(SPEC, own, "cpu") == ["no layout own, accepted: pallas, mla"]
    assert Any().unsupported(SPEC, own, "cpu") == []
    rows = np.zeros((3, 2, 8), np.float32)
    with pytest.raises(UnsupportedError, match="no layout own"):
        Recorder().write(cache_for(layout=own), rows, rows, metadata().slot_mapping)


@pytest.mark.parametrize(
    ("key", "value", "slots", "message"),
    [
        ((3, 4, 8), (3, 2, 8), 3, "key: got shape (3, 4, 8), expected (tokens, 2, 8)"),
        ((3, 2, 8), (3, 2, 9), 3, "value: got shape (3, 2, 9), expected (tokens, 2, 8)"),
        ((2, 2, 8), (2, 2, 8), 3, "key: got 2 tokens, expected 3 as in slot_mapping"),
        ((3, 2, 8), (1, 2, 8), 3, "value: got 1 tokens, expected 3 as in slot_mapping"),
        ((2, 2, 8), (3, 2, 8), 3, "key: got 2 tokens, expected 3 as in slot_mapping"),
        ((3, 2, 8), None, 3, "value: got None, layout pallas expects an array"),
    ],
)
def test_rows_that_do_not_fit_the_cache(key, value, slots, message):
    arrays = [None if shape is None else np.zeros(shape, np.float32) for shape in (key, value)]
    with pytest.raises(ValueError, match=re.escape(message)):
        Recorder().write(cache_for(), *arrays, np.arange(slots, dtype=np.int32))


@pytest.mark.parametrize("name", ["cache", "key", "value", "slot_mapping"])
def test_what_is_no_array_is_named(name):
    rows = np.zeros((3, 2, 8), np.float32)
    call = {"cache": cache_for(), "key": rows, "value": rows}
    call["slot_mapping"] = metadata().slot_mapping
    expected = "a KVCache" if name == "cache" else "an array of numpy, JAX or torch"
    for wrong, told in (([1], "a list"), (None, "None")):
        if (name, wrong) != ("value", None):
            with pytest.raises(ValueError, match=f"{name}: got {told}, expected {expected}"):
                Recorder().write(**{**call, name: wrong})


@pytest.mark.parametrize(
    ("dtype", "slots", "message"),
    [
        (np.float64, np.zeros(3, np.int32), "key: got dtype float64, expected one of float32"),
        (np.int8, np.zeros(3, np.int32), "key: got dtype int8, expected one of float32"),
        (np.float32, np.zeros(3, np.int64), "slot_mapping: got int64(3,), expected int32 of one"),
        (np.float32, np.zeros((3, 1), np.int32), "slot_mapping: got int32(3, 1), expected int32"),
    ],
)
def test_rows_and_slots_of_another_type(dtype, slots, message):
    rows = np.zeros((3, 2, 8), dtype)
    with pytest.raises(ValueError, match=re.escape(message)):
        Recorder().write(cache_for(), rows, rows, slots)


def test_a_cache_type_that_is_not_claimed_is_not_written():
    rows = np.zeros((3, 2, 8), np.float32)
    with pytest.raises(UnsupportedError, match="no cache dtype int8"):
        Recorder(cache_dtypes=("float32",)).write(
            cache_for(dtype="int8"), rows, rows, metadata().slot_mapping
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"query": query(heads=6)}, "query.shape[1]: got 6, expected num_heads 4"),
        ({"query": query(tokens=2)}, "expected (tokens, num_heads, head_dim) with 3 tokens"),
        ({"cache": cache_for(dataclasses.replace(SPEC, head_dim=16))}, "cache.head_dim: got 16"),
        ({"sinks": np.zeros(4)}, "sinks: got shape (4,), expected None (spec.has_sinks is False)"),
        (
            {"spec": dataclasses.replace(SPEC, has_sinks=True)},
            "sinks: got None, expected shape (4,)",
        ),
        (
            {"spec": dataclasses.replace(SPEC, has_sinks=True), "sinks": np.zeros(2)},
            "sinks: got shape (2,), expected shape (4,)",
        ),
        (
            {"spec": dataclasses.replace(SPEC, has_sinks=True), "sinks": np.zeros(4, np.int32)},
            "sinks: got dtype int32, expected one of float32, float16, bfloat16",
        ),
        (
            {"spec": dataclasses.replace(SPEC, has_sinks=True), "sinks": [0.0] * 4},
            "sinks: got a list, expected an array of numpy, JAX or torch",
        ),
        ({"query": None}, "query: got None, expected an array of numpy, JAX or torch"),
        ({"query": query().tolist()}, "query: got a list, expected an array"),
        ({"cache": None}, "cache: got None, expected a KVCache"),
        ({"cache": np.zeros(3)}, "cache: got a ndarray, expected a KVCache"),
        ({"cache": KVCache([0.0], PALLAS)}, "cache.data: got a list, expected an array"),
    ],
)
def test_a_call_that_is_not_the_specs(arguments, message):
    call = {"query": query(), "cache": cache_for(), "metadata": metadata(), "spec": SPEC}
    with pytest.raises(ValueError, match=re.escape(message)):
        Recorder().attend(**{**call, **arguments})


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        (cache_for(k_scale=jnp.float32(2)), "k_scale: given for a cache of float32, expected None"),
        (
            cache_for(dtype="int8", v_scale=jnp.ones(3)),
            "v_scale: got shape (3,), expected () or (2,) (num_kv_heads)",
        ),
        (
            cache_for(LATENT, MLA, "int8", v_scale=jnp.float32(2)),
            "v_scale: given for a latent cache, expected None: a value is a key",
        ),
    ],
)
def test_scales_that_do_not_fit_the_cache(cache, message):
    spec = LATENT if cache.layout.is_latent else SPEC
    with pytest.raises(ValueError, match=re.escape(message)):
        Recorder().attend(query(), cache, metadata(), spec)


def test_scales_are_of_the_heads_of_the_call_and_not_of_those_with_padding():
    """Six rows of int8 keys and values fill up two words of four: room for a fourth head."""

    class Padding(Recorder):
        layouts = (TPU_PACKED,)

    spec = dataclasses.replace(SPEC, num_heads=6, num_kv_heads=3)
    rows = np.zeros((3, 3, 8), np.float32)
    cache = cache_for(spec, TPU_PACKED, "int8", k_scale=jnp.ones(3))
    assert cache.num_kv_heads == 4
    backend = Padding()
    backend.attend(query(heads=6), cache, metadata(), spec)
    backend.write(cache, rows, rows, metadata().slot_mapping)
    assert backend.calls == ["attend", "write"]
    for heads in (2, 4):
        wrong = dataclasses.replace(cache, k_scale=jnp.ones(heads))
        message = re.escape(f"k_scale: got shape ({heads},), expected () or (3,) (num_kv_heads)")
        with pytest.raises(ValueError, match=message):
            backend.attend(query(heads=6), wrong, metadata(), spec)
        with pytest.raises(ValueError, match=message):
            backend.write(wrong, rows, rows, metadata().slot_mapping)
        with pytest.raises(ValueError, match=message):
            resolve(spec, backend=backend).allocate(5, 4, dtype="int8", k_scale=jnp.ones(heads))


def test_scales_per_head_are_refused_where_not_claimed():
    cache = cache_for(dtype="int8", k_scale=jnp.ones(2), v_scale=jnp.float32(2))
    Recorder().attend(query(), cache, metadata(), SPEC)
    with pytest.raises(UnsupportedError, match="no per-head scales"):
        Recorder(per_head_scales=False).attend(query(), cache, metadata(), SPEC)


@pytest.mark.parametrize("interpret", ["yes", None, 1])
def test_an_interpreter_is_a_yes_a_no_or_its_parameters(interpret):
    from paged.backends.pallas_tpu import PallasTpuBackend

    expected = f"interpret: got {interpret!r}, expected a bool or InterpretParams"
    with pytest.raises(ValueError, match=expected):
        PallasTpuBackend(interpret=interpret)
    assert PallasTpuBackend(interpret=True).interpreted().interpret


def test_a_whole_step_is_no_metadata():
    """What `MetadataBuilder.build` gives holds it."""
    spec = AttentionSpec(4, 2, 8, 0.5)
    attention = resolve(spec, backend="reference", layout="flashinfer")
    cache = attention.allocate(num_blocks=2, block_size=4)
    step = MetadataBuilder(4).build(
        [(0, 1)], block_table=np.array([[1]], np.int32), num_computed=np.array([0])
    )
    query = np.zeros((step.metadata.num_tokens, 4, 8), np.float32)
    with pytest.raises(ValueError, match=r"metadata: got a Step, .* its `metadata` is one"):
        attention.attend(query, cache, step)
    with pytest.raises(ValueError, match=r"metadata: got None, expected an AttentionMetadata$"):
        attention.attend(query, cache, None)
