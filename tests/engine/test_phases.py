"""Where the time of steps goes: spans that add up, and nothing recorded unless asked."""

import pytest

from paged.engine import SamplingParams
from paged.engine.inputs import StepShape
from paged.engine.phases import PHASES, Phases, Recording

DECODE, PREFILL = StepShape(8, 8, 16, True, "greedy"), StepShape(8, 16, 16, False, "greedy")


class Clock:
    """A clock that a test sets."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("paged.engine.phases.time", clock)
    return clock


def test_by_hand(clock):
    """A prefill, a decode, and a call that only reads."""
    phases = Phases()
    with phases.recorded() as recording:
        for now, shape, spans in (
            (10, PREFILL, {"schedule": 2, "program": 5}),
            (18, DECODE, {"schedule": 1, "program": 3}),
            (23, None, {"fetch": 1}),
        ):
            clock.now = now
            recording.begin_step()
            if shape is not None:
                recording.dispatches(shape)
            for name, seconds in spans.items():
                with phases(name):
                    clock.now += seconds
        clock.now = 25
    found = recording.profiles()
    assert list(found) == ["prefill", "decode"]
    prefill, decode = found["prefill"], found["decode"]
    assert (prefill.steps, prefill.seconds) == (1, 8)
    assert prefill.phases["other"] == (1, 1)
    # The last call, from 23 to 25, reads what the decode sampled.
    assert (decode.steps, decode.seconds, decode.program_seconds) == (1, 7, 3)
    assert {name: own for name, own in decode.phases.items() if own[1]} == {
        "schedule": (1, 1),
        "program": (3, 1),
        "fetch": (1, 1),
        "other": (2, 1),
    }
    assert list(decode.phases) == list(PHASES)
    assert decode.as_dict()["phases"]["program"] == {
        "ms_per_step": 3000,
        "share": 3 / 7,
        "count": 1,
    }
    assert recording.commonest == PREFILL


def test_nothing_is_kept_unless_it_records(clock):
    phases = Phases()
    with phases("schedule"):
        clock.now += 1
    with phases.recorded() as recording:
        pass
    assert recording.profiles() == {}
    assert recording.commonest is None
    with phases.recorded(), pytest.raises(RuntimeError, match="on already"), phases.recorded():
        pass
    assert phases.recording is None


def test_a_failure_ends_the_recording():
    phases = Phases()
    with pytest.raises(ZeroDivisionError), phases.recorded(), phases("schedule"):
        raise ZeroDivisionError
    assert phases.recording is None
    assert isinstance(Recording().profiles(), dict)


def test_an_engine_accounts_for_all_of_its_time_and_gives_the_same_tokens(llm, prompts):
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    expected = llm.generate(prompts[:4], params, progress=False)
    with llm.profiled() as recording:
        found = llm.generate(prompts[:4], params, progress=False)
    assert [o.token_ids for o in found] == [o.token_ids for o in expected]
    profiles = recording.profiles()
    for profile in profiles.values():
        assert profile.seconds == pytest.approx(sum(s for s, _ in profile.phases.values()))
        assert all(seconds >= 0 for seconds, _ in profile.phases.values())
        for name in ("metadata", "compile", "dispatch", "program"):
            assert profile.phases[name][1] == profile.steps
    steps = sum(profile.steps for profile in profiles.values())
    for name in ("schedule", "detokenise"):
        assert sum(profile.phases[name][1] for profile in profiles.values()) == steps + 1
    assert sum(profile.phases["fetch"][1] for profile in profiles.values()) == steps
    assert recording.commonest.is_decode
