"""Programs compiled beforehand: every shape that steps may have, and none that they cannot."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paged.engine import LLM, SamplingParams
from paged.engine.inputs import pack
from paged.engine.request import Request
from paged.engine.scheduler import Scheduled
from paged.engine.shapes import step_shapes
from paged.metadata import Buckets, MetadataBuilder

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.8, seed=1, max_tokens=8, n=2, ignore_eos=True)


def shapes(**limits):
    return step_shapes([(mode, False) for mode in limits.pop("modes", ["greedy"])], **limits)


def test_by_hand():
    """Two rows at most, four tokens a step, sequences of one block or two."""
    found = shapes(
        buckets=Buckets(min_seqs=1, min_tokens=2, min_blocks=1),
        block_size=2,
        max_num_seqs=2,
        max_num_batched_tokens=4,
        max_seq_len=4,
    )
    decodes = [(1, 1, 1), (1, 1, 4), (2, 2, 1), (2, 2, 4)]
    # One row takes 2 tokens, or 3 and 4; two rows at least 3, so that T is 4.
    chunks = [(1, 2, 1), (1, 2, 4), (1, 4, 4), (2, 4, 1), (2, 4, 4)]
    assert [(s.num_seqs, s.num_tokens, s.num_blocks) for s in found] == decodes + chunks
    assert [s.is_decode for s in found] == [True] * 4 + [False] * 5


def packed_shape(parts, max_num_seqs, width):
    """The shape of a step of (tokens before, tokens that run) for each row."""
    table = np.arange(1, max_num_seqs * width + 1).reshape(max_num_seqs, width)
    step = [
        Scheduled(Request(row, [0] * (start + count), GREEDY, 0, 9), row, start, count, True, 0)
        for row, (start, count) in enumerate(parts)
    ]
    builder = MetadataBuilder(2, buckets=Buckets(min_seqs=1, min_tokens=2, min_blocks=1))
    return pack(step, builder=builder, block_table=table)[0]


@settings(max_examples=12)
@given(st.integers(1, 3), st.integers(1, 6), st.integers(2, 5))
def test_exactly_the_shapes_that_steps_can_have(max_num_seqs, max_num_batched_tokens, max_seq_len):
    found = shapes(
        buckets=Buckets(min_seqs=1, min_tokens=2, min_blocks=1),
        block_size=2,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_seq_len=max_seq_len,
    )
    parts = [(n - c, c) for n in range(1, max_seq_len + 1) for c in range(1, n + 1)]
    steps = (
        step
        for rows in range(1, max_num_seqs + 1)
        for step in itertools.combinations_with_replacement(parts, rows)
        if sum(count for _, count in step) <= max_num_batched_tokens
    )
    possible = {packed_shape(step, max_num_seqs, -(-max_seq_len // 2)) for step in steps}
    assert len(found) == len(set(found))
    assert set(found) == possible


def test_forks_add_shapes_where_something_is_drawn():
    limits = {
        "buckets": Buckets(min_seqs=1),
        "block_size": 16,
        "max_num_seqs": 2,
        "max_num_batched_tokens": 16,
        "max_seq_len": 16,
        "has_forks": True,
    }
    assert {s.num_samples for s in shapes(**limits)} == {None}
    drawn = shapes(modes=["plain"], **limits)
    assert {(s.num_seqs, s.num_samples) for s in drawn} == {
        (1, None),
        (1, 1),
        (1, 2),
        (2, None),
        (2, 2),
    }


@pytest.fixture
def compilations():
    """Names of the events of JAX's compiler, as they come."""
    events = []

    def listen(event, seconds, **_):
        if is_on and "backend_compile" in event:
            events.append(event)

    is_on = True
    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    is_on = False


def test_after_it_no_step_compiles(tiny_model, compilations):
    """Prompts in chunks, samples, preemption, blocks that go to the host and come back."""
    llm = LLM(
        tiny_model,
        block_size=4,
        num_blocks=9,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        max_model_len=24,
        num_host_blocks=4,
        preemption="swap",
    )
    assert llm.warm_up(DRAWN, progress=False) == llm.stats.compiled_shapes > 0
    assert llm.warm_up([DRAWN, DRAWN], progress=False) == 0
    assert compilations
    compilations.clear()
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 94, length).tolist() for length in (1, 3, 9, 19, 8, 2, 5, 4)]
    single = dataclasses.replace(DRAWN, n=1)
    for batch, params in ((prompts, DRAWN), (prompts[:1], DRAWN), ([prompts[4]] * 4, single)):
        llm.generate(batch, params, progress=False)
    assert llm.stats.swaps
    assert llm.stats.as_dict()["blocks"]["write_copies"]
    assert compilations == []


def test_after_it_no_step_with_log_probabilities_compiles(tiny_model, compilations):
    llm = LLM(tiny_model, max_num_seqs=2, max_num_batched_tokens=2, max_model_len=8)
    ranked = dataclasses.replace(DRAWN, n=1, best_of=2, max_tokens=4)
    llm.warm_up([GREEDY, ranked], progress=False)
    compilations.clear()
    llm.generate([[1, 2], [3]], [ranked, GREEDY], progress=False)
    assert compilations == []


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (5, r"params\[0\]: got 5, expected SamplingParams"),
        ([GREEDY, None], r"params\[1\]: got None, expected SamplingParams"),
        (dataclasses.replace(DRAWN, n=9), "n: got 9, expected at most max_num_seqs, which is 2"),
    ],
)
def test_what_could_not_be_served_is_refused(tiny_model, params, message):
    llm = LLM(tiny_model, max_num_seqs=2, max_num_batched_tokens=2, max_model_len=8)
    with pytest.raises(ValueError, match=message):
        llm.warm_up(params)
    assert llm.stats.compiled_shapes == 0


def test_the_bar_counts_programs(tiny_model, capsys):
    llm = LLM(tiny_model, max_num_seqs=1, max_num_batched_tokens=1, max_model_len=8)
    # A decode, and copies on the device.
    assert llm.warm_up(GREEDY, progress=True) == 2
    assert "2/2" in capsys.readouterr().err
