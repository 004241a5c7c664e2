"""What may be asked: prompts, and values for all of them or for each."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from paged.models import Tokenizer

Prompt = str | Sequence[int]
"""A text, or the token ids of one."""


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as several."""
    if isinstance(prompts, str):
        return [prompts]
    listed: list[Any] = list(prompts)
    # Integers mean that the whole is one prompt of token ids.
    if listed and all(isinstance(item, int | np.integer) for item in listed):
        return [listed]
    return listed


def prompt_token_ids(prompt: Prompt, tokenizer: Tokenizer | None, vocab_size: int) -> list[int]:
    """The token ids of one prompt.

    Raises:
        ValueError: a string without a tokenizer, or ids that the vocabulary does not have.
    """
    if isinstance(prompt, str):
        if tokenizer is None:
            raise ValueError("prompt: got a string, expected token ids without a tokenizer")
        ids = tokenizer.encode(prompt)
    elif isinstance(prompt, Sequence | np.ndarray):
        ids = list(prompt)
    else:
        raise ValueError(f"prompt: got {prompt!r}, expected a string or token ids")
    for place, token in enumerate(ids):
        if not isinstance(token, int | np.integer) or not 0 <= token < vocab_size:
            raise ValueError(
                f"prompt[{place}]: got {token!r}, expected an integer 0 <= token < {vocab_size}"
            )
    return [int(token) for token in ids]


def one_each(name: str, values: Any, count: int, kind: Any) -> list[Any]:
    """One value for each prompt, from one for all or one for each.

    Raises:
        ValueError: another number of values, or one of another kind.
    """
    if isinstance(values, kind) and not isinstance(values, bool):
        return [values] * count
    listed = list(values) if isinstance(values, Sequence) else [values]
    if len(listed) != count:
        raise ValueError(f"{name}: got {len(listed)}, expected one for each of {count} prompts")
    for index, value in enumerate(listed):
        if not isinstance(value, kind) or isinstance(value, bool):
            known = getattr(kind, "__name__", str(kind))
            raise ValueError(f"{name}[{index}]: got {value!r}, expected {known}")
    return listed
