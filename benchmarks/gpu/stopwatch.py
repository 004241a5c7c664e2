"""How long calls take, in turns."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

Call = Callable[[], Any]

_FLUSH_BYTES = 256 << 20
"""Several times the L2 of any GPU of today."""


class Stopwatch(ABC):
    """Times calls; variants of a comparison in turns, so that all see the same clocks."""

    @abstractmethod
    def ready(self, call: Call) -> tuple[Call, str]:
        """The call as it will be timed, and how: "graph", "eager" or why there is no graph."""

    @abstractmethod
    def once(self, call: Call) -> float:
        """Seconds of one call, with a cold cache."""

    @abstractmethod
    def eager(self, call: Call) -> float:
        """Seconds of one call of Python, until the device is done: what launching costs too."""

    def compare(self, calls: dict[str, Call], runs: int) -> dict[str, list[float]]:
        """Seconds of each call, by name; each round begins with another."""
        names = list(calls)
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(runs if names else 0):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                seconds[name].append(self.once(calls[name]))
        return seconds


class HostWatch(Stopwatch):
    """For the dry form: the host's clock."""

    def ready(self, call: Call) -> tuple[Call, str]:
        return call, "eager"

    def once(self, call: Call) -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    eager = once


class DeviceWatch(Stopwatch):
    """CUDA events around the replay of a graph.

    A buffer empties the cache right before. While the device is at it, the host has time to enqueue
    the rest, and what is measured has no gap of the host's. It is written, then read: lines that
    are only written would go to memory during the call, up to 2% of a call of half a millisecond.
    """

    def __init__(self) -> None:
        self._flush = torch.empty(_FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")

    def ready(self, call: Call) -> tuple[Call, str]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                call()
        except RuntimeError as error:
            torch.cuda.synchronize()
            return call, f"eager: {str(error).splitlines()[0]}"
        graph.replay()
        torch.cuda.synchronize()
        return graph.replay, "graph"

    def once(self, call: Call) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flush.zero_()
        self._flush.max()
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    def eager(self, call: Call) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        return time.perf_counter() - start
