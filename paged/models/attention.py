"""What a model calls for attention, and the plain form of it over one sequence without a cache.

The model hands over one layer's queries, keys and values and gets the heads' outputs back. Where
the keys of earlier tokens come from is the callee's business.
"""

from collections.abc import Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from paged.spec import AttentionSpec


class Attention(Protocol):
    """Attention over whatever tokens the callee knows about, these ones included."""

    def __call__(
        self,
        layer: int,
        query: Float[Array, "tokens num_heads head_dim"],
        key: Float[Array, "tokens num_kv_heads head_dim"],
        value: Float[Array, "tokens num_kv_heads value_dim"] | None,
        *,
        sinks: Float[Array, " num_heads"] | None = None,
    ) -> Float[Array, "tokens num_heads value_dim"]:
        """The heads' outputs of one layer, in the query's dtype.

        Args:
            layer: index into the model's `attention_specs`.
            query: position-encoded queries of a flat, ragged list of tokens.
            key: position-encoded keys of the same tokens.
            value: values of the same tokens; None for a latent spec, whose values are the
                first `value_dim` entries of its keys.
            sinks: one logit per head that joins the denominator, for a spec with `has_sinks`.
        """
        ...


def causal_mask(tokens: int, window: int | None) -> Bool[Array, "tokens tokens"]:
    """True where query i (rows) sees key j: j <= i, and i - j < window if there is one."""
    distance = jnp.arange(tokens)[:, None] - jnp.arange(tokens)[None, :]
    seen = distance >= 0
    return seen if window is None else seen & (distance < window)


class DenseAttention:
    """Causal attention over one sequence that starts at position 0, without a cache.

    Logits, softmax and sums are fp32; the [heads, tokens, tokens] logits are held whole, so this
    is for training on short sequences (under `vmap` for a batch) and for checking, not for speed.
    """

    def __init__(self, specs: Sequence[AttentionSpec]) -> None:
        self.specs = tuple(specs)

    def __call__(
        self,
        layer: int,
        query: Float[Array, "tokens num_heads head_dim"],
        key: Float[Array, "tokens num_kv_heads head_dim"],
        value: Float[Array, "tokens num_kv_heads value_dim"] | None,
        *,
        sinks: Float[Array, " num_heads"] | None = None,
    ) -> Float[Array, "tokens num_heads value_dim"]:
        """See `Attention`; raises ValueError if `sinks` and the layer's spec disagree."""
        spec = self.specs[layer]
        if (sinks is not None) != spec.has_sinks:
            given = "none" if sinks is None else "given"
            raise ValueError(f"sinks: {given}, but layer {layer} has has_sinks={spec.has_sinks}")
        if value is None:
            value = key[..., : spec.value_dim]
        tokens, groups = query.shape[0], (spec.num_kv_heads, spec.group_size)

        # Query head h reads KV head h // group_size: split the heads so that no key is repeated.
        grouped = query.astype(jnp.float32).reshape(tokens, *groups, spec.head_dim)
        logits = jnp.einsum("tkgd,skd->kgts", grouped, key.astype(jnp.float32)) * spec.scale
        if spec.soft_cap is not None:
            logits = spec.soft_cap * jnp.tanh(logits / spec.soft_cap)
        seen = causal_mask(tokens, spec.window)[None, None]
        logits = jnp.where(seen, logits, -jnp.inf)
        if sinks is None:
            weights = jax.nn.softmax(logits, axis=-1)
        else:
            sink = jnp.broadcast_to(
                sinks.astype(jnp.float32).reshape(*groups, 1, 1), (*groups, tokens, 1)
            )
            weights = jax.nn.softmax(jnp.concatenate([logits, sink], axis=-1), axis=-1)[..., :-1]
        out = jnp.einsum("kgts,skv->tkgv", weights, value.astype(jnp.float32))
        return out.reshape(tokens, spec.num_heads, value.shape[-1]).astype(query.dtype)
