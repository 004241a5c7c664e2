"""Which backend and layout serve each layer of a model."""

from collections.abc import Sequence

from paged.backends import Backend, Resolution, UnsupportedError, resolve
from paged.layouts import Layout
from paged.spec import AttentionSpec, KVCacheSpec


def resolve_layers(
    specs: Sequence[AttentionSpec],
    *,
    layout: str | Layout,
    backend: str | Backend,
    block_size: int,
    dtype: str,
) -> tuple[Resolution, ...]:
    """One resolution per layer; layers with the same spec share one.

    Args:
        specs: one per layer.
        layout: as for `resolve`; "auto" may give layers different ones.
        backend: as for `resolve`; "auto" may give layers different ones.
        block_size: tokens per block.
        dtype: of queries and caches, by name.

    Raises:
        UnsupportedError: a spec that cannot be served, with the reasons and its layers.
    """
    found: dict[AttentionSpec, Resolution] = {}
    for spec in dict.fromkeys(specs):
        try:
            found[spec] = resolve(
                spec,
                layout=layout,
                backend=backend,
                cache_spec=KVCacheSpec.of(spec, block_size=block_size, dtype=dtype),
                query_dtype=dtype,
            )
        except UnsupportedError as error:
            layers = ", ".join(str(i) for i, own in enumerate(specs) if own == spec)
            raise UnsupportedError(f"{error}, as layers {layers} of {len(specs)} ask") from error
    return tuple(found[spec] for spec in specs)


def names(resolutions: Sequence[Resolution]) -> dict[str, str]:
    """The layouts and the backends among them, to be shown; several are joined by a comma."""
    return {
        "layout": ", ".join(dict.fromkeys(r.layout.name for r in resolutions)),
        "backend": ", ".join(dict.fromkeys(r.backend.name for r in resolutions)),
    }
