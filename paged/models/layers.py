"""The parts that a decoder layer is made of."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu_pytorch_tanh": partial(jax.nn.gelu, approximate=True),
}
"""What a gate may go through, by Hugging Face's names."""


class Float32Param(nnx.Param):
    """A parameter that is fp32 whatever type a model's others are cast to."""


class Linear(nnx.Module):
    """x @ kernel + bias, with the kernel stored [in, out] so that no step transposes it."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        use_bias: bool = False,
        gain: float = 1.0,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        init = jax.nn.initializers.normal(gain / math.sqrt(in_features))
        self.kernel = nnx.Param(init(rngs.params(), (in_features, out_features), dtype))
        self.bias = nnx.Param(jnp.zeros((out_features,), dtype)) if use_bias else None

    def __call__(self, x: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
        """The product in x's dtype."""
        y = x @ self.kernel[...]
        return y if self.bias is None else y + jnp.broadcast_to(self.bias[...], y.shape)


class RMSNorm(nnx.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis (arXiv:1910.07467), in fp32.

    With an `offset` the factor is offset + weight: Gemma keeps weights as what they differ from 1.
    """

    def __init__(self, features: int, eps: float, *, offset: float = 0.0, dtype: DTypeLike) -> None:
        self.eps, self.offset = eps, offset
        self.weight = nnx.Param(jnp.full((features,), 1.0 - offset, dtype))

    def __call__(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch features"]:
        """The normed values in x's dtype."""
        wide = x.astype(jnp.float32)
        mean_square = jnp.mean(wide * wide, axis=-1, keepdims=True)
        normed = wide * jax.lax.rsqrt(mean_square + self.eps)
        weight = jnp.broadcast_to(self.offset + self.weight[...].astype(jnp.float32), x.shape)
        return (normed * weight).astype(x.dtype)


class Embedding(nnx.Module):
    """One row per token of the vocabulary."""

    def __init__(self, vocab_size: int, features: int, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        init = jax.nn.initializers.normal(0.02)
        self.weight = nnx.Param(init(rngs.params(), (vocab_size, features), dtype))

    def __call__(self, tokens: Int[Array, "*batch"]) -> Float[Array, "*batch features"]:
        """The tokens' rows."""
        return self.weight[...][tokens]

    def attend(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch vocab"]:
        """The inner product with every row, in fp32: logits under tied embeddings."""
        return jnp.einsum("...d,vd->...v", x, self.weight[...], preferred_element_type=jnp.float32)


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
    def activation(self) -> str:
        """What the gate goes through, one of `ACTIVATIONS`."""
        ...

    @property
    def num_layers(self) -> int:
        """Decoder layers, for the initial weights."""
        ...


class GatedMLP(nnx.Module):
    """down(act(gate(x)) * up(x)), gate and up as one matrix [hidden, 2 * intermediate]."""

    def __init__(self, config: MLPShape, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.activation = config.activation
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
        return self.down(ACTIVATIONS[self.activation](gate) * up)


def residual_gain(num_layers: int) -> float:
    """Of initial matrices whose products are added to the residual stream.

    Two additions a layer: this keeps the stream's variance near one at any depth.
    """
    return 1.0 / math.sqrt(2 * num_layers)
