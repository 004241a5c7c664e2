"""Copy orders: what has to be copied before the next step, in one call each.

All orders between two calls of `take` happen at one moment, before the step that follows: each
reads what its source held *before any of them*. So an order whose source is itself still to be
filled reads from where that is filled from, and a block that is freed and taken again in between
is no special case.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32

_DEVICE, _HOST = 0, 1

Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Copies:
    """Whole blocks to copy, all at once: read every source before writing.

    Attributes:
        src: [copies] int32.
        dst: [copies] int32, distinct.
    """

    src: Int32[np.ndarray, " copies"]
    dst: Int32[np.ndarray, " copies"]

    def __len__(self) -> int:
        return self.src.size


@dataclass(frozen=True, slots=True)
class CopyOrders:
    """What the backend does before the next step, in this order.

    Attributes:
        swap_out: from device blocks to host blocks.
        on_device: from device blocks to device blocks.
        swap_in: from host blocks to device blocks.
    """

    swap_out: Copies
    on_device: Copies
    swap_in: Copies

    def __len__(self) -> int:
        return len(self.swap_out) + len(self.on_device) + len(self.swap_in)


class PendingCopies:
    """Orders that nobody has taken yet: the place each destination is filled from."""

    __slots__ = ("_source",)

    def __init__(self) -> None:
        self._source: dict[Place, Place] = {}

    def __len__(self) -> int:
        return len(self._source)

    def on_device(self, src: int, dst: int) -> None:
        """Fill a device block from another."""
        self._add((_DEVICE, src), (_DEVICE, dst))

    def swap_out(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Fill host blocks from device blocks: pairs of (device, host)."""
        for src, dst in pairs:
            self._add((_DEVICE, src), (_HOST, dst))

    def swap_in(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Fill device blocks from host blocks: pairs of (host, device)."""
        for src, dst in pairs:
            self._add((_HOST, src), (_DEVICE, dst))

    def comes_from_host(self, block: int) -> bool:
        """Whether a device block is still to be filled from the host."""
        return self._source.get((_DEVICE, block), (_DEVICE, 0))[0] == _HOST

    def take(self) -> CopyOrders:
        """All orders; none is left."""
        taken, self._source = self._source, {}

        def between(src: int, dst: int) -> Copies:
            pairs = [(s[1], d[1]) for d, s in taken.items() if (s[0], d[0]) == (src, dst)]
            columns = np.array(pairs, np.int32).reshape(-1, 2)
            return Copies(columns[:, 0].copy(), columns[:, 1].copy())

        return CopyOrders(
            between(_DEVICE, _HOST), between(_DEVICE, _DEVICE), between(_HOST, _DEVICE)
        )

    def _add(self, src: Place, dst: Place) -> None:
        first = self._source.get(src, src)
        if first == dst:
            # It went away and comes back: what it held is what it shall hold.
            self._source.pop(dst, None)
        else:
            self._source[dst] = first
