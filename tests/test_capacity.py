"""Bytes and blocks: worked examples first, then every way in and every refusal."""

import json
import re

import pytest

from paged.capacity import (
    blocks_for,
    occupancy,
    parse_bytes,
    plan,
    preset_names,
    read_model,
)
from paged.layouts import LAYOUTS, Layout

KiB, MiB, GiB = 2**10, 2**20, 2**30

TINY = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "torch_dtype": "float32",
}


def test_llama_2_13b_in_50_gib():
    p = plan("llama-2-13b", "50GiB", dtype="float16", block_size=16)
    assert p.bytes_per_token == 819_200
    assert p.bytes_per_block_per_layer == 327_680
    assert p.bytes_per_block == 12.5 * MiB
    assert p.num_blocks == 4_096
    assert p.num_tokens == 65_536
    assert p.num_usable_tokens == 65_520


def test_llama_3_70b_over_two_ranks():
    p = plan("llama-3-70b", "6GiB", dtype="float16", tp=2)
    assert p.bytes_per_token_per_layer == 2 * KiB
    assert p.bytes_per_token == 160 * KiB
    assert p.num_tokens == 39_321
    assert p.num_blocks == 2_457
    assert p.num_usable_tokens == 39_296
    assert 32 * blocks_for(1_056, p.block_size) == 2_112
    # One of the 2,457 is the null block: 2,456 // 66.
    assert p.num_requests(1_056) == 37


def test_deepseek_v3_keeps_576_values_per_token_and_layer():
    p = plan("deepseek-v3", "10GiB")
    assert (p.values_per_token_per_layer, p.layout, p.dtype) == (576, "mla", "bfloat16")
    assert p.bytes_per_token == 61 * 576 * 2


def test_gemma_3_27b_past_its_window():
    p = plan("gemma-3-27b", "50GiB")
    assert (p.attention, p.values_per_token_per_layer, p.window) == ("GQA", 2 * 16 * 128, 1024)
    assert p.bytes_per_token == 62 * 8 * KiB
    # One layer in six sees everything: 10 of 62.
    assert p.bytes_per_token_past_window == 10 * 8 * KiB


def test_a_pattern_that_a_class_has_of_itself():
    sliding = {**TINY, "num_hidden_layers": 13, "sliding_window": 4}
    counts = {kind: read_model({**sliding, "model_type": kind}).num_window_layers
              for kind in ("mistral", "gemma2", "gemma3_text", "gpt_oss")}  # fmt: skip
    assert counts == {"mistral": 13, "gemma2": 7, "gemma3_text": 11, "gpt_oss": 7}


@pytest.mark.parametrize(
    ("model", "attention"),
    [("llama-2-7b", "MHA"), ("llama-3-8b", "GQA"), ("deepseek-v3", "MLA"),
     ({**TINY, "num_key_value_heads": 1}, "MQA")],
)  # fmt: skip
def test_how_heads_share_what_is_kept(model, attention):
    assert read_model(model).attention == attention


def test_three_requests_take_six_blocks():
    taken = occupancy([25, 47, 12], 16)
    assert (taken.num_blocks, taken.num_slots, taken.num_tokens) == (6, 96, 84)
    assert taken.waste == 12 / 96
    reserved = occupancy([25, 47, 12], 2_048)
    assert (reserved.num_slots, round(100 * reserved.waste, 1)) == (6_144, 98.6)


@pytest.mark.parametrize(
    ("name", "layers", "windowed", "kv_heads", "head_dim"),
    [
        ("llama-2-7b", 32, 0, 32, 128),
        ("llama-2-13b", 40, 0, 40, 128),
        ("llama-3-8b", 32, 0, 8, 128),
        ("llama-3-70b", 80, 0, 8, 128),
        ("mistral-7b", 32, 32, 8, 128),
        ("qwen2-7b", 28, 0, 4, 128),
        ("qwen3-8b", 36, 0, 8, 128),
        ("deepseek-v2-lite", 27, 0, 1, 576),
        ("deepseek-v3", 61, 0, 1, 576),
        ("gemma-3-27b", 62, 52, 16, 128),
        ("gpt-oss-20b", 24, 12, 8, 64),
    ],
)
def test_presets(name, layers, windowed, kv_heads, head_dim):
    model = read_model(name)
    assert (model.num_layers, model.num_window_layers) == (layers, windowed)
    assert (model.num_kv_heads, model.head_dim) == (kv_heads, head_dim)
    assert model.dtype in ("float16", "bfloat16")


def test_the_table_of_presets_is_complete():
    assert len(preset_names()) == 11


