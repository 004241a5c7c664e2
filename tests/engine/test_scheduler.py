"""The scheduler by hand, then under random loads. No device: tokens are made up."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paged.blocks import BlockTable, KVCacheManager
from paged.engine import SamplingParams, Scheduler
from paged.engine.request import Request


def make(num_blocks=9, block_size=2, max_num_seqs=4, max_num_batched_tokens=8):
    table = BlockTable(max_num_seqs, num_blocks - 1, block_size, device_put=lambda rows: rows)
    return Scheduler(
        KVCacheManager(num_blocks, block_size),
        table,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )


def request(number, prompt_len, max_tokens=4):
    prompt = [100 * number + place for place in range(prompt_len)]
    params = SamplingParams(max_tokens=max_tokens)
    return Request(number, prompt, params, seed=0, max_output_tokens=max_tokens)


def read(step):
    """Give each request that sampled its token, as the engine does when a step has run."""
    for part in step:
        if part.is_last_chunk:
            part.request.num_in_flight -= 1
            part.request.output_token_ids.append(part.output_index)


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


loads = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 8)), min_size=1, max_size=12)


@settings(max_examples=60)
@given(
    loads,
    st.integers(1, 4),
    st.integers(0, 10),
    st.integers(1, 5),
    st.integers(1, 12),
    st.integers(0, 1),
)
def test_every_load_ends_within_the_limits(loads, block_size, spare, seqs, budget, ahead):
    longest = max(prompt + tokens - 1 for prompt, tokens in loads)
    scheduler = make(-(-longest // block_size) + 1 + spare, block_size, seqs, budget)
    requests = [request(number, *load) for number, load in enumerate(loads)]
    pending = []
    arrivals = iter(requests)
    for _ in range(2000):
        if (new := next(arrivals, None)) is not None:
            scheduler.add(new)
        step = scheduler.schedule()
        check(scheduler, step, seqs, budget)
        pending.append(step)
        while len(pending) > ahead:
            read(pending.pop(0))
        if new is None and not scheduler.has_work and not any(pending):
            break
    assert [len(r.output_token_ids) for r in requests] == [tokens for _, tokens in loads]
    # Each output index was sampled once, in order.
    assert all(r.output_token_ids == list(range(r.num_outputs)) for r in requests)
    assert requests[0].num_preemptions == 0
    scheduler.schedule()
    assert scheduler.manager.num_free_blocks == scheduler.manager.num_blocks - 1


def check(scheduler, step, seqs, budget):
    scheduler.manager.check_integrity()
    assert sum(part.count for part in step) <= budget
    assert len({part.row for part in step}) == len(step)
    assert len(scheduler.running) <= seqs
    ids = [r.request_id for r in scheduler.running] + [r.request_id for r in scheduler.waiting]
    assert ids == sorted(ids)
    for part in step:
        blocks = scheduler.manager.block_ids(part.request.request_id)
        assert scheduler.table.host[part.row, : len(blocks)].tolist() == blocks
        assert (part.start + part.count - 1) // scheduler.manager.block_size < len(blocks)
