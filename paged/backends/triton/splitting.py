"""Into how many parts a decode's keys are cut: the one place where it is decided."""

_PROGRAMS_PER_SM = 2
LEAST_PART = 256
"""Fewest tokens of a part."""
_MOST_PARTS = 128

FIXED_TOKENS = 2048
"""Tokens of a part where results must not depend on the batch."""


def split_count(
    *,
    num_seqs: int,
    head_tiles: int,
    max_seq_len: int,
    num_sms: int,
    step_tokens: int,
    least_part: int = LEAST_PART,
) -> int:
    """Parts of each sequence.

    A decode reads every key once, and one program reads all keys of a sequence and a KV head. With
    fewer programs than a GPU has room for, part of its bandwidth lies idle: so many parts that
    there are two programs for each multiprocessor, which hide each other's latency. More gain
    nothing, and each part costs a float32 row of results, written and read again: beside 256 tokens
    of 8-bit keys and values it is below 1%. Where the sequences alone fill the GPU there is one
    part, and no reduction.

    Args:
        num_seqs: sequences, padding included.
        head_tiles: tiles of heads of one sequence.
        max_seq_len: the longest sequence, or a bound of it.
        num_sms: multiprocessors of the device.
        step_tokens: keys of a step; a part is whole steps.
        least_part: fewest tokens of a part.
    """
    programs = num_seqs * head_tiles
    wanted = -(-_PROGRAMS_PER_SM * num_sms // programs)
    longest = max(1, max_seq_len // max(least_part, step_tokens))
    return max(1, min(wanted, longest, _MOST_PARTS))


def fixed_split(*, max_seq_len: int, step_tokens: int) -> tuple[int, int]:
    """(parts, steps of a part) that do not depend on the batch: a part is the same tokens always.

    A sequence alone and in a batch then adds up the same parts in the same order. Parts beyond its
    end are not looked at. There are two at least, so that they always meet in the same reduction.
    """
    steps = max(1, FIXED_TOKENS // step_tokens)
    return max(2, -(-max_seq_len // (steps * step_tokens))), steps
