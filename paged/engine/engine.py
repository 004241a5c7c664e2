"""The loop: schedule a step, hand it to the device, read back the step before it."""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from paged.blocks import BlockTable, KVCacheManager
from paged.engine.beams import BeamSearch
from paged.engine.inputs import sampling_mode
from paged.engine.preemption import PreemptionCost
from paged.engine.request import FinishReason, Request
from paged.engine.runner import InFlight, Runner
from paged.engine.sampling import MAX_SEED, SamplingParams
from paged.engine.scheduler import Scheduler
from paged.engine.shapes import step_shapes
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
        cost: decides how a request is preempted.
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
        cost: PreemptionCost | None = None,
        seed: int | None = None,
    ) -> None:
        self.scheduler = Scheduler(
            manager,
            table,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            cost=cost,
        )
        self._runner = runner
        self._phases = runner.phases
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
        self._stats.swaps = self.scheduler.num_swaps
        self._stats.blocks = self.scheduler.manager.stats()
        self._stats.compile_seconds = self._runner.compile_seconds
        self._stats.compiled_shapes = self._runner.num_compiled_shapes
        return self._stats

    def add(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> list[Request]:
        """Queue a prompt; returns a request for each sample that is drawn.

        Args:
            prompt_token_ids: at least one.
            params: how to sample and when to end.
            priority: lower is served earlier; see `Request.order`.
            cache_salt: only requests with the same one share cached blocks.

        Raises:
            ValueError: no token, as many tokens as the model's length, or a request that the pool
                could never hold, with both numbers.
        """
        length = len(prompt_token_ids)
        self._require_length(length)
        max_output_tokens = min(params.max_tokens, self._max_model_len - length)
        # Before anything is drawn: what is refused leaves no trace.
        self.scheduler.require_room(params, length, max_output_tokens)
        # Drawn even where it is not needed for randomness: one request's seed then depends on its
        # place among the unseeded alone.
        seeds = [
            int(self._seeds.integers(0, MAX_SEED, dtype=np.uint64, endpoint=True))
            if params.seed is None
            else (params.seed + sample) % (MAX_SEED + 1)
            for sample in range(params.num_samples)
        ]
        leader, *forks = (
            Request(
                request_id=self._next_id + sample,
                prompt_token_ids=prompt_token_ids,
                params=params,
                seed=seed,
                max_output_tokens=max_output_tokens,
                priority=priority,
                cache_salt=cache_salt,
            )
            for sample, seed in enumerate(seeds)
        )
        leader.forks = list(forks)
        for fork in forks:
            fork.leader = leader
        self.scheduler.add(leader)
        self._next_id += params.num_samples
        self._stats.prompt_tokens += length
        return [leader, *forks]

    def mark(self) -> tuple[Mapping[str, Any], int]:
        """What `add` draws from and counts, for `back_to`."""
        return self._seeds.bit_generator.state, self._stats.prompt_tokens

    def back_to(self, mark: tuple[Mapping[str, Any], int]) -> None:
        """Undo what was drawn and counted since a mark; the requests are the caller's to end."""
        self._seeds.bit_generator.state, self._stats.prompt_tokens = mark

    def add_search(
        self,
        prompt_token_ids: list[int],
        *,
        beam_width: int,
        max_tokens: int,
        length_penalty: float,
        cache_salt: str | None = None,
    ) -> BeamSearch:
        """Queue a beam search; the model's own end tokens end a continuation.

        Raises:
            ValueError: as `add`.
        """
        length = len(prompt_token_ids)
        self._require_length(length)
        max_tokens = min(max_tokens, self._max_model_len - length)
        search = BeamSearch(
            width=beam_width,
            prompt_length=length,
            max_tokens=max_tokens,
            length_penalty=length_penalty,
            stop_token_ids=self._eos_token_ids,
        )
        request = Request(
            request_id=self._next_id,
            prompt_token_ids=prompt_token_ids,
            params=SamplingParams(temperature=0, max_tokens=max_tokens),
            seed=0,
            max_output_tokens=max_tokens,
            cache_salt=cache_salt,
            beams=search,
        )
        search.live = [request]
        self.scheduler.add(request)
        self._next_id += 1
        self._stats.prompt_tokens += length
        return search

    def preparations(self, params: Sequence[SamplingParams]) -> list[Callable[[], Any]]:
        """Calls that compile, one program each, all that requests may need; see `LLM.warm_up`."""
        scheduler, manager = self.scheduler, self.scheduler.manager
        pool = (manager.num_blocks - 1) * manager.block_size
        shapes = step_shapes(
            # What any step needs, some two requests of it need.
            [
                (sampling_mode(pair), any(each.best_of is not None for each in pair))
                for pair in itertools.product(params, repeat=2)
            ],
            buckets=self._runner.buckets,
            block_size=manager.block_size,
            max_num_seqs=scheduler.max_num_seqs,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            # The last token of a request is not run.
            max_seq_len=min(self._max_model_len - 1, pool),
            has_forks=any(each.num_samples > 1 for each in params),
        )
        return self._runner.preparations(shapes, max_copies=scheduler.max_num_seqs)

    def step(self) -> list[tuple[Request, int]]:
        """Dispatch the next step, then read the one before; returns the tokens that were read.

        Requests that a token or their length ended have a `finish_reason` by then. When a step
        fails, or is interrupted, nobody knows what the caches hold: every request is given up.
        """
        if self._phases.recording is not None:
            self._phases.recording.begin_step()
        # Whoever calls is the one that calls; the engine has no threads of its own.
        self.scheduler.manager.adopt()
        try:
            return self._step()
        except BaseException:
            self._give_up_all()
            raise

    def _step(self) -> list[tuple[Request, int]]:
        manager = self.scheduler.manager
        with self._phases("schedule"):
            parts = self.scheduler.schedule()
            used = manager.num_blocks - 1 - manager.num_free_blocks
            self._stats.peak_blocks = max(self._stats.peak_blocks, used)
        done = self._pending
        # Copies come before the step that needs them, even where that step is a later one.
        with self._phases("copies"):
            self._runner.copy(manager.take_copies())
        self._pending = self._runner.dispatch(parts, self._table.host) if parts else None
        if done is None and self._pending is None and self.scheduler.has_work:
            raise RuntimeError("requests wait, none runs and none can start: a scheduler's fault")
        return [] if done is None else self._read(done)

    def finish(self, request: Request, reason: FinishReason | None) -> None:
        """End a request and free its blocks; None for a reason gives it up."""
        request.finish_reason = reason
        request.is_aborted = reason is None
        self.scheduler.release(request)

    def end_search(self, search: BeamSearch) -> None:
        """End a beam search, whether it is done or not, and free its blocks."""
        search.is_over = True
        for request in search.live:
            self.finish(request, None)
        self.scheduler.end_search(search)

    def _give_up_all(self) -> None:
        self._pending = None
        scheduler = self.scheduler
        # Samples that wait for their prompt come to light when the request that computes it goes.
        while left := [*scheduler.running, *scheduler.waiting]:
            for request in left:
                if request.beams is not None:
                    self.end_search(request.beams)
                else:
                    self.finish(request, request.finish_reason)
        scheduler.manager.take_copies()
        scheduler.manager.reset()

    def _read(self, done: InFlight) -> list[tuple[Request, int]]:
        with self._phases("fetch"):
            sampled = done.sampled()
            candidates = done.candidates()
        with self._phases("bookkeeping"):
            return self._account(done, sampled, candidates)

    def _account(
        self,
        done: InFlight,
        sampled: list[tuple[Request, int, float | None]],
        candidates: dict[Request, tuple[np.ndarray, np.ndarray]],
    ) -> list[tuple[Request, int]]:
        self._count(done)
        read: list[tuple[Request, int]] = []
        for request, token, logprob in sampled:
            request.num_in_flight -= 1
            if request.is_over or request.beams is not None:
                continue
            request.output_token_ids.append(token)
            if logprob is not None:
                request.logprob += logprob
            read.append((request, token))
            if self.is_stop_token(request, token):
                self.finish(request, "stop")
            elif len(request.output_token_ids) >= request.max_output_tokens:
                self.finish(request, "length")
        for request, likeliest in candidates.items():
            search = request.beams
            if search is not None and not search.is_over and search.read(request, *likeliest):
                self._advance(search)
        self._stats.output_tokens += len(read)
        return read

    def _advance(self, search: BeamSearch) -> None:
        """Give a search its beams of the next length."""
        children, parents = search.select(), search.live
        if not children:
            self._stats.output_tokens += sum(len(found.token_ids) for found in search.best())
            self.end_search(search)
            return
        # First what goes, so that its row and blocks are there for what comes.
        kept = {child.parent for child in children}
        for place, parent in enumerate(parents):
            if place not in kept:
                self.finish(parent, None)
        twins: dict[int, list[Request]] = {}
        search.live = []
        for child in children:
            parent = parents[child.parent]
            # The best child goes on in its parent's place.
            if child.parent not in twins:
                twins[child.parent] = []
                search.live.append(parent)
                continue
            twin = replace(
                parent,
                request_id=self._next_id,
                output_token_ids=list(parent.output_token_ids),
                forks=[],
            )
            self._next_id += 1
            twins[child.parent].append(twin)
            search.live.append(twin)
        for place, children_of in twins.items():
            self.scheduler.fork(parents[place], children_of)
        for request, child in zip(search.live, children, strict=True):
            request.output_token_ids.append(child.token)

    def _require_length(self, length: int) -> None:
        if not 0 < length < self._max_model_len:
            raise ValueError(
                f"prompt: got {length} tokens, expected from 1 to {self._max_model_len - 1} "
                f"(max_model_len is {self._max_model_len})"
            )

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
