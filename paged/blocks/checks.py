"""Checks of arguments: every refusal names the argument, its value and what is accepted."""

import operator
from array import array
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32

MAX_SLOTS = 2**31
"""Slots are int32, so num_blocks * block_size stays below this."""


def integer(name: str, value: Any, *, at_least: int, at_most: int | None = None) -> int:
    """`value` as an int; numpy integers are accepted, bools and floats are not.

    Raises:
        ValueError: not an integer, below `at_least` or above `at_most`.
    """
    number = _index(value)
    if number is None or number < at_least or (at_most is not None and number > at_most):
        range_of = f"of at least {at_least}" + (
            "" if at_most is None else f" and at most {at_most}"
        )
        raise ValueError(f"{name}: got {value!r}, expected an integer {range_of}")
    return number


def flag(name: str, value: Any) -> bool:
    """`value`, a bool.

    Raises:
        ValueError: anything else, as other values would be taken for True unseen.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{name}: got {value!r}, expected True or False")
    return value


def hashable(name: str, value: Hashable) -> None:
    """Refuse what can name no request.

    Raises:
        ValueError: it has no hash.
    """
    try:
        hash(value)
    except TypeError:
        raise ValueError(f"{name}: got {value!r}, expected something hashable") from None


def ids(name: str, values: Iterable[Any], *, at_least: int, below: int) -> list[int]:
    """`values` as a list of ints in `[at_least, below)`.

    Raises:
        ValueError: no iterable, or an entry that is no integer in that range.
    """
    try:
        entries = list(values)
    except TypeError:
        raise ValueError(f"{name}: got {values!r}, expected a sequence of block ids") from None
    numbers = []
    for index, value in enumerate(entries):
        number = _index(value)
        if number is None or not at_least <= number < below:
            raise ValueError(
                f"{name}: got {value!r} at index {index}, expected a block id of at least "
                f"{at_least} and at most {below - 1}"
            )
        numbers.append(number)
    return numbers


def token_ids(name: str, values: Any) -> Int32[np.ndarray, " tokens"]:
    """Token ids as an array of its own: from any sequence of integers, or an integer array.

    Raises:
        ValueError: no sequence of integers, or an id below 0 or past int32.
    """
    if isinstance(values, np.ndarray):
        if values.ndim != 1 or values.dtype.kind not in "iu":
            raise ValueError(
                f"{name}: got shape {values.shape} of {values.dtype}, expected one axis of integers"
            )
        if largest(values) >= MAX_SLOTS:
            raise ValueError(
                f"{name}: got ids from {values.min()} to {values.max()}, expected 0 to "
                f"{MAX_SLOTS - 1}"
            )
        return np.array(values, np.int32)
    try:
        if not isinstance(values, Sequence):
            values = list(values)
        # Twice as fast as numpy's own way from a list, and it takes no floats.
        tokens = np.array(array("i", values), np.int32)
    except (TypeError, OverflowError) as error:
        raise ValueError(
            f"{name}: {error}, expected a sequence of integers from 0 to {MAX_SLOTS - 1}"
        ) from error
    lowest = tokens.min() if tokens.size else 2
    if lowest < 0:
        index = int(tokens.argmin())
        raise ValueError(f"{name}: got {tokens[index]} at index {index}, expected at least 0")
    if lowest < 2:
        # Only these can have been booleans: no other entry is looked at twice.
        for index in (tokens < 2).nonzero()[0].tolist():
            if isinstance(values[index], bool):
                raise ValueError(
                    f"{name}: got {values[index]} at index {index}, expected an integer"
                )
    return tokens


def largest(values: np.ndarray) -> int:
    """The largest of integers, where a negative one counts as larger than any; -1 of none.

    One pass says whether all are in a range from 0 on.
    """
    if not values.size:
        return -1
    return int(np.maximum.reduce(values.view(values.dtype.str.replace("i", "u"))))


def slots_fit(name: str, num_blocks: int, block_size: int) -> None:
    """Refuse a number of blocks whose slots would not fit int32.

    Raises:
        ValueError: num_blocks * block_size is 2**31 or more.
    """
    if num_blocks * block_size >= MAX_SLOTS:
        raise ValueError(
            f"{name}: got {num_blocks} with block_size {block_size}, expected at most "
            f"{(MAX_SLOTS - 1) // block_size} so that slots fit int32"
        )


def _index(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None
