"""Two heaps that hand out stretches of slots: what contiguous allocation has instead of blocks."""

import heapq
from bisect import bisect_left, insort
from typing import Protocol


class Heap(Protocol):
    """Hands out stretches of slots that lie side by side.

    Attributes:
        num_slots: all.
        num_free: those that nobody has.
    """

    num_slots: int
    num_free: int

    def size_for(self, length: int) -> int:
        """Slots that a stretch of at least `length` takes."""
        ...

    def fits(self, length: int) -> bool:
        """Whether an empty heap has such a stretch."""
        ...

    def allocate(self, length: int) -> int | None:
        """First slot of a stretch of at least `length`; None where none is free."""
        ...

    def free(self, start: int) -> None:
        """Give a stretch back.

        Raises:
            ValueError: none that was handed out starts there.
        """
        ...


def power_of_two(length: int) -> int:
    """The smallest power of two that is at least `length`."""
    return 1 << (length - 1).bit_length()


class BuddyHeap:
    """A buddy allocator: stretches are powers of two, halved on demand and joined again.

    A heap of another size than a power of two is one of several, the largest first: none of its
    slots is lost, but no stretch is longer than the largest. Of the free stretches of a size the
    one at the lowest address is taken.

    Args:
        num_slots: at least 1.
    """

    def __init__(self, num_slots: int) -> None:
        _at_least_one("num_slots", num_slots)
        self.num_slots = self.num_free = num_slots
        self._longest = 1 << (num_slots.bit_length() - 1)
        # By order: addresses in a heap, where entries that are not in the set are out of date.
        orders = num_slots.bit_length()
        self._queues: list[list[int]] = [[] for _ in range(orders)]
        self._starts: list[set[int]] = [set() for _ in range(orders)]
        self._orders: dict[int, int] = {}
        start = 0
        for order in reversed(range(orders)):
            if num_slots >> order & 1:
                self._put(start, order)
                start += 1 << order

    def size_for(self, length: int) -> int:
        """The next power of two."""
        return power_of_two(length)

    def fits(self, length: int) -> bool:
        """Whether the largest stretch of an empty heap is long enough."""
        return power_of_two(length) <= self._longest

    def allocate(self, length: int) -> int | None:
        """First slot of a power of two; None where no stretch of that size or more is free."""
        _at_least_one("length", length)
        wanted = power_of_two(length).bit_length() - 1
        for order in range(wanted, len(self._starts)):
            if self._starts[order]:
                break
        else:
            return None
        start = self._take_lowest(order)
        for half in reversed(range(wanted, order)):
            self._put(start + (1 << half), half)
        self._orders[start] = wanted
        self.num_free -= 1 << wanted
        return start

    def free(self, start: int) -> None:
        """Give a stretch back, and join it with its buddies as long as they are free."""
        order = self._orders.pop(start, None)
        if order is None:
            raise ValueError(f"start: got {start}, expected the start of a stretch handed out")
        self.num_free += 1 << order
        # Where one of several heaps is whole, its buddy would begin with a smaller one: not free
        # at this size.
        while (buddy := start ^ (1 << order)) in self._starts[order]:
            self._starts[order].remove(buddy)
            start = min(start, buddy)
            order += 1
        self._put(start, order)

    def _put(self, start: int, order: int) -> None:
        self._starts[order].add(start)
        heapq.heappush(self._queues[order], start)

    def _take_lowest(self, order: int) -> int:
        queue, starts = self._queues[order], self._starts[order]
        while True:
            start = heapq.heappop(queue)
            if start in starts:
                starts.remove(start)
                return start


class FirstFitHeap:
    """Stretches of any length, each from the lowest hole that is long enough.

    Args:
        num_slots: at least 1.
    """

    def __init__(self, num_slots: int) -> None:
        _at_least_one("num_slots", num_slots)
        self.num_slots = self.num_free = num_slots
        # (start, end) of the holes, by address; none touches the next.
        self._holes = [(0, num_slots)]
        self._ends: dict[int, int] = {}

    def size_for(self, length: int) -> int:
        """No more than asked for."""
        return length

    def fits(self, length: int) -> bool:
        """Whether the heap has as many slots."""
        return length <= self.num_slots

    def allocate(self, length: int) -> int | None:
        """First slot of a stretch; None where every hole is shorter."""
        _at_least_one("length", length)
        for index, (start, end) in enumerate(self._holes):
            if end - start >= length:
                self._holes[index : index + 1] = (
                    [(start + length, end)] if end - start > length else []
                )
                self._ends[start] = start + length
                self.num_free -= length
                return start
        return None

    def free(self, start: int) -> None:
        """Give a stretch back, and join it with the holes beside it."""
        end = self._ends.pop(start, None)
        if end is None:
            raise ValueError(f"start: got {start}, expected the start of a stretch handed out")
        self.num_free += end - start
        place = bisect_left(self._holes, (start, end))
        if place < len(self._holes) and self._holes[place][0] == end:
            end = self._holes.pop(place)[1]
        if place and self._holes[place - 1][1] == start:
            start = self._holes.pop(place - 1)[0]
        insort(self._holes, (start, end))


HEAPS: dict[str, type[BuddyHeap] | type[FirstFitHeap]] = {
    "buddy": BuddyHeap,
    "first-fit": FirstFitHeap,
}
"""By name."""


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name}: got {value}, expected at least 1")
