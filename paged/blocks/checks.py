"""Checks of arguments: every refusal names the argument, its value and what is accepted."""

import operator
from collections.abc import Iterable
from typing import Any

MAX_SLOTS = 2**31
"""Slots are int32, so num_blocks * block_size stays below this."""


def integer(name: str, value: Any, *, at_least: int) -> int:
    """`value` as an int; numpy integers are accepted, bools and floats are not.

    Raises:
        ValueError: not an integer, or below `at_least`.
    """
    number = _index(value)
    if number is None or number < at_least:
        raise ValueError(f"{name}: got {value!r}, expected an integer of at least {at_least}")
    return number


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
