"""Which cases are the most likely to catch a kind of fault, so that they are tried first.

It decides how long a run takes, and nothing else: a mutant that none of these catch meets all the
other cases before it counts as a survivor.
"""

LIKELY: dict[str, tuple[str, ...]] = {
    "window": ("window/8", "window/decode", "window/as_long_as_the_sequence", "window/*"),
    "scale": ("batch/mixed", "logits/*"),
    "mask": ("batch/mixed", "batch/decode_only", "lengths/*", "memory/*"),
    "blocks": ("batch/mixed", "batch/decode_only", "lengths/tiles_normal", "lengths/*"),
    "heads": ("batch/mixed", "heads/group_5", "heads/*"),
    "keys_and_values": ("batch/mixed",),
    "quantised": ("quantised/int8", "quantised/int8_per_head", "quantised/*"),
    "lse": ("batch/mixed", "batch/three_of_eight", "batch/empty_sequences", "lse/*"),
    "precision": ("batch/mixed", "logits/*", "lengths/tiles_normal", "dtype/*"),
    "softmax": ("lengths/tiles_rising", "lengths/tiles_normal", "logits/opposite", "logits/*"),
    "slots": ("slots/minus_one_and_full_blocks", "slots/half_minus_one", "slots/*"),
    "soft_cap": ("soft_cap/2", "soft_cap/*"),
    "sinks": ("sinks/mixed", "sinks/positive", "sinks/*"),
    "memory": ("batch/mixed", "memory/*"),
    "rows": ("batch/mixed", "lengths/query_tiles", "batch/empty_sequences", "batch/*"),
    "positions": ("batch/mixed", "batch/chunks_only", "lengths/*"),
    "latent": ("batch/mixed", "quantised/int8", "mla/*", "quantised/*"),
    "output": ("batch/mixed", "batch/three_of_eight"),
    "inputs": ("batch/eager", "batch/strided_eager"),
    "repeat": ("batch/repeat", "batch/mixed"),
    "offsets": ("memory/far_offsets",),
    "claim": ("refuse/*",),
}
"""Patterns of case names, the likeliest first."""
