"""The steps that cases are made of, few shapes so that a compiler has little to do."""

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
