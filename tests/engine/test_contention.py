"""An engine whose pool is far too small says what one with room for all says."""

import dataclasses
import random

import pytest

from paged.engine import LLM, SamplingParams
from paged.engine.preemption import FLOPS_PER_BYTE_MOVED, PreemptionCost

DRAWN = SamplingParams(temperature=0.8, max_tokens=12, ignore_eos=True)


def load(prompts):
    """Prompts of which half begin alike, with one to four samples, and their priorities."""
    asked = [prompts[9] + p[:4] if i % 2 else p for i, p in enumerate(prompts[:10])]
    params = [dataclasses.replace(DRAWN, seed=i, n=1 + i % 4) for i in range(10)]
    return asked, params, [i % 3 for i in range(10)]


def increments_of(llm, prompts, closed):
    """The tokens of each sample, of ten streams side by side; some are closed on the way."""
    rng = random.Random(3)
    streams = {
        index: llm.stream([prompt], params, priority=priority)
        for index, (prompt, params, priority) in enumerate(zip(*load(prompts), strict=True))
    }
    found = {}
    while streams:
        index = rng.choice(sorted(streams))
        if index in closed and rng.random() < 0.2:
            streams.pop(index).close()
            continue
        increment = next(streams[index], None)
        if increment is None:
            del streams[index]
        else:
            found.setdefault((index, increment.sample), []).extend(increment.token_ids)
    return found


def is_idle(llm):
    scheduler = llm._engine.scheduler
    scheduler.schedule()
    scheduler.manager.check_integrity()
    return scheduler.manager.num_free_blocks == scheduler.manager.num_blocks - 1


def test_samples_shared_prefixes_and_aborts(llm, small, prompts):
    closed = {2, 3, 6}
    expected = increments_of(llm, prompts, ())
    before = dataclasses.replace(small.stats)
    found = increments_of(small, prompts, closed)
    for key, tokens in expected.items():
        if key[0] in closed:
            assert found.get(key, []) == tokens[: len(found.get(key, []))]
        else:
            assert found[key] == tokens
    swaps = small.stats.swaps - before.swaps
    # Both ways of giving up blocks were taken.
    assert 0 < swaps < small.stats.preemptions - before.preemptions
    hits = small.stats.blocks.counters.hit_tokens - before.blocks.counters.hit_tokens
    assert hits > 0
    assert is_idle(small)
    assert is_idle(llm)


def test_a_beam_search_that_fills_the_pool_beside_requests(llm, small, prompts):
    options = {"beam_width": 2, "max_tokens": 12}
    expected = [s.token_ids for s in llm.beam_search(prompts[2], **options)[0].samples]
    alone = [llm.generate([p], DRAWN_1)[0].token_ids for p in prompts[12:15]]
    streams = [small.stream([p], DRAWN_1) for p in prompts[12:15]]
    first = [next(stream).token_ids[0] for stream in streams]
    found = small.beam_search(prompts[2], **options)[0]
    assert [s.token_ids for s in found.samples] == expected
    rest = [[token for i in stream for token in i.token_ids] for stream in streams]
    assert [[token, *tokens] for token, tokens in zip(first, rest, strict=True)] == alone
    assert is_idle(small)


DRAWN_1 = dataclasses.replace(DRAWN, seed=5)


def test_more_beams_than_tokens_in_a_step(llm, small, prompts, monkeypatch):
    options = {"beam_width": 3, "max_tokens": 6}
    expected = [s.token_ids for s in llm.beam_search(prompts[0], **options)[0].samples]
    monkeypatch.setattr(small._engine.scheduler, "max_num_batched_tokens", 2)
    found = small.beam_search(prompts[0], **options)[0]
    assert [s.token_ids for s in found.samples] == expected


@pytest.mark.parametrize("mode", ["auto", "swap", "recompute"])
def test_what_costs_less(mode):
    cost = PreemptionCost(block_bytes=1000, flops_per_token=1e6, platform="cpu", mode=mode)
    # Two ways of 1000 bytes, against a token.
    dear = 2 * 1000 * FLOPS_PER_BYTE_MOVED["cpu"] / 1e6
    swaps = [cost.prefers_swap(num_blocks=100, num_tokens=n) for n in (100 * dear, 100 * dear + 1)]
    assert swaps == {"auto": [False, True], "swap": [True] * 2, "recompute": [False] * 2}[mode]


def test_arguments_are_refused(tiny_model):
    with pytest.raises(ValueError, match="preemption: got 'never', expected one of auto, recomp"):
        LLM(tiny_model, num_blocks=20, preemption="never")
    with pytest.raises(ValueError, match="num_host_blocks: got -1, expected an integer of at lea"):
        LLM(tiny_model, num_blocks=20, num_host_blocks=-1)
