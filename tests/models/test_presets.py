"""What is planned for a preset is what the model of that configuration keeps."""

import json

import pytest

from paged.capacity import _PRESETS, preset_names, read_model
from paged.models import config_from_hf
from paged.spec import KVCacheSpec

# What a model needs and a preset leaves out, as it says nothing about what is kept.
GEMMA = {
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 168,
    "final_logit_softcapping": None,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
}
DEEPSEEK = {
    "moe_intermediate_size": 8,
    "first_k_dense_replace": 1,
    "q_lora_rank": None,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
}
LEFT_OUT = {
    "gemma3_text": GEMMA,
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "gpt_oss": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150000.0,
    },
}


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_agrees_with_the_model(name):
    preset = json.loads((_PRESETS / f"{name}.json").read_text())
    # Gemma 3's decoder is an object of its own there.
    values = preset.get("text_config", preset)
    left_out = {"vocab_size": 8, "intermediate_size": 8, **LEFT_OUT.get(values["model_type"], {})}
    config = config_from_hf({**left_out, **values})
    planned = read_model(name)
    assert config.num_layers == planned.num_layers
    windows = [spec.window for spec in config.attention_specs if spec.window is not None]
    assert len(windows) == planned.num_window_layers
    assert set(windows) == ({planned.window} if windows else set())
    for spec in config.attention_specs:
        kept = KVCacheSpec.of(spec, block_size=16, dtype="bfloat16")
        assert planned.spec(block_size=16, dtype="bfloat16") == kept
