"""Compiled programs by what is static about them, and the time that compiling took."""

import time
from collections.abc import Callable, Hashable
from typing import Any


class Programs:
    """Compiles each program when it is first asked for.

    Attributes:
        seconds: time spent to trace, lower and compile.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._compiled: dict[Hashable, Any] = {}

    def __len__(self) -> int:
        return len(self._compiled)

    def get(self, key: Hashable, lower: Callable[[], Any]) -> Any:
        """The program for a key; `lower` traces and lowers it."""
        program = self._compiled.get(key)
        if program is None:
            started = time.perf_counter()
            program = self._compiled[key] = lower().compile()
            self.seconds += time.perf_counter() - started
        return program
