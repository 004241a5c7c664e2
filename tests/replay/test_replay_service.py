"""The service and what it measures: worked by hand, then against the manager's own figures."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_traces import TICK, trace

from paged.replay import KINDS, Contiguous, Limits, Paged, StepTime, power_of_two, serve


def slots(figures, *, block_size=None):
    """Slots times steps of each kind, in the order of `KINDS`, of a run with `TICK`."""
    area = figures.pool_slots * figures.seconds * 1e9
    return [round(getattr(figures, kind) * area) for kind in KINDS]


def contiguous(requests, pool_slots, guess, heap="first-fit", **options):
    made = trace(requests)
    return Contiguous(made, pool_slots, guess, max_len=int(made.finals.max()), heap=heap), made


# A request of (prompt, output) tokens holds prompt, prompt + 1, ... tokens, output steps long.


def test_three_requests_with_an_oracle():
    memory, made = contiguous([(2, 2), (1, 1), (3, 3)], 8, "oracle")
    run = serve(made, memory, time=TICK)
    # step  holds             used  reserved  free
    # 1     2 of 3, 1 of 1       3         1     4   the third wants 5
    # 2     3 of 3, 3 of 5       6         2     0
    # 3             4 of 5       4         1     3
    # 4             5 of 5       5         0     3
    assert slots(run) == [18, 4, 0, 0, 10]
    assert run.seconds == 4e-9
    assert run.utilisation == 18 / 22
    assert (run.mean_batch, run.max_batch) == (6 / 4, 2)
    assert run.blocked == 1 / 4
    assert run.mean_latency == pytest.approx((2 + 1 + 4) / 3 * 1e-9)


def test_free_slots_that_do_not_lie_side_by_side_are_external_waste():
    memory, made = contiguous([(3, 1), (1, 2), (1, 2), (4, 1)], 8, "oracle")
    run = serve(made, memory, time=TICK)
    # 1     3 of 3, 1 of 2, 1 of 2   the last wants 4 of 1
    # 2             2 of 2, 2 of 2   the last wants 4: free are 0 to 2 and 7
    # 3     4 of 4
    assert slots(run) == [5 + 4 + 4, 2, 0, 4, 1 + 0 + 4]
    assert run.blocked == 2 / 3


def test_a_buddy_heap_rounds_the_next_power_of_two_up_once_more():
    # 2 + 4 - 1 slots for an output of 3, 8 of the heap; 4 are ever used.
    memory, made = contiguous([(2, 3)], 8, "pow2", heap="buddy")
    # The service accepts no more than 4 slots, so that the guess is no more.
    assert slots(serve(made, memory, time=TICK)) == [9, 3, 0, 0, 12]
    memory = Contiguous(made, 8, "pow2", max_len=8, heap="buddy")
    assert slots(serve(made, memory, time=TICK)) == [9, 3, 12, 0, 0]


def test_the_longest_request_is_what_max_reserves():
    memory, made = contiguous([(6, 1), (1, 2)], 8, "max")
    run = serve(made, memory, time=TICK)
    assert slots(run) == [6 + 1 + 2, 1, 4 + 4, 0, 2 + 2 + 2]
    assert run.max_batch == 1


def test_paged_takes_blocks_as_it_goes():
    made = trace([(3, 2), (1, 2), (4, 2)])
    run = serve(made, Paged(made, 10, 2, watermark=0), time=TICK)
    assert run.pool_slots == 8, "five blocks, one of them the null block"
    # 1     3 of 4, 1 of 2     two reserved; the third wants 4 of 2
    # 2     4 of 4, 2 of 2
    # 3                     4 of 4
    # 4                     5 of 6   one that is never used
    assert slots(run) == [4 + 6 + 4 + 5, 2, 1, 0, 2 + 2 + 4 + 2]
    assert run.utilisation == 19 / 22


def test_what_a_watermark_keeps_from_the_first_in_line_is_external():
    made = trace([(2, 2), (2, 1)])
    without = serve(made, Paged(made, 7, 1, watermark=0), time=TICK)
    assert slots(without) == [4 + 3, 0, 0, 0, 2 + 3]
    run = serve(made, Paged(made, 7, 1, watermark=0.5), time=TICK)
    # 1  the second wants 2, and 3 more are to stay free: 4 are
    # 2  the first is done after it; 3 are free
    # 3
    assert slots(run) == [2 + 3 + 2, 0, 0, 4 + 3, 4]


def test_a_request_that_is_preempted_computes_all_of_its_tokens_again():
    made = trace([(2, 4), (2, 4)])
    run = serve(made, Paged(made, 7, 1, watermark=0), time=TICK)
    # 1-2  2 and 2, 3 and 3 of 6
    # 3-4  4, 5; the other has three tokens and knows a fourth
    # 5-6        4, 5
    assert slots(run) == [4 + 6 + 4 + 5 + 4 + 5, 0, 0, 0, 2 + 0 + 2 + 1 + 2 + 1]
    assert (run.preemptions, run.recomputed_tokens) == (1, 4)
    assert run.blocked == 2 / 6


def test_a_request_that_is_preempted_stands_first_in_line_again():
    made = trace([(2, 4), (2, 4), (1, 1)], arrivals=[0, 0, 2])
    run = serve(made, Paged(made, 7, 1, watermark=0), time=TICK)
    # The third would have found room in step 4, but the second waits before it until step 5.
    assert run.mean_latency == pytest.approx((4 + 6 + 3) / 3 * 1e-9)


def test_a_shared_block_counts_once():
    made = trace([(514, 1), (514, 1)], hash_ids=[[0, 1], [0, 2]])
    run = serve(made, Paged(made, 256 * 9, 256, watermark=0), time=TICK)
    assert run.hit_rate == 512 / 1028
    # Two blocks that both read, and one for each; of that 254 are never used.
    assert slots(run) == [512 + 2 + 2, 0, 2 * 254, 0, 256 * 4]


def test_the_last_token_of_a_prompt_is_never_a_hit():
    made = trace([(512, 1), (512, 1)], hash_ids=[[0], [0]])
    for block_size, cached in ((256, 256), (1, 511), (512, 0)):
        run = serve(made, Paged(made, 512 * 4, block_size), time=TICK)
        assert run.hit_rate == cached / 1024


def test_a_request_that_comes_back_finds_its_prompt_in_the_cache():
    made = trace([(512, 520), (512, 520)], hash_ids=[[0], [1]])
    run = serve(made, Paged(made, 1600, 16, watermark=0), time=TICK)
    assert run.preemptions == 1
    assert run.hit_rate == 0, "of first admissions"
    # Each holds 49 of the 99 blocks when both want another. What was generated is not cached, and
    # of the blocks given back those are reused first.
    assert run.recomputed_tokens == 49 * 16 + 1 - 512


def test_what_was_generated_is_no_prompt_of_anyone():
    # The first prompt goes on with token 0; the second is its beginning, and generates.
    made = trace([(1024, 520), (512, 520)], hash_ids=[[1, 0], [1]])
    run = serve(made, Paged(made, 2002, 1, watermark=0), time=TICK)
    assert run.hit_rate == 511 / 1536
    # 488 tokens each are generated and stored when the 2,001 slots are full, and one is known.
    assert (run.preemptions, run.recomputed_tokens) == (1, 489)


def test_nothing_runs_between_two_requests_far_apart():
    made = trace([(2, 1), (2, 1)], arrivals=[0, 10])
    run = serve(made, Paged(made, 5, 1), time=TICK)
    assert run.seconds == 11e-9
    assert slots(run) == [4, 0, 0, 0, 40]
    assert (run.mean_latency, run.mean_batch) == (1e-9, 2 / 11)


def test_a_step_takes_the_time_that_the_clock_says():
    made = trace([(5, 3)])
    time = StepTime(step_ns=1000, prompt_token_ns=10, read_token_ns=1)
    run = serve(made, Paged(made, 16, 1), time=time)
    assert run.seconds * 1e9 == pytest.approx((1000 + 50 + 5) + (1000 + 6) + (1000 + 7))


def test_a_pool_of_many_slots_over_many_seconds_is_added_up_exactly():
    made = trace([(1, 2000)])
    memory = Contiguous(made, 2**31 - 1, "max", max_len=2**30)
    run = serve(made, memory, time=StepTime(step_ns=10**9, prompt_token_ns=0, read_token_ns=0))
    # 2e3 s of 2**30 slots are 2e21 slots times nanoseconds.
    assert run.reserved == 1999 * 2000 / 2 / (2000 * (2**31 - 1))
    assert run.internal == (2**30 - 2000) / (2**31 - 1)


def test_a_step_admits_until_it_computes_as_many_tokens_as_it_may():
    made = trace([(4, 3)] * 3)
    for limits, seconds in (
        (Limits(max_step_tokens=4), 5),
        (Limits(max_step_tokens=5), 4),
        (Limits(max_requests=1), 9),
        (Limits(), 3),
    ):
        run = serve(made, Paged(made, 64, 1), time=TICK, limits=limits)
        assert run.seconds * 1e9 == pytest.approx(seconds), limits


def test_requests_that_run_are_tokens_that_a_step_computes():
    made = trace([(1, 3)] * 3)
    run = serve(made, Paged(made, 64, 1), time=TICK, limits=Limits(max_step_tokens=2))
    assert run.seconds * 1e9 == pytest.approx(3 + 3)


def test_a_pool_that_is_too_small_for_a_request_is_refused():
    made = trace([(1, 1), (6, 4)])
    with pytest.raises(ValueError, match=r"got 8 slots, too few for request 2 of made.jsonl: po"):
        serve(made, Paged(made, 10, 2))
    with pytest.raises(ValueError, match="policy oracle needs 16 slots side by side for it"):
        serve(made, Contiguous(made, 15, "oracle", max_len=9))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda made: Contiguous(made, 8, "best", max_len=1), "policy: got 'best', expected one"),
        (lambda made: Contiguous(made, 8, "max", max_len=1, heap="x"), "heap: got 'x', expected"),
        (lambda made: Contiguous(made, 0, "max", max_len=1), "num_slots: got 0, expected at lea"),
        (lambda made: Paged(made, 8, 0), "block_size: got 0, expected at least 1"),
        (lambda made: Paged(made, 8, 8), "pool: got 8 slots, expected at least two blocks of 8"),
        (lambda made: Paged(made, 8, 1, watermark=1), "watermark: got 1, expected from 0 to less"),
        (lambda _: StepTime(step_ns=0), "step_ns: got 0, expected an integer from 1 to 10"),
        (lambda _: StepTime(read_token_ns=1.5), "read_token_ns: got 1.5, expected an integer f"),
        (lambda _: Limits(max_requests=0), "max_requests: got 0, expected at least 1"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make(trace([(1, 1)]))


class Watched(Paged):
    """Compares what it says it holds with the manager's own count, and with a plain one."""

    promised = None

    def held(self, slots, finals, ahead):
        held = super().held(slots, finals, ahead)
        self.promised = held.taken[-1], held.empty[-1]
        if ahead[-1] == 0:
            self.compare()
        assert (held.internal >= 0).all()
        assert (held.internal <= held.empty).all()
        assert (held.empty <= held.taken).all()
        assert (held.taken <= self.pool_slots).all()
        return held

    def grow(self, requests, steps):
        super().grow(requests, steps)
        # Before an admission nothing was said.
        if self.promised is not None:
            self.compare()

    def compare(self):
        self._manager.check_integrity()
        gauges = self._manager.stats().gauges
        taken, empty = self.promised
        assert taken == gauges.used_blocks * self.block_size
        # What the manager calls reserved is written here: the step computes it.
        assert taken - empty == gauges.used_slots + gauges.reserved_slots
        self.promised = None