@pytest.mark.parametrize(
    ("tp", "kv_heads", "replicas"), [(1, 8, 1), (2, 4, 1), (8, 1, 1), (16, 1, 2), (64, 1, 8)]
)
def test_kv_heads_are_split_then_replicated(tp, kv_heads, replicas):
    p = plan("llama-3-70b", "10GiB", tp=tp)
    assert (p.num_kv_heads, p.kv_replicas) == (kv_heads, replicas)
    assert p.bytes_per_token_per_layer == 2 * kv_heads * 128 * 2


def test_a_latent_is_on_every_rank():
    one, eight = plan("deepseek-v3", "10GiB"), plan("deepseek-v3", "10GiB", tp=8)
    assert one.bytes_per_token == eight.bytes_per_token
    assert (one.kv_replicas, eight.kv_replicas) == (1, 8)


def test_windowed_layers_count_as_full():
    windowed = {**TINY, "sliding_window": 4}
    assert plan(windowed, "1MiB").bytes_per_token == plan(TINY, "1MiB").bytes_per_token
    assert plan(windowed, "1MiB").num_window_layers == 2


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"sliding_window": None}, (2, 0)),
        ({"sliding_window": 4, "use_sliding_window": False}, (2, 0)),
        ({"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 1}, (2, 1)),
        ({"sliding_window": 4, "sliding_window_pattern": 2}, (2, 1)),
        ({"layer_types": ["full_attention", "sliding_attention"]}, (2, 1)),
        ({"layer_types": ["linear_attention", "full_attention"]}, (1, 0)),
        # As EXAONE 4 says it beside the types: nothing asks for the pattern.
        (
            {"sliding_window": 4, "sliding_window_pattern": "LLLG",
             "layer_types": ["sliding_attention", "full_attention"]},
            (2, 1),
        ),
    ],
)  # fmt: skip
def test_which_layers_have_a_cache_and_a_window(fields, expected):
    model = read_model({**TINY, **fields})
    assert (model.num_layers, model.num_window_layers) == expected


def test_a_block_grows_with_its_size_and_a_token_does_not():
    small, large = plan(TINY, "1MiB", block_size=8), plan(TINY, "1MiB", block_size=32)
    assert 4 * small.bytes_per_block == large.bytes_per_block
    assert small.bytes_per_token == large.bytes_per_token == 2 * 2 * 2 * 8 * 4


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=lambda layout: layout.name)
@pytest.mark.parametrize("target", ["cpu", "cuda", "rocm", "tpu"])
def test_pages_are_the_layouts_own(layout, target):
    model = read_model("deepseek-v3" if layout.is_latent else "llama-3-8b")
    p = plan(model, "10GiB", layout=layout.name, target=target, dtype="int8", tp=4)
    spec = model.spec(block_size=16, dtype="int8", tp=4)
    assert p.bytes_per_block_per_layer == layout.page_bytes(spec, target=target)
    assert p.bytes_per_block == p.num_layers * p.bytes_per_block_per_layer
    dense = p.num_layers * 16 * spec.bytes_per_token
    assert p.padding_per_block == p.bytes_per_block - dense
    if target != "tpu" and layout.name != "tpu_mla":
        assert p.padding_per_block == 0


def test_a_tpu_pads_a_latent_by_a_ninth():
    p = plan("deepseek-v3", "10GiB", target="tpu")
    assert p.bytes_per_token == 61 * 640 * 2
    assert p.padding_per_block == 61 * 16 * 64 * 2


def test_a_users_own_layout():
    own = Layout("by_head", "head block slot (dim kv)")
    assert plan(TINY, "1MiB", layout=own).layout == "by_head"


