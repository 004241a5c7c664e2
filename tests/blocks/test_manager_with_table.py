"""Manager and table, driven as an engine drives them, against a model of lists and dicts."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paged.blocks import BlockTable, KVCacheManager, OutOfBlocks

MAX_ROWS = 4


class Serving(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(2, 12), kernel_block_size=st.integers(1, 3), ratio=st.integers(1, 2)
    )
    def start(self, num_blocks, kernel_block_size, ratio):
        self.block_size = kernel_block_size * ratio
        self.ratio = ratio
        self.num_blocks = num_blocks
        self.manager = KVCacheManager(num_blocks, self.block_size)
        self.table = BlockTable(
            MAX_ROWS,
            num_blocks - 1,
            self.block_size,
            device_put=lambda rows: rows,
            kernel_block_size=kernel_block_size,
        )
        self.next_request = 0
        # The model: free blocks in order of reuse, each request's tokens and blocks, the rows.
        self.free = list(range(1, num_blocks))
        self.tokens = {}
        self.blocks = {}
        self.rows = [None] * MAX_ROWS

    def take(self, request, num_tokens):
        """What the model gives a request that is to hold `num_tokens`; None if it cannot."""
        held = self.blocks.get(request, [])
        needed = len(range(0, num_tokens, self.block_size)) - len(held)
        if needed > len(self.free):
            return None
        taken, self.free = self.free[:needed], self.free[needed:]
        self.blocks[request] = held + taken
        self.tokens[request] = num_tokens
        return taken

    def running(self):
        return [request for request in self.rows if request is not None]

    @precondition(lambda self: None in self.rows)
    @rule(num_tokens=st.integers(1, 20))
    def add(self, num_tokens):
        request = self.next_request
        self.next_request += 1
        could = self.manager.can_allocate(num_tokens)
        wanted = self.take(request, num_tokens)
        assert could == (wanted is not None)
        assert not could or self.manager.fits(num_tokens)
        if wanted is None:
            with pytest.raises(OutOfBlocks):
                self.manager.allocate_slots(request, num_tokens)
            return
        assert self.manager.allocate_slots(request, num_tokens) == wanted
        row = self.rows.index(None)
        self.table.add_row(row, wanted)
        self.rows[row] = request

    @precondition(lambda self: self.running())
    @rule(data=st.data(), num_tokens=st.integers(1, 8))
    def append(self, data, num_tokens):
        request = data.draw(st.sampled_from(self.running()))
        could = self.manager.can_append(request, num_tokens)
        wanted = self.take(request, self.tokens[request] + num_tokens)
        assert could == (wanted is not None)
        if wanted is None:
            with pytest.raises(OutOfBlocks):
                self.manager.append_slots(request, num_tokens)
            return
        assert self.manager.append_slots(request, num_tokens) == wanted
        self.table.append_row(self.rows.index(request), wanted)

    @precondition(lambda self: self.running())
    @rule(data=st.data(), condense=st.booleans())
    def finish(self, data, condense):
        request = data.draw(st.sampled_from(self.running()))
        self.manager.free(request)
        row = self.rows.index(request)
        self.table.clear_row(row)
        self.rows[row] = None
        self.free = [*reversed(self.blocks.pop(request)), *self.free]
        del self.tokens[request]
        last = max((r for r, other in enumerate(self.rows) if other is not None), default=0)
        if condense and row < last:
            self.table.move_row(last, row)
            self.rows[row], self.rows[last] = self.rows[last], None

    @rule(a=st.integers(0, MAX_ROWS - 1), b=st.integers(0, MAX_ROWS - 1))
    def swap(self, a, b):
        self.table.swap_row(a, b)
        self.rows[a], self.rows[b] = self.rows[b], self.rows[a]

    @rule(num_rows=st.integers(1, MAX_ROWS))
    def commit(self, num_rows):
        committed = self.table.commit(num_rows)
        assert committed.tolist() == self.expected_rows()[:num_rows]

    def expected_rows(self):
        columns = (self.num_blocks - 1) * self.ratio
        rows = []
        for request in self.rows:
            blocks = self.blocks.get(request, [])
            row = [block * self.ratio + i for block in blocks for i in range(self.ratio)]
            rows.append(row + [0] * (columns - len(row)))
        return rows

    @invariant()
    def holds(self):
        self.manager.check_integrity()
        assert self.manager.num_free_blocks == len(self.free)
        assert self.manager._core.pool.free_blocks().tolist() == self.free
        for request, blocks in self.blocks.items():
            assert self.manager.block_ids(request) == blocks
            assert self.manager.num_tokens(request) == self.tokens[request]
        assert self.table.host.tolist() == self.expected_rows()
        self.slots_are_distinct()

    def slots_are_distinct(self):
        """Every token of every running sequence has a slot of its own, none in the null block."""
        rows, positions, wanted = [], [], []
        for row, request in enumerate(self.rows):
            for position in range(self.tokens.get(request, 0)):
                rows.append(row)
                positions.append(position)
                block, offset = divmod(position, self.block_size)
                wanted.append(self.blocks[request][block] * self.block_size + offset)
        slots = self.table.slot_mapping(np.array(rows, int), np.array(positions, int)).tolist()
        assert slots == wanted
        assert len(set(slots)) == len(slots)
        assert all(self.block_size <= slot < self.num_blocks * self.block_size for slot in slots)


TestServing = Serving.TestCase
TestServing.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
