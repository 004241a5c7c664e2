"""Attention over paged caches: what a `Transformer` calls inside an engine's step."""

from collections.abc import Sequence

from jaxtyping import Array, Float

from paged.backends import Resolution
from paged.layouts import KVCache
from paged.metadata import AttentionMetadata


class PagedAttention:
    """An `Attention` that writes each layer's keys and values to its cache, then reads the cache.

    It lives for one step. Caches are values, not state: after the model has run, `caches` holds
    the new ones, and the old ones are spent where they were donated.

    Args:
        resolutions: one per layer, the backend, layout and spec that serve it.
        caches: one per layer.
        metadata: the step's; the same for all layers.

    Attributes:
        caches: one per layer, up to date for the layers that were called.
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
        self._resolutions = resolutions
        self._metadata = metadata

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
        resolution = self._resolutions[layer]
        # Write first: a token sees its own key.
        cache = resolution.write(self.caches[layer], key, value, self._metadata.slot_mapping)
        self.caches[layer] = cache
        return resolution.attend(query, cache, self._metadata, sinks=sinks).out
