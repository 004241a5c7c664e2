"""Beam search: the likeliest continuations, found by keeping the best few at each length."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from paged.blocks import KVCacheManager

if TYPE_CHECKING:
    from paged.engine.request import FinishReason, Request


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A continuation that has ended.

    Attributes:
        token_ids: generated tokens, a stop token that ended it included.
        logprob: sum of the natural logarithms of their probabilities.
        score: logprob / len(token_ids) ** length_penalty.
        finish_reason: "stop" for a stop token, "length" for the most tokens.
    """

    token_ids: tuple[int, ...]
    logprob: float
    score: float
    finish_reason: "FinishReason"


@dataclass(frozen=True, slots=True)
class Child:
    """A beam of the next length.

    Attributes:
        parent: which of the present beams it goes on from.
        token: its next token.
        logprob: sum over all its tokens.
    """

    parent: int
    token: int
    logprob: float


@dataclass(slots=True, eq=False)
class BeamSearch:
    """One prompt's search, on the host.

    At each length the continuations of all beams are taken in order, the likeliest first (of equals
    that of the better beam, then the smaller token), until there are `width` beams again. Those
    among them that a stop token ends leave; they are results if their scores are among the best
    `width` in the end. The search ends when no beam is left, or none can become a result any more.

    Attributes:
        width: beams.
        prompt_length: tokens of the prompt.
        max_tokens: most tokens to generate.
        length_penalty: exponent of the length by which a sum of logarithms is divided; 0 compares
            the sums, larger values prefer longer texts.
        stop_token_ids: tokens that end a continuation.
        live: the requests of the beams, the best first.
        logprobs: of each.
        ended: continuations that have ended.
        is_done: whether the results are there.
        is_over: whether nothing more will run: it is done, or was given up.
    """

    width: int
    prompt_length: int
    max_tokens: int
    length_penalty: float
    stop_token_ids: frozenset[int]
    live: "list[Request]" = field(default_factory=list)
    logprobs: list[float] = field(default_factory=lambda: [0.0])
    ended: list[Hypothesis] = field(default_factory=list)
    is_done: bool = False
    is_over: bool = False
    _read: "dict[Request, tuple[np.ndarray, np.ndarray]]" = field(default_factory=dict)

    @property
    def num_candidates(self) -> int:
        """Likeliest next tokens of a beam among which those that are taken must be."""
        return self.width + len(self.stop_token_ids)

    def best(self) -> list[Hypothesis]:
        """The results so far, the best first."""
        return sorted(self.ended, key=lambda found: -found.score)[: self.width]

    def most_blocks(self, block_size: int) -> int:
        """Blocks that the search may hold at once: full blocks of the prompt are always shared."""
        shared = self.prompt_length // block_size
        tokens = self.prompt_length + self.max_tokens - 1
        return shared + self.width * (-(-tokens // block_size) - shared)

    def num_reserved(self, manager: KVCacheManager) -> int:
        """Blocks that it does not hold and may still want."""
        held: set[int] = set()
        for request in self.live:
            if request.row is not None:
                held.update(manager.block_ids(request.request_id))
        return self.most_blocks(manager.block_size) - len(held)

    def require_room(self, manager: KVCacheManager, max_num_seqs: int) -> None:
        """Refuse a search that could never run.

        Raises:
            ValueError: more beams than rows, or more blocks than the pool has.
        """
        if self.width > max_num_seqs:
            raise ValueError(
                f"beam_width: got {self.width}, expected at most max_num_seqs, which is "
                f"{max_num_seqs}"
            )
        needed = self.most_blocks(manager.block_size)
        if needed > manager.num_blocks - 1:
            raise ValueError(
                f"prompt: {self.prompt_length} tokens and {self.width} beams of up to "
                f"{self.max_tokens} generated ones need {needed} blocks, the pool has "
                f"{manager.num_blocks - 1}; raise num_blocks, or lower max_tokens or beam_width"
            )

    def read(
        self,
        request: "Request",
        logprobs: Float[np.ndarray, " candidates"],
        token_ids: Int[np.ndarray, " candidates"],
    ) -> bool:
        """Take in a beam's likeliest next tokens; returns whether those of all beams are there."""
        self._read[request] = logprobs, token_ids
        return len(self._read) == len(self.live)

    def select(self) -> list[Child]:
        """The beams of the next length, from what was read; [] once the search is done."""
        read = [self._read[request] for request in self.live]
        self._read.clear()
        children: list[Child] = []
        length = len(self.live[0].output_token_ids) + 1
        for child in _ranked(self.logprobs, read):
            if len(children) == self.width:
                break
            if child.token in self.stop_token_ids:
                self._end(child, "stop")
            else:
                children.append(child)
        if length >= self.max_tokens:
            for child in children:
                self._end(child, "length")
            children = []
        if not children or self._is_settled(children[0].logprob, length):
            self.is_done = True
            return []
        self.logprobs = [child.logprob for child in children]
        return children

    def _end(self, child: Child, reason: "FinishReason") -> None:
        tokens = (*self.live[child.parent].output_token_ids, child.token)
        score = child.logprob / len(tokens) ** self.length_penalty
        self.ended.append(Hypothesis(tokens, child.logprob, score, reason))

    def _is_settled(self, logprob: float, length: int) -> bool:
        """Whether the best beam, at its best, stays behind what has ended."""
        if len(self.ended) < self.width:
            return False
        # A sum only falls; divided by more, for a penalty above 0, it is nearer to 0.
        longest = self.max_tokens if self.length_penalty > 0 else length
        return logprob / longest**self.length_penalty <= self.best()[-1].score


def _ranked(
    logprobs: Sequence[float],
    read: Sequence[tuple[Float[np.ndarray, " candidates"], Int[np.ndarray, " candidates"]]],
) -> Collection[Child]:
    """Every candidate of every beam, the likeliest first."""
    sums = [
        before + own.astype(np.float64) for before, (own, _) in zip(logprobs, read, strict=True)
    ]
    totals = np.concatenate(sums)
    tokens = np.concatenate([token_ids for _, token_ids in read])
    parents = np.repeat(np.arange(len(read)), [len(scores) for scores, _ in read])
    order = np.lexsort((tokens, parents, -totals))
    return [
        Child(parent, token, total)
        for parent, token, total in zip(
            parents[order].tolist(), tokens[order].tolist(), totals[order].tolist(), strict=True
        )
    ]
