"""Best of several samples: those that the model itself finds likeliest come back."""

import dataclasses

import numpy as np
import pytest

from paged.engine import SamplingParams
from paged.engine.generation import Generation, best
from paged.engine.request import Request

DRAWN = SamplingParams(temperature=1.3, top_k=40, seed=3, max_tokens=10, ignore_eos=True)


def test_by_hand():
    """Means of -2, -1.5, -1 and -1.5: the third, then the first of equals. The longest has the
    least sum."""
    params = SamplingParams(n=2, best_of=4)
    found = []
    for sample, (logprob, length) in enumerate([(-4.0, 2), (-1.5, 1), (-5.0, 5), (-3.0, 2)]):
        request = Request(sample, [1], params, 0, 9, output_token_ids=[7] * length)
        request.logprob = logprob
        found.append(Generation(0, sample, None, request, None))
    assert [generation.sample for generation in best(found)] == [2, 1]


@pytest.mark.parametrize("engine", ["llm", "small"])
def test_the_best_are_those_of_the_highest_mean_by_a_model_without_a_cache(
    request, engine, llm, dense_logprobs, prompts
):
    """Where blocks are short too: the samples lose theirs and come back."""
    prompt = prompts[9]
    drawn = llm.generate([prompt], dataclasses.replace(DRAWN, n=5))[0].samples
    scores = []
    for sample in drawn:
        tokens = sample.token_ids
        table = dense_logprobs([[*prompt, *tokens[:length]] for length in range(len(tokens))])
        scores.append(float(np.mean(table[np.arange(len(tokens)), tokens])))
    order = sorted(range(5), key=lambda sample: -scores[sample])

    engine = request.getfixturevalue(engine)
    greedy = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    params = dataclasses.replace(DRAWN, n=2, best_of=5)
    found, beside = engine.generate([prompt, prompts[2]], [params, greedy])
    assert [s.token_ids for s in found.samples] == [drawn[sample].token_ids for sample in order[:2]]
    for sample, place in zip(found.samples, order, strict=False):
        assert sample.stats["score"] == pytest.approx(scores[place], abs=1e-4)
        assert sample.stats["logprob"] == pytest.approx(10 * scores[place], abs=1e-3)
    assert beside.token_ids == llm.generate([prompts[2]], greedy)[0].token_ids
    assert "score" not in beside.stats
    manager = engine._engine.scheduler.manager
    manager.check_integrity()
    assert manager.num_free_blocks == manager.num_blocks - 1


def test_samples_share_the_prompts_blocks(llm):
    manager = llm._engine.scheduler.manager
    computed, copies = llm.stats.computed_tokens, manager.stats().counters.write_copies
    params = dataclasses.replace(DRAWN, best_of=4, max_tokens=3)
    # Tokens that no other test has, so that nothing of them is cached.
    output = llm.generate([[200, 201, 202, 203, 204, 205]], params)[0]
    assert len(output.samples) == 1
    assert llm.stats.computed_tokens - computed == 6 + 4 * 2
    assert manager.stats().counters.write_copies - copies == 3


def test_arguments_are_refused(llm):
    params = dataclasses.replace(DRAWN, best_of=9)
    with pytest.raises(ValueError, match="best_of: got 9, expected at most max_num_seqs, which"):
        llm.generate([[1]], params)
    with pytest.raises(ValueError, match="best_of: got 9 for a stream, expected None"):
        next(llm.stream([[1]], params))
    assert not llm._engine.has_work
