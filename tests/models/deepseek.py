"""Tiny random DeepSeek checkpoints, written by transformers itself.

Not a test module: tests of the models and of the engine both build their peers here.
"""

from pathlib import Path
from typing import Any

import pytest

# mscale and mscale_all_dim differ, so that both the rotation and the softmax scale show them.
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.7,
    "mscale_all_dim": 1.3,
}

_SMALL: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 48,
    "intermediate_size": 80,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 2,
    "first_k_dense_replace": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.7,
    "max_position_embeddings": 512,
}

VARIANTS: dict[str, dict[str, Any]] = {
    "v2-lite": {"architecture": "DeepseekV2ForCausalLM", "q_lora_rank": None},
    "v2": {
        "architecture": "DeepseekV2ForCausalLM",
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
        "rope_parameters": YARN,
    },
    "v3": {
        "architecture": "DeepseekV3ForCausalLM",
        "n_group": 4,
        "topk_group": 2,
        "rope_parameters": YARN,
    },
}


def save_deepseek(folder: str | Path, variant: str, *, dtype: str = "float32", **overrides) -> Any:
    """Save a random model, and return it, in fp32, with eager attention and in eval mode.

    Args:
        folder: gets config.json and model.safetensors.
        variant: one of `VARIANTS`.
        dtype: type of the saved weights.
        overrides: fields of the class's own config, over those here.
    """
    torch = pytest.importorskip("torch", reason="the peer is a PyTorch model")
    transformers = pytest.importorskip("transformers", reason="the peer is a transformers model")
    values = {**_SMALL, **VARIANTS[variant], **overrides}
    architecture = values.pop("architecture")
    config = getattr(transformers, architecture.replace("ForCausalLM", "Config"))(**values)
    model = getattr(transformers, architecture)(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        # Buffers too: among them is the bias by which V3's experts are chosen.
        for name, tensor in model.state_dict().items():
            noise = torch.randn(tensor.shape, generator=generator)
            centre = 1.0 if name.endswith("norm.weight") else 0.0
            tensor.copy_(centre + noise * (0.3 if tensor.ndim == 1 else 0.2))
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    peer = type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return peer.eval()
