"""One request as its caller sees it: text, increments and times beside the tokens."""

import time
from collections import deque
from collections.abc import Sequence

from paged.engine.outputs import Completion, Increment
from paged.engine.request import Request
from paged.engine.text import Detokenizer, StopStrings


class Generation:
    """Turns a request's tokens into increments.

    Args:
        index: place of the prompt in its list.
        sample: which of the prompt's samples this is.
        prompt: the prompt's text, None for token ids.
        request: the engine's side.
        detokenizer: None where there is no tokenizer: then all text is "".

    Attributes:
        increments: what came and was not taken yet.
    """

    def __init__(
        self,
        index: int,
        sample: int,
        prompt: str | None,
        request: Request,
        detokenizer: Detokenizer | None,
    ) -> None:
        self.index = index
        self.sample = sample
        self.prompt = prompt
        self.request = request
        self.increments: deque[Increment] = deque()
        self._detokenizer = detokenizer
        self._stop = StopStrings(request.params.stop)
        self._text: list[str] = []
        self._started = time.perf_counter()
        self._first_token_at = self._finished_at = self._started

    def accept(self, token: int, *, is_stop_token: bool) -> bool:
        """Take in the next token; returns whether it completed a stop string.

        The caller ends such a request. A token that ended the request by itself has no text.
        """
        request = self.request
        now = time.perf_counter()
        if len(request.output_token_ids) == 1:
            self._first_token_at = now
        self._finished_at = now
        piece, is_stopped = "", False
        if self._detokenizer is not None:
            added = "" if is_stop_token else self._detokenizer.add(token)
            piece, is_stopped = self._stop.add(added)
            if request.finish_reason and not is_stopped:
                rest, is_stopped = self._stop.add(self._detokenizer.finish())
                piece += rest if is_stopped else rest + self._stop.finish()
        self._text.append(piece)
        reason = "stop" if is_stopped else request.finish_reason
        self.increments.append(Increment(self.index, piece, (token,), reason, self.sample))
        return is_stopped

    @property
    def score(self) -> float:
        """Mean log-probability of its tokens, by which `SamplingParams.best_of` ranks samples."""
        return self.request.logprob / len(self.request.output_token_ids)

    def completion(self) -> Completion:
        """All of it, once the request is finished."""
        request = self.request
        assert request.finish_reason is not None
        ranked = {}
        if request.params.best_of is not None:
            ranked = {"logprob": request.logprob, "score": self.score}
        return Completion(
            text="".join(self._text),
            token_ids=list(request.output_token_ids),
            finish_reason=request.finish_reason,
            stats={
                "seconds_to_first_token": self._first_token_at - self._started,
                "seconds": self._finished_at - self._started,
                "preemptions": request.num_preemptions,
                "cached_tokens": request.num_cached,
                **ranked,
            },
        )


def best(samples: Sequence[Generation]) -> list[Generation]:
    """Those of a prompt's finished samples that its parameters ask to be given back."""
    params = samples[0].request.params
    if params.best_of is None:
        return list(samples)
    # Of equals the first.
    return sorted(samples, key=lambda generation: -generation.score)[: params.n]
