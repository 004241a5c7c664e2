"""What a block manager is, to be tested: this project's own is a subject like any other."""

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class Manager(Protocol):
    """Gives blocks of one pool to requests.

    A call that cannot be served raises an exception, whichever, and has changed nothing. Optional
    attribute: `features`, the words of `ManagerCase.needs` that the manager has; none by default.
    What each word stands for, as calls, is in the procedures of the cases that need it.
    """

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no request holds; the null block is none of them."""
        ...

    def fits(self, num_tokens: int) -> bool:
        """Whether the pool, if all of it were free, would hold that many tokens."""
        ...

    def can_allocate(self, num_tokens: int) -> bool:
        """Whether `allocate_slots` for a new request would succeed now."""
        ...

    def can_append(self, request_id: Hashable, num_tokens: int = 1) -> bool:
        """Whether `append_slots` would succeed now."""
        ...

    def allocate_slots(self, request_id: Hashable, num_tokens: int) -> Sequence[int]:
        """Blocks for a new request's first tokens; returns their ids."""
        ...

    def append_slots(self, request_id: Hashable, num_tokens: int = 1) -> Sequence[int]:
        """Room for a request's next tokens; returns the ids of blocks that were added."""
        ...

    def free(self, request_id: Hashable) -> None:
        """Gives back all that a request holds."""
        ...

    def block_ids(self, request_id: Hashable) -> Sequence[int]:
        """A request's blocks, in the order of its tokens."""
        ...


ManagerFactory = Callable[[int, int], Manager]
"""Makes a manager of `(num_blocks, block_size)`; num_blocks counts the null block too."""
