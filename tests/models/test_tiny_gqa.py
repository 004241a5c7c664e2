"""The model that ships: it fits, it loads, and it has read Shakespeare."""

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
from checkpoints import dense_logits

from paged.models import builtin_models, load_config, load_model, load_tokenizer, resolve_model

# Of the manner, not of the text that it was trained on.
PASSAGE = """DUKE:
Good morrow, cousin. What news from the north?

MESSENGER:
My lord, the rebels have cross'd the river, and
The king's own brother leads them to the field.

DUKE:
Then call my horse, and let us go to him;
For he that stays shall never have my love.
"""


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("tiny-gqa")


@pytest.fixture(scope="module")
def model():
    return load_model("tiny-gqa", dtype=jnp.float32)


def nats_per_byte(model, tokenizer, text):
    ids = np.array(tokenizer.encode(text))
    scores = dense_logits(model, ids[:-1]).astype(np.float64)
    scores -= np.log(np.exp(scores).sum(axis=-1, keepdims=True))
    nats = -scores[np.arange(len(ids) - 1), ids[1:]].sum() + math.log(model.config.vocab_size)
    return nats / len(text.encode())


def test_it_is_built_in_and_at_most_two_megabytes():
    assert "tiny-gqa" in builtin_models()
    files = list(resolve_model("tiny-gqa").iterdir())
    assert {file.name for file in files} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "training.json",
    }
    assert sum(file.stat().st_size for file in files) <= 2_000_000


def test_its_record_says_what_it_took_and_how_good_it_is():
    record = json.loads((resolve_model("tiny-gqa") / "training.json").read_text())
    assert record["nats_per_byte"] <= 1.75
    assert record["wall_seconds"] > 0
    assert record["steps"] > 0
    assert all(run["flags"].keys() >= {"seed", "learning_rate"} for run in record["runs"])


def test_it_is_as_good_at_the_end_of_its_context_as_at_the_start():
    record = json.loads((resolve_model("tiny-gqa") / "training.json").read_text())
    places = record["nats_per_byte_by_position"]
    assert len(places) * 64 == load_config("tiny-gqa").max_position_embeddings
    assert max(places.values()) <= 1.75


def test_four_query_heads_share_each_key_head():
    config = load_config("tiny-gqa")
    assert config.attention_specs[0].group_size == 4
    assert config.num_kv_heads > 1


def test_it_is_stored_in_bfloat16(tokenizer):
    model = load_model("tiny-gqa")
    assert model.dtype == jnp.bfloat16
    assert model.config.vocab_size == tokenizer.vocab_size


def test_it_expects_words_in_the_manner_of_its_text(model, tokenizer):
    assert nats_per_byte(model, tokenizer, PASSAGE) < 1.5


def test_it_does_not_expect_the_same_letters_backwards(model, tokenizer):
    forwards, backwards = (nats_per_byte(model, tokenizer, t) for t in (PASSAGE, PASSAGE[::-1]))
    assert backwards > forwards + 1.0


@pytest.mark.parametrize(
    "text", ["", "Exeunt.\n\n", "  two  spaces\t", "naïve 日本語 🎭\u200d\x00\r\n"]
)
def test_any_text_survives_the_round_trip(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text
