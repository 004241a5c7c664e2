"""What the configurations check of their fields."""

import math
from collections.abc import Iterable


def is_finite(value: object) -> bool:
    """Whether this is a number, and neither infinite nor NaN."""
    return isinstance(value, int | float) and math.isfinite(value)


def require_counts(config: object, *names: str) -> None:
    """Refuses fields that are no integers of at least 1.

    Raises:
        ValueError: it names the first such field and its value.
    """
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name}: got {value!r}, expected an integer of at least 1")


def require_known(config: object, name: str, known: Iterable[str]) -> None:
    """Refuses a field that is none of some names.

    Raises:
        ValueError: it names the field and its value, and lists those known.
    """
    # A list: what is given may be anything, and a lookup wants a hashable name.
    value, names = getattr(config, name), list(known)
    if value not in names:
        raise ValueError(f"{name}: got {value!r}, supported are {', '.join(names)}")
