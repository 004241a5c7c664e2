"""What `LLM` gives back, whole or in increments."""

from dataclasses import dataclass
from typing import Any

from paged.engine.request import FinishReason


@dataclass(frozen=True, slots=True)
class Increment:
    """What one step added to one request.

    Attributes:
        index: which of the prompts, by place in the list.
        sample: which of the prompt's samples.
        text: the text that became certain, perhaps "" within a character or a stop string.
        token_ids: the new tokens.
        finish_reason: None until the last increment of the request.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    sample: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished continuation of a prompt.

    Attributes:
        text: generated text; "" without a tokenizer.
        token_ids: generated tokens, the one that ended it included.
        finish_reason: "stop" for an end token or a stop string, "length" for max_tokens or the
            model's length.
        stats: of a sample `seconds_to_first_token` and `seconds`, from the call on, `preemptions`
            and `cached_tokens`, tokens of the prompt that were in the cache; of a beam `logprob`
            and `score`, as in `Hypothesis`.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stats: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """One prompt and what came of it. What is said without naming a sample is of the first.

    Attributes:
        prompt: as it was given; None for token ids.
        prompt_token_ids: what the model read.
        samples: `SamplingParams.n` of them, or the beams, the best first.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    samples: tuple[Completion, ...]

    @property
    def text(self) -> str:
        """See `Completion`."""
        return self.samples[0].text

    @property
    def token_ids(self) -> list[int]:
        """See `Completion`."""
        return self.samples[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        """See `Completion`."""
        return self.samples[0].finish_reason

    @property
    def stats(self) -> dict[str, Any]:
        """See `Completion`."""
        return self.samples[0].stats
