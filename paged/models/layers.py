"""The parts that a decoder layer is made of."""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int


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
    """x / sqrt(mean(x^2) + eps) * weight over the last axis (arXiv:1910.07467), in fp32."""

    def __init__(self, features: int, eps: float, *, dtype: DTypeLike) -> None:
        self.eps = eps
        self.weight = nnx.Param(jnp.ones((features,), dtype))

    def __call__(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch features"]:
        """The normed values in x's dtype."""
        wide = x.astype(jnp.float32)
        mean_square = jnp.mean(wide * wide, axis=-1, keepdims=True)
        normed = wide * jax.lax.rsqrt(mean_square + self.eps)
        weight = jnp.broadcast_to(self.weight[...].astype(jnp.float32), x.shape)
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
