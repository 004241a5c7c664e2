"""The scheduler by hand, then under random loads. No device: tokens are made up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paged.blocks import BlockTable, KVCacheManager
from paged.engine import SamplingParams, Scheduler
from paged.engine.preemption import PreemptionCost
from paged.engine.request import ARRIVALS_PER_PRIORITY, Request


def make(
    num_blocks=9,
    block_size=2,
    max_num_seqs=4,
    max_num_batched_tokens=8,
    host_blocks=0,
    mode="auto",
    prefix_caching=True,
):
    table = BlockTable(max_num_seqs, num_blocks - 1, block_size, device_put=lambda rows: rows)
    return Scheduler(
        KVCacheManager(
            num_blocks, block_size, host_blocks=host_blocks, prefix_caching=prefix_caching
        ),
        table,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        cost=PreemptionCost(mode=mode),
    )


def request(number, prompt_len, max_tokens=4, *, samples=1, priority=0, prompt=None):
    prompt = prompt or [100 * number + place for place in range(prompt_len)]
    params = SamplingParams(max_tokens=max_tokens)
    first, *others = (
        Request(number + i, prompt, params, 0, max_tokens, priority=priority)
        for i in range(samples)
    )
    first.forks = others
    for other in others:
        other.leader = first
    return first


def output(request, index):
    """The tokens that a request is made to sample: no two requests have one in common."""
    return 10_000 + 100 * request.request_id + index


def read(step):
    """Give each request that sampled its token, as the engine does when a step has run."""
    for part in step:
        for sampler in (part.request, *part.forks) if part.is_last_chunk else ():
            index = part.output_index if sampler is part.request else 0
            sampler.num_in_flight -= 1
            sampler.output_token_ids.append(output(sampler, index))


def shown(step):
    return [(part.request.request_id, part.start, part.count, part.is_last_chunk) for part in step]


def test_prompts_run_in_chunks_and_decodes_come_first():
    scheduler = make(num_blocks=40, max_num_batched_tokens=5)
    scheduler.add(request(0, 3))
    scheduler.add(request(1, 7))
    first = scheduler.schedule()
    assert shown(first) == [(0, 0, 3, True), (1, 0, 2, False)]
    read(first)
    second = scheduler.schedule()
    assert shown(second) == [(0, 3, 1, True), (1, 2, 4, False)]
    read(second)
    assert shown(scheduler.schedule()) == [(0, 4, 1, True), (1, 6, 1, True)]


def test_a_step_can_be_planned_before_the_last_one_is_read():
    scheduler = make()
    scheduler.add(request(0, 2, max_tokens=2))
    first, second = scheduler.schedule(), scheduler.schedule()
    assert shown(second) == [(0, 2, 1, True)]
    assert [part.output_index for part in (*first, *second)] == [0, 1]
    # Its last token is on its way: nothing more to run, and its blocks are free again.
    assert not scheduler.has_work
    assert scheduler.schedule() == []
    assert scheduler.manager.num_free_blocks == 8


def test_first_come_first_served_even_if_a_later_one_would_fit():
    scheduler = make(num_blocks=6, max_num_batched_tokens=20)
    scheduler.add(request(0, 6, max_tokens=3))
    scheduler.add(request(1, 8, max_tokens=2))
    scheduler.add(request(2, 1, max_tokens=2))
    assert shown(scheduler.schedule()) == [(0, 0, 6, True)]
    assert [r.request_id for r in scheduler.waiting] == [1, 2]


def test_the_latest_request_is_preempted_and_recomputed_with_its_tokens():
    # Four blocks of two: prompts of 2 and 2 leave two, which the first two decodes take.
    scheduler = make(num_blocks=5, max_num_batched_tokens=20)
    first, second = request(0, 2, max_tokens=6), request(1, 2, max_tokens=6)
    scheduler.add(first)
    scheduler.add(second)
    for _ in range(3):
        read(scheduler.schedule())
    # Both hold 4 tokens; the fifth of the first takes a block of the second.
    step = scheduler.schedule()
    assert shown(step) == [(0, 4, 1, True)]
    assert (second.row, second.num_computed, second.num_preemptions) == (None, 0, 1)
    assert scheduler.num_preemptions == 1
    while first.num_outputs < 6:
        read(step)
        step = scheduler.schedule()
    read(step)
    # On its return the three tokens it had are part of its prompt.
    assert shown(scheduler.schedule()) == [(1, 0, 5, True)]


def test_a_request_that_could_never_fit_is_refused_with_both_numbers():
    scheduler = make(num_blocks=5, block_size=2)
    scheduler.add(request(0, 5, max_tokens=4))  # the last token is never written: 8 slots
    with pytest.raises(ValueError, match=r"need 9 slots, the pool has 8 \(4 blocks of 2\)"):
        scheduler.add(request(1, 6, max_tokens=4))


def test_release_of_a_waiting_and_of_a_running_request():
    scheduler = make()
    running, waiting = request(0, 2), request(1, 2)
    scheduler.add(running)
    scheduler.schedule()
    scheduler.add(waiting)
    for one in (running, waiting):
        one.is_aborted = True
        scheduler.release(one)
    assert not scheduler.has_work
    assert scheduler.manager.num_free_blocks == 8


def test_samples_share_the_prompt_and_copy_its_last_block():
    scheduler = make(num_blocks=20)
    manager = scheduler.manager
    scheduler.add(request(0, 3, samples=3))
    (part,) = scheduler.schedule()
    assert shown([part]) == [(0, 0, 3, True)]
    assert [fork.request_id for fork in part.forks] == [1, 2]
    assert manager.stats().gauges.used_blocks == 2
    assert len(manager.take_copies()) == 0
    second = scheduler.schedule()
    assert shown(second) == [(0, 3, 1, True), (1, 3, 1, True), (2, 3, 1, True)]
    # Two write to a copy, the last one to the block itself.
    orders = manager.take_copies().on_device
    assert orders.src.tolist() == [2, 2]
    assert sorted([2, *orders.dst.tolist()]) == sorted(
        int(scheduler.table.host[part.row, 1]) for part in second
    )
    assert manager.stats().gauges.used_blocks == 4


def test_samples_outlive_the_request_that_was_to_compute_their_prompt():
    scheduler = make(num_blocks=20, max_num_batched_tokens=2)
    scheduler.add(request(0, 5, samples=4))
    (first,) = scheduler.schedule()
    # Four rows are taken or promised: nobody else comes in.
    scheduler.add(request(4, 1))
    leader, (second, third, fourth) = first.request, first.request.forks
    for one in (leader, third):
        one.is_aborted = True
        scheduler.release(one)
    assert [r.request_id for r in scheduler.waiting] == [1, 4]
    assert (second.leader, second.forks, fourth.leader) == (None, [fourth], second)
    # Two full blocks of the prompt were computed before; one was entered as cached.
    assert shown(scheduler.schedule()) == [(1, 2, 2, False)]
    assert shown(scheduler.schedule()) == [(1, 4, 1, True), (4, 0, 1, True)]


def test_a_prefix_is_shared_within_the_step_that_computes_it():
    scheduler = make(num_blocks=20, max_num_batched_tokens=20)
    prompt = [1, 2, 3, 4, 5]
    scheduler.add(request(0, 5, prompt=prompt))
    scheduler.add(request(1, 6, prompt=[*prompt, 6]))
    other = request(2, 5, prompt=prompt)
    other.cache_salt = "another tenant"
    scheduler.add(other)
    assert shown(scheduler.schedule()) == [(0, 0, 5, True), (1, 4, 2, True), (2, 0, 5, True)]
    blocks = [scheduler.manager.block_ids(number) for number in range(3)]
    assert blocks[0][:2] == blocks[1][:2]
    assert set(blocks[2]).isdisjoint(blocks[0] + blocks[1])


def test_a_lower_priority_is_served_first_but_not_before_all_who_came_long_ago():
    scheduler = make(num_blocks=40, max_num_seqs=1)
    for number, priority in [(0, 0), (1, 0), (2, -1), (ARRIVALS_PER_PRIORITY, 0)]:
        scheduler.add(request(number, 2, priority=priority))
    scheduler.add(request(ARRIVALS_PER_PRIORITY + 1, 2, priority=-1))
    order = [r.request_id for r in scheduler.waiting]
    assert order == [2, 0, 1, ARRIVALS_PER_PRIORITY + 1, ARRIVALS_PER_PRIORITY]


def test_a_victim_comes_back_from_the_host_without_computing_anew():
    # The pool of the test of preemption above.
    scheduler = make(num_blocks=5, max_num_batched_tokens=20, host_blocks=4, mode="swap")
    first, second = request(0, 2, max_tokens=6), request(1, 2, max_tokens=6)
    scheduler.add(first)
    scheduler.add(second)
    for _ in range(3):
        scheduler.manager.take_copies()
        read(scheduler.schedule())
    step = scheduler.schedule()
    assert shown(step) == [(0, 4, 1, True)]
    assert (second.is_swapped, second.num_computed, scheduler.num_swaps) == (True, 4, 1)
    assert len(scheduler.manager.take_copies().swap_out) == 2
    while first.num_outputs < 6:
        read(step)
        step = scheduler.schedule()
        assert len(scheduler.manager.take_copies()) == 0
    read(step)
    assert shown(scheduler.schedule()) == [(1, 4, 1, True)]
    assert scheduler.manager.stats().counters.blocks_swapped_in > 0


class Device:
    """A cache of token ids and a host's; they do what the steps and the copy orders say."""

    def __init__(self, scheduler, host_blocks):
        self.scheduler = scheduler
        size = scheduler.manager.block_size
        self.cache = np.full((scheduler.manager.num_blocks, size), -1)
        self.host = np.full((host_blocks + 1, size), -1)

    def run(self, step):
        orders = self.scheduler.manager.take_copies()
        out, within, back = orders.swap_out, orders.on_device, orders.swap_in
        taken = [
            self.cache[out.src].copy(),
            self.cache[within.src].copy(),
            self.host[back.src].copy(),
        ]
        self.host[out.dst] = taken[0]
        self.cache[within.dst], self.cache[back.dst] = taken[1:]
        slots = self.cache.reshape(-1)
        places = {}
        for part in step:
            positions = np.arange(part.start + part.count)
            blocks = self.scheduler.table.host[part.row]
            size = self.cache.shape[1]
            places[part.request] = blocks[positions // size] * size + positions % size
            new = places[part.request][part.start :]
            assert (new >= size).all()
            slots[new] = self.tokens(part.request)[part.start : len(positions)]
        # All write, then all read.
        for owner, place in places.items():
            assert slots[place].tolist() == self.tokens(owner)[: len(place)]

    @staticmethod
    def tokens(request):
        outputs = [output(request, index) for index in range(request.max_output_tokens)]
        return request.prompt_token_ids + outputs


loads = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 8), st.integers(1, 3), st.booleans()),
    min_size=1,
    max_size=8,
)


