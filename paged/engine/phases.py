"""Where the time of steps goes: spans of host work and of the compiled program. Off by default."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from paged.engine.inputs import StepShape

PHASES = {
    "schedule": "which requests run, and their blocks",
    "copies": "copy orders of the block manager",
    "metadata": "the contract and all other inputs, packed",
    "compile": "finding the program, or compiling it",
    "dispatch": "the call of the program",
    "program": "the compiled step: model, attention, sampling",
    "fetch": "sampled tokens to the host",
    "bookkeeping": "tokens to their requests",
    "detokenise": "tokens to text, stop strings",
    "other": "all else",
}
"""Of one step, in their order."""

StepKind = Literal["decode", "prefill"]
"""A step of decodes alone, or one with pieces of prompts."""

_NOTHING = nullcontext()


@dataclass(frozen=True, slots=True)
class StepProfile:
    """Steps of one kind.

    Attributes:
        kind: which.
        steps: how many.
        seconds: that they took, from the call of one to the call of the next.
        phases: seconds and spans of each of `PHASES`; the seconds add up to `seconds`.
    """

    kind: StepKind
    steps: int
    seconds: float
    phases: dict[str, tuple[float, int]]

    @property
    def program_seconds(self) -> float:
        """Time for which a step's compiled program is waited for."""
        return self.phases["program"][0] / self.steps

    @property
    def called_seconds(self) -> float:
        """The same and its dispatch, within which JAX may run a small program on a CPU."""
        return self.program_seconds + self.phases["dispatch"][0] / self.steps

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "kind": self.kind,
            "steps": self.steps,
            "ms_per_step": 1e3 * self.seconds / self.steps,
            "phases": {
                name: {
                    "ms_per_step": 1e3 * seconds / self.steps,
                    "share": seconds / self.seconds,
                    "count": count,
                }
                for name, (seconds, count) in self.phases.items()
            },
        }


class Recording:
    """Spans of the steps that ran while it was on.

    A call of the engine dispatches one step and reads the one before it; its time counts as that
    of the step which it dispatches. The last call dispatches none, and counts as its predecessor.
    """

    def __init__(self) -> None:
        self._total: dict[StepKind, dict[str, list[float]]] = {}
        self._steps: dict[StepKind, int] = {}
        self._seconds: dict[StepKind, float] = {}
        self._step: dict[str, list[float]] = {}
        self._kind: StepKind | None = None
        self._is_dispatched = False
        self._shapes: Counter[StepShape] = Counter()
        self._began: float | None = None

    def begin_step(self) -> None:
        """The next call of the engine begins, and what was before it ends."""
        now = time.perf_counter()
        if self._began is not None and self._kind is not None:
            kind = self._kind
            total = self._total.setdefault(kind, {})
            for name, (seconds, count) in self._step.items():
                kept = total.setdefault(name, [0.0, 0])
                kept[0] += seconds
                kept[1] += count
            self._steps[kind] = self._steps.get(kind, 0) + self._is_dispatched
            self._seconds[kind] = self._seconds.get(kind, 0.0) + now - self._began
        self._step = {}
        self._is_dispatched = False
        self._began = now

    def dispatches(self, shape: StepShape) -> None:
        """Which step this call runs."""
        self._kind = "decode" if shape.is_decode else "prefill"
        self._is_dispatched = True
        self._shapes[shape] += 1

    def add(self, name: str, seconds: float) -> None:
        """A span of the running call."""
        kept = self._step.setdefault(name, [0.0, 0])
        kept[0] += seconds
        kept[1] += 1

    @property
    def commonest(self) -> StepShape | None:
        """The shape that ran most often; None where none did."""
        return max(self._shapes, key=lambda shape: self._shapes[shape], default=None)

    def profiles(self) -> dict[StepKind, StepProfile]:
        """Each kind of step that ran, once the recording is over."""
        found: dict[StepKind, StepProfile] = {}
        for kind, steps in self._steps.items():
            seconds, total = self._seconds[kind], self._total[kind]
            phases = {name: (total[name][0], int(total[name][1])) for name in total}
            known = sum(own for own, _ in phases.values())
            phases["other"] = (seconds - known, steps)
            ordered = {name: phases.get(name, (0.0, 0)) for name in PHASES}
            found[kind] = StepProfile(kind, steps, seconds, ordered)
        return found


class Phases:
    """What the engine's parts report their spans to; it keeps none unless a recording is on.

    Attributes:
        recording: the one that is on.
    """

    def __init__(self) -> None:
        self.recording: Recording | None = None

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """A span around the body of a `with`. Spans do not nest."""
        return _NOTHING if self.recording is None else _Span(self.recording, name)

    @contextmanager
    def recorded(self) -> Iterator[Recording]:
        """Record until the end of a `with`."""
        if self.recording is not None:
            raise RuntimeError("a recording is on already")
        self.recording = Recording()
        try:
            yield self.recording
            self.recording.begin_step()
        finally:
            self.recording = None


class _Span:
    def __init__(self, recording: Recording, name: str) -> None:
        self._recording, self._name = recording, name

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._recording.add(self._name, time.perf_counter() - self._began)
