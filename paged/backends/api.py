"""What a backend is: two calls, and an honest account of what it cannot do."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float, Int

from paged.layouts import KVCache, Layout
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec, KVCacheSpec


class AttentionOutput(NamedTuple):
    """What attention gives, and what merging two parts of it needs.

    Attributes:
        out: `[tokens, num_heads, value_dim]`, in the query's dtype.
        lse: `[tokens, num_heads]` float32, natural logarithm of the sum of exp(logit) over the
            keys seen, the sink included; None from a backend that does not claim it.

    A row that sees no key (padding) has out 0 and lse -inf.
    """

    out: Float[Any, "tokens num_heads value_dim"]
    lse: Float[Any, "tokens num_heads"] | None


class UnsupportedError(ValueError):
    """A backend was asked for what it does not do; the message holds every reason."""


@runtime_checkable
class Backend(Protocol):
    """A kernel for some layouts on some platform.

    Attributes:
        name: what users call it.
        platform: the device it runs on: "cpu", "cuda", "rocm", "tpu", or "any".
        layouts: the layouts it reads and writes, the preferred one first.
    """

    name: str
    platform: str
    layouts: tuple[Layout, ...]

    def unsupported(
        self,
        spec: AttentionSpec,
        layout: Layout,
        target: str,
        *,
        cache_spec: KVCacheSpec | None = None,
        query_dtype: str | None = None,
    ) -> list[str]:
        """Every reason why this ask cannot be served; [] means that it can.

        Args:
            spec: the attention asked for.
            layout: the layout of the cache.
            target: platform that the call will be compiled for.
            cache_spec: block size and storage type, where already known.
            query_dtype: dtype of queries and outputs, where already known.
        """
        ...

    def write(
        self,
        cache: KVCache,
        key: Float[Any, "tokens num_kv_heads head_dim"],
        value: Float[Any, "tokens num_kv_heads head_dim"] | None,
        slot_mapping: Int[Any, " tokens"],
    ) -> KVCache:
        """Writes new tokens into their slots, quantising where the cache is; -1 writes nothing.

        A latent cache takes the latent as `key`, `[tokens, 1, latent]`, and None as `value`.
        """
        ...

    def attend(
        self,
        query: Float[Any, "tokens num_heads head_dim"],
        cache: KVCache,
        metadata: AttentionMetadata,
        spec: AttentionSpec,
        *,
        sinks: Float[Any, " num_heads"] | None = None,
    ) -> AttentionOutput:
        """Attention of each query over its sequence's keys in the cache.

        `sinks` is there exactly where `spec.has_sinks`.

        Raises:
            UnsupportedError: an ask that `unsupported` gives a reason for.
            ValueError: shapes or dtypes that disagree with the spec.
        """
        ...


def check_layouts(backend: Backend, where: str | None = None) -> None:
    """A backend's layouts are `Layout`s in an order.

    Args:
        backend: what is looked at.
        where: what the message calls it; by default its own name.

    Raises:
        TypeError: they are names, or of another kind.
    """
    layouts: Any = backend.layouts
    if isinstance(layouts, tuple | list) and all(isinstance(one, Layout) for one in layouts):
        return
    raise TypeError(
        f"backend: {where or backend.name} has layouts {layouts!r}, expected a tuple of Layouts, "
        "the preferred one first; get_layout gives one by its name"
    )
