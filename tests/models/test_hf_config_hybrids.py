"""config.json of Gemma 2, Gemma 3 and gpt-oss: as published, both ways, and what is refused."""

import json

import pytest

from paged.models import (
    ExpertsConfig,
    ModelConfig,
    RopeConfig,
    config_from_hf,
    config_to_hf,
)

# As published, the keys that matter.
GEMMA_2_9B = {
    "architectures": ["Gemma2ForCausalLM"],
    "attention_bias": False,
    "attn_logit_softcapping": 50.0,
    "bos_token_id": 2,
    "cache_implementation": "hybrid",
    "eos_token_id": 1,
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 3584,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "model_type": "gemma2",
    "num_attention_heads": 16,
    "num_hidden_layers": 42,
    "num_key_value_heads": 8,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "torch_dtype": "float32",
    "vocab_size": 256000,
}
GEMMA_3_1B = {
    "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "bos_token_id": 2,
    "cache_implementation": "hybrid",
    "eos_token_id": [1, 106],
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "torch_dtype": "bfloat16",
    "vocab_size": 262144,
}
YARN = {
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "rope_type": "yarn",
    "truncate": False,
}
# The weights themselves are quantised, which `quantization_config` says there: see below.
GPT_OSS_20B = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "eos_token_id": 200002,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "output_router_logits": False,
    "rms_norm_eps": 1e-05,
    "rope_scaling": YARN,
    "rope_theta": 150000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}
PUBLISHED = {"gemma2": GEMMA_2_9B, "gemma3": GEMMA_3_1B, "gpt_oss": GPT_OSS_20B}


def without(values, *names):
    return {key: value for key, value in values.items() if key not in names}


def test_gemma_2_9b():
    config = config_from_hf(GEMMA_2_9B)
    # The pattern is the class's own: every other layer slides, the first among them.
    assert config.windows == (4096, None) * 21
    assert (config.soft_cap, config.final_soft_cap) == (50.0, 30.0)
    assert config.tie_word_embeddings
    assert (config.norm_offset, config.activation) == (1.0, "gelu_pytorch_tanh")
    assert config.post_norms
    assert config.scale_embedding
    first, second = config.attention_specs[:2]
    assert (first.window, first.soft_cap, first.scale) == (4096, 50.0, 1 / 16)
    assert (second.window, second.soft_cap, second.scale) == (None, 50.0, 1 / 16)


def test_gemma_3_1b():
    config = config_from_hf(GEMMA_3_1B)
    assert config.windows == ((512,) * 5 + (None,)) * 4 + (512, 512)
    assert config.qk_norm
    assert (config.soft_cap, config.final_soft_cap) == (None, None)
    assert config.ropes[4:7] == (RopeConfig(10000.0), RopeConfig(1e6), RopeConfig(10000.0))


