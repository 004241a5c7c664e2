"""Requests share the blocks of what they have in common, and say the same as without."""

import numpy as np
import pytest

from paged.engine import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.8, max_tokens=8, ignore_eos=True, seed=11)


@pytest.fixture
def conversations():
    """Two turns of three conversations that begin alike, unlike any other test's."""
    rng = np.random.default_rng(int.from_bytes(b"prefix"))
    begin, *ends = (rng.integers(0, 94, length).tolist() for length in (9, 3, 5, 8))
    return [begin + end for end in ends]


def tokens_of(outputs):
    return [output.token_ids for output in outputs]


@pytest.mark.parametrize("params", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_tokens_are_those_of_requests_that_compute_everything(llm, conversations, params):
    salt = f"turns {params.temperature}"

    def alone(prompts):
        salts = [f"{salt} {len(prompt)}" for prompt in prompts]
        found = llm.generate(prompts, params, cache_salt=salts)
        assert [output.stats["cached_tokens"] for output in found] == [0] * 3
        return tokens_of(found)

    first = llm.generate(conversations, params, cache_salt=salt)
    assert tokens_of(first) == alone(conversations)
    # The first computes what they have in common; two full blocks of it, in the same step.
    assert [output.stats["cached_tokens"] for output in first] == [0, 8, 8]
    # The next turn finds all full blocks of prompt and answer but those of the last tokens.
    following = [
        prompt + output.token_ids + [1, 2, 3]
        for prompt, output in zip(conversations, first, strict=True)
    ]
    second = llm.generate(following, params, cache_salt=salt)
    assert tokens_of(second) == alone(following)
    for prompt, output in zip(following, second, strict=True):
        assert output.stats["cached_tokens"] >= len(prompt) - 3 - 4 - 4


def test_an_engine_may_do_without(tiny_model):
    llm = LLM(tiny_model, block_size=1, num_blocks=20, max_num_seqs=8, enable_prefix_caching=False)
    outputs = llm.generate([[1, 2, 3], [1, 2, 3]], SamplingParams(temperature=0, max_tokens=1))
    assert [output.stats["cached_tokens"] for output in outputs] == [0, 0]
    assert llm.stats.computed_tokens == 6


def test_the_whole_prompt_again_computes_one_block(llm, conversations):
    prompt = conversations[0][:12]
    once = llm.generate([prompt], GREEDY, cache_salt="again")[0]
    before = llm.stats.computed_tokens
    twice = llm.generate([prompt], GREEDY, cache_salt="again")[0]
    # Its last token has to be computed, and with it its block.
    assert twice.stats["cached_tokens"] == 8
    assert llm.stats.computed_tokens - before == 4 + 7
    assert twice.token_ids == once.token_ids


def test_tenants_share_nothing(llm, conversations):
    salts = ["a", "b", None]
    found = llm.generate([conversations[0]] * 3, GREEDY, cache_salt=salts)
    assert [output.stats["cached_tokens"] for output in found] == [0, 0, 0]
    assert len({tuple(tokens) for tokens in tokens_of(found)}) == 1
    again = llm.generate([conversations[0]], GREEDY, cache_salt="b")[0]
    assert again.stats["cached_tokens"] == 8


def test_a_step_that_fails_leaves_nothing_cached(llm, conversations, monkeypatch):
    prompt = conversations[1]
    llm.generate([prompt], GREEDY, cache_salt="failure")
    with monkeypatch.context() as patch:
        patch.setattr(llm._engine._runner, "dispatch", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            llm.generate([prompt], GREEDY, cache_salt="failure")
    assert llm.stats.blocks.gauges.cached_blocks == 0
    after = llm.generate([prompt], GREEDY, cache_salt="failure")[0]
    assert after.stats["cached_tokens"] == 0


def test_arguments_are_refused(llm):
    with pytest.raises(ValueError, match="cache_salt: got 2, expected one for each of 1 prompts"):
        llm.generate([[1]], GREEDY, cache_salt=["a", "b"])
    with pytest.raises(ValueError, match=r"cache_salt\[0\]: got 5, expected str"):
        llm.generate([[1]], GREEDY, cache_salt=5)
    with pytest.raises(ValueError, match=r"priority\[0\]: got 1.5, expected int"):
        llm.generate([[1]], GREEDY, priority=1.5)
