"""What `LLM` gives back, whole or in increments."""

from dataclasses import dataclass
from typing import Any

from paged.engine.request import FinishReason


@dataclass(frozen=True, slots=True)
class Increment:
    """What one step added to one request.

    Attributes:
        index: which of the prompts, by place in the list.
        text: the text that became certain, perhaps "" within a character or a stop string.
        token_ids: the new tokens.
        finish_reason: None until the last increment of the request.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """One finished request.

    Attributes:
        prompt: as it was given; None for token ids.
        prompt_token_ids: what the model read.
        text: generated text; "" without a tokenizer.
        token_ids: generated tokens, the one that ended the request included.
        finish_reason: "stop" for an end token or a stop string, "length" for max_tokens or the
            model's length.
        stats: `seconds_to_first_token` and `seconds`, from the call on, and `preemptions`.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stats: dict[str, Any]
