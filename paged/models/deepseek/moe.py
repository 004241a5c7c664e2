"""Mixture of experts: which experts a token goes to, and what they add."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from paged.models.deepseek.config import DeepseekConfig, RouterConfig
from paged.models.layers import Float32Param
from paged.models.transformer import GatedMLP, residual_gain

_TINY = 1e-20


class Router(nnx.Module):
    """The weight of each expert for each token, 0 for those not chosen; fp32 throughout.

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

    def __call__(self, x: Float[Array, "tokens hidden"]) -> Float[Array, "tokens experts"]:
        """Weights of the experts, fp32."""
        logits = x.astype(jnp.float32) @ self.kernel[...].astype(jnp.float32)
        if self.bias is None:
            scores = jax.nn.softmax(logits, axis=-1)
            return expert_weights(scores, scores, self.config)
        scores = jax.nn.sigmoid(logits)
        # The bias balances the load: it decides who is chosen, not how much the chosen count.
        bias = jnp.broadcast_to(self.bias[...].astype(jnp.float32), scores.shape)
        return expert_weights(scores, scores + bias, self.config)


def expert_weights(
    scores: Float[Array, "tokens experts"],
    preferences: Float[Array, "tokens experts"],
    config: RouterConfig,
) -> Float[Array, "tokens experts"]:
    """The scores of the experts with the largest preferences, normalised and scaled; else 0."""
    chosen = _largest(_within_groups(preferences, config), config.experts_per_token)
    weights = jnp.where(chosen, scores, 0.0)
    if config.normalize:
        weights = weights / (weights.sum(axis=-1, keepdims=True) + _TINY)
    return weights * config.scaling


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
    kept = _largest(group_scores, config.groups_per_token)[..., None]
    return jnp.where(kept, grouped, -jnp.inf).reshape(preferences.shape)


def _largest(values: Float[Array, "tokens n"], count: int) -> Array:
    """Which entries of each row are the `count` largest, as booleans of the same shape."""
    indices = jax.lax.top_k(values, count)[1]
    return jax.nn.one_hot(indices, values.shape[-1], dtype=jnp.bool_).any(axis=-2)


class Experts(nnx.Module):
    """Gated MLPs, `gate_up [experts, hidden, 2 * wide]` and `down [experts, wide, hidden]`.

    Every expert runs over every token, and what it was not chosen for counts 0: with k of E
    experts chosen that is E/k times the operations of a routed product, 6 * tokens * hidden *
    wide * E, and each step reads all the experts' weights. Shapes stay static and no token is
    dropped; experts run one after another, so that no [experts, tokens, wide] array is held.
    """

    def __init__(self, config: DeepseekConfig, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        count, hidden = config.router.num_experts, config.hidden_size
        wide = config.moe_intermediate_size

        def init(rows: int, columns: int, gain: float) -> Array:
            normal = jax.nn.initializers.normal(gain * rows**-0.5)
            return normal(rngs.params(), (count, rows, columns), dtype)

        self.gate_up = nnx.Param(init(hidden, 2 * wide, 1.0))
        self.down = nnx.Param(init(wide, hidden, residual_gain(config.num_layers)))

    def __call__(
        self, x: Float[Array, "tokens hidden"], weights: Float[Array, "tokens experts"]
    ) -> Float[Array, "tokens hidden"]:
        """The weighted sum of what the experts give, summed in fp32 and returned in x's dtype."""

        def add(total: Array, expert: tuple[Array, Array, Array]) -> tuple[Array, None]:
            gate_up, down, weight = expert
            gate, up = jnp.split(x @ gate_up, 2, axis=-1)
            out = (jax.nn.silu(gate) * up) @ down
            return total + weight[:, None] * out.astype(jnp.float32), None

        total = jnp.zeros(x.shape, jnp.float32)
        total, _ = jax.lax.scan(add, total, (self.gate_up[...], self.down[...], weights.T))
        return total.astype(x.dtype)


class MixtureOfExperts(nnx.Module):
    """The routed experts' sum, and the shared experts' besides."""

    def __init__(self, config: DeepseekConfig, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.router = Router(config.router, config.hidden_size, rngs=rngs)
        self.experts = Experts(config, dtype=dtype, rngs=rngs)
        self.shared = GatedMLP(config.shared_mlp, dtype=dtype, rngs=rngs)

    def __call__(self, x: Float[Array, "tokens hidden"]) -> Float[Array, "tokens hidden"]:
        """What this layer's experts add to the residual stream."""
        return self.experts(x, self.router(x)) + self.shared(x)
