"""Groups: kinds of layers that keep different tokens, all drawing on one pool.

What sets a kind apart is one number: the first position that a query still reads. Which blocks can
go, and which blocks a hit needs, follow from it.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from paged.blocks import checks

Kind = Literal["full", "latent", "window", "chunked"]


@dataclass(frozen=True, slots=True)
class Group:
    """Layers whose tokens share a block table.

    Attributes:
        block_size: tokens per block.
        kind: "full" and "latent" (MLA) read every token before; "window" the last `size` tokens,
            its own included; "chunked" those from the last multiple of `size` on.
        size: tokens of the window or chunk; None for the kinds that read all.

    Raises:
        ValueError: an unknown kind, or a size that its kind does not take.
    """

    block_size: int
    kind: Kind = "full"
    size: int | None = None

    def __post_init__(self) -> None:
        checks.integer("block_size", self.block_size, at_least=1)
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind: got {self.kind!r}, expected one of {get_args(Kind)}")
        if self.kind in ("window", "chunked"):
            checks.integer("size", self.size, at_least=1)
        elif self.size is not None:
            raise ValueError(f"size: got {self.size!r} for kind {self.kind!r}, expected None")

    def first_read(self, position: int) -> int:
        """The first position that the query at `position` reads."""
        if self.size is None:
            return 0
        if self.kind == "window":
            return max(0, position - self.size + 1)
        return position // self.size * self.size

    def first_block(self, position: int) -> int:
        """The first block that the query at `position` reads; those before may go."""
        return self.first_read(position) // self.block_size

    def next_release(self, num_released: int) -> float:
        """The first position whose query does not read block `num_released` any more."""
        end = (num_released + 1) * self.block_size
        if self.size is None:
            return math.inf
        if self.kind == "window":
            return end + self.size - 1
        return -(-end // self.size) * self.size

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens fill, the last one perhaps in part."""
        return -(-num_tokens // self.block_size)

    def peak_blocks(self, num_tokens: int, chunk: int | None, hit: int = 0) -> int:
        """The most blocks that a request of `num_tokens` tokens holds at once.

        Args:
            num_tokens: its tokens at its end.
            chunk: tokens that get their slots at once; None for all of them.
            hit: tokens that it starts from.
        """
        blocks = self.num_blocks(num_tokens) - self.first_block(hit)
        if self.size is None or chunk is None:
            return blocks
        # A chunk gets its blocks before what only the chunk before it read goes; and a block may
        # be cut off at either end.
        return min(blocks, self.num_blocks(self.size - 1 + 2 * chunk) + 1)

    def longest_hit(self, limit: int, step: int, is_cached: Callable[[int], bool]) -> int:
        """The longest prefix of at most `limit` tokens, a multiple of `step`, that can be taken
        over: every block that its next token reads is cached.

        Args:
            limit: a multiple of `step`.
            step: a multiple of the block size.
            is_cached: whether the block of that index is.
        """
        if self.size is None:
            count = 0
            while count * self.block_size < limit and is_cached(count):
                count += 1
            return count * self.block_size // step * step
        end = limit
        block = end // self.block_size - 1
        while end:
            while block >= self.first_block(end) and is_cached(block):
                block -= 1
            if block < self.first_block(end):
                return end
            # The hit has to end before the block that is missing, and starts anew from there.
            end = block * self.block_size // step * step
            block = end // self.block_size - 1
        return 0

    def as_json(self) -> dict[str, Any]:
        """The arguments that make it again."""
        return asdict(self)


def as_groups(
    block_size: int, groups: Sequence[Group | Mapping[str, Any]] | None
) -> tuple[Group, ...]:
    """Groups as given, as mappings of their arguments, or one of full attention.

    Raises:
        ValueError: no group, or one that is none.
    """
    if groups is None:
        return (Group(block_size),)
    if not isinstance(groups, Iterable):
        raise ValueError(f"groups: got {groups!r}, expected a sequence of them")
    made, known = [], [field.name for field in fields(Group)]
    for given in groups:
        if not isinstance(given, Group | Mapping):
            raise ValueError(f"groups: got {given!r}, expected a Group or its arguments")
        if isinstance(given, Mapping) and not set(given) <= set(known):
            raise ValueError(f"groups: got {given!r}, expected no arguments but {known}")
        made.append(
            given if isinstance(given, Group) else Group(**{"block_size": block_size, **given})
        )
    if not 1 <= len(made) <= 127:
        raise ValueError(f"groups: got {len(made)}, expected 1 to 127")
    return tuple(made)


def common_hit(limit: int, groups: Sequence[Group], is_cached: Callable[[int, int], bool]) -> int:
    """The longest prefix of at most `limit` tokens that every group can take over.

    A group that needs less than the whole prefix may accept one length and refuse a shorter one, so
    one pass over the groups does not do: it is repeated until all agree.

    Args:
        limit: tokens.
        groups: the groups.
        is_cached: (group, index of a block) -> whether it is.

    Returns:
        A multiple of every group's block size.
    """
    step = math.lcm(*(group.block_size for group in groups))
    length = limit // step * step
    while length:
        before = length
        for number, group in enumerate(groups):
            length = group.longest_hit(length, step, lambda block, g=number: is_cached(g, block))
        if length == before:
            break
    return length
