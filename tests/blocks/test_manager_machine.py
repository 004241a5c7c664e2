"""The manager under every load that hypothesis thinks of, over a real cache.

The model, the checks and the ways to serve are those of the conformance suite; what is written and
read here are keys and values in a paged cache, by the reference backend.
"""

import random

import numpy as np
import pytest
from block_subjects import state
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paged.backends.reference import ReferenceBackend
from paged.blocks import KVCacheManager, OutOfBlocks, swapping
from paged.blocks.free_list import FreeList
from paged.conformance.managers.device import NOTHING
from paged.conformance.managers.serving import Serving
from paged.conformance.managers.walk import GROUPS, serving, two_bytes, walk
from paged.layouts import KVCache, get_layout


class RealCache:
    """Blocks of keys and values. The key of a token is its number, the value minus it."""

    def __init__(self, num_blocks, host_blocks, block_size):
        self.block_size = block_size
        self.backend = ReferenceBackend()
        self.blocks = np.full((num_blocks, 2, block_size, 1, 2), NOTHING, np.float32)
        self.host = np.full((host_blocks + 1, 2, block_size, 1, 2), NOTHING, np.float32)

    def cache(self):
        return KVCache(self.blocks, get_layout("flashinfer"))

    def write(self, slots, numbers):
        rows = np.repeat(np.array(numbers, np.float32)[:, None, None], 2, axis=2)
        written = self.backend.write(self.cache(), rows, -rows, np.array(slots, np.int32))
        self.blocks = np.asarray(written.data)

    def read(self, slots):
        blocks, offsets = np.divmod(np.array(slots, np.int32), self.block_size)
        keys, values = get_layout("flashinfer").gather(self.blocks, blocks)
        rows = np.arange(len(slots))
        found = keys[rows, offsets, 0, 0].tolist()
        # A slot that nobody wrote to holds the same in both.
        assert values[rows, offsets, 0, 1].tolist() == [-n if n != NOTHING else n for n in found]
        return list(map(int, found))

    def copy(self, orders):
        self.host[orders.swap_out.dst] = self.blocks[orders.swap_out.src]
        self.blocks[orders.on_device.dst] = self.blocks[orders.on_device.src]
        self.blocks[orders.swap_in.dst] = self.host[orders.swap_in.src]


def takes_free_blocks(core, swapped):
    """Whether a return does: not where others hold its blocks, or steps in flight read them."""
    cached = [swapping._cached(core, swapped, group) for group in range(len(core.groups))]
    found = np.array([block for of_group in cached for block in of_group.values()], np.int32)
    return found.size < swapped.held().size or core.pool.num_free_among(found) > 0


TOKEN = st.integers(0, 2)
TOKENS = st.lists(TOKEN, min_size=1, max_size=20)


