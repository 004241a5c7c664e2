"""The same logits as transformers, from checkpoints that transformers wrote.

Dense attention, no cache: what is checked here is the loading and everything around attention.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from checkpoints import (
    ARCHITECTURES,
    LLAMA3_ROPE,
    check_logits,
    check_that_transformers_loads_what_we_save,
    save_tiny,
)

from paged.models import load_model

TOKENS = np.arange(40) * 7 % 99


def check(architecture, folder, *, options=None, **overrides):
    check_logits(save_tiny(architecture, folder, **overrides), folder, TOKENS, **options or {})


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tied", [False, True])
def test_each_class_tied_and_untied(architecture, tied, tmp_path):
    check(architecture, tmp_path, tie_word_embeddings=tied)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    ("heads", "kv_heads"), [(4, 4), (8, 2), (7, 1), (14, 2)], ids=["mha", "group4", "mqa", "group7"]
)
def test_each_group_size(architecture, heads, kv_heads, tmp_path):
    check(
        architecture,
        tmp_path,
        hidden_size=heads * 8,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_llama3_rope_scaling(architecture, tmp_path):
    check(architecture, tmp_path, rope_parameters=LLAMA3_ROPE)


def test_linear_rope_scaling(tmp_path):
    rope = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    check("LlamaForCausalLM", tmp_path, rope_parameters=rope)


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_windows_from_a_layer_on(architecture, tmp_path):
    check(architecture, tmp_path, use_sliding_window=True, sliding_window=5, max_window_layers=1)


def test_mistral_without_a_window(tmp_path):
    check("MistralForCausalLM", tmp_path, sliding_window=None)


def test_llama_with_every_bias(tmp_path):
    check("LlamaForCausalLM", tmp_path, attention_bias=True, mlp_bias=True)


def test_qwen3_with_attention_bias(tmp_path):
    check("Qwen3ForCausalLM", tmp_path, attention_bias=True)


def test_heads_wider_than_the_residual_stream(tmp_path):
    check("MistralForCausalLM", tmp_path, head_dim=32)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_shards(architecture, tmp_path):
    check(architecture, tmp_path, max_shard_size=20_000)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_files(dtype, tmp_path):
    # The peer's weights were rounded before it was saved, so fp32 arithmetic on both sides agrees.
    check("LlamaForCausalLM", tmp_path, dtype=dtype, options={"dtype": jnp.float32})
    assert load_model(tmp_path).dtype.name == dtype


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_transformers_loads_what_we_save(architecture, tmp_path):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    peer = save_tiny(architecture, theirs)
    check_that_transformers_loads_what_we_save(peer, theirs, ours, TOKENS)
