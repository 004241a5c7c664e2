"""The loop: schedule a step, hand it to the device, read back the step before it."""

from collections.abc import Collection

import numpy as np

from paged.blocks import BlockTable, KVCacheManager
from paged.engine.request import FinishReason, Request
from paged.engine.runner import InFlight, Runner
from paged.engine.sampling import MAX_SEED, SamplingParams
from paged.engine.scheduler import Scheduler
from paged.engine.stats import EngineStats


class Engine:
    """Continuous batching over token ids; it knows no text.

    The host runs one step ahead: a step is dispatched before the tokens of the last one are read.
    What a request's length ends is known in advance; a request that a token ends costs one row of
    one step, whose result is dropped.

    Args:
        runner: owns the device's side.
        manager: gives blocks; of the same size and number as the runner's.
        table: rows of blocks, `max_num_seqs` of them.
        max_num_seqs: requests that run at once.
        max_num_batched_tokens: tokens of one step.
        max_model_len: prompt and generated tokens of one request.
        eos_token_ids: tokens that end a request unless it says `ignore_eos`.
        seed: of the seeds drawn for requests without one; None for different ones each time.

    Attributes:
        scheduler: what waits and what runs.
    """

    def __init__(
        self,
        runner: Runner,
        manager: KVCacheManager,
        table: BlockTable,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        eos_token_ids: Collection[int] = (),
        seed: int | None = None,
    ) -> None:
        self.scheduler = Scheduler(
            manager,
            table,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
        )
        self._runner = runner
        self._table = table
        self._max_model_len = max_model_len
        self._eos_token_ids = frozenset(eos_token_ids)
        self._seeds = np.random.default_rng(seed)
        self._stats = EngineStats()
        self._next_id = 0
        self._pending: InFlight | None = None
        self._last_read = runner.now()

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do."""
        return self._pending is not None or self.scheduler.has_work

    @property
    def stats(self) -> EngineStats:
        """Counts and times so far; one object that later steps update."""
        self._stats.preemptions = self.scheduler.num_preemptions
        self._stats.compile_seconds = self._runner.compile_seconds
        self._stats.compiled_shapes = self._runner.num_compiled_shapes
        return self._stats

    def add(self, prompt_token_ids: list[int], params: SamplingParams) -> Request:
        """Queue a request.

        Raises:
            ValueError: no token, as many tokens as the model's length, or a request that the pool
                could never hold, with both numbers.
        """
        length = len(prompt_token_ids)
        if not 0 < length < self._max_model_len:
            raise ValueError(
                f"prompt: got {length} tokens, expected from 1 to {self._max_model_len - 1} "
                f"(max_model_len is {self._max_model_len})"
            )
        # Drawn even where it is not needed for randomness: one request's seed then depends on its
        # place among the unseeded alone.
        seed = params.seed
        if seed is None:
            seed = int(self._seeds.integers(0, MAX_SEED, dtype=np.uint64, endpoint=True))
        request = Request(
            request_id=self._next_id,
            prompt_token_ids=prompt_token_ids,
            params=params,
            seed=seed,
            max_output_tokens=min(params.max_tokens, self._max_model_len - length),
        )
        self.scheduler.add(request)
        self._next_id += 1
        self._stats.prompt_tokens += length
        return request

    def step(self) -> list[tuple[Request, int]]:
        """Dispatch the next step, then read the one before; returns the tokens that were read.

        Requests that a token or their length ended have a `finish_reason` by then. When a step
        fails, or is interrupted, nobody knows what the caches hold: every request is given up.
        """
        try:
            return self._step()
        except BaseException:
            self._give_up_all()
            raise

    def _step(self) -> list[tuple[Request, int]]:
        parts = self.scheduler.schedule()
        done = self._pending
        self._pending = self._runner.dispatch(parts, self._table.host) if parts else None
        if done is None and self._pending is None and self.scheduler.has_work:
            raise RuntimeError("requests wait, none runs and none can start: a scheduler's fault")
        return [] if done is None else self._read(done)

    def finish(self, request: Request, reason: FinishReason | None) -> None:
        """End a request and free its blocks; None for a reason gives it up."""
        request.finish_reason = reason
        request.is_aborted = reason is None
        self.scheduler.release(request)

    def _give_up_all(self) -> None:
        self._pending = None
        for request in [*self.scheduler.running, *self.scheduler.waiting]:
            self.finish(request, request.finish_reason)

    def _read(self, done: InFlight) -> list[tuple[Request, int]]:
        tokens = done.sampled()
        self._count(done)
        read: list[tuple[Request, int]] = []
        for part, token in zip(done.parts, tokens, strict=True):
            request = part.request
            if not part.is_last_chunk:
                continue
            request.num_in_flight -= 1
            if request.is_over:
                continue
            request.output_token_ids.append(token)
            read.append((request, token))
            if self.is_stop_token(request, token):
                self.finish(request, "stop")
            elif len(request.output_token_ids) >= request.max_output_tokens:
                self.finish(request, "length")
        self._stats.output_tokens += len(read)
        return read

    def is_stop_token(self, request: Request, token: int) -> bool:
        """Whether a token ends a request."""
        if token in request.params.stop_token_ids:
            return True
        return token in self._eos_token_ids and not request.params.ignore_eos

    def _count(self, done: InFlight) -> None:
        now = self._runner.now()
        # It could not start before the step before it had ended.
        seconds = max(done.started, self._last_read).until(now)
        self._last_read = now
        self._stats.steps += 1
        self._stats.computed_tokens += done.num_tokens
        if done.is_decode:
            self._stats.decode_steps += 1
            self._stats.decode_seconds += seconds
        else:
            self._stats.prefill_seconds += seconds
