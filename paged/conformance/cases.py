"""The cases: each a fault that users of public engines met, and its neighbours.

Most share two shapes: a mixed step and a step of decodes, both of 8 rows over 40 blocks of 16.
A compiler then has little to do, and what differs is the data.
"""

from collections.abc import Iterator

from paged.conformance.case import Case
from paged.conformance.setup import Setup

# (query_len, seq_len): decodes, a short and a long prefill, a chunk of a prefill with history.
MIXED = Setup(((1, 17), (1, 33), (3, 3), (24, 24), (20, 52)))

# Lengths around blocks of 16, the whole table at the end.
DECODES = Setup(((1, 1), (1, 15), (1, 16), (1, 17), (1, 31), (1, 33), (1, 128)), num_tokens=8)

# Lengths around 64, 128 and 256 keys: tiles of kernels, and chunks of XLA's at this width.
TILES = Setup(
    tuple((1, length) for length in (63, 64, 65, 127, 128, 129, 255, 256, 257)),
    num_kv_heads=8,
    head_dim=128,
    latent=(512, 64),
    num_blocks=96,
    num_seqs=16,
    num_tokens=16,
    table_width=20,
)

QUERY_TILES = TILES.but(
    sequences=((15, 15), (16, 130), (17, 128), (31, 31), (33, 192)), num_tokens=128
)

SPLIT = Setup(((1, 3136),), num_blocks=200, num_seqs=4, num_tokens=4, table_width=200)

BATCH = Setup(
    tuple((1, 1 + 7 * index % 48) for index in range(64)),
    num_blocks=160,
    num_seqs=64,
    num_tokens=64,
    table_width=4,
)

WINDOWED = MIXED.but(sequences=((1, 40), (1, 17), (24, 24), (20, 40), (10, 100)))

SMALL = Setup(((1, 21), (1, 8), (9, 9), (5, 30)), num_tokens=32, num_blocks=24, table_width=3)


def _memory() -> Iterator[Case]:
    words = {
        "nan": "unowned memory is read: tails, freed blocks, table entries past the end",
        "nan_keys": "a masked logit is NaN instead of -inf",
        "nan_values": "0 * NaN: values are not zeroed under the mask",
        "inf": "0 * Inf: values are not zeroed under the mask",
        "garbage": "NaN is cleaned away, finite garbage is not",
    }
    for poison, exposes in words.items():
        yield Case(f"memory/{poison}", exposes, (1, 2), ("6",), MIXED.but(poison=poison))
        yield Case(f"memory/decode_{poison}", exposes, (1, 2), ("6",), DECODES.but(poison=poison))
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
    )
    yield Case(
        "memory/far_offsets",
        "element offsets overflow int32",
        (16,),
        ("12",),
        DECODES.but(cache_dtype="int8", k_scale=0.5, v_scale=2.0),
        check="offsets",
        one_dtype=True,
    )


def _slots() -> Iterator[Case]:
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


def _lengths() -> Iterator[Case]:
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


def _batches() -> Iterator[Case]:
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


