"""config.json to ModelConfig: the four families, both spellings of rope, and what is refused."""

import json

import pytest

from paged.models import ModelConfig, RopeConfig, config_from_hf, config_to_hf, load_config

# As published, the keys that matter; llama-3.1-8b carries the older spelling of rope scaling.
LLAMA_31_8B = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.0",
    "use_cache": True,
    "vocab_size": 128256,
}


def small(architecture, **overrides):
    values = {
        "architectures": [architecture],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 100,
    }
    if architecture == "MistralForCausalLM":
        values["sliding_window"] = None
    if architecture == "Qwen3ForCausalLM":
        values["head_dim"] = 8
    return values | overrides


def llama(**overrides):
    return small("LlamaForCausalLM", **overrides)


def test_llama_31_8b():
    config = config_from_hf(LLAMA_31_8B)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (32, 8, 128)
    assert config.rope == RopeConfig(500000.0, "llama3", 8.0, 1.0, 4.0, 8192)
    assert config.eos_token_ids == (128001, 128008, 128009)
    assert config.bos_token_id == 128000
    assert config.windows == (None,) * 32
    switches = (config.qkv_bias, config.output_bias, config.mlp_bias, config.qk_norm)
    assert switches == (False,) * 4


def test_llama_before_gqa_has_as_many_kv_heads_as_heads():
    values = llama()
    del values["num_key_value_heads"]
    assert config_from_hf(values).num_kv_heads == 8


def test_llama_biases_follow_the_config():
    config = config_from_hf(llama(attention_bias=True, mlp_bias=True))
    assert config.qkv_bias
    assert config.output_bias
    assert config.mlp_bias


def test_qwen2_always_has_qkv_bias_and_no_other():
    config = config_from_hf(small("Qwen2ForCausalLM"))
    assert config.qkv_bias
    assert not config.output_bias


def test_qwen3_norms_its_heads_and_says_how_wide_they_are():
    config = config_from_hf(small("Qwen3ForCausalLM", head_dim=24))
    assert config.qk_norm
    assert config.head_dim == 24


def test_mistral_slides_in_every_layer_unless_null():
    assert config_from_hf(small("MistralForCausalLM", sliding_window=16)).windows == (16,) * 4
    assert config_from_hf(small("MistralForCausalLM")).windows == (None,) * 4


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
@pytest.mark.parametrize(
    ("keys", "windows"),
    [
        ({"sliding_window": 16, "max_window_layers": 2}, (None,) * 4),
        (
            {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2},
            (None, None, 16, 16),
        ),
        ({"use_sliding_window": True, "sliding_window": None}, (None,) * 4),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 16,
                "max_window_layers": 4,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            (16, None, 16, None),
        ),
        ({"sliding_window": None, "layer_types": ["full_attention"] * 4}, (None,) * 4),
    ],
)
def test_qwens_rule_for_windows(architecture, keys, windows):
    assert config_from_hf(small(architecture, **keys)).windows == windows


@pytest.mark.parametrize(
    ("keys", "rope"),
    [
        ({}, RopeConfig()),
        ({"rope_theta": 5e5, "rope_scaling": None}, RopeConfig(5e5)),
        ({"rope_parameters": {"rope_theta": 5e5}}, RopeConfig(5e5)),
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, RopeConfig(5e5)),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, RopeConfig(1e4, "linear", 2.0)),
        (
            {"rope_theta": 5e5, "rope_parameters": {"rope_type": "linear", "factor": 2.0}},
            RopeConfig(5e5, "linear", 2.0),
        ),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}},
            RopeConfig(),
        ),
    ],
)
def test_rope_in_both_spellings(keys, rope):
    assert config_from_hf(llama(**keys)).rope == rope


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"architectures": ["GemmaForCausalLM"]},
            "architectures: got .*Gemma.*supported are Llama",
        ),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures: got"),
        ({"architectures": None, "model_type": "gpt2"}, "architectures: got None .*'gpt2'"),
        ({"hidden_act": "gelu"}, "hidden_act: got 'gelu', supported is 'silu'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_type: got 'longrope', supported"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4}},
            "rope_scaling.original_max_position_embeddings: got nothing",
        ),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope_parameters.rope_type: got 'dynamic'"),
        ({"rope_scaling": {"factor": 4.0}}, "rope_scaling.rope_type: got None"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor: got nothing, expected"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0, "attention_factor": 0.7}},
            "rope_scaling.attention_factor=0.7",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1.0}}},
            "expected one object of plain values",
        ),
        (
            {"rope_theta": 2.0, "rope_parameters": {"rope_theta": 3.0}},
            "rope_theta: got 2.0, but rope_parameters has 3.0",
        ),
        (
            {"rope_scaling": {"type": "linear"}, "rope_parameters": {"rope_theta": 3.0}},
            "rope_scaling: got .* beside rope_parameters",
        ),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_type: got None"),
        ({"num_key_value_heads": 3}, "num_heads: got 8, expected a multiple of num_kv_heads 3"),
        ({"hidden_size": "64"}, "hidden_size: got '64', expected an integer"),
        ({"vocab_size": None}, "vocab_size: got null, expected an integer"),
        ({"attention_bias": 1}, "attention_bias: got 1, expected true or false"),
        (
            {"num_attention_heads": 0},
            "num_attention_heads: got 0, expected an integer of at least 1",
        ),
        ({"architectures": [["a"]]}, r"architectures: got \[\['a'\]\] .*supported are Llama"),
        ({"architectures": 5}, "architectures: got 5 .*supported are Llama"),
        ({"rope_scaling": {"rope_type": ["a"]}}, r"rope_type: got \['a'\], supported are default"),
        ({"rope_scaling": []}, r"rope_scaling: got \[\], expected one object"),
        ({"eos_token_id": [[1]]}, r"eos_token_id: got \[\[1\]\], expected an integer"),
        ({"eos_token_id": "x"}, "eos_token_id: got 'x', expected an integer of at least 0"),
        ({"eos_token_id": -5}, "eos_token_id: got -5, expected an integer of at least 0"),
        ({"bos_token_id": "q"}, "bos_token_id: got 'q', expected an integer of at least 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps: got nan, expected a finite number"),
        ({"rms_norm_eps": -1}, "rms_norm_eps: got -1, expected a finite number of at least 0"),
        ({"rope_theta": float("inf")}, "rope_theta: got inf, expected a finite number"),
        ({"rope_theta": 10**400}, "rope_theta: got 10+, expected a finite number"),
    ],
)
def test_refusals_name_the_field_its_value_and_what_is_accepted(keys, message):
    with pytest.raises(ValueError, match=message):
        config_from_hf(llama(**keys))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("quantization_config", {"quant_method": "gptq"}),
        ("final_logit_softcapping", 30.0),
        ("partial_rotary_factor", 0.5),
        ("sliding_window", 16),
        ("num_local_experts", 8),
        ("residual_multiplier", 0.22),
        ("auto_map", {"AutoModelForCausalLM": "modeling.Mine"}),
    ],
)
def test_a_key_that_may_change_the_arithmetic_is_refused(key, value):
    with pytest.raises(ValueError, match=f"not implemented: {key}="):
        config_from_hf(llama(**{key: value}))
    assert config_from_hf(llama(**{key: value}), ignore_keys=[key]) == config_from_hf(llama())


