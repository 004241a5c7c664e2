"""The stand-in for how others test: it passes what is right and misses what lies near."""

from dataclasses import replace

import numpy as np
import pytest

from paged.backends import AttentionOutput
from paged.backends.reference import ReferenceBackend
from paged.conformance.stand_in import SETUPS, TOLERANCE, StandIn, plain_problem
from paged.layouts import get_layout

PACKED = get_layout("packed")


@pytest.fixture(scope="module")
def stand_in():
    return StandIn()


@pytest.mark.parametrize("layout", ["packed", "mla"])
def test_a_right_backend_passes(stand_in, layout):
    assert stand_in.fault_seen(ReferenceBackend(), get_layout(layout)) is None
    assert stand_in.fault_seen(ReferenceBackend(), get_layout(layout), "bfloat16") is None


@pytest.mark.parametrize("setup", SETUPS)
def test_problems_are_as_plain_as_they_claim_to_be(setup):
    problem = plain_problem(SETUPS[setup], PACKED, "float32")
    problem.metadata.validate(query=problem.query, cache=problem.cache, spec=problem.spec)
    assert problem.spec.scale == 1
    for numbers in (problem.query, *(row.key for row in problem.rows)):
        assert numbers.min() >= 0
    for row, (_, seq_len) in enumerate(problem.setup.sequences):
        owned = problem.metadata.block_table[row, : -(-seq_len // 16)]
        assert (np.diff(owned) == 1).all()
        assert (problem.metadata.block_table[row, len(owned) :] == 0).all()
    assert not np.isnan(problem.cache.data.astype(np.float32)).any()


class Off(ReferenceBackend):
    def __init__(self, by):
        self.by = by

    def _attend(self, *args):
        out, lse = super()._attend(*args)
        return AttentionOutput(out + np.float32(self.by), lse * 2)


class IgnoresTheScale(ReferenceBackend):
    def _attend(self, query, cache, metadata, spec, sinks):
        return super()._attend(query, cache, metadata, replace(spec, scale=1.0), sinks)


class Raises(ReferenceBackend):
    def _attend(self, *args):
        raise NotImplementedError


class WritesElsewhere(ReferenceBackend):
    def _write(self, cache, key, value, slot_mapping):
        return super()._write(cache, key, value, (slot_mapping + 1).astype(np.int32))


def test_it_sees_what_is_far_off(stand_in):
    assert stand_in.fault_seen(Off(TOLERANCE + 0.02), PACKED).startswith("plain: out is off by 0.1")
    assert stand_in.fault_seen(Raises(), PACKED) == "plain: raised NotImplementedError"
    assert stand_in.fault_seen(WritesElsewhere(), PACKED).startswith("plain: pool is off by")


def test_it_misses_what_is_near_and_what_it_does_not_look_at(stand_in):
    assert stand_in.fault_seen(Off(TOLERANCE - 0.02), PACKED) is None
    assert stand_in.fault_seen(IgnoresTheScale(), PACKED) is None
