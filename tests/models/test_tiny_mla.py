"""The latent model that ships: it fits, it loads, it has read Shakespeare, and it is served."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from paged.engine import LLM, SamplingParams
from paged.models import DenseAttention, builtin_models, load_model, load_tokenizer, resolve_model

# Of the manner, not of the text that it was trained on.
PASSAGE = """DUKE:
Good morrow, cousin. What news from the north?

MESSENGER:
My lord, the rebels have cross'd the river, and
The king's own brother leads them to the field.
"""
SIZE = 96


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("tiny-mla")


@pytest.fixture(scope="module")
def model():
    return load_model("tiny-mla", dtype=jnp.float32)


@pytest.fixture(scope="module")
def dense(model):
    """Logits of up to `SIZE` tokens, without a cache."""
    attention = DenseAttention(model.attention_specs)

    @nnx.jit
    def logits(model, tokens):
        return model.logits(model(tokens, np.arange(SIZE), attention))

    return lambda ids: np.asarray(logits(model, np.pad(ids, (0, SIZE - len(ids)))))[: len(ids)]


def test_it_is_built_in_and_at_most_two_megabytes():
    assert "tiny-mla" in builtin_models()
    files = list(resolve_model("tiny-mla").iterdir())
    names = {"config.json", "model.safetensors", "tokenizer.json", "training.json"}
    assert {file.name for file in files} == names
    assert sum(file.stat().st_size for file in files) <= 2_000_000


def test_it_has_what_makes_a_deepseek_v3(model):
    config = model.config
    assert config.architecture == "DeepseekV3ForCausalLM"
    assert 0 < config.num_dense_layers < config.num_layers
    assert all(spec.is_latent for spec in model.attention_specs)
    # A quarter of what keys and values of its heads would take.
    assert 4 * config.latent_dim <= config.num_heads * (config.qk_head_dim + config.v_head_dim)


def test_its_record_says_what_it_took_and_how_good_it_is():
    record = json.loads((resolve_model("tiny-mla") / "training.json").read_text())
    assert record["nats_per_byte"] <= 1.85
    assert max(record["nats_per_byte_by_position"].values()) <= 1.95
    assert record["steps"] > 0


def test_it_expects_words_in_the_manner_of_its_text(dense, tokenizer):
    def nats_per_byte(text):
        ids = np.array(tokenizer.encode(text))[:SIZE]
        scores = dense(ids)[:-1].astype(np.float64)
        scores -= np.log(np.exp(scores).sum(axis=-1, keepdims=True))
        nats = -scores[np.arange(len(ids) - 1), ids[1:]].sum()
        return nats / len(tokenizer.decode(ids[1:].tolist()).encode())

    forwards, backwards = nats_per_byte(PASSAGE), nats_per_byte(PASSAGE[::-1])
    assert forwards < 2.0
    assert backwards > forwards + 1.0


def test_greedy_tokens_equal_a_dense_recomputation(dense, model, tokenizer):
    prompts = ["First Citizen:\n", "ROMEO:\n", PASSAGE[:60]]
    llm = LLM(model, tokenizer=tokenizer, max_num_seqs=4, num_blocks=40)
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=16))
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens = tokenizer.encode(prompt)
        for token in output.token_ids:
            assert token == int(dense(np.array(tokens))[-1].argmax())
            tokens.append(token)
