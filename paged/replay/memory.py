"""What a policy of memory does for the service, and the words in which waste is counted.

    used      slots that hold a token's K/V; a shared block's tokens count once
    reserved  slots taken, to be used later by the request that took them
    internal  slots taken and never used
    external  slots free, of no use to the request that waits first though enough in all
    idle      the other free ones

They sum to the pool. A step's tokens count from its beginning: it writes first, then attends.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Int64

Slots = Int64[np.ndarray, " running"]
Steps = Int64[np.ndarray, " steps"]


@dataclass(frozen=True, slots=True)
class Held:
    """What the running requests hold during some steps.

    Attributes:
        taken: [steps] slots.
        empty: [steps] those of them that hold no token.
        internal: [steps] those of the empty ones that never will.
    """

    taken: Steps
    empty: Steps
    internal: Steps


class Memory(Protocol):
    """A pool of slots and a way to hand them out to requests.

    Requests are named by their place in the trace. `slots` has how many tokens of each running one
    have K/V, and `finals` how many will have at its end.

    Attributes:
        name: of the policy.
        pool_slots: slots that requests can have.
        refused_slots: free slots that the last refused admission would have taken.
    """

    name: str
    pool_slots: int
    refused_slots: int

    @property
    def block_size(self) -> int | None:
        """Tokens per block; None where there are no blocks."""
        ...

    @property
    def num_free(self) -> int:
        """Slots that no request has."""
        ...

    def refusal(self, request: int) -> str | None:
        """Why a request can not even have the whole pool; None where it can."""
        ...

    def admit(self, request: int, num_tokens: int) -> int | None:
        """Take what a request needs to compute its first `num_tokens` tokens.

        Returns:
            How many of them are cached; None where there is no room, and nothing has changed.
        """
        ...

    def reach(self, slots: Slots, most: int) -> int:
        """For how many steps, up to `most`, every running request can have a slot more."""
        ...

    def grow(self, requests: Int64[np.ndarray, " running"], steps: int) -> None:
        """Give each running request that many slots more; `reach` said that it can be done."""
        ...

    def release(self, request: int) -> None:
        """Take back what a request has."""
        ...

    def held(self, slots: Slots, finals: Slots, ahead: Steps) -> Held:
        """What running requests hold in steps to come, if each of them brings each a token more.

        Args:
            slots: [running] tokens that have K/V now.
            finals: [running] those that will have at the end.
            ahead: [steps] which steps, in a row: 0 is now, 1 the next.
        """
        ...
