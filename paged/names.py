"""What is said of a name that nobody knows: what was got, what there is, what may be meant."""

import difflib
from collections.abc import Iterable
from typing import Any


def unknown_name(
    argument: str, got: Any, known: Iterable[str], *, expected: str = "one of {}"
) -> ValueError:
    """The error to raise; the nearest name stands last, where one is near.

    Args:
        argument: whose value it is.
        got: the value, of any type.
        known: the names that are accepted.
        expected: what is accepted, the names in place of {}.
    """
    names = tuple(known)
    message = f"{argument}: got {got!r}, expected {expected.format(', '.join(names))}"
    near = difflib.get_close_matches(got.lower(), names, n=1) if isinstance(got, str) else []
    return ValueError(f"{message}; did you mean {near[0]}?" if near else message)
