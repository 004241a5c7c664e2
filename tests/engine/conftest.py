"""Models and a tokenizer small enough that compiling them is the longest part of a test."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import tokenizers
from flax import nnx
from tokenizers import decoders, models, pre_tokenizers

from paged.engine import LLM
from paged.models import DenseAttention, ModelConfig, Tokenizer, Transformer
from tests.engine.paged_steps import TOKENS

EOS = 256


@pytest.fixture(scope="session")
def tiny_model() -> Transformer:
    """One layer, two query heads per KV head, a token for each byte and one for the end.

    Its weights are wide, so that the largest logit leads by far more than rounding.
    """
    config = ModelConfig(
        vocab_size=257,
        hidden_size=32,
        intermediate_size=48,
        num_layers=1,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        eos_token_ids=(EOS,),
    )
    model = Transformer(config, rngs=nnx.Rngs(3))
    model.embedding.weight[...] = model.embedding.weight[...] * 50
    return model


@pytest.fixture(scope="session")
def dense_logprobs(tiny_model: Transformer) -> Callable[[list[list[int]]], np.ndarray]:
    """Log-probabilities of the next token of each of some sequences, all computed anew."""
    attention = DenseAttention(tiny_model.attention_specs)

    @nnx.jit
    def one(model, tokens, last):
        hidden = model(tokens, np.arange(40), attention)
        return jax.nn.log_softmax(model.logits(hidden[last][None])[0])

    def of(sequences):
        padded = [np.pad(tokens, (0, 40 - len(tokens))) for tokens in sequences]
        rows = [
            one(tiny_model, tokens, len(own) - 1)
            for tokens, own in zip(padded, sequences, strict=True)
        ]
        return np.asarray(rows, np.float64)

    return of


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    """Byte-level: token i is the i-th of the 256 bytes in some order, 256 the end."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: index for index, letter in enumerate(alphabet)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    return Tokenizer(backend, eos_token_ids=(EOS,))


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Twenty prompts of 3 to 22 tokens, all of them printable ASCII for `byte_tokenizer`."""
    rng = np.random.default_rng(5)
    return [rng.integers(0, 94, length).tolist() for length in range(3, 23)]


@pytest.fixture(scope="session")
def peers(tmp_path_factory) -> Callable[..., Any]:
    """By name, folder and logits of a peer that `save(folder)` writes; each is built once."""
    built = {}

    def get(name: str, save: Callable[[Any], Any]) -> tuple[Any, np.ndarray]:
        torch = pytest.importorskip("torch", reason="the peer is a PyTorch model")
        if name not in built:
            folder = tmp_path_factory.mktemp(name)
            peer = save(folder)
            with torch.no_grad():
                built[name] = folder, peer(torch.tensor(TOKENS)).logits.numpy()
        return built[name]

    return get


@pytest.fixture(scope="session")
def llm(tiny_model, byte_tokenizer) -> LLM:
    """An engine with room for all: one for every test, and few shapes of steps, since compiling
    them is what takes the time."""
    return LLM(
        tiny_model,
        tokenizer=byte_tokenizer,
        block_size=4,
        num_blocks=200,
        max_num_seqs=8,
        max_num_batched_tokens=16,
        seed=1,
    )


@pytest.fixture(scope="session")
def small(tiny_model, byte_tokenizer) -> LLM:
    """A pool of just enough blocks for the longest of the prompts and 12 tokens.

    Blocks on the host are too few for all whom that costs theirs: some compute again.
    """
    blocks = -(-(22 + 12 - 1) // 4)
    return LLM(
        tiny_model,
        tokenizer=byte_tokenizer,
        block_size=4,
        max_num_seqs=8,
        num_blocks=blocks + 1,
        max_num_batched_tokens=9,
        num_host_blocks=6,
    )
