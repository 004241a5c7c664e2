"""Cases about the arithmetic: windows, logits, lse, quantisation."""

from collections.abc import Iterator

from paged.conformance.case import Case
from paged.conformance.cases.setups import DECODES, MIXED, SMALL, SPLIT, WINDOWED


def windows() -> Iterator[Case]:
    """Windows, and what lies before them."""
    for window in (1, 8):
        yield Case(
            f"window/{window}",
            "a window off by one, or ignored",
            (12,),
            ("9",),
            WINDOWED.but(window=window),
            one_dtype=window == 1,
        )
    yield Case(
        "window/as_long_as_the_sequence",
        "a window of seq_len - 1, seq_len and seq_len + 1",
        (12,),
        ("9",),
        WINDOWED.but(window=40, sequences=((1, 41), (1, 40), (1, 39), (24, 24), (20, 41))),
        one_dtype=True,
        source="https://github.com/huggingface/transformers/issues/39408",
    )
    yield Case(
        "window/decode",
        "blocks before the window are gone: NaN",
        (12,),
        ("9", "6"),
        DECODES.but(window=20),
        one_dtype=True,
    )
    yield Case(
        "window/null_blocks",
        "blocks before the window are the null block",
        (12,),
        ("9", "5"),
        WINDOWED.but(window=8, past="null"),
    )
    yield Case(
        "window/long_chunk",
        "a window much smaller than the chunk: keys and values are written everywhere",
        (24,),
        ("9", "7"),
        MIXED.but(sequences=((1, 90), (32, 32), (30, 94)), window=8),
    )


def logits() -> Iterator[Case]:
    """Soft cap, sinks, scale and large logits."""
    sharp = MIXED.but(sharpness=20.0)
    for cap in (30.0, 50.0):
        yield Case(
            f"soft_cap/{cap:g}",
            "logits past the cap",
            (13,),
            ("10",),
            sharp.but(soft_cap=cap),
            one_dtype=True,
        )
    yield Case(
        "soft_cap/2",
        "the cap after the mask: masked keys get exp(-2)",
        (13,),
        ("10",),
        sharp.but(soft_cap=2.0),
        one_dtype=True,
    )
    yield Case(
        "soft_cap/far",
        "a cap far above the logits: tanh keeps its digits near 0",
        (13,),
        ("10",),
        sharp.but(soft_cap=1e6),
        one_dtype=True,
    )
    yield Case(
        "soft_cap/window",
        "cap and window together",
        (13,),
        ("10",),
        sharp.but(soft_cap=2.0, window=8),
        one_dtype=True,
    )
    for sinks in ("positive", "negative", "minus_inf", "mixed"):
        yield Case(
            f"sinks/{sinks}",
            "a sink with a value, or in the wrong place",
            (13,),
            ("10",),
            MIXED.but(sinks=sinks),
        )
    yield Case(
        "sinks/rows_without_keys",
        "a row without keys takes the sink's lse",
        (5, 13),
        ("8", "10"),
        MIXED.but(sinks="mixed", sequences=((1, 9), (0, 0), (2, 2))),
    )
    yield Case(
        "sinks/cap_window",
        "sinks, cap and window together",
        (13,),
        ("10",),
        MIXED.but(sharpness=5.0, soft_cap=4.0, window=8, sinks="mixed"),
        one_dtype=True,
    )
    for data in ("same", "opposite", "both_signs"):
        yield Case(
            f"logits/{data}",
            "q = 64 and k = 64 or -64: overflow in half precision, or a wrong first maximum",
            (22,),
            ("14",),
            SMALL.but(data=data, head_dim=128),
            dtypes=("bfloat16", "float16"),
        )
    yield Case(
        "logits/tiny_scale",
        "a scale that is not head_dim ** -0.5",
        (13,),
        ("10",),
        MIXED.but(sharpness=0.01),
        one_dtype=True,
    )


def lse() -> Iterator[Case]:
    """The log-sum-exp, by merging."""
    yield Case(
        "lse/split_3072_and_64",
        "lse to another base, or of another sum",
        (14,),
        ("8",),
        SPLIT,
        check="merge",
        one_dtype=True,
        source="https://github.com/sgl-project/sglang/issues/40903",
    )
    yield Case(
        "lse/split_small",
        "lse of a short part",
        (14,),
        ("8",),
        SPLIT.but(sequences=((1, 83),)),
        check="merge",
    )


def quantised() -> Iterator[Case]:
    """Quantised caches and their scales."""
    exposes = "one scale for both, a scale left out, or applied twice"
    for dtype in ("int8", "float8_e4m3fn", "float8_e5m2"):
        each = MIXED.but(cache_dtype=dtype, k_scale=0.5, v_scale=2.0)
        yield Case(
            f"quantised/{dtype}", exposes, (15,), ("11",), each, one_dtype=dtype == "float8_e5m2"
        )
        yield Case(
            f"quantised/{dtype}_saturating",
            "numbers past the range wrap or become infinite",
            (15,),
            ("11",),
            each.but(data="saturating"),
            one_dtype=True,
        )
        yield Case(
            f"quantised/{dtype}_per_head",
            "the scale of another head",
            (15,),
            ("11",),
            each.but(k_scale=(0.5, 0.0625), v_scale=(2.0, 0.25)),
            one_dtype=True,
        )
    yield Case(
        "quantised/odd_scales",
        "scales that are no powers of two",
        (15,),
        ("11",),
        MIXED.but(cache_dtype="int8", k_scale=0.037, v_scale=0.0171),
    )
    yield Case(
        "quantised/no_scales",
        "a quantised cache without scales",
        (15,),
        ("11",),
        MIXED.but(cache_dtype="float8_e4m3fn"),
        one_dtype=True,
    )


def dtypes() -> Iterator[Case]:
    """Types of queries and caches."""
    yield Case("dtype/float16", "half precision", (22, 25), ("14",), MIXED, dtypes=("float16",))
    yield Case(
        "dtype/float32_over_bfloat16",
        "queries of one type over a cache of another",
        (25,),
        ("14",),
        MIXED.but(cache_dtype="bfloat16"),
        dtypes=("float32",),
    )
    yield Case(
        "dtype/bfloat16_over_float32",
        "queries of one type over a cache of another",
        (25,),
        ("14",),
        MIXED.but(cache_dtype="float32"),
        dtypes=("bfloat16",),
    )