class Machine(RuleBasedStateMachine):
    @initialize(
        groups=st.sampled_from(GROUPS),
        num_blocks=st.sampled_from([6, 12, 40]),
        host_blocks=st.sampled_from([0, 8]),
        watermark=st.integers(0, 2),
        has_partial_tails=st.booleans(),
        has_bad_hash=st.booleans(),
    )
    def start(self, groups, num_blocks, host_blocks, watermark, has_partial_tails, has_bad_hash):
        self.work = Serving.of(
            KVCacheManager,
            num_blocks,
            groups,
            device=RealCache,
            host_blocks=host_blocks,
            watermark=watermark,
            partial_tails=has_partial_tails and len(groups) == 1,
            events=True,
            hash=two_bytes if has_bad_hash else "sha256",
        )
        self.next_name = 0
        self.index = {}

    def name(self):
        self.next_name += 1
        return self.next_name

    def ready(self):
        return self.work.running(is_ready=True)

    @rule(tokens=TOKENS, tenant=st.sampled_from(["", "t"]), chunk=st.sampled_from([None, 1, 5]))
    def arrive(self, tokens, tenant, chunk):
        self.work.admit(self.name(), tokens, tenant, chunk)

    @rule(data=st.data(), more=st.lists(TOKEN, max_size=4))
    def arrive_like_another(self, data, more):
        if self.work.requests:
            other = self.work.requests[data.draw(st.sampled_from(sorted(self.work.requests)))]
            length = data.draw(st.integers(1, len(other.tokens)))
            self.work.admit(self.name(), other.tokens[:length] + more, other.tenant)

    @precondition(lambda self: self.ready())
    @rule(data=st.data())
    def decode(self, data):
        names = data.draw(st.lists(st.sampled_from(self.ready()), min_size=1, unique=True))
        self.work.decode(names, [data.draw(TOKEN) for _ in names])

    @precondition(lambda self: self.ready())
    @rule(data=st.data(), tokens=st.lists(TOKEN, min_size=1, max_size=6))
    def grow(self, data, tokens):
        self.work.grow(data.draw(st.sampled_from(self.ready())), tokens)

    @rule(data=st.data())
    def next_chunk(self, data):
        requests = self.work.requests
        behind = [
            name
            for name in self.work.running()
            if not requests[name].drafts and requests[name].slots < requests[name].prompt
        ]
        if behind:
            self.work.grow(data.draw(st.sampled_from(behind)))

    @precondition(lambda self: self.ready())
    @rule(data=st.data(), drafts=st.lists(TOKEN, min_size=1, max_size=6))
    def speculate(self, data, drafts):
        self.work.grow(data.draw(st.sampled_from(self.ready())), [1], drafts)

    @rule(data=st.data())
    def accept(self, data):
        pending = [name for name in self.work.running() if self.work.requests[name].drafts]
        if pending:
            name = data.draw(st.sampled_from(pending))
            self.work.accept(name, data.draw(st.integers(0, self.work.requests[name].drafts)))

    @precondition(lambda self: self.ready() and len(self.work.requests) < 8)
    @rule(data=st.data(), count=st.integers(1, 3))
    def fork(self, data, count):
        self.work.fork(
            data.draw(st.sampled_from(self.ready())), [self.name() for _ in range(count)]
        )

    @precondition(lambda self: self.work.requests)
    @rule(data=st.data())
    def leave_or_be_preempted(self, data):
        self.work.free(data.draw(st.sampled_from(sorted(self.work.requests))))

    @precondition(lambda self: self.ready() and len(self.work.device.host) > 1)
    @rule(data=st.data())
    def swap_out(self, data):
        self.work.swap_out(data.draw(st.sampled_from(self.ready())))

    @rule(data=st.data())
    def swap_in(self, data):
        requests = self.work.requests
        if away := sorted(name for name in requests if requests[name].is_swapped):
            self.work.swap_in(data.draw(st.sampled_from(away)))

    @rule(announce=st.booleans())
    def dispatch(self, announce):
        self.work.dispatch(announce)

    @rule()
    def end_step(self):
        self.work.end_step()

    @rule(tokens=TOKENS)
    def any_allocation_fails(self, tokens):
        """Each call that takes blocks finds none, and has changed nothing at all."""
        manager, core = self.work.manager, self.work.manager._core
        requests = self.work.requests
        calls = [lambda: manager.admit("new", manager.prompt(tokens))]
        calls += [lambda: manager.allocate_slots("new", len(tokens))]
        size = max(group.block_size for group in manager.groups)
        for name in self.ready():
            # More than a block's tokens, so that it needs one.
            calls.append(lambda name=name: manager.append_slots(name, size + 1, drafts=2))
            if core.host is not None:
                calls.append(lambda name=name: manager.swap_out(name))
        full = [name for name in self.ready() if not manager.num_tokens(name) % size]
        if full:
            rows = [manager.row(name) for name in full]
            calls.append(lambda: manager.append_batch(rows, [0] * len(rows)))
        calls += [
            lambda n=n: manager.swap_in(n)
            for n in requests
            if requests[n].is_swapped and takes_free_blocks(core, core.host.requests[n])
        ]
        before = state(manager)
        for call in calls:
            with pytest.MonkeyPatch.context() as patch:
                # As if all blocks were taken.
                patch.setattr(FreeList, "__len__", lambda _: 0)
                # A request that was just swapped in is refused for that.
                with pytest.raises((OutOfBlocks, ValueError)):
                    call()
            assert state(manager) == before

    @invariant()
    def everything_holds(self):
        if not hasattr(self, "work"):
            return
        self.work.check()
        self.events_are_the_index()

    def events_are_the_index(self):
        for event in self.work.manager.take_events():
            if hasattr(event, "block_ids"):
                for digest, block in zip(event.digests, event.block_ids, strict=True):
                    assert (event.group, digest) not in self.index
                    self.index[event.group, digest] = block
            else:
                for digest in event.digests:
                    del self.index[event.group, digest]
        core = self.work.manager._core
        assert self.index == {
            (group, digest): block
            for group in range(len(core.groups))
            for digest, block in core.index.items(group)
        }

    def teardown(self):
        if hasattr(self, "work"):
            self.work.finish()


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=200, stateful_step_count=25, deadline=None)


@settings(max_examples=10)
@given(st.integers(0, 2**32))
def test_random_loads_over_a_real_cache(seed):
    rng = random.Random(seed)
    walk(rng, serving(rng, KVCacheManager, RealCache), 40)


@pytest.mark.full
def test_a_million_steps():
    for seed in range(5000):
        rng = random.Random(seed)
        walk(rng, serving(rng, KVCacheManager), 200)