def test_gemma_3_stretches_the_layers_that_see_everything_alone():
    scaled = {**GEMMA_3_1B, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    config = config_from_hf(scaled)
    assert config.rope == RopeConfig(1e6, "linear", 8.0)
    assert config.window_rope == RopeConfig(1e4)
    newer = without(scaled, "rope_scaling", "rope_theta", "rope_local_base_freq")
    newer["rope_parameters"] = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    assert config_from_hf(newer) == config


def test_gpt_oss_20b():
    config = config_from_hf(GPT_OSS_20B)
    assert config.experts == ExpertsConfig(32, 4, 1.702, 7.0)
    assert config.windows == (128, None) * 12
    assert config.qkv_bias
    assert config.output_bias
    assert all(spec.has_sinks for spec in config.attention_specs)
    # 0.1 * log(32) + 1, as nobody names another.
    assert config.rope.amplitude == pytest.approx(1.3465736)
    assert not config.rope.truncate


@pytest.mark.parametrize(
    "values",
    [
        *PUBLISHED.values(),
        {**GEMMA_3_1B, "rope_local_base_freq": 1000000},
        {**GEMMA_3_1B, "sliding_window": None, "layer_types": ["full_attention"] * 26},
        {
            **without(GEMMA_3_1B, "rope_scaling", "rope_theta", "rope_local_base_freq"),
            "rope_parameters": {
                kind: {"rope_type": "linear", "factor": 2.0, "rope_theta": theta}
                for kind, theta in (("full_attention", 1e6), ("sliding_attention", 1e4))
            },
        },
        {**GPT_OSS_20B, "swiglu_alpha": 1.5, "attention_bias": False},
    ],
)
def test_what_is_written_reads_back_the_same(values):
    config = config_from_hf(values)
    written = json.loads(json.dumps(config_to_hf(config, dtype="bfloat16")))
    assert config_from_hf(written) == config


@pytest.mark.parametrize(
    ("kind", "keys", "message"),
    [
        ("gemma2", {"hidden_activation": "gelu"}, "hidden_activation: got 'gelu', supported is"),
        ("gemma2", {"hidden_act": "gelu"}, "hidden_act: got 'gelu', supported is 'gelu_pytorch"),
        ("gemma2", {"rope_scaling": {"type": "longrope"}}, "rope_type: got 'longrope', supported"),
        ("gemma2", {"attn_logit_softcapping": -1}, "^attn_logit_softcapping: got -1, expected a p"),
        ("gemma2", {"final_logit_softcapping": 0}, "^final_logit_softcapping: got 0, expected a p"),
        ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar: got 0, expected a posi"),
        ("gemma2", {"query_pre_attn_scalar": 1.5}, "query_pre_attn_scalar: got 1.5, expected an"),
        ("gemma2", {"sliding_window": None}, "sliding_window: got null, expected an integer"),
        ("gemma2", {"layer_types": ["chunked_attention"] * 42}, "layer_types: got 'chunked_att"),
        # transformers' class passes over a cap of the attention's logits.
        ("gemma3", {"attn_logit_softcapping": 50.0}, "not implemented: attn_logit_softcapping=50"),
        ("gemma3", {"use_bidirectional_attention": True}, "not implemented: use_bidirectional"),
        ("gemma3", {"vision_config": {"hidden_size": 8}}, "not implemented: vision_config="),
        (
            "gemma3",
            {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"},
            "got .*'Gemma3ForConditionalGeneration'.* with model_type 'gemma3', supported are",
        ),
        ("gemma3", {"rope_parameters": {"sliding_attention": {}}}, "expected one object of plain"),
        (
            "gemma3",
            {"rope_parameters": {"sliding_attention": {}, "full_attention": {"rope_theta": 2.0}}},
            "rope_parameters.sliding_attention.rope_theta: got nothing",
        ),
        ("gemma3", {"sliding_window_pattern": 0}, "sliding_window_pattern: got 0, expected an"),
        (
            "gpt_oss",
            {"quantization_config": {"quant_method": "mxfp4"}},
            "not implemented: quantization_config=.*mxfp4",
        ),
        ("gpt_oss", {"hidden_act": "gelu"}, "hidden_act: got 'gelu', supported is 'silu'"),
        ("gpt_oss", {"experts_per_token": 2}, "experts_per_token: got 2, but num_experts_per_tok"),
        ("gpt_oss", {"num_local_experts": 3}, "experts_per_token: got 4, expected at most num_exp"),
        ("gpt_oss", {"swiglu_limit": 0.0}, "swiglu_limit: got 0.0, expected a positive"),
        ("gpt_oss", {"rope_scaling": {**YARN, "rope_type": "dynamic"}}, "rope_type: got 'dynamic'"),
    ],
)
def test_refusals_name_the_key_its_value_and_what_is_accepted(kind, keys, message):
    with pytest.raises(ValueError, match=message):
        config_from_hf({**PUBLISHED[kind], **keys})


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        # transformers would fill in 50, 30 and 256, or 1,000,000 and 10,000, or 150,000 and 1e-5.
        ("gemma2", "attn_logit_softcapping"),
        ("gemma2", "final_logit_softcapping"),
        ("gemma2", "query_pre_attn_scalar"),
        ("gemma2", "sliding_window"),
        ("gemma2", "head_dim"),
        ("gemma3", "rope_theta"),
        ("gemma3", "rope_local_base_freq"),
        ("gpt_oss", "rope_theta"),
        ("gpt_oss", "rms_norm_eps"),
        ("gpt_oss", "num_local_experts"),
    ],
)
def test_defaults_that_differ_between_classes_are_not_guessed(kind, key):
    with pytest.raises(ValueError, match=key):
        config_from_hf(without(PUBLISHED[kind], key))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"experts": ExpertsConfig(4, 2)},
            "Gemma2ForCausalLM cannot express experts ExpertsConfig",
        ),
        ({"norm_offset": 0.0}, r"cannot express norm_offset 0.0 \(it would be 1.0\)"),
        ({"windows": (4096, 16) * 21}, "cannot express windows"),
    ],
)
def test_what_a_class_cannot_say_is_not_written(changed, message):
    config = config_from_hf(GEMMA_2_9B)
    fields = {name: getattr(config, name) for name in ModelConfig.__slots__}
    with pytest.raises(ValueError, match=message):
        config_to_hf(ModelConfig(**{**fields, **changed}), dtype="float32")


def test_gpt_oss_without_experts_is_not_written():
    config = ModelConfig(100, 64, 96, 2, 8, 2, 8, architecture="GptOssForCausalLM")
    with pytest.raises(
        ValueError, match="GptOssForCausalLM cannot express it: num_experts_per_tok"
    ):
        config_to_hf(config, dtype="float32")


@pytest.mark.parametrize("dtype", [None, "int8", "float64", ["float32"]])
def test_the_type_that_is_written_is_one_of_weights(dtype):
    with pytest.raises(
        ValueError, match=r"dtype: got .*expected one of float32, float16, bfloat16"
    ):
        config_to_hf(config_from_hf(GEMMA_2_9B), dtype=dtype)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"architecture": "GPT2LMHeadModel"}, "architecture: got 'GPT2LMHeadModel', supported are"),
        ({"architecture": None}, "architecture: got None, supported are Llama"),
        ({"activation": "relu"}, "activation: got 'relu', supported are silu, gelu_pytorch_tanh"),
        ({"final_soft_cap": 0}, "final_soft_cap: got 0, expected a positive number or None"),
        ({"soft_cap": float("nan")}, "soft_cap: got nan, expected a positive number or None"),
        ({"query_pre_attn_scalar": 1.5}, "query_pre_attn_scalar: got 1.5, expected an integer"),
        ({"norm_offset": float("inf")}, "norm_offset: got inf, expected a finite number"),
    ],
)
def test_a_model_config_checks_its_fields(changed, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig(100, 64, 96, 2, 8, 2, 8, **changed)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((0, 1), "num_experts: got 0, expected an integer of at least 1"),
        ((4, 5), "experts_per_token: got 5, expected at most num_experts 4"),
        ((4, 2, float("inf")), "swiglu_alpha: got inf, expected a positive finite number"),
        ((4, 2, 1.0, -1.0), "swiglu_limit: got -1.0, expected a positive finite number"),
    ],
)
def test_an_experts_config_checks_its_fields(fields, message):
    with pytest.raises(ValueError, match=message):
        ExpertsConfig(*fields)
