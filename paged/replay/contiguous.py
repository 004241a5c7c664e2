"""Contiguous allocation: all slots that a request may ever use lie side by side, from its start.

How many these are is known at best by an oracle. The three guesses are those of Kwon et al.,
"Efficient Memory Management for Large Language Model Serving with PagedAttention" (SOSP 2023),
section 6.1, baselines Orca (Max), (Pow2) and (Oracle):

    max     the longest that the service accepts, whatever the request
    pow2    the prompt, and the next power of two of the tokens that will be generated
    oracle  exactly what the request will use
"""

import numpy as np
from jaxtyping import Int64

from paged.replay.heaps import HEAPS, power_of_two
from paged.replay.memory import Held, Slots, Steps
from paged.replay.trace import Trace

GUESSES = ("max", "pow2", "oracle")
"""What a request is thought to need, from the most to the least."""


def reservation(guess: str, prompt: int, output: int, max_len: int) -> int:
    """Slots that a request of `prompt` and `output` tokens reserves.

    The last token that is generated needs none: no query reads its K/V.

    Args:
        guess: one of `GUESSES`.
        prompt: tokens of its prompt.
        output: tokens that it will generate.
        max_len: slots of the longest request that the service accepts.
    """
    if guess == "max":
        return max_len
    if guess == "pow2":
        # No guess goes beyond what the service accepts.
        return min(prompt + power_of_two(output) - 1, max_len)
    return prompt + output - 1


class Contiguous:
    """Stretches of slots from a heap; see `Memory`. No request is ever preempted.

    Args:
        trace: the requests.
        pool_slots: slots of the pool.
        guess: one of `GUESSES`.
        max_len: as for `reservation`.
        heap: one of `HEAPS`: what it rounds up to is internal waste.

    Raises:
        ValueError: an unknown guess or heap, or a pool without slots.
    """

    block_size = None

    def __init__(
        self, trace: Trace, pool_slots: int, guess: str, *, max_len: int, heap: str = "buddy"
    ) -> None:
        if guess not in GUESSES:
            raise ValueError(f"policy: got {guess!r}, expected one of {', '.join(GUESSES)}")
        if heap not in HEAPS:
            raise ValueError(f"heap: got {heap!r}, expected one of {', '.join(HEAPS)}")
        self.name = guess
        self.pool_slots = pool_slots
        self.refused_slots = 0
        self._heap = HEAPS[heap](pool_slots)
        self._reservations = [
            reservation(guess, prompt, output, max_len)
            for prompt, output in zip(trace.prompts.tolist(), trace.outputs.tolist(), strict=True)
        ]
        self._finals = trace.finals
        self._starts: dict[int, int] = {}
        self._taken = self._internal = 0

    @property
    def num_free(self) -> int:
        """Slots that no request has."""
        return self._heap.num_free

    def refusal(self, request: int) -> str | None:
        """Where the reservation, rounded as the heap does, is longer than its longest stretch."""
        if self._heap.fits(self._reservations[request]):
            return None
        return f"policy {self.name} needs {self._size(request)} slots side by side for it"

    def admit(self, request: int, num_tokens: int) -> int | None:
        """Reserve, whatever the request knows of its tokens; nothing is ever cached."""
        start = self._heap.allocate(self._reservations[request])
        if start is None:
            self.refused_slots = self._size(request)
            return None
        self._starts[request] = start
        self._add(request, 1)
        return 0

    def reach(self, slots: Slots, most: int) -> int:
        """As far as wanted: all was reserved."""
        return most

    def grow(self, requests: Int64[np.ndarray, " running"], steps: int) -> None:
        """Nothing to do."""

    def release(self, request: int) -> None:
        """Give a stretch back."""
        self._heap.free(self._starts.pop(request))
        self._add(request, -1)

    def held(self, slots: Slots, finals: Slots, ahead: Steps) -> Held:
        """What is taken stays, and fills by a token a step for each request."""
        return Held(
            np.full(ahead.size, self._taken),
            self._taken - slots.sum() - slots.size * ahead,
            np.full(ahead.size, self._internal),
        )

    def _add(self, request: int, times: int) -> None:
        size = self._size(request)
        self._taken += times * size
        self._internal += times * (size - int(self._finals[request]))

    def _size(self, request: int) -> int:
        return self._heap.size_for(self._reservations[request])
