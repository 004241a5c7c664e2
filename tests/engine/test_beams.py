"""Beam search: the bookkeeping by hand, then whole searches against one without a cache."""

import numpy as np
import pytest

from paged.engine import SamplingParams
from paged.engine.beams import BeamSearch
from paged.engine.request import Request

END = 256


def request(number, outputs=()):
    params = SamplingParams(temperature=0)
    return Request(number, [1], params, 0, 9, output_token_ids=list(outputs))


def search_of(beams, *, width=2, max_tokens=3, length_penalty=1.0, logprobs=(0.0,)):
    search = BeamSearch(width, 4, max_tokens, length_penalty, frozenset({9}))
    search.live, search.logprobs = list(beams), list(logprobs)
    return search


def step(search, rows):
    for beam, (logprobs, tokens) in zip(search.live, rows, strict=True):
        is_last = search.read(beam, np.float32(logprobs), np.int32(tokens))
    assert is_last
    return [(child.parent, child.token, child.logprob) for child in search.select()]


def test_the_likeliest_stay_and_a_stop_token_ends_one():
    search = search_of([request(0)])
    # Three candidates for two beams: one of them may end. Of equals the smaller token is first.
    assert step(search, [([-1, -2, -2], [5, 9, 4])]) == [(0, 5, -1.0), (0, 4, -2.0)]
    assert search.ended == []
    search.live = [request(0, [5]), request(1, [4])]
    children = step(search, [([-0.5, -3, -4], [9, 1, 2]), ([-1, -1, -9], [7, 6, 5])])
    # -1.5 ends; then two of -3, the second beam's, come before -4 of the first.
    assert children == [(1, 6, -3.0), (1, 7, -3.0)]
    ((ended),) = search.ended
    assert (ended.token_ids, ended.logprob, ended.score) == ((5, 9), -1.5, -0.75)
    assert ended.finish_reason == "stop"
    search.live = [request(2, [4, 6]), request(1, [4, 7])]
    assert step(search, [([-0.25, -5, -6], [1, 2, 3]), ([-3, -3, -3], [1, 2, 3])]) == []
    assert search.is_done
    scores = [(found.token_ids, found.score) for found in search.best()]
    assert scores == [((5, 9), -0.75), ((4, 6, 1), pytest.approx(-3.25 / 3))]


@pytest.mark.parametrize(("length_penalty", "is_over"), [(0.0, True), (3.0, False)])
def test_a_search_ends_when_no_beam_can_become_a_result(length_penalty, is_over):
    search = search_of([request(0)], width=1, max_tokens=9, length_penalty=length_penalty)
    # The best ends at once; what goes on has -4, and could be divided by 9 ** 3.
    children = step(search, [([-1, -4], [9, 5])])
    assert search.is_done == is_over
    assert children == ([] if is_over else [(0, 5, -4.0)])


def test_blocks_that_a_search_may_hold():
    # Ten tokens are two full blocks of four and a half; with six more, 15 slots are used.
    search = BeamSearch(3, 10, 6, 1.0, frozenset())
    assert search.most_blocks(4) == 2 + 3 * 2


def dense_search(logprobs_of, prompt, width, max_tokens, length_penalty, ends=(END,)):
    """What `BeamSearch` says, over the whole vocabulary and to the very end."""
    beams, ended = [((), 0.0)], []
    for length in range(1, max_tokens + 1):
        table = logprobs_of([[*prompt, *tokens] for tokens, _ in beams])
        ranked = sorted(
            (-(total + logprob), place, token)
            for place, ((_, total), row) in enumerate(zip(beams, table, strict=True))
            for token, logprob in enumerate(row)
        )
        following = []
        for negative, place, token in ranked:
            if len(following) == width:
                break
            grown = (*beams[place][0], token), -negative
            if token in ends or length == max_tokens:
                ended.append((grown[1] / length**length_penalty, *grown))
            if token not in ends:
                following.append(grown)
        beams = following
    return [tokens for _, tokens, _ in sorted(ended, key=lambda found: -found[0])[:width]]


