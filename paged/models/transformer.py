"""The Llama-family decoder over a flat, ragged list of tokens.

It knows no batch, no cache and no layout: the one thing it asks of its surroundings is
`attention(layer, query, key, value)`.
"""

import math

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from paged.models.attention import Attention
from paged.models.config import ModelConfig
from paged.models.gpt_oss import TopExperts
from paged.models.layers import Embedding, GatedMLP, Linear, RMSNorm, residual_gain
from paged.models.rope import inverse_frequencies, rotate, rotation


class SelfAttention(nnx.Module):
    """Projections, head norms and rotation around one call of `attention`.

    `qkv` is one matrix [hidden, (num_heads + 2 * num_kv_heads) * head_dim], query heads first,
    then keys, then values: at decode a step is bound by reading weights and by the count of
    operations, and one product of three is both cheaper and fewer.
    """

    def __init__(
        self, config: ModelConfig, layer: int, *, dtype: DTypeLike, rngs: nnx.Rngs
    ) -> None:
        self.layer = layer
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim = config.head_dim
        self.qkv = Linear(
            config.hidden_size,
            (config.num_heads + 2 * config.num_kv_heads) * config.head_dim,
            use_bias=config.qkv_bias,
            dtype=dtype,
            rngs=rngs,
        )
        self.output = Linear(
            config.num_heads * config.head_dim,
            config.hidden_size,
            use_bias=config.output_bias,
            gain=residual_gain(config.num_layers),
            dtype=dtype,
            rngs=rngs,
        )
        self.query_norm = _norm(config, config.head_dim, dtype) if config.qk_norm else None
        self.key_norm = _norm(config, config.head_dim, dtype) if config.qk_norm else None
        self.sinks = nnx.Param(jnp.zeros(config.num_heads, dtype)) if config.has_sinks else None

    def __call__(
        self,
        x: Float[Array, "tokens hidden"],
        cos: Float[Array, "tokens 1 pairs"],
        sin: Float[Array, "tokens 1 pairs"],
        attention: Attention,
    ) -> Float[Array, "tokens hidden"]:
        """What this layer's attention adds to the residual stream."""
        tokens, keys = x.shape[0], self.num_heads + self.num_kv_heads
        heads = self.qkv(x).reshape(tokens, keys + self.num_kv_heads, self.head_dim)
        query, key, value = jnp.split(heads, (self.num_heads, keys), axis=1)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        sinks = None if self.sinks is None else self.sinks[...]
        out = attention(self.layer, query, key, value, sinks=sinks)
        return self.output(out.reshape(tokens, self.num_heads * self.head_dim))


class DecoderLayer(nnx.Module):
    """Attention, then MLP or experts, each on a normed copy of the residual stream.

    What they give may be normed once more before it is added.
    """

    def __init__(
        self, config: ModelConfig, layer: int, *, dtype: DTypeLike, rngs: nnx.Rngs
    ) -> None:
        hidden, post = config.hidden_size, config.post_norms
        self.attention_norm = _norm(config, hidden, dtype)
        self.attention = SelfAttention(config, layer, dtype=dtype, rngs=rngs)
        self.attention_post_norm = _norm(config, hidden, dtype) if post else None
        self.mlp_norm = _norm(config, hidden, dtype)
        self.mlp = (GatedMLP if config.experts is None else TopExperts)(
            config, dtype=dtype, rngs=rngs
        )
        self.mlp_post_norm = _norm(config, hidden, dtype) if post else None

    def __call__(
        self,
        x: Float[Array, "tokens hidden"],
        cos: Float[Array, "tokens 1 pairs"],
        sin: Float[Array, "tokens 1 pairs"],
        attention: Attention,
    ) -> Float[Array, "tokens hidden"]:
        """The residual stream after this layer."""
        added = self.attention(self.attention_norm(x), cos, sin, attention)
        x = x + (added if self.attention_post_norm is None else self.attention_post_norm(added))
        added = self.mlp(self.mlp_norm(x))
        return x + (added if self.mlp_post_norm is None else self.mlp_post_norm(added))


def _norm(config: ModelConfig, features: int, dtype: DTypeLike) -> RMSNorm:
    return RMSNorm(features, config.rms_norm_eps, offset=config.norm_offset, dtype=dtype)


class Transformer(nnx.Module):
    """A decoder-only language model of the Llama family.

    Attributes:
        config: what it was built from.
        attention_specs: one per layer, what it will ask of `attention`.

    Args:
        config: shapes and arithmetic.
        rngs: random streams of the initial weights.
        dtype: type of the parameters, and of the activations between them. Norms, rotations,
            softmax and logits are fp32 whatever it is.
    """

    def __init__(
        self, config: ModelConfig, *, rngs: nnx.Rngs, dtype: DTypeLike = jnp.float32
    ) -> None:
        self.config = config
        self.attention_specs = config.attention_specs
        self.embedding = Embedding(config.vocab_size, config.hidden_size, dtype=dtype, rngs=rngs)
        self.layers = nnx.List(
            [DecoderLayer(config, i, dtype=dtype, rngs=rngs) for i in range(config.num_layers)]
        )
        self.final_norm = _norm(config, config.hidden_size, dtype)
        self.head = (
            None
            if config.tie_word_embeddings
            else Linear(config.hidden_size, config.vocab_size, dtype=dtype, rngs=rngs)
        )

    @property
    def dtype(self) -> jnp.dtype:
        """Type of the parameters, and so of the queries, keys and values."""
        return self.embedding.weight[...].dtype

    def __call__(
        self,
        tokens: Int[Array, " tokens"],
        positions: Int[Array, " tokens"],
        attention: Attention,
    ) -> Float[Array, "tokens hidden"]:
        """Hidden states after the final norm, in the parameters' dtype.

        Args:
            tokens: ids in [0, vocab_size), of one sequence or of many side by side.
            positions: each token's place in its own sequence.
            attention: called once per layer, in order.
        """
        config = self.config
        rotations = {
            rope: rotation(positions, inverse_frequencies(rope, config.head_dim), rope.amplitude)
            for rope in dict.fromkeys(config.ropes)
        }
        x = self.embedding(tokens)
        if config.scale_embedding:
            # Rounded to the type of the weights, as its peers do: in bfloat16 the root of 3,072
            # is 55.5.
            x = x * jnp.asarray(math.sqrt(config.hidden_size), x.dtype)
        for layer, rope in zip(self.layers, config.ropes, strict=True):
            x = layer(x, *rotations[rope], attention)
        return self.final_norm(x)

    def logits(self, hidden: Float[Array, "*batch hidden"]) -> Float[Array, "*batch vocab"]:
        """Scores of the next token, fp32, for any rows of what `__call__` returned.

        Apart from `__call__`, because a step needs them for its sequences' last tokens only.
        """
        if self.head is None:
            logits = self.embedding.attend(hidden)
        else:
            logits = jnp.matmul(hidden, self.head.kernel[...], preferred_element_type=jnp.float32)
        cap = self.config.final_soft_cap
        return logits if cap is None else cap * jnp.tanh(logits / cap)
