"""The same logits as transformers' Gemma 2, Gemma 3 and gpt-oss, from checkpoints that it wrote.

Dense attention, no cache: what is checked here is the loading and everything around attention.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from checkpoints import HYBRIDS, dense_logits, save_tiny

from paged.models import load_model, save_model

TOKENS = np.arange(40) * 7 % 99
TOLERANCE = 1e-4


def their_logits(model):
    import torch

    with torch.no_grad():
        return model(torch.tensor(TOKENS)[None]).logits[0].numpy()


def check(architecture, folder, *, options=None, **overrides):
    theirs = their_logits(save_tiny(architecture, folder, **overrides))
    ours = dense_logits(load_model(folder, **options or {}), TOKENS)
    # A peer whose logits hardly differ from one another would prove little.
    assert theirs.std() > 0.5
    np.testing.assert_allclose(ours, theirs, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("architecture", HYBRIDS)
def test_each_class_and_transformers_loads_what_we_save(architecture, tmp_path):
    transformers = pytest.importorskip("transformers", reason="the peer is a transformers model")
    check(architecture, tmp_path / "theirs")
    model = load_model(tmp_path / "theirs")
    save_model(model, tmp_path / "ours")
    peer, again = (
        transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path / name, attn_implementation="eager"
        ).eval()
        for name in ("theirs", "ours")
    )
    assert type(again).__name__ == architecture
    np.testing.assert_allclose(their_logits(again), their_logits(peer), atol=1e-5, rtol=0)
    assert load_model(tmp_path / "ours").config == model.config


@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [
        ("Gemma2ForCausalLM", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
        ("Gemma2ForCausalLM", {"attention_bias": True, "tie_word_embeddings": False}),
        ("Gemma3ForCausalLM", {"final_logit_softcapping": 3.0, "attention_bias": True}),
        ("Gemma3ForCausalLM", {"layer_types": ["sliding_attention"] * 2}),
        ("GptOssForCausalLM", {"attention_bias": False, "swiglu_alpha": 1.1}),
        ("GptOssForCausalLM", {"num_experts_per_tok": 8, "tie_word_embeddings": True}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_with(architecture, overrides, tmp_path):
    check(architecture, tmp_path, **overrides)


def test_16_bit_files_keep_the_router_in_fp32(tmp_path):
    check("GptOssForCausalLM", tmp_path, dtype="bfloat16", options={"dtype": jnp.float32})
    model = load_model(tmp_path)
    assert model.dtype == model.layers[0].mlp.experts.down_bias.dtype == jnp.bfloat16
    router = model.layers[0].mlp.router
    assert (router.kernel.dtype, router.bias.dtype) == (jnp.float32, jnp.float32)
