"""The same logits as transformers' DeepSeek V2 and V3, from checkpoints that it wrote.

Dense attention, no cache: what is checked here is the loading and everything around attention.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from checkpoints import check_logits, check_that_transformers_loads_what_we_save, save_tiny
from deepseek import VARIANTS, YARN, save_deepseek

from paged.models import load_model

TOKENS = np.arange(80) * 7 % 99


def check(theirs, folder, **options):
    check_logits(theirs, folder, TOKENS, **options)


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_variant_and_transformers_loads_what_we_save(variant, tmp_path):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    peer = save_deepseek(theirs, variant)
    check(peer, theirs)
    check_that_transformers_loads_what_we_save(peer, theirs, ours, TOKENS)


@pytest.mark.parametrize(
    "overrides",
    [
        {"norm_topk_prob": False, "rope_interleave": False, "rms_norm_eps": 0.01},
        {"attention_bias": True, "tie_word_embeddings": True, "n_shared_experts": 1},
        {"q_lora_rank": None, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 1},
        {"rope_parameters": {**YARN, "mscale": 0.0, "mscale_all_dim": 0.0}},
        {"rope_parameters": {**YARN, "attention_factor": 0.9, "truncate": False}},
    ],
    ids=lambda overrides: "-".join(overrides),
)
def test_v3_with(overrides, tmp_path):
    check(save_deepseek(tmp_path, "v3", **overrides), tmp_path)


def test_yarn_in_another_family(tmp_path):
    rope = {key: value for key, value in YARN.items() if not key.startswith("mscale")}
    check(save_tiny("Qwen3ForCausalLM", tmp_path, rope_parameters=rope), tmp_path)


def test_16_bit_files_keep_the_router_in_fp32(tmp_path):
    peer = save_deepseek(tmp_path, "v3", dtype="bfloat16")
    check(peer, tmp_path, dtype=jnp.float32)
    model = load_model(tmp_path)
    assert model.dtype == jnp.bfloat16
    router = model.layers[1].mlp.router
    assert (router.kernel.dtype, router.bias.dtype) == (jnp.float32, jnp.float32)
