"""Tiny random Hugging Face checkpoints, written by transformers itself, and logits without a cache.

Not a test module: tests of the models and of the engine both build their peers here.
"""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from paged.models import Decoder, DenseAttention, load_model, save_model

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    # Short, so that some pairs are stretched, some kept and some in between.
    "original_max_position_embeddings": 64,
}

_SMALL: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}

_OWN: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {},
    "MistralForCausalLM": {"sliding_window": 7},
    "Qwen2ForCausalLM": {},
    "Qwen3ForCausalLM": {"head_dim": 20},
}

ARCHITECTURES = tuple(_OWN)

_LAYERS = ["sliding_attention", "full_attention"]

# Windows far below the tests' lengths, and caps and clamps that the values reach.
_HYBRID_OWN: dict[str, dict[str, Any]] = {
    "Gemma2ForCausalLM": {
        "head_dim": 12,
        "query_pre_attn_scalar": 20,
        "sliding_window": 5,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 4.0,
        "layer_types": _LAYERS,
    },
    "Gemma3ForCausalLM": {
        "head_dim": 12,
        "query_pre_attn_scalar": 20,
        "sliding_window": 5,
        "layer_types": _LAYERS,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "GptOssForCausalLM": {
        "head_dim": 16,
        "intermediate_size": 24,
        "sliding_window": 5,
        "layer_types": _LAYERS,
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "swiglu_limit": 1.5,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 64,
        },
    },
}

HYBRIDS = tuple(_HYBRID_OWN)
"""Classes whose layers differ in their window."""


def save_tiny(
    architecture: str,
    folder: str | Path,
    *,
    dtype: str = "float32",
    max_shard_size: str | int = "5GB",
    seed: int = 0,
    **overrides: Any,
) -> Any:
    """Save a random model of one Hugging Face class, and return it, in fp32 and eval mode.

    Its attention is the eager one: the plain formula, and no choice of kernel to reason about.

    Args:
        architecture: one of `ARCHITECTURES` and `HYBRIDS`.
        folder: gets config.json and model.safetensors, or shards with their index.
        dtype: type of the saved weights.
        max_shard_size: a small one, such as 20_000, makes several files.
        seed: of the weights.
        overrides: fields of the class's own config, over those here.
    """
    torch = pytest.importorskip("torch", reason="the peer is a PyTorch model")
    transformers = pytest.importorskip("transformers", reason="the peer is a transformers model")
    model_class = getattr(transformers, architecture)
    config = model_class.config_class(
        **{**_SMALL, **{**_OWN, **_HYBRID_OWN}[architecture], **overrides}
    )
    model = model_class(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Wide enough that every part shows in the logits: biases, norms and soft tails.
            noise = torch.randn(parameter.shape, generator=generator)
            # Gemma keeps a norm's weights as what they differ from 1.
            is_around_one = name.endswith("norm.weight") and "Gemma" not in architecture
            centre = 1.0 if is_around_one else 0.0
            parameter.copy_(centre + noise * (0.3 if parameter.ndim == 1 else 0.2))
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=max_shard_size)
    # Read back, and not cast back: `to` rounded the rotary frequencies too, and they stay rounded.
    peer = type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return peer.eval()


def dense_logits(model: Decoder, tokens: np.ndarray) -> np.ndarray:
    """Logits [tokens, vocab] of one sequence, all of it at once and without a cache.

    Compiled whole: that takes a third of the time of compiling each operation by itself.
    """
    attention = DenseAttention(model.attention_specs)

    @nnx.jit
    def forward(model, tokens):
        return model.logits(model(tokens, jnp.arange(len(tokens)), attention))

    return np.asarray(forward(model, jnp.asarray(tokens)))


def peer_logits(peer: Any, tokens: np.ndarray) -> np.ndarray:
    """The peer's logits [tokens, vocab] of one sequence."""
    torch = pytest.importorskip("torch", reason="the peer is a PyTorch model")
    with torch.no_grad():
        return peer(torch.tensor(tokens)[None]).logits[0].numpy()


def check_logits(peer: Any, folder: str | Path, tokens: np.ndarray, **options: Any) -> None:
    """What is loaded from a folder has the logits of the peer that was saved there, to 1e-4."""
    theirs = peer_logits(peer, tokens)
    ours = dense_logits(load_model(folder, **options), tokens)
    # A peer whose logits hardly differ from one another would prove little.
    assert theirs.std() > 0.5
    np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=0)


def check_that_transformers_loads_what_we_save(
    peer: Any, theirs: str | Path, ours: str | Path, tokens: np.ndarray
) -> None:
    """Saves what is loaded from `theirs` to `ours`, and has transformers load that."""
    transformers = pytest.importorskip("transformers", reason="the peer is a transformers model")
    model = load_model(theirs)
    save_model(model, ours)
    again = transformers.AutoModelForCausalLM.from_pretrained(ours, attn_implementation="eager")
    assert type(again) is type(peer)
    found = peer_logits(again.eval(), tokens)
    np.testing.assert_allclose(found, peer_logits(peer, tokens), atol=1e-5, rtol=0)
    assert load_model(ours).config == model.config
