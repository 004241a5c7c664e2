"""The mixture of experts of gpt-oss: the largest logits choose, and a softmax over them weighs."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from paged.models.config import ModelConfig
from paged.models.experts import Choice, Experts
from paged.models.layers import Float32Param


@dataclass(frozen=True, slots=True)
class ClampedGate:
    """(up + 1) * gate * sigmoid(alpha * gate), gate clamped from above and up from both sides.

    Gate and up are interleaved, as checkpoints have them: even entries and odd ones.
    """

    alpha: float
    limit: float

    def __call__(self, both: Float[Array, "rows both"]) -> Float[Array, "rows wide"]:
        """Half as wide as what it is given, in its dtype."""
        gate = jnp.minimum(both[..., 0::2], self.limit)
        up = jnp.clip(both[..., 1::2], -self.limit, self.limit)
        return (up + 1) * gate * jax.nn.sigmoid(gate * self.alpha)


class TopRouter(nnx.Module):
    """The experts with the largest logits, weighed by a softmax over those alone; in fp32."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        assert config.experts is not None
        self.chosen, count = config.experts.experts_per_token, config.experts.num_experts
        init = jax.nn.initializers.normal(config.hidden_size**-0.5)
        self.kernel = Float32Param(init(rngs.params(), (config.hidden_size, count), jnp.float32))
        self.bias = Float32Param(jnp.zeros(count, jnp.float32))

    def __call__(self, x: Float[Array, "tokens hidden"]) -> Choice:
        """Each token's experts."""
        logits = x.astype(jnp.float32) @ self.kernel[...]
        logits = logits + jnp.broadcast_to(self.bias[...], logits.shape)
        largest, experts = jax.lax.top_k(logits, self.chosen)
        return Choice(experts, jax.nn.softmax(largest, axis=-1))


class TopExperts(nnx.Module):
    """The routed experts' sum, every product with a bias."""

    def __init__(self, config: ModelConfig, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        assert config.experts is not None
        self.router = TopRouter(config, rngs=rngs)
        self.experts = Experts(
            config.experts.num_experts,
            config.hidden_size,
            config.intermediate_size,
            num_layers=config.num_layers,
            gate=ClampedGate(config.experts.swiglu_alpha, config.experts.swiglu_limit),
            use_bias=True,
            dtype=dtype,
            rngs=rngs,
        )

    def __call__(self, x: Float[Array, "tokens hidden"]) -> Float[Array, "tokens hidden"]:
        """What this layer's experts add to the residual stream."""
        return self.experts(x, self.router(x))
