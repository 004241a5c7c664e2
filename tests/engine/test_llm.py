"""`LLM` as its users see it: contention, seeds, streams, stops, refusals."""

import dataclasses
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paged import UnsupportedError
from paged.engine import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, max_tokens=12, ignore_eos=True)


def tokens_of(outputs):
    return [output.token_ids for output in outputs]


def test_a_pool_for_one_request_finishes_twenty(llm, small, prompts):
    before = small.stats.preemptions
    contended = small.generate(prompts, GREEDY)
    assert tokens_of(contended) == tokens_of(llm.generate(prompts, GREEDY))
    preemptions = small.stats.preemptions - before
    assert preemptions > 0
    assert sum(output.stats["preemptions"] for output in contended) == preemptions


def test_seeds_reproduce_in_any_company_and_after_preemption(llm, small, prompts):
    params = [dataclasses.replace(DRAWN, seed=index) for index in range(len(prompts))]
    drawn = tokens_of(llm.generate(prompts, params))
    assert tokens_of(small.generate(prompts, params)) == drawn
    # Alone, and beside a greedy request and one without filters.
    plain = SamplingParams(seed=3, max_tokens=5)
    mixed = llm.generate([prompts[4], prompts[7], prompts[1]], [params[4], GREEDY, plain])
    assert mixed[0].token_ids == drawn[4]
    assert mixed[1].token_ids == llm.generate([prompts[7]], GREEDY)[0].token_ids
    assert mixed[2].token_ids == llm.generate([prompts[1]], plain)[0].token_ids
    assert len({tuple(tokens) for tokens in drawn}) == len(drawn)


def test_an_engine_seed_makes_unseeded_requests_repeatable(tiny_model, prompts):
    def draw(seed):
        llm = LLM(tiny_model, block_size=8, num_blocks=60, max_num_seqs=8, seed=seed)
        return tokens_of(llm.generate([prompts[0]] * 3, DRAWN))

    first = draw(5)
    assert draw(5) == first
    assert draw(6) != first
    assert len({tuple(tokens) for tokens in first}) == 3


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_prompts_that_run_a_token_at_a_time(tiny_model, llm, prompts, temperature):
    """Such steps are no decodes: what they sample is dropped."""
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=6, ignore_eos=True)
    narrow = LLM(tiny_model, max_num_seqs=2, max_num_batched_tokens=2, max_model_len=64)
    asked = [prompt[:9] for prompt in prompts[3:6]]
    expected = [output.token_ids for output in llm.generate(asked, params)]
    assert [output.token_ids for output in narrow.generate(asked, params)] == expected


def test_what_is_refused_leaves_no_trace(tiny_model, prompts):
    drawn = SamplingParams(max_tokens=6, ignore_eos=True)

    def fresh():
        return LLM(tiny_model, max_num_seqs=2, max_model_len=64, seed=7)

    subject = fresh()
    for asked, params in (
        (prompts[:1], dataclasses.replace(drawn, n=3)),
        (prompts[:1], dataclasses.replace(drawn, best_of=2**31 - 1)),
        ([prompts[1], []], drawn),
    ):
        with pytest.raises(ValueError, match=r"prompts\[[01]\]: "):
            subject.generate(asked, params)
    assert subject.stats.prompt_tokens == 0
    expected = fresh().generate(prompts[:2], drawn)
    found = subject.generate(prompts[:2], drawn)
    assert [output.token_ids for output in found] == [output.token_ids for output in expected]


def test_streams_add_up_to_what_generate_gives(llm, prompts):
    params = SamplingParams(temperature=0, max_tokens=12)
    outputs = llm.generate(prompts, params)
    texts, tokens, reasons = [""] * 20, [[] for _ in prompts], [None] * 20
    for increment in llm.stream(prompts, params):
        assert reasons[increment.index] is None
        texts[increment.index] += increment.text
        tokens[increment.index] += increment.token_ids
        reasons[increment.index] = increment.finish_reason
    assert texts == [output.text for output in outputs]
    assert tokens == tokens_of(outputs)
    assert reasons == [output.finish_reason for output in outputs]
    for output in outputs:
        assert output.text == llm.tokenizer.decode(output.token_ids)


