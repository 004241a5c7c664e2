"""Cases about steps: batches, slots, lengths."""

from collections.abc import Iterator

from paged.conformance.case import Case
from paged.conformance.cases.setups import BATCH, DECODES, MIXED, QUERY_TILES, SPLIT, TILES


def batches() -> Iterator[Case]:
    """What is in a step, and how it is called."""
    yield Case("batch/mixed", "decode, prefill and chunk in one call", (7,), ("1", "2"), MIXED)
    yield Case("batch/decode_only", "a step of decodes alone", (7,), ("1",), DECODES)
    yield Case(
        "batch/chunks_only",
        "chunks with history where prefills are expected",
        (7,),
        ("2",),
        MIXED.but(sequences=((20, 52), (7, 9), (30, 100))),
    )
    yield Case(
        "batch/one_sequence", "a batch of one", (7,), ("2",), MIXED.but(sequences=((30, 47),))
    )
    yield Case(
        "batch/full",
        "no padding at all: S, T and table full",
        (7, 8),
        ("2",),
        MIXED.but(
            sequences=((1, 128), (1, 3), (1, 1), (1, 40), (10, 10), (20, 20), (20, 60), (10, 33))
        ),
    )
    yield Case(
        "batch/three_of_eight",
        "padded sequences: query_start_loc repeats, seq_len 0",
        (2, 8),
        ("8",),
        DECODES.but(sequences=((1, 9), (1, 40), (1, 16))),
    )
    yield Case(
        "batch/more_tokens_than_sequences",
        "no sequence is padding but tokens are: a token of padding takes some sequence's row",
        (5, 8),
        ("8",),
        DECODES.but(num_seqs=7),
        one_dtype=True,
    )
    yield Case(
        "batch/more_sequences_than_tokens",
        "sequences without a query take the place of one that has some",
        (5, 8),
        ("2",),
        MIXED.but(
            sequences=((1, 9), (0, 12), (0, 0), (0, 33), (0, 0), (0, 16), (0, 5), (3, 20)),
            num_tokens=4,
        ),
        one_dtype=True,
    )
    yield Case(
        "batch/rows_without_keys",
        "rows of padding are not written, or lse is finite there",
        (5, 8),
        ("8",),
        MIXED.but(sequences=((1, 9), (2, 2))),
    )
    yield Case(
        "batch/empty_sequences",
        "sequences of length 0 and queries of length 0 between others",
        (5, 8),
        ("8", "2"),
        MIXED.but(sequences=((1, 9), (0, 0), (5, 5), (0, 0), (0, 20), (4, 30), (0, 16))),
    )
    yield Case(
        "batch/nothing",
        "a step that is all padding",
        (5, 8),
        ("8",),
        MIXED.but(sequences=((0, 0),)),
    )
    yield Case(
        "batch/invariance",
        "a row alone, among 64, in another order, on other blocks",
        (19,),
        ("13",),
        BATCH,
        check="batch",
        one_dtype=True,
    )
    yield Case(
        "batch/repeat",
        "state left over from an earlier call",
        (20,),
        ("2", "repeat"),
        MIXED,
        check="repeat",
    )
    yield Case(
        "batch/eager",
        "a call outside jit changes what it was given",
        (20,),
        ("2", "inputs"),
        MIXED,
        check="eager",
        one_dtype=True,
    )
    yield Case(
        "batch/strided",
        "q, k and v are slices of one array, the table of a wider one",
        (17,),
        ("strides",),
        MIXED.but(strided=True),
    )
    yield Case(
        "batch/strided_eager",
        "the same outside jit",
        (17,),
        ("strides",),
        MIXED.but(strided=True),
        check="eager",
        one_dtype=True,
    )


def slots() -> Iterator[Case]:
    """What is written, and where."""
    rules = ("4", "7", "3")
    full = MIXED.but(sequences=((1, 16), (1, 32), (3, 3), (24, 24), (16, 64)))
    yield Case(
        "slots/minus_one_and_full_blocks",
        "slot -1 wraps to the last slot of the pool, which holds a token",
        (4,),
        rules,
        full,
    )
    yield Case("slots/all_minus_one", "a write of nothing", (4,), rules, MIXED.but(slots="none"))
    yield Case(
        "slots/half_minus_one",
        "tokens whose keys are in the cache already are written again",
        (4,),
        rules,
        MIXED.but(slots="half"),
    )
    yield Case(
        "slots/decode_padding",
        "padding of a decode step is written",
        (4, 8),
        rules,
        DECODES.but(sequences=((1, 5), (1, 16), (1, 33))),
    )


def lengths() -> Iterator[Case]:
    """Lengths around blocks and tiles."""
    yield Case(
        "lengths/decode",
        "1, block size - 1, block size, block size + 1, the whole table",
        (6,),
        ("2",),
        DECODES,
    )
    yield Case(
        "lengths/prefill",
        "causal mask around the end of a block",
        (6,),
        ("2",),
        MIXED.but(sequences=((1, 1), (2, 2), (15, 15), (16, 16), (17, 17))),
    )
    yield Case(
        "lengths/chunks",
        "history that ends at, before and after the end of a block",
        (6, 7),
        ("2",),
        MIXED.but(sequences=((2, 17), (15, 31), (16, 33), (17, 33), (3, 128))),
    )
    for data in ("normal", "rising", "falling"):
        yield Case(
            f"lengths/tiles_{data}",
            "the state of the online softmax is not rescaled as the maximum grows"
            if data == "rising"
            else "keys at the edge of a tile are lost or seen twice",
            (6,),
            ("14",),
            TILES.but(data=data),
        )
    yield Case(
        "lengths/uneven_parts",
        "the last of several parts of the keys, shorter than the others, is left out",
        (6,),
        ("14",),
        SPLIT.but(sequences=((1, 800), (1, 333))),
    )
    yield Case(
        "lengths/query_tiles",
        "queries at the edge of a tile, long prefill",
        (6, 7),
        ("2",),
        QUERY_TILES,
    )
    yield Case(
        "lengths/long",
        "lengths around 512, 1024 and 2048 keys",
        (6,),
        ("14",),
        TILES.but(
            sequences=tuple((1, n + d) for n in (512, 1024, 2048) for d in (-1, 0, 1)),
            num_blocks=720,
            table_width=132,
        ),
        large=True,
    )
