"""Several samples of a prompt: computed once, kept once, and as independent as requests."""

import dataclasses

import pytest

from paged.engine import SamplingParams

DRAWN = SamplingParams(temperature=0.9, max_tokens=10, ignore_eos=True)


def seeded(seed, n=1):
    return dataclasses.replace(DRAWN, seed=seed, n=n)


def tokens_of(output):
    return [sample.token_ids for sample in output.samples]


def test_samples_are_what_requests_with_the_next_seeds_draw(llm, prompts):
    prompt = prompts[5]
    before = llm.stats.computed_tokens
    # Under a salt of its own: other tests may have left the prompt's blocks in the cache.
    output = llm.generate([prompt], seeded(3, n=4), cache_salt="samples")[0]
    # The prompt ran once, and of each sample all but its last token.
    assert llm.stats.computed_tokens - before == len(prompt) + 4 * 9
    alone = [llm.generate([prompt], seeded(3 + i))[0].token_ids for i in range(4)]
    assert tokens_of(output) == alone
    assert len({tuple(tokens) for tokens in alone}) == 4
    assert (output.token_ids, output.finish_reason) == (alone[0], "length")
    assert [sample.text for sample in output.samples] == [
        llm.tokenizer.decode(tokens) for tokens in alone
    ]


def test_prompts_with_samples_beside_others(llm, prompts):
    """A prompt of one token, one that fills its blocks, and a greedy one, in one step."""
    greedy = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    asked = [(prompts[0][:1], seeded(1, 2)), (prompts[5], seeded(9, 3)), (prompts[2], greedy)]
    together = llm.generate([prompt for prompt, _ in asked], [params for _, params in asked])
    for output, (prompt, params) in zip(together, asked, strict=True):
        assert tokens_of(output) == tokens_of(llm.generate([prompt], params)[0])
    assert [len(output.samples) for output in together] == [2, 3, 1]


def test_increments_name_their_sample(llm, prompts):
    params = seeded(5, n=3)
    found = {}
    for increment in llm.stream([prompts[1], prompts[6]], params):
        found.setdefault((increment.index, increment.sample), []).extend(increment.token_ids)
    outputs = llm.generate([prompts[1], prompts[6]], params)
    expected = {
        (index, sample): completion.token_ids
        for index, output in enumerate(outputs)
        for sample, completion in enumerate(output.samples)
    }
    assert found == expected


def test_a_sample_that_ends_early_leaves_the_others(llm, prompts):
    whole = tokens_of(llm.generate([prompts[4]], seeded(7, n=3))[0])
    stop = whole[1][2]
    params = dataclasses.replace(seeded(7, n=3), stop_token_ids=(stop,))
    cut = [tokens[: tokens.index(stop) + 1] if stop in tokens else tokens for tokens in whole]
    assert tokens_of(llm.generate([prompts[4]], params)[0]) == cut


def test_blocks_are_what_sharing_promises(llm, prompts):
    """A prompt of 6 tokens in blocks of 4, four samples, two steps at a time."""
    manager = llm._engine.scheduler.manager
    prompt, params = [1, 2, 3, 4, 5, 6], dataclasses.replace(seeded(2, n=4), max_tokens=5)
    before = manager.stats().counters
    used = []
    stream = llm.stream([prompt], params)
    for index, _ in enumerate(stream):
        if index % 4 == 0:
            used.append(manager.stats().gauges.used_blocks)
    # One block for all, and one more of each sample, copied from the prompt's last, which the
    # last to write keeps. The first tokens are read when the second are under way; tokens 7 and 8
    # fit beside 5 and 6, and the ninth takes a third block of each. All give up what they have
    # when their last token is on its way.
    assert used == [1 + 4, 1 + 4, 1 + 2 * 4, 1 + 2 * 4, 0]
    after = manager.stats().counters
    assert after.write_copies - before.write_copies == 3


def test_arguments_are_refused(llm):
    with pytest.raises(ValueError, match="n: got 0, expected an integer from 1"):
        SamplingParams(n=0)
    with pytest.raises(ValueError, match="n: got 2 with temperature 0, expected 1"):
        SamplingParams(n=2, temperature=0)
    with pytest.raises(ValueError, match=r"n: got 9, expected at most max_num_seqs, which is 8"):
        llm.generate([[1]], SamplingParams(n=9))