def test_streams_side_by_side_and_one_that_is_closed(llm, prompts):
    expected = tokens_of(llm.generate(prompts[:2], GREEDY))
    first, second, third = (llm.stream([prompt], GREEDY) for prompt in prompts[:3])
    next(third)
    pairs = list(zip(first, second, strict=True))
    third.close()
    assert [[i.token_ids[0] for i in own] for own in zip(*pairs, strict=True)] == expected
    assert llm.generate(prompts[:1], GREEDY)[0].token_ids == expected[0]


def test_a_stop_string_ends_the_text_before_it(llm, prompts):
    whole = llm.generate(prompts[3], GREEDY)[0]
    # Some two characters from the middle of what it says anyway.
    at = len(whole.text) // 2
    stop = whole.text[at : at + 2]
    params = dataclasses.replace(GREEDY, stop=(stop, "never there"))
    stopped = llm.generate(prompts[3], params)[0]
    assert stopped.finish_reason == "stop"
    assert stopped.text == whole.text[: whole.text.index(stop)]
    assert stopped.token_ids == whole.token_ids[: len(stopped.token_ids)]
    assert len(stopped.token_ids) <= len(whole.token_ids)
    shown = ""
    for increment in llm.stream(prompts[3], params):
        shown += increment.text
        assert stop not in shown
    assert shown == stopped.text


def test_a_stop_token_ends_the_request_and_has_no_text(llm, prompts):
    whole = llm.generate(prompts[5], GREEDY)[0]
    token = whole.token_ids[4]
    params = dataclasses.replace(GREEDY, stop_token_ids=(token,))
    stopped = llm.generate(prompts[5], params)[0]
    end = whole.token_ids.index(token)
    assert stopped.token_ids == whole.token_ids[: end + 1]
    assert stopped.text == llm.tokenizer.decode(whole.token_ids[:end])
    assert (stopped.finish_reason, whole.finish_reason) == ("stop", "length")


def test_the_models_end_token_counts_unless_it_is_ignored(tiny_model, prompts):
    whole = LLM(tiny_model, num_blocks=20, max_num_seqs=8).generate([prompts[2]], GREEDY)[0]
    config = dataclasses.replace(tiny_model.config, eos_token_ids=(whole.token_ids[3],))
    model = type(tiny_model).__new__(type(tiny_model))
    model.__dict__.update(tiny_model.__dict__)
    model.config = config
    llm = LLM(model, num_blocks=20, max_num_seqs=8)
    ended = llm.generate([prompts[2]], dataclasses.replace(GREEDY, ignore_eos=False))[0]
    assert ended.token_ids == whole.token_ids[: whole.token_ids.index(whole.token_ids[3]) + 1]
    assert ended.finish_reason == "stop"
    assert llm.generate([prompts[2]], GREEDY)[0].token_ids == whole.token_ids


def test_the_models_length_ends_a_request(tiny_model):
    llm = LLM(tiny_model, num_blocks=20, max_num_seqs=8, max_model_len=10)
    output = llm.generate([[1, 2, 3, 4, 5, 6]], dataclasses.replace(GREEDY, max_tokens=50))[0]
    assert (len(output.token_ids), output.finish_reason) == (4, "length")


def test_strings_in_and_text_out(llm):
    output = llm.generate("Hello", GREEDY)[0]
    assert output.prompt == "Hello"
    assert output.prompt_token_ids == llm.tokenizer.encode("Hello")
    assert output.text == llm.tokenizer.decode(output.token_ids)


def test_statistics_count_what_ran(tiny_model):
    llm = LLM(tiny_model, num_blocks=20, max_num_seqs=8, max_num_batched_tokens=16)
    llm.generate([[1] * 5, [2] * 3], GREEDY)
    stats = llm.stats
    assert (stats.prompt_tokens, stats.output_tokens, stats.preemptions) == (8, 24, 0)
    # The prompts and all but the last token of each request ran through the model.
    assert stats.computed_tokens == 8 + 2 * 11
    assert (stats.steps, stats.decode_steps, stats.compiled_shapes) == (12, 11, 2)
    assert stats.compile_seconds > 0
    assert stats.prefill_seconds > 0
    assert stats.decode_seconds > 0
    assert stats.as_dict()["output_tokens_per_second"] > 0


