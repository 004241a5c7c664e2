"""A request: what was asked, what is generated so far, and where it stands."""

from dataclasses import dataclass, field
from typing import Literal

from paged.engine.sampling import SamplingParams

FinishReason = Literal["stop", "length"]


@dataclass(slots=True, eq=False)
class Request:
    """One prompt on its way through the engine.

    The host may be a step behind the device: `num_in_flight` tokens are sampled, or will be by a
    step that is dispatched, and their ids are not known here yet.

    Attributes:
        request_id: unique within an engine; rises with arrival.
        prompt_token_ids: the prompt.
        params: how to sample and when to end.
        seed: of the random numbers; `params.seed` or one that was drawn.
        max_output_tokens: `params.max_tokens`, or less where the model's length ends first.
        output_token_ids: tokens generated and known.
        num_in_flight: tokens generated and not known yet.
        num_computed: tokens that are in the cache once all dispatched steps have run.
        row: row of the block table while it runs; None while it waits.
        num_preemptions: times that it lost its blocks to an earlier request.
        finish_reason: why it ended; None while it has not.
        is_aborted: whether nobody wants the rest.
    """

    request_id: int
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int
    max_output_tokens: int
    output_token_ids: list[int] = field(default_factory=list)
    num_in_flight: int = 0
    num_computed: int = 0
    row: int | None = None
    num_preemptions: int = 0
    finish_reason: FinishReason | None = None
    is_aborted: bool = False

    @property
    def num_outputs(self) -> int:
        """Tokens generated, known or not."""
        return len(self.output_token_ids) + self.num_in_flight

    @property
    def num_known(self) -> int:
        """Tokens whose ids are known: the prompt and what was read back."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and all tokens generated, known or not."""
        return self.num_known + self.num_in_flight

    @property
    def num_outstanding(self) -> int:
        """Tokens that have to run before the next one can be sampled."""
        return self.num_tokens - self.num_computed

    @property
    def is_complete(self) -> bool:
        """Whether no further step is needed: ended, or its last token is on its way."""
        return self.is_over or self.num_outputs >= self.max_output_tokens

    @property
    def is_over(self) -> bool:
        """Whether it ended or was given up."""
        return self.finish_reason is not None or self.is_aborted

    def known_tokens(self, start: int, count: int) -> list[int]:
        """Ids of the tokens at positions start .. start + count - 1, as far as they are known."""
        prompt = self.prompt_token_ids
        if start >= len(prompt):
            start -= len(prompt)
            return self.output_token_ids[start : start + count]
        taken = prompt[start : start + count]
        return taken + self.output_token_ids[: count - len(taken)]
