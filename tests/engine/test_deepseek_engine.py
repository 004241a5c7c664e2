"""The engine serves a latent cache as any other: same tokens everywhere, bytes as planned."""

import pytest
from flax import nnx

from paged.capacity import plan
from paged.engine import LLM, SamplingParams
from paged.models import (
    DeepseekConfig,
    DeepseekTransformer,
    RouterConfig,
    config_to_hf,
)
from tests.engine.paged_steps import dense_greedy

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def model():
    config = DeepseekConfig(
        vocab_size=257,
        hidden_size=32,
        intermediate_size=48,
        moe_intermediate_size=24,
        num_layers=2,
        num_dense_layers=1,
        num_heads=4,
        q_lora_rank=None,
        kv_lora_rank=24,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=8,
        router=RouterConfig("noaux_tc", 4, 2, normalize=True),
        max_position_embeddings=256,
    )
    # Compiled whole: drawing one matrix after another takes longer.
    model = nnx.jit(lambda: DeepseekTransformer(config, rngs=nnx.Rngs(3)))()
    model.embedding.weight[...] = model.embedding.weight[...] * 50
    return model


def test_greedy_tokens_equal_a_dense_recomputation(model, prompts):
    prompts = [prompts[0] * 9, *prompts[8:11]]
    # Prompts run in chunks beside decodes.
    llm = LLM(model, max_num_batched_tokens=16, num_blocks=40)
    outputs = llm.generate(prompts, GREEDY)
    assert [list(output.token_ids) for output in outputs] == dense_greedy(model, prompts, 12)
    assert {r.layout.name for r in llm.resolutions} == {"mla"}


def test_a_cast_model_keeps_its_router_in_fp32(model):
    cast = LLM(model, dtype="bfloat16", num_blocks=8).model
    router = cast.layers[1].mlp.router
    assert cast.dtype == cast.layers[1].mlp.experts.down.dtype == "bfloat16"
    assert router.kernel.dtype == router.bias.dtype == "float32"


def test_64_requests_of_256_tokens_take_the_bytes_that_are_planned(model):
    block_size, requests, tokens = 16, 64, 256
    values = config_to_hf(model.config, dtype="float32")
    found = plan(values, "1GiB", block_size=block_size, dtype="float32")
    blocks = requests * tokens // block_size + 1
    llm = LLM(model, num_blocks=blocks, block_size=block_size, max_num_seqs=requests)
    caches = llm._engine._runner._caches
    assert sum(cache.data.nbytes for cache in caches) == blocks * found.bytes_per_block
    # 32 numbers of 4 bytes in each of two layers.
    assert found.bytes_per_token == 2 * 32 * 4
    assert found.layout == llm.resolutions[0].layout.name

    outputs = llm.generate(
        [[i, 7, 3] for i in range(requests)],
        SamplingParams(temperature=0, max_tokens=tokens - 3, ignore_eos=True),
    )
    assert all(len(output.token_ids) == tokens - 3 for output in outputs)
    # All of them fitted at once, to the last block.
    assert llm.stats.preemptions == 0
    smaller = plan(values, (blocks - 1) * found.bytes_per_block, block_size=block_size)
    assert (found.num_requests(tokens), smaller.num_requests(tokens)) == (
        (found.num_blocks - 1) // 16, 63
    )  # fmt: skip
