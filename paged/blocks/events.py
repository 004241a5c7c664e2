"""Events: the history of the hash index, for routers and caches elsewhere that mirror it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Blocks whose contents can be asked for from now on.

    Attributes:
        group: number of the group whose blocks they are.
        digests: in the order of the sequence.
        block_ids: the block of each.
    """

    group: int
    digests: tuple[bytes, ...]
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Digests that no block stands for any more.

    Attributes:
        group: number of the group whose blocks they were.
        digests: in the order in which their blocks are reused.
    """

    group: int
    digests: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class AllCleared:
    """The index is empty."""


Event = BlocksStored | BlocksRemoved | AllCleared


class EventLog:
    """Events since they were last taken; keeps none unless it is on."""

    __slots__ = ("_events", "is_on")

    def __init__(self, is_on: bool) -> None:
        self.is_on = is_on
        self._events: list[Event] = []

    def add(self, event: Event) -> None:
        """Note an event."""
        if self.is_on:
            self._events.append(event)

    def take(self) -> list[Event]:
        """The events since the last call, oldest first."""
        taken, self._events = self._events, []
        return taken

    def __len__(self) -> int:
        return len(self._events)
