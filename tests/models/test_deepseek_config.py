"""config.json to DeepseekConfig: as published, both ways, and what is refused by its name."""

import json

import pytest

from paged.models import DeepseekConfig, RopeConfig, RouterConfig, config_from_hf, config_to_hf

# As published, but for keys that say nothing about arithmetic.
V2_LITE = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "attention_bias": False,
    "auto_map": {"AutoModelForCausalLM": "modeling_deepseek.DeepseekV2ForCausalLM"},
    "aux_loss_alpha": 0.001,
    "bos_token_id": 100000,
    "eos_token_id": 100001,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v2",
    "moe_intermediate_size": 1408,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "pretraining_tp": 1,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "seq_aux": True,
    "topk_group": 1,
    "topk_method": "greedy",
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 102400,
}
V3 = {
    **V2_LITE,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "rope_scaling": {**V2_LITE["rope_scaling"], "mscale": 1.0, "mscale_all_dim": 1.0},
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_group": 4,
    "topk_method": "noaux_tc",
}


def test_v2_lite():
    config = config_from_hf(V2_LITE)
    assert config.q_lora_rank is None
    assert config.router == RouterConfig("greedy", 64, 6)
    assert config.rope == RopeConfig(
        10000.0, "yarn", 40.0, original_max_position_embeddings=4096, mscale=0.707,
        mscale_all_dim=0.707,
    )  # fmt: skip
    # 0.1 * 0.707 * log(40) + 1 = 1.2608, squared.
    assert config.softmax_scale == pytest.approx(192**-0.5 * 1.58962, rel=1e-5)
    assert config.rope.amplitude == 1.0


def test_v3():
    config = config_from_hf(V3)
    assert config.router == RouterConfig("noaux_tc", 256, 8, 8, 4, normalize=True, scaling=2.5)
    assert (config.num_layers, config.num_dense_layers, config.q_lora_rank) == (61, 3, 1536)
    spec = config.attention_specs[60]
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.value_dim) == (128, 1, 576, 512)


@pytest.mark.parametrize("values", [V2_LITE, V3, {**V3, "rope_interleave": False}])
def test_what_is_written_reads_back_the_same(values):
    config = config_from_hf(values)
    written = json.loads(json.dumps(config_to_hf(config, dtype="bfloat16")))
    assert config_from_hf(written) == config


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"topk_method": "sinkhorn"}, "topk_method: got 'sinkhorn', supported .* are noaux_tc"),
        ({"scoring_func": "softmax"}, "scoring_func: got 'softmax', supported .* is 'sigmoid'"),
        ({"rope_scaling": {"type": "dynamic"}}, "rope_type: got 'dynamic', supported are"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "original_max_position_embeddings"),
        ({"quantization_config": {"quant_method": "fp8"}}, "not implemented: quantization_config"),
        ({"hidden_act": "gelu"}, "hidden_act: got 'gelu', supported is 'silu'"),
        ({"num_key_value_heads": 8}, "num_key_value_heads: got 8, supported is 128"),
        ({"head_dim": 128}, "head_dim: got 128, supported is 64 or 192"),
        ({"moe_layer_freq": 2}, "moe_layer_freq: got 2, supported is 1"),
        ({"num_hidden_layers": 10**8}, "num_hidden_layers: got 10+, expected an integer from 1 to"),
        ({"n_group": None}, "n_group, topk_group: got None and 4"),
        ({"n_group": 7}, "num_groups: got 7, expected a divisor of num_experts 256"),
        ({"num_experts_per_tok": 129}, "experts_per_token: got 129, expected at most the 128"),
        ({"index_topk": 2048}, "not implemented: index_topk=2048"),
        ({"kv_lora_rank": None}, "kv_lora_rank: got null, expected an integer of at least 1"),
    ],
)
def test_refusals_name_the_key_its_value_and_what_is_accepted(keys, message):
    with pytest.raises(ValueError, match=message):
        config_from_hf({**V3, **keys})


def test_v2_refuses_normalised_weights_and_a_lost_key():
    with pytest.raises(ValueError, match="norm_topk_prob: got True"):
        config_from_hf({**V2_LITE, "norm_topk_prob": True})
    values = {key: value for key, value in V2_LITE.items() if key != "q_lora_rank"}
    with pytest.raises(ValueError, match="q_lora_rank: missing"):
        config_from_hf(values)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("qk_rope_head_dim", 7),
        ("num_dense_layers", -1),
        ("q_lora_rank", 0),
        ("architecture", "LlamaForCausalLM"),
        ("architecture", None),
    ],
)
def test_a_config_checks_its_fields(field, value):
    values = {name: getattr(config_from_hf(V3), name) for name in DeepseekConfig.__slots__}
    with pytest.raises(ValueError, match=f"{field}: got {value!r}, (expected|supported are)"):
        DeepseekConfig(**{**values, field: value})
