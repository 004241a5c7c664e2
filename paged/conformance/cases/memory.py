"""Cases about memory that a sequence does not own."""

from collections.abc import Iterator

from paged.conformance.case import Case
from paged.conformance.cases.setups import DECODES, MIXED, SMALL


def memory() -> Iterator[Case]:
    """What unowned memory holds."""
    words = {
        "nan": "unowned memory is read: tails, freed blocks, table entries past the end",
        "nan_keys": "a masked logit is NaN instead of -inf",
        "nan_values": "0 * NaN: values are not zeroed under the mask",
        "inf": "0 * Inf: values are not zeroed under the mask",
        "garbage": "NaN is cleaned away, finite garbage is not",
    }
    sources = {
        "nan": "https://github.com/Dao-AILab/flash-attention/issues/1745",
        "nan_values": "https://github.com/Dao-AILab/flash-attention/issues/2374",
        "inf": "https://github.com/ROCm/aiter/pull/5401",
    }
    for poison, exposes in words.items():
        for word, setup in (("", MIXED), ("decode_", DECODES)):
            yield Case(
                f"memory/{word}{poison}",
                exposes,
                (1, 2),
                ("6",),
                setup.but(poison=poison),
                source=sources.get(poison),
            )
    yield Case(
        "memory/nan_neighbour",
        "a sequence whose own numbers are NaN spoils the others",
        (1, 19),
        ("13",),
        MIXED.but(data="nan_neighbour"),
    )
    yield Case(
        "memory/pool_exactly_enough",
        "first and last block of the pool, no block free",
        (3,),
        ("13",),
        SMALL.but(num_blocks=7, sequences=((1, 16), (1, 8), (9, 9), (5, 48))),
        one_dtype=True,
    )
    yield Case(
        "memory/far_offsets",
        "element offsets overflow int32",
        (16,),
        ("12",),
        DECODES.but(cache_dtype="int8", k_scale=0.5, v_scale=2.0),
        check="offsets",
        one_dtype=True,
        source="https://github.com/vllm-project/vllm/issues/50427",
    )
