"""A step made from the last one is what it would be, made anew."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paged.engine import SamplingParams, packer
from paged.engine.inputs import pack
from paged.engine.packer import Packer
from paged.engine.request import Request
from paged.engine.scheduler import Scheduled
from paged.metadata import Buckets, MetadataBuilder

BUILDER = MetadataBuilder(2, buckets=Buckets(min_seqs=2, min_tokens=2, min_blocks=2))
KINDS = [
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.5),
    SamplingParams(temperature=0.5, top_k=3),
]


def request(number, params=KINDS[0], prompt=3):
    return Request(number, list(range(10, 10 + prompt)), params, 7, max_output_tokens=99)


def decode(request, row):
    """The step that runs a request's next token; the host learns it a step later."""
    start = request.num_computed
    request.num_computed += 1
    part = Scheduled(request, row, start, 1, True, request.num_outputs)
    request.num_in_flight += 1
    return part


def read(request):
    request.output_token_ids.append(50 + len(request.output_token_ids))
    request.num_in_flight -= 1


@pytest.fixture
def made_anew(monkeypatch):
    """How many steps were not made from the one before."""
    calls = []

    def count(step, **rest):
        calls.append(step)
        return pack(step, **rest)

    monkeypatch.setattr(packer, "pack", count)
    return calls


def test_by_hand(made_anew):
    table = np.int32([[1, 0], [3, 4]])
    first, second = request(0, prompt=1), request(1, prompt=2)
    second.num_computed = 1
    subject = Packer(BUILDER)
    for _ in range(2):
        shape, packed, parts = subject.pack([decode(first, 0), decode(second, 1)], table)
        assert [part.row for part in parts] == [0, 1]
        before = packed.copy()
        read(first)
    assert len(made_anew) == 1
    fields = shape.views(packed)
    # Of the first the host knows the token, of the second only the device does.
    assert fields["tokens"].tolist() == [50, -2]
    assert fields["positions"].tolist() == [1, 2]
    assert fields["slot_mapping"].tolist() == [3, 8]
    assert fields["seq_lens"].tolist() == [2, 3]
    # The first goes on to a block that it was not given: refused as ever, and what the device may
    # still read is left alone.
    with pytest.raises(ValueError, match="the null block is never written"):
        subject.pack([decode(first, 0), decode(second, 1)], table)
    assert len(made_anew) == 2
    assert np.array_equal(packed, before)


@pytest.mark.parametrize(
    "change",
    [
        {"row": 1},
        {"start": 1},
        {"start": 3},
        {"count": 2},
        {"request": request(9, KINDS[2])},
        {"forks": (request(9, KINDS[1]),)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_differs_is_made_anew(made_anew, change):
    table = np.int32([[1, 2, 5], [3, 4, 6]])
    own = request(0)
    own.num_computed = 1
    subject = Packer(BUILDER)
    subject.pack([decode(own, 0)], table)
    step = [dataclasses.replace(decode(own, 0), **change)]
    shape, packed, _ = subject.pack(step, table)
    assert len(made_anew) == 2
    expected = pack(step, builder=BUILDER, block_table=table)
    assert shape == expected[0]
    assert np.array_equal(packed, expected[1])


@settings(max_examples=60)
@given(st.data())
def test_equals_a_step_made_anew(data):
    rows = data.draw(st.integers(1, 3))
    table = np.random.default_rng(0).permutation(rows * 8).reshape(rows, 8).astype(np.int32) + 1
    running, subject = {}, Packer(BUILDER)
    for number in range(data.draw(st.integers(2, 12))):
        for row in range(rows):
            if row not in running and data.draw(st.booleans()):
                running[row] = request(number, data.draw(st.sampled_from(KINDS)))
            elif row in running and data.draw(st.integers(0, 5)) == 0:
                del running[row]
        step = []
        for row, own in running.items():
            if own.num_computed < 3:
                start, count = own.num_computed, data.draw(st.integers(1, 3 - own.num_computed))
                own.num_computed += count
                is_last = own.num_computed == 3
                step.append(Scheduled(own, row, start, count, is_last, 0))
                own.num_in_flight += is_last
            elif own.num_tokens < 16 and data.draw(st.integers(0, 7)):
                step.append(decode(own, row))
            while own.num_in_flight > 1 or (own.num_in_flight and data.draw(st.booleans())):
                read(own)
        if data.draw(st.booleans()):
            table[data.draw(st.integers(0, rows - 1)), 7] += 50
        if step:
            shape, packed, parts = subject.pack(step, table)
            again = pack(step, builder=BUILDER, block_table=table)
            assert (shape, parts) == (again[0], again[2])
            assert np.array_equal(packed, again[1])