@pytest.mark.parametrize(
    ("width", "max_tokens", "length_penalty", "lengths"),
    [(4, 6, 1.0, (3, 12)), (3, 9, 0.0, (8, 7)), (1, 6, 2.0, (5, 4))],
)
def test_beams_are_those_of_a_search_without_a_cache(
    llm, dense_logprobs, prompts, width, max_tokens, length_penalty, lengths
):
    asked = [prompts[length - 3] for length in lengths]
    options = {"max_tokens": max_tokens, "length_penalty": length_penalty}
    outputs = llm.beam_search(asked, beam_width=width, **options)
    for prompt, output in zip(asked, outputs, strict=True):
        expected = dense_search(dense_logprobs, prompt, width, max_tokens, length_penalty)
        assert [tuple(sample.token_ids) for sample in output.samples] == expected
        scores = [sample.stats["score"] for sample in output.samples]
        assert scores == sorted(scores, reverse=True)
    manager = llm._engine.scheduler.manager
    manager.check_integrity()
    assert manager.num_free_blocks == manager.num_blocks - 1


@pytest.mark.parametrize("length_penalty", [1.0, -1.0])
def test_end_tokens_among_the_likeliest(llm, dense_logprobs, prompts, length_penalty, monkeypatch):
    prompt = prompts[6]
    options = {"beam_width": 3, "max_tokens": 8, "length_penalty": length_penalty}
    found = llm.beam_search(prompt, **options)[0].samples
    # What would have come at several lengths ends it.
    ends = frozenset({END, *(sample.token_ids[2 + i] for i, sample in enumerate(found))})
    monkeypatch.setattr(llm._engine, "_eos_token_ids", ends)
    ended = llm.beam_search(prompt, **options)[0].samples
    expected = dense_search(dense_logprobs, prompt, 3, 8, length_penalty, ends)
    assert [tuple(sample.token_ids) for sample in ended] == expected
    assert "stop" in {sample.finish_reason for sample in ended}
    for sample in ended:
        assert (sample.token_ids[-1] in ends) == (sample.finish_reason == "stop")
        shown = sample.token_ids[: -1 if sample.finish_reason == "stop" else None]
        assert sample.text == llm.tokenizer.decode(shown)


def test_one_beam_is_greedy(llm, prompts):
    greedy = SamplingParams(temperature=0, max_tokens=8)
    beam = llm.beam_search(prompts[9], beam_width=1, max_tokens=8)[0]
    assert beam.token_ids == llm.generate([prompts[9]], greedy)[0].token_ids


def test_beams_beside_a_request(llm, prompts):
    params = SamplingParams(temperature=0.7, seed=4, max_tokens=12, ignore_eos=True)
    alone = llm.generate([prompts[7]], params)[0].token_ids
    expected = llm.beam_search(prompts[8], beam_width=3, max_tokens=6)[0]
    stream = llm.stream([prompts[7]], params)
    first = next(stream)
    beams = llm.beam_search(prompts[8], beam_width=3, max_tokens=6)[0]
    assert [s.token_ids for s in beams.samples] == [s.token_ids for s in expected.samples]
    assert [*first.token_ids, *(t for increment in stream for t in increment.token_ids)] == alone


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_width": 0}, "beam_width: got 0, expected an integer of at least 1"),
        ({"beam_width": 9}, "beam_width: got 9, expected at most max_num_seqs, which is 8"),
        ({"beam_width": 2, "max_tokens": True}, "max_tokens: got True, expected an integer"),
        ({"beam_width": 2, "length_penalty": "1"}, "length_penalty: got '1', expected a number"),
        ({"beam_width": 2, "length_penalty": float("nan")}, "got nan, expected a number from -10"),
        ({"beam_width": 8, "max_tokens": 120}, r"8 beams of up to 120 .* need 248 blocks, .* 199"),
    ],
)
def test_arguments_are_refused(llm, options, message):
    with pytest.raises(ValueError, match=message):
        llm.beam_search([[1, 2, 3]], **options)
    assert not llm._engine.has_work
