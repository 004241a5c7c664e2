"""Which shapes the steps of an engine can have, so that they can be compiled beforehand."""

from collections.abc import Callable, Iterable, Iterator

from paged.engine.inputs import StepShape
from paged.engine.sampler import SamplingMode
from paged.metadata import Buckets


def step_shapes(
    kinds: Iterable[tuple[SamplingMode, bool]],
    *,
    buckets: Buckets,
    block_size: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_seq_len: int,
    has_forks: bool = False,
) -> list[StepShape]:
    """The shape of every step that could run, those of beam searches aside, the decodes first.

    Args:
        kinds: `mode` and `has_logprobs` of the steps that will come.
        buckets: what steps are padded to.
        block_size: tokens per block.
        max_num_seqs: requests that run at once.
        max_num_batched_tokens: tokens of one step.
        max_seq_len: tokens of one request.
        has_forks: whether prompts are sampled more than once.
    """
    block_sizes = _sizes(buckets.blocks, -(-max_seq_len // block_size))
    seq_sizes = _sizes(buckets.seqs, min(max_num_seqs, max_num_batched_tokens))
    found: list[StepShape] = []
    for mode, has_logprobs in dict.fromkeys(kinds):
        for seqs in seq_sizes:
            # A step has samples of its own number where one of its prompts is to be forked.
            samples: list[int | None] = [None]
            # The first of them is sampled by a request that it was forked from: never greedily.
            if has_forks and mode != "greedy":
                samples += [size for size in _sizes(buckets.seqs, max_num_seqs) if size >= seqs]
            found += [
                StepShape(seqs, seqs, blocks, True, mode, num, has_logprobs=has_logprobs)
                for num in samples
                for blocks in block_sizes
            ]
            found += [
                StepShape(seqs, tokens, blocks, False, mode, num, has_logprobs=has_logprobs)
                for num in samples
                for tokens, blocks in _chunked(
                    seqs,
                    block_sizes,
                    buckets=buckets,
                    block_size=block_size,
                    max_num_seqs=max_num_seqs,
                    max_num_batched_tokens=max_num_batched_tokens,
                    max_seq_len=max_seq_len,
                )
            ]
    return sorted(found, key=lambda shape: not shape.is_decode)


def _chunked(
    seqs: int,
    block_sizes: list[int],
    *,
    buckets: Buckets,
    block_size: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_seq_len: int,
) -> Iterator[tuple[int, int]]:
    """T and B of the steps with this S that are not all decodes."""
    fewest_seqs = _least(buckets.seqs, seqs)
    most_seqs = min(seqs, max_num_seqs)
    # One of the rows has two tokens or more.
    most_tokens = min(max_num_batched_tokens, most_seqs * max_seq_len)
    for tokens in _sizes(buckets.tokens, most_tokens):
        fewest = max(_least(buckets.tokens, tokens), fewest_seqs + 1, 2)
        if fewest > min(tokens, most_tokens):
            continue
        # The longest row is no shorter than the mean one.
        longest = max(2, -(-fewest // most_seqs))
        for blocks in block_sizes:
            if -(-longest // block_size) <= blocks:
                yield tokens, blocks


def _sizes(padded: Callable[[int], int], most: int) -> list[int]:
    """All sizes to which the numbers from 1 to `most` are padded."""
    sizes: list[int] = []
    number = 1
    while number <= most:
        sizes.append(padded(number))
        number = sizes[-1] + 1
    return sizes


def _least(padded: Callable[[int], int], size: int) -> int:
    """The least number that is padded to a size."""
    return next(number for number in range(1, size + 1) if padded(number) == size)