def _shapes() -> Iterator[Case]:
    for group in (1, 2, 4, 5, 6, 7, 8, 16):
        yield Case(
            f"heads/group_{group}",
            f"{group} query heads a KV head",
            (9,),
            ("2",),
            SMALL.but(group_size=group),
            one_dtype=group != 4,
        )
    for group in (1, 5, 48):
        yield Case(
            f"heads/{group}_to_1",
            f"{group} query heads on the only KV head",
            (9,),
            ("2",),
            SMALL.but(num_kv_heads=1, group_size=group),
            one_dtype=True,
        )
    yield Case(
        "heads/three_kv_heads",
        "heads that are no power of two",
        (9,),
        ("2",),
        SMALL.but(num_kv_heads=3),
        one_dtype=True,
    )
    for head_dim in (64, 80, 96, 128, 192, 256):
        yield Case(
            f"head_dim/{head_dim}",
            f"rows of {head_dim}",
            (9,),
            ("2",),
            SMALL.but(head_dim=head_dim),
            one_dtype=head_dim != 128,
        )
    for head_dim in (8, 33):
        yield Case(
            f"head_dim/{head_dim}",
            f"rows of {head_dim}: served or refused",
            (9, 25),
            ("claim",),
            SMALL.but(head_dim=head_dim),
            one_dtype=True,
        )
    for block_size in (1, 5, 8, 16, 32, 64, 128):
        width = -(-48 // block_size)
        yield Case(
            f"block_size/{block_size}",
            f"blocks of {block_size}",
            (10,),
            ("2",),
            SMALL.but(block_size=block_size, table_width=width, num_blocks=8 * width),
            one_dtype=block_size != 32,
        )
    yield Case(
        "block_size/manager_32_kernel_16",
        "the manager's blocks are twice the kernel's",
        (11,),
        ("13",),
        SMALL.but(manager_ratio=2),
    )
    yield Case(
        "block_size/manager_64_kernel_16",
        "the manager's blocks are four times the kernel's",
        (11,),
        ("13",),
        SMALL.but(manager_ratio=4, table_width=2),
        one_dtype=True,
    )


def _windows() -> Iterator[Case]:
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
        ("7", "9"),
        MIXED.but(sequences=((1, 90), (32, 32), (30, 94)), window=8),
    )


def _logits() -> Iterator[Case]:
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
    )
    for data in ("same", "opposite", "both_signs"):
        yield Case(
            f"logits/{data}",
            "q = 64 and k = 64 or -64: overflow in half precision, or a wrong first maximum",
            (22,),
            ("14",),
            SMALL.but(data=data, head_dim=128),
            dtypes=("float32", "bfloat16", "float16"),
        )
    yield Case(
        "logits/tiny_scale",
        "a scale that is not head_dim ** -0.5",
        (13,),
        ("10",),
        MIXED.but(sharpness=0.01),
        one_dtype=True,
    )


def _lse() -> Iterator[Case]:
    yield Case(
        "lse/split_3072_and_64",
        "lse to another base, or of another sum",
        (14,),
        ("8",),
        SPLIT,
        check="merge",
    )
    yield Case(
        "lse/split_small",
        "lse of a short part",
        (14,),
        ("8",),
        SPLIT.but(sequences=((1, 83),)),
        check="merge",
    )


def _quantised() -> Iterator[Case]:
    exposes = "one scale for both, a scale left out, or applied twice"
    for dtype in ("int8", "float8_e4m3fn", "float8_e5m2"):
        each = MIXED.but(cache_dtype=dtype, k_scale=0.5, v_scale=2.0)
        yield Case(f"quantised/{dtype}", exposes, (15,), ("11",), each)
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
        one_dtype=True,
    )
    yield Case(
        "quantised/no_scales",
        "a quantised cache without scales",
        (15,),
        ("11",),
        MIXED.but(cache_dtype="float8_e4m3fn"),
        one_dtype=True,
    )


def _dtypes() -> Iterator[Case]:
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


def _layouts() -> Iterator[Case]:
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


def _latent() -> Iterator[Case]:
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
    "slots_dtype": "slots of int64",
    "slots_length": "more slots than keys",
    "key_dtype": "keys of integers",
    "key_heads": "one KV head too many",
    "value_presence": "a value for a latent, or none for a key",
    "other_platform": "a platform that is not the backend's",
}


def _refusals() -> Iterator[Case]:
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


CASES: tuple[Case, ...] = (
    *_batches(),
    *_memory(),
    *_slots(),
    *_lengths(),
    *_shapes(),
    *_windows(),
    *_logits(),
    *_lse(),
    *_quantised(),
    *_dtypes(),
    *_layouts(),
    *_latent(),
    *_refusals(),
)
"""All cases, in the order in which they run: the plainest first."""
