"""Cases about layouts, latents and refusals."""

from collections.abc import Iterator

from paged.conformance.case import Case
from paged.conformance.cases.setups import MIXED, SMALL


def layouts() -> Iterator[Case]:
    """One cache in several layouts."""
    yield Case(
        "layouts/convert",
        "a cache in another layout is another cache",
        (21,),
        ("layout",),
        MIXED,
        check="convert",
        one_dtype=True,
    )
    yield Case(
        "layouts/shared_pool",
        "block N of one layout is block 2N of another",
        (18,),
        ("layout",),
        MIXED.but(sequences=((16, 16), (16, 16)), placement="identity"),
        check="share",
        one_dtype=True,
    )
    yield Case(
        "layouts/ones_own",
        "a layout that the backend does not know",
        (21, 25),
        ("layout",),
        MIXED,
        check="own_layout",
        one_dtype=True,
    )


def latent() -> Iterator[Case]:
    """Latent caches (MLA)."""
    for heads, widths in ((1, (512, 64)), (16, (512, 64)), (128, (512, 64)), (5, (7, 3))):
        odd = "_odd" if widths[0] < 512 else ""
        yield Case(
            f"mla/{heads}_heads{odd}",
            "absorbed attention differs from keys and values of each head",
            (23,),
            ("2",),
            SMALL.but(num_kv_heads=1, group_size=heads, latent=widths),
            check="latent",
            only="latent",
            one_dtype=heads != 16,
        )


_REFUSALS = {
    "query_dtype": "queries of integers",
    "query_heads": "one query head too many",
    "query_dim": "queries wider than the keys",
    "query_tokens": "more queries than slots",
    "table_dtype": "a block table of int64",
    "lens_length": "more lengths than rows",
    "starts_length": "more starts than rows",
    "sinks_unasked": "sinks that the spec does not know",
    "sinks_missing": "no sinks, though the spec has them",
    "scale_of_floats": "a scale for a cache of floats",
    "scale_shape": "more scales than KV heads",
    "cache_heads": "a cache of fewer heads than the spec",
    "layout_kind": "a latent spec over keys and values, or the other way round",
    "cache_dtype": "a cache of int32",
    "slots_dtype": "slots of int64",
    "slots_length": "more slots than keys",
    "key_dtype": "keys of integers",
    "key_heads": "one KV head too many",
    "value_presence": "a value for a latent, or none for a key",
    "other_platform": "a platform that is not the backend's",
}


def refusals() -> Iterator[Case]:
    """Asks that nobody may serve."""
    for word, exposes in _REFUSALS.items():
        yield Case(
            f"refuse/{word}",
            exposes,
            (25,),
            ("claim",),
            MIXED,
            check="refusal",
            one_dtype=True,
        )
