"""What the block manager raises beside ValueError."""

from typing import Any


class OutOfBlocks(RuntimeError):
    """The pool has fewer free blocks than a call wants. The call has changed nothing.

    Attributes:
        wanted: blocks that the call asked for.
        available: blocks that were free.
    """

    def __init__(self, wanted: int, available: int) -> None:
        super().__init__(f"wanted {wanted} blocks, {available} available")
        self.wanted = wanted
        self.available = available


class NeverFits(OutOfBlocks):
    """A request needs more blocks than the whole pool has: no waiting helps."""


class WrongThread(RuntimeError):
    """A thread called that is not the manager's one writer. The call has changed nothing."""


class IntegrityError(AssertionError):
    """Bookkeeping contradicts itself: a fault of this package or of who reached into it."""


def expect_equal(what: str, found: Any, expected: Any) -> None:
    """State one invariant. Unlike `assert` it also holds under `python -O`.

    Raises:
        IntegrityError: the two differ; the message names both.
    """
    if found != expected:
        raise IntegrityError(f"{what}: found {found}, expected {expected}")


def expect_none(what: str, blocks: Any) -> None:
    """State that an array of offenders is empty.

    Raises:
        IntegrityError: it is not; the message names the first few.
    """
    if len(blocks):
        raise IntegrityError(f"{what}: found {list(map(int, blocks[:5]))}, expected none")
