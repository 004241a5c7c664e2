"""Time-weighted figures of a run, in the words of `paged.replay.memory`."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from paged.replay.memory import Held, Steps

KINDS = ("used", "reserved", "internal", "external", "idle")
"""What a slot can be; the shares of the pool sum to 1."""

_NS = 1e-9


@dataclass(frozen=True, slots=True)
class Series:
    """Means over stretches of a run, all equally long.

    Attributes:
        seconds: where each ends.
        shares: for each of `KINDS` its share of the pool.
        batch: requests that ran.
    """

    seconds: list[float]
    shares: dict[str, list[float]]
    batch: list[float]


@dataclass(frozen=True, slots=True)
class Figures:
    """A run of one policy. Means and shares are over its time, from first arrival to last end.

    Attributes:
        policy: its name.
        block_size: tokens per block; None where there are no blocks.
        pool_slots: slots that requests could have.
        requests: all were served.
        seconds: the run's time.
        utilisation: slots that held a token's K/V over slots taken.
        used: share of the pool, as the four that follow.
        reserved: of the pool.
        internal: of the pool.
        external: of the pool.
        idle: of the pool.
        blocked: share of the time in which the first in line waited for memory.
        mean_batch: requests that ran.
        max_batch: most at once.
        mean_latency: seconds from a request's arrival to its end.
        hit_rate: share of the prompts' tokens that was cached when a request was first admitted.
        preemptions: requests put back in line.
        recomputed_tokens: tokens computed again for them.
        series: the course of it.
    """

    policy: str
    block_size: int | None
    pool_slots: int
    requests: int
    seconds: float
    utilisation: float
    used: float
    reserved: float
    internal: float
    external: float
    idle: float
    blocked: float
    mean_batch: float
    max_batch: int
    mean_latency: float
    hit_rate: float
    preemptions: int
    recomputed_tokens: int
    series: Series = field(repr=False)

    @property
    def label(self) -> str:
        """Policy and block size."""
        return self.policy if self.block_size is None else f"{self.policy} {self.block_size}"

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return asdict(self)


@dataclass(slots=True, eq=False)
class Recorder:
    """Adds up slots times nanoseconds, exactly: in integers.

    Attributes:
        pool_slots: of the policy.
        sums: for each of `KINDS`, and "taken", "batch", "blocked", "time".
        max_batch: most requests at once.
    """

    pool_slots: int
    sums: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys((*KINDS, "taken", "batch", "blocked", "time"), 0)
    )
    max_batch: int = 0
    _course: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, durations: Steps, held: Held, *, batch: int, wanted: int | None) -> None:
        """Some steps in a row.

        Args:
            durations: [steps] nanoseconds.
            held: what was held in each.
            batch: requests that ran in all of them.
            wanted: free slots that the first in line waits for; None where it does not.
        """
        time = int(durations.sum())
        taken, empty, internal = (
            _area(durations, part) for part in (held.taken, held.empty, held.internal)
        )
        free = self.pool_slots - held.taken
        external = 0 if wanted is None else _area(durations, free * (free >= wanted))
        self._note(
            {
                "used": taken - empty,
                "reserved": empty - internal,
                "internal": internal,
                "external": external,
                "idle": self.pool_slots * time - taken - external,
                "taken": taken,
                "batch": batch * time,
                "blocked": 0 if wanted is None else time,
                "time": time,
            }
        )
        self.max_batch = max(self.max_batch, batch)

    def wait(self, duration: int) -> None:
        """Nothing runs for some nanoseconds."""
        self._note({"idle": self.pool_slots * duration, "time": duration})

    def share(self, kind: str) -> float:
        """One of `KINDS` as a share of the pool."""
        return self.sums[kind] / (self.pool_slots * self.sums["time"])

    def over_time(self, name: str) -> float:
        """The mean of "batch" or "blocked"."""
        return self.sums[name] / self.sums["time"]

    def series(self, points: int) -> Series:
        """The course in so many stretches."""
        sums = np.cumsum(np.array([(0,) * (len(KINDS) + 2), *self._course], np.float64), axis=0)
        ends = sums[:, -1]
        edges = np.linspace(0, ends[-1], points + 1)
        means = [np.diff(np.interp(edges, ends, part)) / edges[1] for part in sums.T[:-1]]
        shares = {
            kind: (part / self.pool_slots).tolist()
            for kind, part in zip(KINDS, means[: len(KINDS)], strict=True)
        }
        return Series((edges[1:] * _NS).tolist(), shares, means[-1].tolist())

    def _note(self, parts: dict[str, int]) -> None:
        for name, value in parts.items():
            self.sums[name] += value
        self._course.append(tuple(parts.get(name, 0) for name in (*KINDS, "batch", "time")))


def _area(durations: Steps, slots: Steps) -> int:
    """Slots times nanoseconds. In two parts: a large pool's over a second of steps pass int64."""
    return (int((durations >> 20) @ slots) << 20) + int((durations & 0xFFFFF) @ slots)
