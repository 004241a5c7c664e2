"""The same logits as transformers' Gemma 2, Gemma 3 and gpt-oss, from checkpoints that it wrote.

Dense attention, no cache: what is checked here is the loading and everything around attention.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from checkpoints import (
    HYBRIDS,
    check_logits,
    check_that_transformers_loads_what_we_save,
    save_tiny,
)

from paged.models import load_model

TOKENS = np.arange(40) * 7 % 99


@pytest.mark.parametrize("architecture", HYBRIDS)
def test_each_class_and_transformers_loads_what_we_save(architecture, tmp_path):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    peer = save_tiny(architecture, theirs)
    check_logits(peer, theirs, TOKENS)
    check_that_transformers_loads_what_we_save(peer, theirs, ours, TOKENS)


@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [
        ("Gemma2ForCausalLM", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
        pytest.param(
            "Gemma2ForCausalLM",
            {"attention_bias": True, "tie_word_embeddings": False},
            marks=pytest.mark.full,
        ),
        ("Gemma3ForCausalLM", {"final_logit_softcapping": 3.0, "attention_bias": True}),
        pytest.param(
            "Gemma3ForCausalLM", {"layer_types": ["sliding_attention"] * 2}, marks=pytest.mark.full
        ),
        ("GptOssForCausalLM", {"attention_bias": False, "swiglu_alpha": 1.1}),
        pytest.param(
            "GptOssForCausalLM",
            {"num_experts_per_tok": 8, "tie_word_embeddings": True},
            marks=pytest.mark.full,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_with(architecture, overrides, tmp_path):
    check_logits(save_tiny(architecture, tmp_path, **overrides), tmp_path, TOKENS)


def test_16_bit_files_keep_the_router_in_fp32(tmp_path):
    peer = save_tiny("GptOssForCausalLM", tmp_path, dtype="bfloat16")
    check_logits(peer, tmp_path, TOKENS, dtype=jnp.float32)
    model = load_model(tmp_path)
    assert model.dtype == model.layers[0].mlp.experts.down_bias.dtype == jnp.bfloat16
    router = model.layers[0].mlp.router
    assert (router.kernel.dtype, router.bias.dtype) == (jnp.float32, jnp.float32)
