"""Processes that work off tasks within a budget.

A kernel may hang, or take its process with it: every item runs in a process that can be ended and
replaced, and what it was at is reported. Nothing is dropped: what was not run is given back.
"""

import contextlib
import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from benchmarks.gpu.worker import serve

_GRACE = 5.0
"""Seconds beyond the budget for what is under way."""


@dataclass(slots=True, eq=False)
class Task:
    """Items that one process should see after another, since they share compiled kernels.

    Attributes:
        name: of the task.
        function: "module:function", called with each item's arguments; gives a row.
        items: arguments of each call.
        environment: variables of the process, set before it imports anything.
        patience: seconds that one item may take.
    """

    name: str
    function: str
    items: deque[tuple[Any, ...]]
    environment: dict[str, str]
    patience: float = 120.0


OnRow = Callable[[Task, tuple[Any, ...], dict[str, Any]], None]


@dataclass(slots=True, eq=False)
class _Worker:
    process: Any
    connection: Any
    environment: dict[str, str]
    log: Path
    task: Task | None = None
    item: tuple[Any, ...] | None = None
    since: float = 0.0

    def give(self) -> None:
        """Hands over the next item of the task."""
        assert self.task is not None
        self.item = self.task.items.popleft()
        self.since = time.monotonic()
        # Where it ended between two items, its connection's end is read as its answer.
        with contextlib.suppress(OSError):
            self.connection.send((self.task.function, self.item))

    def end(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join(5)


@dataclass(slots=True)
class Pool:
    """Spawned processes, kept between runs where the next tasks want the same environment.

    Attributes:
        folder: for the processes' logs.
    """

    folder: Path
    _workers: list[_Worker] = field(default_factory=list)
    _started: int = 0

    def run(
        self, tasks: Iterable[Task], *, workers: int, deadline: float, on_row: OnRow
    ) -> list[tuple[Task, tuple[Any, ...]]]:
        """Works off tasks in their order; gives the items that the budget cut off.

        Args:
            tasks: their items are taken out.
            workers: most processes.
            deadline: of `time.monotonic`; no item begins after it.
            on_row: called with each item's row; a process that died gives {"error": why}.
        """
        queue = deque(task for task in tasks if task.items)
        cut: list[tuple[Task, tuple[Any, ...]]] = []
        for worker in self._workers[workers:]:
            worker.end()
        del self._workers[workers:]
        while True:
            now = time.monotonic()
            if now < deadline:
                self._hand_out(queue, workers)
            busy = [worker for worker in self._workers if worker.item is not None]
            if not busy:
                break
            ends = [
                min(worker.since + worker.task.patience, deadline + _GRACE)
                for worker in busy
                if worker.task is not None
            ]
            if now < deadline:
                ends.append(deadline)
            ready = wait([w.connection for w in busy], timeout=max(0.0, min(ends) - now))
            now = time.monotonic()
            for worker in busy:
                assert worker.task is not None
                assert worker.item is not None
                task, item = worker.task, worker.item
                if worker.connection in ready:
                    self._read(worker, queue, on_row, go_on=now < deadline)
                elif now >= deadline + _GRACE:
                    cut.append((task, item))
                    self._drop(worker, queue)
                elif now >= worker.since + task.patience:
                    why = f"no end after {task.patience:.0f} s, its process was ended"
                    self._drop(worker, queue)
                    on_row(task, item, {"error": why})
        return cut + [(task, item) for task in queue for item in task.items]

    def close(self) -> None:
        """Ends all processes."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()

    def _hand_out(self, queue: deque[Task], workers: int) -> None:
        idle = [worker for worker in self._workers if worker.item is None]
        for worker in idle:
            fitting = (task for task in queue if task.environment == worker.environment)
            if (task := next(fitting, None)) is not None:
                queue.remove(task)
                worker.task = task
                worker.give()
        for worker in [worker for worker in idle if worker.item is None]:
            # It cannot serve what is left: another takes its place.
            if queue and len(self._workers) >= workers:
                worker.end()
                self._workers.remove(worker)
        while queue and len(self._workers) < workers:
            # Environments in turns, so that neither waits for the end of the other.
            counts = [sum(w.environment == t.environment for w in self._workers) for t in queue]
            task = queue[counts.index(min(counts))]
            queue.remove(task)
            worker = self._start(task.environment)
            worker.task = task
            worker.give()

    def _start(self, environment: dict[str, str]) -> _Worker:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        self._started += 1
        log = self.folder / f"worker_{self._started}.log"
        process = context.Process(target=serve, args=(there, environment, str(log)), daemon=True)
        process.start()
        there.close()
        worker = _Worker(process, here, environment, log)
        self._workers.append(worker)
        return worker

    def _read(self, worker: _Worker, queue: deque[Task], on_row: OnRow, *, go_on: bool) -> None:
        task, item = worker.task, worker.item
        assert task is not None
        assert item is not None
        try:
            row, ailment = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join(5)
            why = f"its process ended with {worker.process.exitcode}: {_last_line(worker.log)}"
            self._drop(worker, queue)
            on_row(task, item, {"error": why})
            return
        worker.item = None
        if ailment:
            row = {**row, "ailment": ailment}
            self._drop(worker, queue)
        elif task.items and go_on:
            worker.give()
        elif task.items:
            queue.appendleft(task)
        on_row(task, item, row)

    def _drop(self, worker: _Worker, queue: deque[Task]) -> None:
        """Ends a process; what is left of its task goes to another."""
        worker.end()
        self._workers.remove(worker)
        if worker.task is not None and worker.task.items:
            queue.appendleft(worker.task)


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return (lines or ["(it printed nothing)"])[-1][:300]
