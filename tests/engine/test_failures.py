"""What is left of an engine after a bad call, a failed step, an interruption."""

import numpy as np
import pytest
from flax import nnx

from paged.engine import LLM, SamplingParams
from paged.models import ModelConfig, Transformer, load_tokenizer

GREEDY = SamplingParams(temperature=0, max_tokens=6)


@pytest.fixture(scope="module")
def llm():
    return LLM("tiny-gqa", num_blocks=40, block_size=4, max_num_seqs=4, dtype="float32")


def _is_idle(llm: LLM) -> bool:
    scheduler = llm._engine.scheduler
    scheduler.manager.check_integrity()
    free = scheduler.manager.num_free_blocks == scheduler.manager.num_blocks - 1
    return free and not scheduler.waiting and not scheduler.running


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (["ROMEO", None], r"prompts\[1\]: prompt: got None, expected a string or token ids"),
        (["ROMEO", "\ud800"], r"prompts\[1\]: text\[0\]: got the lone surrogate"),
        (["ROMEO", [float("inf")]], r"prompts\[1\]: prompt\[0\]: got inf, expected an integer"),
        (["ROMEO", [1.7, 2.9]], r"prompts\[1\]: prompt\[0\]: got 1.7, expected an integer"),
        (
            ["ROMEO", [512]],
            r"prompts\[1\]: prompt\[0\]: got 512, expected an integer 0 <= token < 512",
        ),
    ],
)
def test_a_bad_prompt_leaves_nothing_behind(llm, prompts, message):
    with pytest.raises(ValueError, match=message):
        llm.generate(prompts, GREEDY)
    assert _is_idle(llm)


def test_bad_parameters_leave_nothing_behind(llm):
    with pytest.raises(ValueError, match=r"params\[1\]: got None, expected SamplingParams"):
        llm.generate(["a", "b"], [GREEDY, None])
    assert _is_idle(llm)


def test_a_text_beyond_the_vocabulary_is_refused():
    small = Transformer(ModelConfig(16, 8, 8, 1, 2, 1, 4), rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"expected an integer 0 <= token < 16"):
        LLM(small, tokenizer=load_tokenizer("tiny-gqa"), num_blocks=8).generate("hello zz", GREEDY)


@pytest.mark.parametrize("place", ["dispatch", "sampled"])
def test_an_interrupted_step_ends_all_requests_and_the_next_ones_run(llm, place, monkeypatch):
    expected = llm.generate("JULIET:", GREEDY)[0].token_ids
    beside = llm.stream("ROMEO:", GREEDY)
    next(beside)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if place == "dispatch":
            patch.setattr(llm._engine._runner, "dispatch", interrupt)
        else:
            patch.setattr("paged.engine.runner.InFlight.sampled", interrupt)
        with pytest.raises(KeyboardInterrupt):
            llm.generate("NURSE:", GREEDY)
    with pytest.raises(RuntimeError, match="given up when a step of the engine failed"):
        list(beside)
    assert _is_idle(llm)
    assert llm.generate("JULIET:", GREEDY)[0].token_ids == expected


def test_extreme_temperatures():
    with pytest.raises(ValueError, match="temperature: got 1e\\+39, expected a number from 0 to"):
        SamplingParams(temperature=1e39)
    with pytest.raises(ValueError, match="temperature: got 'a', expected a number"):
        SamplingParams(temperature="a")
    with pytest.raises(ValueError, match="stop: got 3, expected a sequence"):
        SamplingParams(stop=3)
    assert np.float32(SamplingParams(temperature=3e38).temperature) < np.inf