def test_a_folder_a_file_and_a_mapping_are_the_same(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    plans = [plan(source, "1MiB") for source in (tmp_path, tmp_path / "config.json", TINY)]
    assert len({p.bytes_per_token for p in plans}) == 1
    assert plan(str(tmp_path), "1MiB").model == str(tmp_path)


def test_the_dtype_of_newer_configurations():
    newer = {key: value for key, value in TINY.items() if key != "torch_dtype"}
    assert plan({**newer, "dtype": "bfloat16"}, "1MiB").dtype == "bfloat16"
    with pytest.raises(ValueError, match="dtype: llama names none, expected one to be given"):
        plan(newer, "1MiB")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("50GiB", 50 * GiB),
        ("512 MiB", 512 * MiB),
        ("1.5kib", 1536),
        ("24GB", 24 * 10**9),
        ("7kB", 7000),
        ("2TiB", 2 * 2**40),
        ("100b", 100),
        ("12345", 12345),
        (12345, 12345),
        ("0.1GB", 10**8),
    ],
)
def test_budgets(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "5 gigs", "1e9", "0", "0.1", "50G", "nan"])
def test_a_budget_of_another_form_is_refused(text):
    with pytest.raises(ValueError, match=f"memory: got {re.escape(repr(text))}, expected"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "llama-9"}, "model: got 'llama-9', expected a config.json, a folder with one"),
        ({"model": {"num_hidden_layers": 2}}, "num_attention_heads of config is not there"),
        ({"model": {**TINY, "num_hidden_layers": 0}}, "num_hidden_layers of llama got 0, expected"),
        ({"model": {**TINY, "num_attention_heads": 0}}, "num_attention_heads of llama got 0, exp"),
        ({"model": {**TINY, "head_dim": "64"}}, "head_dim of llama got '64', expected an integer"),
        ({"model": {**TINY, "num_key_value_heads": 3}}, "num_key_value_heads of llama got 3, exp"),
        ({"model": {**TINY, "layer_types": ["mamba"]}}, "layer_types: llama has 'mamba', expected"),
        ({"memory": 4095}, "memory: got 4095 bytes, expected at least two blocks of 4096 bytes"),
        ({"memory": "1TiB"}, "slots, expected fewer than 2147483648 slots"),
        ({"tp": 3}, "tp: got 3, expected a divisor of 8 query heads"),
        ({"tp": 0}, "tp: got 0, expected a divisor of 8 query heads"),
        ({"block_size": 0}, "block_size: got 0, expected an integer of at least 1"),
        ({"dtype": "float4"}, "dtype: got 'float4', expected one of"),
        ({"layout": "nhd"}, "layout: got 'nhd', expected one of"),
        ({"layout": "mla"}, "layout mla holds one latent per token, the spec asks for keys"),
        ({"target": "tpuv5"}, "target: got 'tpuv5', expected one of cpu, cuda, rocm, tpu"),
    ],
)
def test_refusals(arguments, message):
    asked = {"model": TINY, "memory": "1MiB", **arguments}
    with pytest.raises(ValueError, match=re.escape(message)):
        plan(asked.pop("model"), asked.pop("memory"), **asked)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("head_dim", 0, "an integer of at least 1"),
        ("num_key_value_heads", 0, "an integer of at least 1"),
        ("kv_lora_rank", 0, "an integer of at least 1"),
        ("sliding_window", -1, "an integer of at least 1"),
        ("sliding_window", "x", "an integer of at least 1"),
        ("sliding_window", 1.5, "an integer of at least 1"),
        ("sliding_window_pattern", "x", "an integer of at least 1"),
        ("sliding_window_pattern", 0, "an integer of at least 1"),
        ("sliding_window_pattern", -2, "an integer of at least 1"),
        ("max_window_layers", -1, "an integer of at least 0"),
    ],
)
def test_a_field_that_is_no_such_number_is_refused(field, value, expected):
    message = f"{field} of llama got {value!r}, expected {expected}"
    with pytest.raises(ValueError, match=re.escape(message)):
        read_model({**TINY, "sliding_window": 4, field: value})


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (["full_attention"], "has 1 entries, expected num_hidden_layers 2"),
        ([], "has 0 entries, expected num_hidden_layers 2"),
        ("full_attention", "has 'full_attention', expected a list of full_attention, sliding_att"),
        (["full_attention", ["x"]], "has ['x'], expected full_attention, sliding_attention"),
    ],
)
def test_types_that_are_not_one_for_each_layer_are_refused(types, message):
    with pytest.raises(ValueError, match=re.escape(f"layer_types: llama {message}")):
        read_model({**TINY, "layer_types": types})


def test_heads_that_ranks_can_neither_split_nor_share_are_refused():
    model = {**TINY, "num_attention_heads": 12, "num_key_value_heads": 3, "hidden_size": 96}
    with pytest.raises(ValueError, match="tp: got 2, expected a divisor or a multiple of 3 KV"):
        plan(model, "1MiB", tp=2)


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_file_that_is_no_configuration_is_refused(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"model: .*config\.json (is no JSON|holds list)"):
        read_model(tmp_path)


def test_a_text_model_that_is_no_object_is_refused():
    with pytest.raises(ValueError, match="model: text_config of llama got list, expected an obj"):
        read_model({**TINY, "text_config": [1]})


def test_requests_of_no_tokens_are_refused():
    with pytest.raises(ValueError, match="tokens: got 0, expected an integer of at least 1"):
        plan(TINY, "1MiB").num_requests(0)


def test_requests_do_not_get_the_null_block():
    assert plan(TINY, 3 * 4096).num_blocks == 3
    assert plan(TINY, 3 * 4096).num_requests(16) == 2
    assert plan(TINY, 3 * 4096).num_requests(17) == 1