def test_null_false_private_and_bookkeeping_keys_pass():
    extras = {
        "quantization_config": None,
        "add_cross_attention": False,
        "_name_or_path": "somewhere",
        "use_cache": True,
        "temperature": 0.6,
        "id2label": {"0": "LABEL_0"},
    }
    assert config_from_hf(llama(**extras)) == config_from_hf(llama())


@pytest.mark.parametrize(
    ("architecture", "key"),
    [
        # transformers would fill in 8 and 32, 4096, and 128: too far from the file to guess.
        ("MistralForCausalLM", "num_key_value_heads"),
        ("Qwen2ForCausalLM", "num_key_value_heads"),
        ("MistralForCausalLM", "sliding_window"),
        ("Qwen3ForCausalLM", "head_dim"),
    ],
)
def test_defaults_that_differ_between_classes_are_not_guessed(architecture, key):
    values = small(architecture)
    del values[key]
    with pytest.raises(ValueError, match=key):
        config_from_hf(values)


@pytest.mark.parametrize("layer_types", [["full_attention"], ["chunked_attention"] * 4, 5, []])
def test_layer_types_are_checked(layer_types):
    with pytest.raises(ValueError, match="layer_types: got"):
        config_from_hf(small("Qwen3ForCausalLM", layer_types=layer_types))


def test_the_architecture_may_follow_from_the_model_type():
    values = small("Qwen3ForCausalLM", architectures=None, model_type="qwen3")
    assert config_from_hf(values).architecture == "Qwen3ForCausalLM"


@pytest.mark.parametrize(
    "values",
    [
        LLAMA_31_8B,
        llama(attention_bias=True, tie_word_embeddings=True),
        small("MistralForCausalLM", sliding_window=16, head_dim=24),
        small("Qwen2ForCausalLM", use_sliding_window=True, sliding_window=16, max_window_layers=2),
        small("Qwen3ForCausalLM", rope_scaling={"type": "linear", "factor": 2.0}),
    ],
)
def test_what_is_written_reads_back_the_same(values):
    config = config_from_hf(values)
    written = json.loads(json.dumps(config_to_hf(config, dtype="bfloat16")))
    assert config_from_hf(written) == config


def test_what_the_class_cannot_say_is_not_written():
    config = ModelConfig(100, 64, 96, 2, 8, 2, 8, architecture="LlamaForCausalLM", windows=(16, 16))
    with pytest.raises(ValueError, match="LlamaForCausalLM cannot express"):
        config_to_hf(config, dtype="float32")


def test_load_config_names_the_file(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(llama(hidden_act="gelu")))
    with pytest.raises(ValueError, match=r"config\.json: hidden_act: got 'gelu'"):
        load_config(tmp_path)


@pytest.mark.parametrize("window", ["x", 0, -4])
def test_a_window_is_a_count(window):
    with pytest.raises(
        ValueError, match=r"sliding_window: got .*expected an integer of at least 1"
    ):
        config_from_hf(small("MistralForCausalLM", sliding_window=window))


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3ForCausalLM"])
@pytest.mark.parametrize("layers", [10_001, 10**8, 10**30])
def test_more_layers_than_could_be_meant_are_refused(architecture, layers):
    message = f"num_hidden_layers: got {layers}, expected an integer from 1 to 10000"
    with pytest.raises(ValueError, match=message):
        config_from_hf(small(architecture, num_hidden_layers=layers))


@pytest.mark.parametrize("content", ["[]", "null", "{", ""])
def test_a_config_that_is_no_object_is_refused(content, tmp_path):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json: got .*expected a JSON object") as caught:
        load_config(tmp_path)
    assert len(str(caught.value).splitlines()) == 1


def test_values_that_are_no_object_are_refused():
    with pytest.raises(ValueError, match=r"config: got \[\], expected a JSON object"):
        config_from_hf([])


@pytest.mark.parametrize("eps", [float("nan"), float("inf"), -1.0])
def test_a_model_config_checks_its_epsilon(eps):
    with pytest.raises(ValueError, match=r"rms_norm_eps: got .*expected a finite number"):
        ModelConfig(100, 64, 96, 2, 8, 2, 8, rms_norm_eps=eps)
