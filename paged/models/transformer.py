"""The Llama-family decoder over a flat, ragged list of tokens.

It knows no batch, no cache and no layout: the one thing it asks of its surroundings is
`attention(layer, query, key, value)`.
"""

import math
from typing import Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from paged.models.attention import Attention
from paged.models.config import ModelConfig
from paged.models.layers import Embedding, Linear, RMSNorm
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
        norms = config.qk_norm
        eps, dim = config.rms_norm_eps, config.head_dim
        self.query_norm = RMSNorm(dim, eps, dtype=dtype) if norms else None
        self.key_norm = RMSNorm(dim, eps, dtype=dtype) if norms else None

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
        out = attention(self.layer, query, key, value)
        return self.output(out.reshape(tokens, self.num_heads * self.head_dim))


class MLPShape(Protocol):
    """What a `GatedMLP` asks of a configuration."""

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        ...

    @property
    def intermediate_size(self) -> int:
        """Width of the gate."""
        ...

    @property
    def mlp_bias(self) -> bool:
        """Whether the three projections add a bias."""
        ...

    @property
    def num_layers(self) -> int:
        """Decoder layers, for the initial weights."""
        ...


class GatedMLP(nnx.Module):
    """down(silu(gate(x)) * up(x)), gate and up as one matrix [hidden, 2 * intermediate]."""

    def __init__(self, config: MLPShape, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        bias = config.mlp_bias
        hidden, wide = config.hidden_size, config.intermediate_size
        self.gate_up = Linear(hidden, 2 * wide, use_bias=bias, dtype=dtype, rngs=rngs)
        self.down = Linear(
            wide,
            hidden,
            use_bias=bias,
            gain=residual_gain(config.num_layers),
            dtype=dtype,
            rngs=rngs,
        )

    def __call__(self, x: Float[Array, "tokens hidden"]) -> Float[Array, "tokens hidden"]:
        """What this layer's MLP adds to the residual stream."""
        gate, up = jnp.split(self.gate_up(x), 2, axis=-1)
        return self.down(jax.nn.silu(gate) * up)


class DecoderLayer(nnx.Module):
    """Attention, then MLP, each on a normed copy of the residual stream."""

    def __init__(
        self, config: ModelConfig, layer: int, *, dtype: DTypeLike, rngs: nnx.Rngs
    ) -> None:
        self.attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype)
        self.attention = SelfAttention(config, layer, dtype=dtype, rngs=rngs)
        self.mlp_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype)
        self.mlp = GatedMLP(config, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "tokens hidden"],
        cos: Float[Array, "tokens 1 pairs"],
        sin: Float[Array, "tokens 1 pairs"],
        attention: Attention,
    ) -> Float[Array, "tokens hidden"]:
        """The residual stream after this layer."""
        x = x + self.attention(self.attention_norm(x), cos, sin, attention)
        return x + self.mlp(self.mlp_norm(x))


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
        self.final_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype)
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
        tokens: Int[Array, "tokens"],
        positions: Int[Array, "tokens"],
        attention: Attention,
    ) -> Float[Array, "tokens hidden"]:
        """Hidden states after the final norm, in the parameters' dtype.

        Args:
            tokens: ids in [0, vocab_size), of one sequence or of many side by side.
            positions: each token's place in its own sequence.
            attention: called once per layer, in order.
        """
        frequencies = inverse_frequencies(self.config.rope, self.config.head_dim)
        cos, sin = rotation(positions, frequencies, self.config.rope.amplitude)
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin, attention)
        return self.final_norm(x)

    def logits(self, hidden: Float[Array, "*batch hidden"]) -> Float[Array, "*batch vocab"]:
        """Scores of the next token, fp32, for any rows of what `__call__` returned.

        Apart from `__call__`, because a step needs them for its sequences' last tokens only.
        """
        if self.head is None:
            return self.embedding.attend(hidden)
        return jnp.matmul(hidden, self.head.kernel[...], preferred_element_type=jnp.float32)


def residual_gain(num_layers: int) -> float:
    """Of initial matrices whose products are added to the residual stream.

    Two additions a layer: this keeps the stream's variance near one at any depth.
    """
    return 1.0 / math.sqrt(2 * num_layers)
