"""Progress bars that keep quiet where nobody watches."""

import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

T = TypeVar("T")

_PATIENCE_SECONDS = 3.0


def tracked(items: Sequence[T], what: str, is_shown: bool | None = None) -> Iterator[T]:
    """The items, with a bar on stderr that says how many of them are done.

    Args:
        items: in their order.
        what: their name.
        is_shown: True or False, None on a terminal.
    """
    console = Console(stderr=True)
    bar = Progress(
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=console.is_terminal,
        disable=not (console.is_terminal if is_shown is None else is_shown),
    )
    with bar:
        yield from bar.track(items)


class RunProgress:
    """Shows finished requests and tokens per second on stderr; a context manager.

    Args:
        total: requests.
        is_shown: True from the start, False never, None on a terminal once the run has taken a
            few seconds.
    """

    def __init__(self, total: int, is_shown: bool | None = None) -> None:
        console = Console(stderr=True)
        self._is_wanted = console.is_terminal if is_shown is None else is_shown
        self._patience = _PATIENCE_SECONDS if is_shown is None else 0.0
        self._started = time.perf_counter()
        self._tokens = 0
        self._bar = Progress(
            TextColumn("requests"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:,.0f} tokens/s"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("requests", total=total, rate=0.0)
        self._is_live = False

    def __enter__(self) -> "RunProgress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_live:
            self._bar.stop()

    def advance(self, *, tokens: int, finished: int) -> None:
        """Count tokens and finished requests."""
        self._tokens += tokens
        seconds = time.perf_counter() - self._started
        if self._is_wanted and not self._is_live and seconds >= self._patience:
            self._bar.start()
            self._is_live = True
        rate = self._tokens / seconds if seconds else 0.0
        if finished or self._is_live:
            self._bar.update(self._task, advance=finished, rate=rate)
