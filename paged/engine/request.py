"""A request: what was asked, what is generated so far, and where it stands."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from paged.blocks import Prompt
from paged.engine.sampling import SamplingParams

if TYPE_CHECKING:
    from paged.engine.beams import BeamSearch

FinishReason = Literal["stop", "length"]

ARRIVALS_PER_PRIORITY = 64
"""Arrivals by which one step of `priority` moves a request back in the order of service."""


@dataclass(slots=True, eq=False)
class Request:
    """One sequence on its way through the engine: a prompt and what is generated after it.

    The host may be a step behind the device: `num_in_flight` tokens are sampled, or will be by a
    step that is dispatched, and their ids are not known here yet.

    Attributes:
        request_id: unique within an engine; rises with arrival.
        prompt_token_ids: the prompt.
        params: how to sample and when to end.
        seed: of the random numbers; `params.seed` or one that was drawn.
        max_output_tokens: `params.max_tokens`, or less where the model's length ends first.
        priority: how much later it counts as having come; see `order`.
        cache_salt: cached blocks are shared only among requests with the same one.
        forks: requests for further samples of its prompt, until the prompt is computed: they wait
            for that, and then go on from the same blocks.
        leader: whose `forks` it is among; None otherwise.
        beams: the beam search that it is a beam of; None for a request that is sampled.
        output_token_ids: tokens generated and known.
        logprob: sum of their log-probabilities, where `params.best_of` asks for it.
        num_in_flight: tokens generated and not known yet.
        num_computed: tokens that are in the cache once all dispatched steps have run.
        num_cached: of those the leading ones that were found in the cache at its first admission.
        num_slots: tokens that it has slots for.
        num_committed: tokens that the manager knows to be computed, and their ids.
        hashed: the tokens that it was last admitted with, or will be next, as the manager reads
            them; None before it is considered.
        row: row of the block table while it runs; None while it waits.
        is_swapped: whether its blocks lie on the host while it waits.
        num_preemptions: times that it lost its blocks to an earlier request.
        finish_reason: why it ended; None while it has not.
        is_aborted: whether nobody wants the rest.
    """

    request_id: int
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int
    max_output_tokens: int
    priority: int = 0
    cache_salt: str | None = None
    forks: "list[Request]" = field(default_factory=list)
    leader: "Request | None" = None
    beams: "BeamSearch | None" = None
    output_token_ids: list[int] = field(default_factory=list)
    logprob: float = 0.0
    num_in_flight: int = 0
    num_computed: int = 0
    num_cached: int = 0
    num_slots: int = 0
    num_committed: int = 0
    hashed: Prompt | None = None
    row: int | None = None
    is_swapped: bool = False
    num_preemptions: int = 0
    finish_reason: FinishReason | None = None
    is_aborted: bool = False

    @property
    def order(self) -> tuple[int, int]:
        """Place in the order of service, the least first.

        It is settled on arrival, and only finitely many requests can come before any: so whatever
        the priorities are, nobody waits for ever.
        """
        return self.request_id + ARRIVALS_PER_PRIORITY * self.priority, self.request_id

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
        if self.beams is not None:
            # Which tokens are a beam's is known once they are read.
            return self.is_over
        return self.is_over or self.num_outputs >= self.max_output_tokens

    @property
    def is_ready(self) -> bool:
        """Whether a step may be planned before the last one is read: beams wait for that."""
        return self.beams is None or not self.num_in_flight

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
