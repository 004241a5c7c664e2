"""Attention over paged caches: what a model calls inside an engine's step."""

from collections.abc import Sequence

import jax
from jaxtyping import Array, Float

from paged.backends import Resolution
from paged.layouts import KVCache
from paged.metadata import AttentionMetadata


class PagedAttention:
    """An `Attention` that writes each layer's keys and values to its cache, then reads the cache.

    It lives for one step. Caches are values, not state: after the model has run, `caches` holds
    the new ones, and the old ones are spent where they were donated. A model that has more than
    one way to attend may call the two halves, `write` and `attend`, by themselves.

    Args:
        resolutions: one per layer, the backend, layout and spec that serve it.
        caches: one per layer.
        metadata: the step's; the same for all layers.

    Attributes:
        caches: one per layer, up to date for the layers that were called.
        metadata: the step's.
    """

    def __init__(
        self,
        resolutions: Sequence[Resolution],
        caches: Sequence[KVCache],
        metadata: AttentionMetadata,
    ) -> None:
        if len(resolutions) != len(caches):
            raise ValueError(
                f"caches: got {len(caches)}, expected one per layer, {len(resolutions)}"
            )
        self.caches = list(caches)
        self.metadata = metadata
        self._resolutions = resolutions

    def resolution(self, layer: int) -> Resolution:
        """What serves a layer."""
        return self._resolutions[layer]

    def __call__(
        self,
        layer: int,
        query: Float[Array, "tokens num_heads head_dim"],
        key: Float[Array, "tokens num_kv_heads head_dim"],
        value: Float[Array, "tokens num_kv_heads value_dim"] | None,
        *,
        sinks: Float[Array, " num_heads"] | None = None,
    ) -> Float[Array, "tokens num_heads value_dim"]:
        """See `Attention`; a latent layer hands its latent over as `key` and None as `value`."""
        # Write first: a token sees its own key.
        self.write(layer, key, value)
        return self.attend(layer, query, sinks=sinks)

    def write(
        self,
        layer: int,
        key: Float[Array, "tokens num_kv_heads head_dim"],
        value: Float[Array, "tokens num_kv_heads value_dim"] | None,
    ) -> KVCache:
        """The layer's cache with the step's tokens in it, which `caches` holds from now on."""
        with jax.named_scope("attention"):
            cache = self._resolutions[layer].write(
                self.caches[layer], key, value, self.metadata.slot_mapping
            )
        self.caches[layer] = cache
        return cache

    def attend(
        self,
        layer: int,
        query: Float[Array, "tokens num_heads head_dim"],
        *,
        metadata: AttentionMetadata | None = None,
        sinks: Float[Array, " num_heads"] | None = None,
    ) -> Float[Array, "tokens num_heads value_dim"]:
        """What the layer's backend reads from its cache.

        Args:
            layer: as for `Attention`.
            query: as for `Attention`.
            metadata: in place of the step's, to read for some of its sequences only; a token of
                none gets 0.
            sinks: as for `Attention`.
        """
        metadata = self.metadata if metadata is None else metadata
        with jax.named_scope("attention"):
            read = self._resolutions[layer].attend(query, self.caches[layer], metadata, sinks=sinks)
        return read.out
