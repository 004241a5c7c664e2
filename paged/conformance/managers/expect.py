"""How a check says what it saw."""

from collections.abc import Callable
from typing import Any


class BrokenRule(Exception):
    """What was seen and what was expected, against the rule of the case."""


def expect(what: str, found: Any, expected: Any) -> None:
    """State one fact.

    Raises:
        BrokenRule: it is not so.
    """
    if found != expected:
        raise BrokenRule(f"{what}: got {found}, expected {expected}")


def expect_raises(what: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """State that a call is refused.

    Raises:
        BrokenRule: it was served.
        Exception: it failed by a fault of its own (a name or an argument that is not there), which
            is no refusal.
    """
    try:
        found = call(*arguments, **named)
    except (AttributeError, NameError, TypeError):
        raise
    except Exception:  # noqa: BLE001 (a manager raises what it likes)
        return
    raise BrokenRule(f"{what} gave {found!r}, expected an exception")
