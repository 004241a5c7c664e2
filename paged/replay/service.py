"""The simulated service: requests come by their timestamps and are batched step by step.

A step, as in iteration-level scheduling (Yu et al., "Orca", OSDI 2022):

1. Each running request gets a slot for its next token. Where there are too few, the request that
   was admitted last is preempted: it gives up all it has, stands first in line again, and computes
   its tokens anew.
2. Requests are admitted in the order of the line, until the first of it finds no room, as many run
   as may, or the step computes as many tokens as it may. Prompts are not split: the last one
   admitted may go beyond that.
3. The step takes its time (`StepTime`), a token of each request comes out, and those that have all
   of theirs leave.

Steps in which nobody comes, is admitted or leaves differ only in their lengths, by a constant:
they are taken together, with the same result as one by one.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int64

from paged.replay.clock import StepTime
from paged.replay.measure import Figures, Recorder
from paged.replay.memory import Memory
from paged.replay.trace import Trace

_SERIES_POINTS = 200
_EMPTY = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a step beside memory.

    Attributes:
        max_requests: that run at once.
        max_step_tokens: tokens that a step computes before it admits no more.

    Raises:
        ValueError: one below 1.
    """

    max_requests: int = 256
    max_step_tokens: int = 8192

    def __post_init__(self) -> None:
        for name in ("max_requests", "max_step_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected at least 1")


def serve(
    trace: Trace,
    memory: Memory,
    *,
    time: StepTime | None = None,
    limits: Limits | None = None,
    max_steps: int | None = None,
) -> Figures:
    """Serve all requests of a trace and measure.

    Args:
        trace: the requests.
        memory: a fresh one, made for them.
        time: of a step.
        limits: of a step.
        max_steps: the most that are taken together; changes no figure.

    Raises:
        ValueError: a request that not even the whole pool can serve.
    """
    refuse(trace, memory)
    service = _Service(trace, memory, time or StepTime(), limits or Limits(), max_steps)
    service.run()
    return service.figures()


def refuse(trace: Trace, memory: Memory) -> None:
    """Refuse a pool that is too small for one of the requests, which would wait for ever.

    Raises:
        ValueError: it is.
    """
    for request in range(len(trace)):
        reason = memory.refusal(request)
        if reason is not None:
            raise ValueError(
                f"pool: got {memory.pool_slots} slots, too few for request {request + 1} of "
                f"{trace.name}: {reason}"
            )


