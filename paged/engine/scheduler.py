"""Which requests run in the next step, and how many tokens of each.

First come, first served, within three limits: rows (`max_num_seqs`), tokens a step
(`max_num_batched_tokens`) and blocks.

- Requests that run come first, those with one token to compute (decodes) before chunks of prompts,
  so that a long prompt delays nobody's next token.
- A request is admitted with all the blocks that its known tokens need. Only decodes ask for more.
- A decode that finds no free block takes them from the latest request that runs, perhaps from
  itself. That request starts again later with its generated tokens as part of its prompt. The
  earliest request is never the victim of another, and fits the pool alone: so all of them end.
"""

from collections import deque
from dataclasses import dataclass

from paged.blocks import BlockTable, KVCacheManager
from paged.engine.request import Request


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
    """

    request: Request
    row: int
    start: int
    count: int
    is_last_chunk: bool
    output_index: int


class Scheduler:
    """Admits, grows, preempts and retires requests.

    Bookkeeping alone: it touches no device, and whatever it frees may still be read by steps
    that were dispatched before. That is safe as long as steps run in the order of dispatch.

    Args:
        manager: gives blocks.
        table: rows of blocks; `schedule` keeps them up to date.
        max_num_seqs: requests that run at once, at most the rows of `table`.
        max_num_batched_tokens: tokens of one step.

    Attributes:
        waiting: requests without blocks, the next one first.
        running: requests with blocks, in order of arrival.
        num_preemptions: how often a request has lost its blocks.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        table: BlockTable,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
    ) -> None:
        self.manager = manager
        self.table = table
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.num_preemptions = 0
        self._free_rows = list(reversed(range(max_num_seqs)))

    @property
    def has_work(self) -> bool:
        """Whether some request still has tokens to compute."""
        return bool(self.waiting) or any(not request.is_complete for request in self.running)

    def add(self, request: Request) -> None:
        """Queue a request; the caller has made sure that the pool can hold it.

        Raises:
            ValueError: the pool could never hold it.
        """
        tokens = len(request.prompt_token_ids) + request.max_output_tokens - 1
        if not self.manager.fits(tokens):
            capacity = (self.manager.num_blocks - 1) * self.manager.block_size
            raise ValueError(
                f"prompt: {len(request.prompt_token_ids)} tokens and up to "
                f"{request.max_output_tokens} generated ones need {tokens} slots, the pool has "
                f"{capacity} ({self.manager.num_blocks - 1} blocks of {self.manager.block_size}); "
                "raise num_blocks or lower max_tokens"
            )
        self.waiting.append(request)

    def schedule(self) -> list[Scheduled]:
        """The next step, in which every part is counted as computed from here on; [] for none."""
        for request in [request for request in self.running if request.is_complete]:
            self.release(request)
        budget = self.max_num_batched_tokens
        decodes = [request for request in self.running if request.num_outstanding == 1]
        chunks = [request for request in self.running if request.num_outstanding > 1]
        step: list[Scheduled] = []
        preempted = self.num_preemptions
        for request in decodes:
            # Rows are lost while others grow; a request without one waits for its return.
            if budget and request.row is not None and self._grow(request):
                step.append(self._commit(request, 1))
                budget -= 1
        for request in chunks:
            if budget and request.row is not None:
                count = min(request.num_outstanding, budget)
                step.append(self._commit(request, count))
                budget -= count
        # Blocks are short where a request was just preempted: whoever came in now would be next.
        if preempted == self.num_preemptions:
            while budget and self.waiting and self._admit(self.waiting[0]):
                request = self.waiting.popleft()
                count = min(request.num_outstanding, budget)
                step.append(self._commit(request, count))
                budget -= count
        return step

    def release(self, request: Request) -> None:
        """Take back a request's blocks and row, wherever it is; it will not run again."""
        if request.row is None:
            if request in self.waiting:
                self.waiting.remove(request)
            return
        self.manager.free(request.request_id)
        self.table.clear_row(request.row)
        self._free_rows.append(request.row)
        self.running.remove(request)
        request.row = None

    def _admit(self, request: Request) -> bool:
        """Give a waiting request a row and blocks for all its tokens, if there are enough."""
        # A token that is not known yet cannot be recomputed; its step will be read soon.
        if not self._free_rows or request.num_in_flight:
            return False
        needed = self.manager.num_blocks_needed(request.num_tokens)
        # One block stays free for each request that runs: all will soon grow into one, and to
        # admit a request only to preempt it costs its whole prompt.
        if needed + len(self.running) > self.manager.num_free_blocks:
            return False
        request.row = self._free_rows.pop()
        blocks = self.manager.allocate_slots(request.request_id, request.num_tokens)
        self.table.add_row(request.row, blocks)
        self.running.append(request)
        return True

    def _grow(self, request: Request) -> bool:
        """Give a decode the slot of its token; False if that cost the request itself its place."""
        row = request.row
        assert row is not None
        while self.manager.num_tokens(request.request_id) < request.num_tokens:
            if self.manager.can_append(request.request_id):
                self.table.append_row(row, self.manager.append_slots(request.request_id))
            elif self._preempt(self.running[-1]) is request:
                return False
        return True

    def _preempt(self, request: Request) -> Request:
        self.release(request)
        request.num_computed = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        # Victims fall latest first, and all of them came before whoever waits.
        self.waiting.appendleft(request)
        return request

    def _commit(self, request: Request, count: int) -> Scheduled:
        assert request.row is not None
        start = request.num_computed
        is_last_chunk = count == request.num_outstanding
        part = Scheduled(request, request.row, start, count, is_last_chunk, request.num_outputs)
        request.num_computed += count
        if is_last_chunk:
            request.num_in_flight += 1
        return part