@settings(max_examples=80)
@given(
    loads,
    st.integers(1, 4),
    st.integers(0, 10),
    st.integers(3, 6),
    st.integers(1, 12),
    st.integers(0, 1),
    st.sampled_from([0, 3, 20]),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_every_load_ends_within_the_limits(
    loads, block_size, spare, seqs, budget, ahead, host_blocks, prefix_caching, random
):
    longest = max(prompt + tokens - 1 for prompt, tokens, _, _ in loads)
    scheduler = make(
        *(-(-longest // block_size) + 1 + spare, block_size, seqs, budget),
        host_blocks=host_blocks,
        mode="swap",
        prefix_caching=prefix_caching,
    )
    device = Device(scheduler, host_blocks)
    requests, leaders = [], []
    for length, tokens, samples, is_common in loads:
        prompt = list(range(1, length + 1)) if is_common else None
        leader = request(len(requests), length, tokens, samples=samples, prompt=prompt)
        leaders.append(leader)
        requests += [leader, *leader.forks]
    pending = []
    arrivals = iter(leaders)
    for _ in range(3000):
        if (new := next(arrivals, None)) is not None:
            scheduler.add(new)
        step = scheduler.schedule()
        check(scheduler, step, seqs, budget)
        device.run(step)
        pending.append(step)
        while len(pending) > ahead:
            read(pending.pop(0))
        # Now and then somebody loses interest.
        if random.random() < 0.03 and (alive := [r for r in requests if not r.is_complete]):
            lost = random.choice(alive)
            if lost.request_id and (
                lost.row is not None or lost.leader or lost in scheduler.waiting
            ):
                lost.is_aborted = True
                scheduler.release(lost)
        if new is None and not scheduler.has_work and not any(pending):
            break
    for one in requests:
        if not one.is_aborted:
            expected = [output(one, index) for index in range(one.max_output_tokens)]
            assert one.output_token_ids == expected
    assert requests[0].num_preemptions == 0
    scheduler.schedule()
    scheduler.manager.take_copies()
    scheduler.manager.check_integrity()
    assert scheduler.manager.num_free_blocks == scheduler.manager.num_blocks - 1
    assert scheduler.manager.num_free_host_blocks == host_blocks
    assert scheduler._num_free_rows == seqs


def active(scheduler):
    return scheduler.running + scheduler.waiting


def check(scheduler, step, seqs, budget):
    scheduler.manager.check_integrity()
    assert sum(part.count for part in step) <= budget
    assert len({part.row for part in step}) == len(step)
    assert len(scheduler.running) + sum(len(r.forks) for r in scheduler.running) <= seqs
    ids = [r.request_id for r in active(scheduler)]
    assert ids == sorted(ids)
    for part in step:
        blocks = scheduler.manager.block_ids(part.request.request_id)
        assert scheduler.table.host[part.row, : len(blocks)].tolist() == blocks
        assert (part.start + part.count - 1) // scheduler.manager.block_size < len(blocks)