def test_caches_and_parameters_take_the_dtype_asked_for(tiny_model, prompts):
    llm = LLM(tiny_model, dtype=jnp.bfloat16, num_blocks=20, max_num_seqs=8)
    assert llm.model.dtype == jnp.bfloat16
    assert tiny_model.dtype == jnp.float32
    assert len(llm.generate([prompts[0]], GREEDY)[0].token_ids) == 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 0}, "block_size: got 0, expected an integer of at least 1"),
        ({"num_blocks": 1}, "num_blocks: got 1, expected an integer of at least 2"),
        ({"max_num_seqs": -2}, "max_num_seqs: got -2"),
        ({"seed": -1}, "seed: got -1, expected an integer from 0 to 18446744073709551615"),
        ({"seed": 1.5}, "seed: got 1.5, expected an integer from 0 to"),
        ({"layout": "row_major"}, "layout: got 'row_major', expected one of flash_attn"),
        ({"backend": "fastest"}, "backend: got 'fastest', expected one of pallas_tpu"),
        ({"model": "no-such-model"}, "model: got 'no-such-model'"),
    ],
)
def test_arguments_are_refused_by_name_and_value(options, message, tiny_model):
    with pytest.raises(ValueError, match=message):
        LLM(**{"model": tiny_model, "num_blocks": 20, **options})


def test_a_layout_that_cannot_hold_the_model_is_refused(tiny_model):
    with pytest.raises(UnsupportedError, match="mla"):
        LLM(tiny_model, layout="mla", num_blocks=20)


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], GREEDY, r"prompts\[1\]: prompt: got 0 tokens, expected from 1 to 127"),
        ([1] * 128, GREEDY, r"prompts\[1\]: prompt: got 128 tokens, expected from 1 to 127"),
        ([1] * 30, GREEDY, r"30 tokens and up to 12 .* need 41 slots, the pool has 36"),
        (
            [257],
            GREEDY,
            r"prompts\[1\]: prompt\[0\]: got 257, expected an integer 0 <= token < 257",
        ),
    ],
)
def test_a_prompt_that_cannot_be_served_is_refused_before_anything_runs(
    prompt, params, message, small
):
    steps = small.stats.steps
    with pytest.raises(ValueError, match=message):
        small.generate([[1, 2], prompt], params)
    assert small.stats.steps == steps
    assert len(small.generate([[1, 2]], GREEDY)) == 1


def test_text_needs_a_tokenizer(tiny_model):
    llm = LLM(tiny_model, num_blocks=20, max_num_seqs=8)
    with pytest.raises(ValueError, match="got a string, expected token ids"):
        llm.generate("Hello")
    with pytest.raises(ValueError, match="stop: got"):
        llm.generate([[1, 2]], SamplingParams(stop="x"))


def test_params_for_each_prompt_or_one_for_all(llm):
    with pytest.raises(ValueError, match="params: got 2, expected one for each of 3"):
        llm.generate([[1], [2], [3]], [GREEDY, GREEDY])


def test_numpy_prompts(llm, prompts):
    expected = llm.generate([prompts[0]], GREEDY)[0].token_ids
    assert llm.generate(np.asarray(prompts[0]), GREEDY)[0].token_ids == expected


def test_the_step_donates_its_caches(tiny_model):
    llm = LLM(tiny_model, num_blocks=20, max_num_seqs=8)
    before = jax.live_arrays()
    llm.generate([[1, 2, 3]], GREEDY)
    # The caches that were allocated are gone, and as many arrays are alive as before.
    assert any(array.is_deleted() for array in before)


def test_importing_the_engine_takes_no_other_framework():
    code = (
        "import sys, paged.engine; "
        "print([m for m in ('torch', 'transformers', 'triton') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
