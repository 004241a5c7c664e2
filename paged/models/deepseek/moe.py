"""Mixture of experts: which experts a token goes to, and what they add."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from paged.models.deepseek.config import DeepseekConfig, RouterConfig
from paged.models.experts import Choice, Experts
from paged.models.layers import Float32Param, GatedMLP

_TINY = 1e-20


class Router(nnx.Module):
    """Which experts a token goes to, and how much each counts; fp32 throughout.

    A token's scores lie close together, and which is largest is a step: 16-bit scores would
    choose other experts.
    """

    def __init__(self, config: RouterConfig, hidden_size: int, *, rngs: nnx.Rngs) -> None:
        self.config = config
        init = jax.nn.initializers.normal(hidden_size**-0.5)
        self.kernel = Float32Param(
            init(rngs.params(), (hidden_size, config.num_experts), jnp.float32)
        )
        self.bias = (
            Float32Param(jnp.zeros(config.num_experts, jnp.float32))
            if config.method == "noaux_tc"
            else None
        )

    def __call__(self, x: Float[Array, "tokens hidden"]) -> Choice:
        """Each token's experts."""
        logits = x.astype(jnp.float32) @ self.kernel[...].astype(jnp.float32)
        if self.bias is None:
            scores = jax.nn.softmax(logits, axis=-1)
            return choose(scores, scores, self.config)
        scores = jax.nn.sigmoid(logits)
        # The bias balances the load: it decides who is chosen, not how much the chosen count.
        bias = jnp.broadcast_to(self.bias[...].astype(jnp.float32), scores.shape)
        return choose(scores, scores + bias, self.config)


def choose(
    scores: Float[Array, "tokens experts"],
    preferences: Float[Array, "tokens experts"],
    config: RouterConfig,
) -> Choice:
    """The experts with the largest preferences, and their scores, normalised and scaled."""
    experts = jax.lax.top_k(_within_groups(preferences, config), config.experts_per_token)[1]
    weights = jnp.take_along_axis(scores, experts, axis=-1)
    if config.normalize:
        weights = weights / (weights.sum(axis=-1, keepdims=True) + _TINY)
    return Choice(experts, weights * config.scaling)


def _within_groups(
    preferences: Float[Array, "tokens experts"], config: RouterConfig
) -> Float[Array, "tokens experts"]:
    """The preferences, -inf outside the groups that a token may choose from."""
    if config.method == "greedy" or config.groups_per_token == config.num_groups:
        return preferences
    grouped = preferences.reshape(-1, config.num_groups, config.group_size)
    if config.method == "noaux_tc":
        group_scores = jax.lax.top_k(grouped, 2)[0].sum(axis=-1)
    else:
        group_scores = grouped.max(axis=-1)
    groups = jax.lax.top_k(group_scores, config.groups_per_token)[1]
    kept = jax.nn.one_hot(groups, config.num_groups, dtype=jnp.bool_).any(axis=-2)
    return jnp.where(kept[..., None], grouped, -jnp.inf).reshape(preferences.shape)


class MixtureOfExperts(nnx.Module):
    """The routed experts' sum, and the shared experts' besides."""

    def __init__(self, config: DeepseekConfig, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.router = Router(config.router, config.hidden_size, rngs=rngs)
        self.experts = Experts(
            config.router.num_experts,
            config.hidden_size,
            config.moe_intermediate_size,
            num_layers=config.num_layers,
            dtype=dtype,
            rngs=rngs,
        )
        self.shared = GatedMLP(config.shared_mlp, dtype=dtype, rngs=rngs)

    def __call__(self, x: Float[Array, "tokens hidden"]) -> Float[Array, "tokens hidden"]:
        """What this layer's experts add to the residual stream."""
        return self.experts(x, self.router(x)) + self.shared(x)
