"""Which requests run in the next step, and how many tokens of each.

In the order of service (`Request.order`: as they came, moved by their priorities), within three
limits: rows (`max_num_seqs`), tokens a step (`max_num_batched_tokens`) and blocks.

- Requests that run come first, those with one token to compute (decodes) before chunks of prompts,
  so that a long prompt delays nobody's next token.
- A request is admitted with all the blocks that its known tokens need, those that are cached
  shared. Only decodes ask for more.
- A decode that finds no free block takes them from the last request in the order that runs,
  perhaps from itself. That request goes on later: its blocks come back from the host, or its
  tokens are computed again. The first request is never the victim of another, and fits the pool
  alone: so all of them end.
- Samples of one prompt run from where the prompt ends, on the same blocks. From then on they are
  requests like others.
- A beam search is admitted when all blocks that it may ever need are free. They stay reserved for
  it, and it is nobody's victim: its beams go on together or not at all.
"""

from bisect import insort
from dataclasses import dataclass

import numpy as np

from paged.blocks import BlockTable, KVCacheManager, OutOfBlocks
from paged.engine.beams import BeamSearch
from paged.engine.preemption import PreemptionCost
from paged.engine.request import Request
from paged.engine.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One request's part of a step.

    Attributes:
        request: whose tokens run.
        row: its row of the block table.
        start: position of the first token that runs.
        count: tokens that run.
        is_last_chunk: whether the step's last token of this request samples its next one.
        output_index: number of that next token among the request's outputs.
        forks: further requests that sample their first token from the same logits.
    """

    request: Request
    row: int
    start: int
    count: int
    is_last_chunk: bool
    output_index: int
    forks: tuple[Request, ...] = ()


class Scheduler:
    """Admits, grows, preempts and retires requests.

    Bookkeeping alone: it touches no device, and whatever it frees may still be read by steps
    that were dispatched before. That is safe as long as steps, and the copies that the manager
    orders before each, run in the order of dispatch.

    A request's row of the block table is its row in the manager.

    Args:
        manager: gives blocks.
        table: rows of blocks; `schedule` keeps them up to date.
        max_num_seqs: requests that run at once, at most the rows of `table`.
        max_num_batched_tokens: tokens of one step.
        cost: decides how a request is preempted.

    Attributes:
        waiting: requests without blocks, in the order of service.
        running: requests with blocks, in the same order.
        num_preemptions: how often a request has lost its blocks.
        num_swaps: how often of these they went to the host.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        table: BlockTable,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        cost: PreemptionCost | None = None,
    ) -> None:
        self.manager = manager
        self.table = table
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.num_preemptions = 0
        self.num_swaps = 0
        self._cost = cost or PreemptionCost()
        # Rows that are neither taken nor promised to samples or beams.
        self._num_free_rows = max_num_seqs
        self._searches: list[BeamSearch] = []

    @property
    def has_work(self) -> bool:
        """Whether some request still has tokens to compute."""
        return bool(self.waiting) or any(not request.is_complete for request in self.running)

    def add(self, request: Request) -> None:
        """Queue a request, and with it its forks.

        Raises:
            ValueError: the pool, or its rows, could never hold it.
        """
        if request.beams is not None:
            request.beams.require_room(self.manager, self.max_num_seqs)
        else:
            self.require_room(
                request.params, len(request.prompt_token_ids), request.max_output_tokens
            )
        insort(self.waiting, request, key=_order)

    def schedule(self) -> list[Scheduled]:
        """The next step, in which every part is counted as computed from here on; [] for none."""
        for request in [request for request in self.running if request.is_complete]:
            self.release(request)
        budget = self.max_num_batched_tokens
        decodes = [r for r in self.running if r.num_outstanding == 1 and r.is_ready][:budget]
        chunks = [r for r in self.running if r.num_outstanding > 1]
        step: list[Scheduled] = []
        preempted = self.num_preemptions
        self._grow(decodes)
        for request in (*decodes, *chunks):
            # Rows are lost while others grow; a request without one waits for its return.
            if budget and request.row is not None:
                step.append(self._commit(request, min(request.num_outstanding, budget)))
                budget -= step[-1].count
        # Blocks are short where a request was just preempted: whoever came in now would be next.
        if preempted == self.num_preemptions:
            while budget and self.waiting and self._admit(self.waiting[0]):
                request = self.waiting.pop(0)
                step.append(self._commit(request, min(request.num_outstanding, budget)))
                budget -= step[-1].count
        self._enter_known(self.running)
        return step

    def release(self, request: Request) -> None:
        """Take back a request's blocks and row, wherever it is; it will not run again."""
        if request.leader is not None:
            request.leader.forks.remove(request)
            self._num_free_rows += request.leader.row is not None
            request.leader = None
        elif request.row is not None:
            self._enter_known([request])
            self._take_row(request)
            self.manager.free(request.request_id)
            self._forget_blocks(request)
            self._hand_over_forks(request)
        elif request in self.waiting:
            self.waiting.remove(request)
            if request.is_swapped:
                self.manager.free(request.request_id)
                self._forget_blocks(request)
            self._hand_over_forks(request)

    def fork(self, parent: Request, children: list[Request]) -> None:
        """Requests that share all of a running one's blocks, and go on from where it stands.

        All tokens that it has slots for must be computed and known.
        """
        self._enter_known([parent])
        rows = self.manager.fork(parent.request_id, [child.request_id for child in children])
        blocks = self.manager.block_ids(parent.request_id)
        for child, row in zip(children, rows, strict=True):
            child.row = row
            self.table.add_row(row, blocks)
            child.num_computed, child.num_slots = parent.num_computed, parent.num_slots
            child.num_committed, child.num_cached = parent.num_committed, parent.num_cached
            child.hashed = parent.hashed
            insort(self.running, child, key=_order)

    def end_search(self, search: BeamSearch) -> None:
        """Give back the rows and blocks that were kept for a search whose beams are released."""
        if search in self._searches:
            self._searches.remove(search)
            self._num_free_rows += search.width

    def require_room(self, params: SamplingParams, prompt_tokens: int, output_tokens: int) -> None:
        """Refuse a request that the pool, or its rows, could never hold.

        Raises:
            ValueError: with both numbers.
        """
        if params.num_samples > self.max_num_seqs:
            raise ValueError(
                f"{params.samples_field}: got {params.num_samples}, expected at most "
                f"max_num_seqs, which is {self.max_num_seqs}"
            )
        tokens = prompt_tokens + output_tokens - 1
        if not self.manager.fits(tokens):
            capacity = (self.manager.num_blocks - 1) * self.manager.block_size
            raise ValueError(
                f"prompt: {prompt_tokens} tokens and up to {output_tokens} generated ones need "
                f"{tokens} slots, the pool has {capacity} ({self.manager.num_blocks - 1} blocks of "
                f"{self.manager.block_size}); raise num_blocks or lower max_tokens"
            )

    def _admit(self, request: Request) -> bool:
        """Give a waiting request a row and blocks for all its tokens, if there are enough."""
        promised = request.beams.width if request.beams else 1 + len(request.forks)
        # A token that is not known yet cannot be recomputed; its step will be read soon.
        if request.num_in_flight or promised > self._num_free_rows:
            return False
        # One block stays free for each request that runs: all will soon grow into one, and to
        # admit a request only to preempt it costs its whole prompt.
        spare = len(self.running) + self._num_reserved()
        if not (
            self._swap_in(request, spare) if request.is_swapped else self._start(request, spare)
        ):
            return False
        self._num_free_rows -= promised
        insort(self.running, request, key=_order)
        return True

    def _start(self, request: Request, spare: int) -> bool:
        if request.hashed is None:
            prompt = request.prompt_token_ids
            request.hashed = self.manager.prompt(prompt, salt=request.cache_salt)
        new = request.num_tokens - len(request.hashed)
        if new:
            generated = request.known_tokens(len(request.hashed), new)
            request.hashed = request.hashed.followed_by(generated)
        if request.beams is not None:
            # What is cached is not counted on: others may give it up while the search runs.
            needed = request.beams.most_blocks(self.manager.block_size)
            if needed + spare > self.manager.num_free_blocks:
                return False
            self._searches.append(request.beams)
        elif not self.manager.can_admit(request.hashed, spare=spare):
            return False
        given = self.manager.admit(request.request_id, request.hashed)
        request.row = given.row
        self.table.add_row(given.row, given.block_ids[0])
        request.num_slots = len(request.hashed)
        request.num_computed = request.num_committed = given.num_cached_tokens
        if not request.num_preemptions:
            request.num_cached = given.num_cached_tokens
        return True

    def _swap_in(self, request: Request, spare: int) -> bool:
        # Beside the blocks that come back it may want one for its next token.
        needed = self.manager.num_blocks_needed(request.num_tokens)
        if needed + spare > self.manager.num_free_blocks:
            return False
        given = self.manager.swap_in(request.request_id)
        request.is_swapped = False
        request.row = given.row
        self.table.add_row(given.row, given.block_ids[0])
        if request.num_slots < request.num_tokens:
            self._append([request])
        return True

    def _grow(self, decodes: list[Request]) -> None:
        """Slots for one more token each; the last in the order lose theirs until the others fit."""
        short = [r for r in decodes if r.num_slots < r.num_tokens]
        if self._searches:
            beams = [r for r in short if r.beams is not None]
            short = [r for r in short if r.beams is None]
            self._append(beams)
        reserved = self._num_reserved()
        while short:
            try:
                if reserved:
                    self._leave(reserved, short)
                self._append(short)
                return
            except OutOfBlocks:
                self._preempt(next(r for r in reversed(self.running) if r.beams is None))
                short = [r for r in short if r.row is not None]

    def _append(self, requests: list[Request]) -> None:
        """One more slot for each, all or none.

        Raises:
            OutOfBlocks: too few blocks are free.
        """
        if requests:
            rows = np.array([request.row for request in requests])
            self.table.follow(self.manager.append_batch(rows))
            for request in requests:
                request.num_slots += 1

    def _leave(self, reserved: int, requests: list[Request]) -> None:
        """Refuse to grow into blocks that are reserved.

        Raises:
            OutOfBlocks: too few are free beside them.
        """
        size = self.manager.block_size
        # A new block where the last is full, or where a sample writes to one that it shares.
        wanted = sum(r.num_slots % size == 0 or not r.output_token_ids[1:] for r in requests)
        available = self.manager.num_free_blocks - reserved
        if wanted > available:
            raise OutOfBlocks(wanted, available)

    def _num_reserved(self) -> int:
        """Free blocks that beam searches may still want."""
        return sum(search.num_reserved(self.manager) for search in self._searches)

    def _preempt(self, request: Request) -> None:
        held = self.manager.num_blocks_needed(request.num_slots)
        is_swap = (
            not request.forks
            and held <= self.manager.num_free_host_blocks
            and self._cost.prefers_swap(num_blocks=held, num_tokens=request.num_computed)
        )
        self._enter_known([request])
        self._take_row(request)
        if is_swap:
            self.manager.swap_out(request.request_id)
            request.is_swapped = True
            self.num_swaps += 1
        else:
            self.manager.free(request.request_id)
            self._forget_blocks(request)
        request.num_preemptions += 1
        self.num_preemptions += 1
        insort(self.waiting, request, key=_order)

    def _take_row(self, request: Request) -> None:
        assert request.row is not None
        self.table.clear_row(request.row)
        self.running.remove(request)
        request.row = None
        if request.beams is None:
            self._num_free_rows += 1 + len(request.forks)

    def _forget_blocks(self, request: Request) -> None:
        request.num_computed = request.num_slots = request.num_committed = 0
        request.is_swapped = False

    def _hand_over_forks(self, request: Request) -> None:
        """Samples whose prompt was not done go on without the request that computed it."""
        if request.forks:
            first, *others = request.forks
            request.forks, first.leader, first.forks = [], None, others
            for other in others:
                other.leader = first
            insort(self.waiting, first, key=_order)

    def _commit(self, request: Request, count: int) -> Scheduled:
        assert request.row is not None
        start = request.num_computed
        is_last_chunk = count == request.num_outstanding
        index = request.num_outputs
        request.num_computed += count
        if request.hashed is not None and start < len(request.hashed):
            # At once: whoever is admitted next, in this very step, may share its blocks.
            self._enter_known([request])
        forks: tuple[Request, ...] = ()
        if is_last_chunk:
            if request.forks:
                forks, request.forks = tuple(request.forks), []
                self.fork(request, list(forks))
                for fork in forks:
                    fork.leader = None
                    fork.num_in_flight += 1
            request.num_in_flight += 1
        return Scheduled(request, request.row, start, count, is_last_chunk, index, forks)

    def _enter_known(self, requests: list[Request]) -> None:
        """Tell the manager which tokens are computed whose ids are known, so that it finds them."""
        rows: list[int | None] = []
        tokens: list[int] = []
        for request in requests:
            before = request.num_committed
            known = min(request.num_known, request.num_computed)
            if known == before:
                continue
            request.num_committed = known
            assert request.hashed is not None
            if before < len(request.hashed):
                self.manager.commit_prompt(request.request_id, min(known, len(request.hashed)))
                before = min(known, len(request.hashed))
            if known - before == 1:
                rows.append(request.row)
                tokens += request.known_tokens(before, 1)
            elif known > before:
                self.manager.commit(
                    request.request_id, request.known_tokens(before, known - before)
                )
        if rows:
            self.manager.commit_batch(np.array(rows), np.array(tokens, np.int32))


def _order(request: Request) -> tuple[int, int]:
    return request.order