@dataclass(slots=True, eq=False)
class _Service:
    """The state of a run. Arrays over running requests stand in the order of admission."""

    trace: Trace
    memory: Memory
    time: StepTime
    limits: Limits
    max_steps: int | None
    now: int = 0
    next_arrival: int = 0
    line: deque[int] = field(default_factory=deque)
    # Whether the first in line found no room, and nobody has given up any since.
    blocked: bool = False
    requests: Int64[np.ndarray, " running"] = field(default_factory=_EMPTY.copy)
    slots: Int64[np.ndarray, " running"] = field(default_factory=_EMPTY.copy)
    finals: Int64[np.ndarray, " running"] = field(default_factory=_EMPTY.copy)
    # Tokens of each request that are there when it is admitted: more than its prompt once it was
    # preempted.
    known: Int64[np.ndarray, " requests"] = field(init=False)
    recorder: Recorder = field(init=False)
    latency: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0

    def __post_init__(self) -> None:
        self.known = self.trace.prompts.copy()
        self.recorder = Recorder(self.memory.pool_slots)

    def run(self) -> None:
        """All steps."""
        while self.next_arrival < len(self.trace) or self.line or self.requests.size:
            self._arrive()
            if self.line or self.requests.size:
                self._step()
            else:
                arrival = int(self.trace.arrivals[self.next_arrival])
                self.recorder.wait(arrival - self.now)
                self.now = arrival

    def figures(self) -> Figures:
        """What was measured."""
        recorder, memory = self.recorder, self.memory
        return Figures(
            policy=memory.name,
            block_size=memory.block_size,
            pool_slots=memory.pool_slots,
            requests=len(self.trace),
            seconds=self.now / 1e9,
            utilisation=recorder.sums["used"] / recorder.sums["taken"],
            used=recorder.share("used"),
            reserved=recorder.share("reserved"),
            internal=recorder.share("internal"),
            external=recorder.share("external"),
            idle=recorder.share("idle"),
            blocked=recorder.over_time("blocked"),
            mean_batch=recorder.over_time("batch"),
            max_batch=recorder.max_batch,
            mean_latency=self.latency / len(self.trace) / 1e9,
            hit_rate=self.cached_tokens / int(self.trace.prompts.sum()),
            preemptions=self.preemptions,
            recomputed_tokens=self.recomputed_tokens,
            series=recorder.series(_SERIES_POINTS),
        )

    def _arrive(self) -> None:
        arrivals = self.trace.arrivals
        end = int(np.searchsorted(arrivals, self.now, side="right"))
        self.line.extend(range(self.next_arrival, end))
        self.next_arrival = end

    def _step(self) -> None:
        """One step, or several that are alike."""
        self._make_room()
        may_admit = (
            bool(self.line) and not self.blocked and self.requests.size < self.limits.max_requests
        )
        computed, steps = 0, 1
        if may_admit:
            self.memory.grow(self.requests, 1)
            self.slots += 1
            computed = self._admit()
            held = self.memory.held(self.slots, self.finals, np.arange(1))
        else:
            steps = self._steps_alike()
            held = self.memory.held(self.slots, self.finals, np.arange(1, steps + 1))
            self.memory.grow(self.requests, steps)
            self.slots += 1
        batch = self.requests.size
        durations = self.time.steps(
            num_requests=batch, num_read=int(self.slots.sum()), num_computed=computed, steps=steps
        )
        self.recorder.add(
            durations,
            held,
            batch=batch,
            wanted=self.memory.refused_slots if self.blocked else None,
        )
        self.slots += steps - 1
        self.now += int(durations.sum())
        self._leave()

    def _make_room(self) -> None:
        """Preempt until all others can have a slot more."""
        while self.requests.size and not self.memory.reach(self.slots, 1):
            request = int(self.requests[-1])
            self.memory.release(request)
            self.known[request] = self.slots[-1] + 1
            self.line.appendleft(request)
            self._keep(np.arange(self.requests.size - 1))
            self.preemptions += 1
            self.blocked = False

    def _admit(self) -> int:
        """Admit from the line; returns the prompt tokens that the step computes for it."""
        admitted: list[int] = []
        running, computed = self.requests.size, 0
        while (
            self.line
            and running + len(admitted) < self.limits.max_requests
            and running + computed < self.limits.max_step_tokens
        ):
            request = self.line[0]
            num_tokens = int(self.known[request])
            num_cached = self.memory.admit(request, num_tokens)
            if num_cached is None:
                self.blocked = True
                break
            self.line.popleft()
            admitted.append(request)
            computed += num_tokens - num_cached
            if num_tokens == self.trace.prompts[request]:
                self.cached_tokens += num_cached
            else:
                self.recomputed_tokens += num_tokens - num_cached
        chosen = np.array(admitted, np.int64)
        self.requests = np.concatenate([self.requests, chosen])
        self.slots = np.concatenate([self.slots, self.known[chosen]])
        self.finals = np.concatenate([self.finals, self.trace.finals[chosen]])
        return computed

    def _steps_alike(self) -> int:
        """Steps until a request leaves, or memory runs out, or one comes that may be admitted."""
        most = int((self.finals - self.slots).min())
        if self.max_steps is not None:
            most = min(most, self.max_steps)
        steps = self.memory.reach(self.slots, most)
        is_open = not self.line and self.requests.size < self.limits.max_requests
        if not is_open or self.next_arrival == len(self.trace):
            return steps
        durations = self.time.steps(
            num_requests=self.requests.size,
            num_read=int(self.slots.sum()) + self.requests.size,
            num_computed=0,
            steps=steps,
        )
        # A step that has begun when the request comes goes on to its end.
        starts = durations.cumsum() - durations
        gap = int(self.trace.arrivals[self.next_arrival]) - self.now
        return int(np.searchsorted(starts, gap, side="left"))

    def _leave(self) -> None:
        done = self.slots == self.finals
        for request in self.requests[done].tolist():
            self.memory.release(request)
            self.latency += self.now - int(self.trace.arrivals[request])
            self.blocked = False
        if done.any():
            self._keep((~done).nonzero()[0])

    def _keep(self, places: Int64[np.ndarray, " running"]) -> None:
        self.requests = self.requests[places]
        self.slots = self.slots[places]
        self.finals = self.finals[places]