REQUESTS = st.lists(
    st.tuples(st.integers(1, 12), st.integers(1, 20), st.integers(0, 30) | st.integers(0, 300)),
    min_size=1,
    max_size=7,
)


def made_of(requests):
    arrivals = sorted(arrival for *_, arrival in requests)
    return trace([request[:2] for request in requests], arrivals=arrivals)


def as_plain(figures):
    return {name: value for name, value in figures.as_dict().items() if name != "series"}


@given(requests=REQUESTS, spare=st.integers(0, 20), block_size=st.sampled_from([1, 2, 3, 4, 8]))
@settings(max_examples=60)
def test_steps_taken_together_are_those_taken_one_by_one(requests, spare, block_size):
    made = made_of(requests)
    # One request of the longest fits, and the null block.
    pool = (-(-int(made.finals.max()) // block_size) + 1) * block_size + spare
    time = StepTime(step_ns=3, prompt_token_ns=1, read_token_ns=1)
    limits = Limits(max_requests=4, max_step_tokens=10)
    runs = [
        serve(
            made,
            Watched(made, pool, block_size, watermark=mark),
            time=time,
            limits=limits,
            max_steps=max_steps,
        )
        for mark in (0, 0.2)
        for max_steps in (None, 1)
    ]
    assert as_plain(runs[0]) == as_plain(runs[1])
    assert as_plain(runs[2]) == as_plain(runs[3])
    for run in runs:
        assert sum(getattr(run, kind) for kind in KINDS) == pytest.approx(1)
        assert min(getattr(run, kind) for kind in KINDS) >= 0
        for kind in KINDS:
            mean = np.mean(run.series.shares[kind])
            assert mean == pytest.approx(getattr(run, kind), abs=1e-9)
        if block_size == 1:
            assert run.reserved == run.internal == 0
            assert run.utilisation == 1
        # Only a request's last block has slots that hold nothing.
        empty = (run.reserved + run.internal) * run.pool_slots
        assert empty <= run.mean_batch * (block_size - 1) + 1e-9


@given(
    turns=st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(1, 40)), min_size=1, max_size=5
    ),
    block_size=st.sampled_from([96, 128, 256]),
    spare=st.integers(0, 8),
)
@settings(max_examples=25)
def test_steps_taken_together_where_prompts_are_shared(turns, block_size, spare):
    # One of two beginnings, and a second id that goes on from it in one of two ways, or none.
    chains = [[first, 2 * first + second + 1][: 1 + (second > 0)] for first, second, _ in turns]
    lengths = [512 * len(chain) - 5 for chain in chains]
    outputs = [output for *_, output in turns]
    made = trace(list(zip(lengths, outputs, strict=True)), hash_ids=chains)
    pool = (-(-int(made.finals.max()) // block_size) + 1 + spare) * block_size
    run, one_by_one = (
        serve(made, Watched(made, pool, block_size), time=TICK, max_steps=most)
        for most in (None, 1)
    )
    assert as_plain(run) == as_plain(one_by_one)
    assert sum(getattr(run, kind) for kind in KINDS) == pytest.approx(1)


@given(requests=REQUESTS, spare=st.integers(0, 20), heap=st.sampled_from(["buddy", "first-fit"]))
@settings(max_examples=40)
def test_contiguous_steps_taken_together_and_what_is_left_is_all_free(requests, spare, heap):
    made = made_of(requests)
    most = int(made.finals.max())
    pool = power_of_two(most) + spare
    for guess in ("max", "pow2", "oracle"):
        memories = [Contiguous(made, pool, guess, max_len=most, heap=heap) for _ in range(2)]
        runs = [
            serve(made, memory, time=StepTime(2, 1, 1), max_steps=max_steps)
            for memory, max_steps in zip(memories, (None, 1), strict=True)
        ]
        assert as_plain(runs[0]) == as_plain(runs[1])
        assert memories[0].num_free == pool
        assert runs[0].preemptions == 0
        assert sum(getattr(runs[0], kind) for kind in KINDS) == pytest.approx(1)
        assert min(getattr(runs[0], kind) for kind in KINDS) >= 0
        if (guess, heap) == ("oracle", "first-fit"):
            assert runs[0].internal == 0


@given(requests=REQUESTS, heap=st.sampled_from(["buddy", "first-fit"]))
@settings(max_examples=40)
def test_who_knows_more_wastes_less(requests, heap):
    # Far enough apart that each runs alone, for the same time under each policy.
    made = trace(
        [each[:2] for each in requests], arrivals=[100 * at for at in range(len(requests))]
    )
    most = int(made.finals.max())
    pool = power_of_two(most)
    most_wasteful, guess, oracle = (
        serve(made, Contiguous(made, pool, name, max_len=most, heap=heap), time=TICK)
        for name in ("max", "pow2", "oracle")
    )
    paged = serve(made, Paged(made, 2 * pool, 1), time=TICK)
    assert most_wasteful.seconds == guess.seconds == oracle.seconds == paged.seconds
    assert most_wasteful.used == guess.used == oracle.used
    assert most_wasteful.reserved == guess.reserved == oracle.reserved
    assert most_wasteful.internal >= guess.internal >= oracle.internal >= 0
    assert most_wasteful.utilisation <= guess.utilisation <= oracle.utilisation <= 1
    assert paged.utilisation == 1
