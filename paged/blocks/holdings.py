"""What each request holds: its tables, its chain, and a row of numbers for the batch."""

from array import array
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int32, Int64

from paged.blocks import checks
from paged.blocks.hashing import Prompt
from paged.blocks.pool import Blocks

_FIRST_ROWS = 16


@dataclass(slots=True, eq=False)
class Holding:
    """One request. Blocks are only ever added at the end, or taken from it again unread.

    Attributes:
        request_id: whose it is.
        row: its row in `Rows`; -1 while it is swapped out.
        tables: for each group the blocks in the order of the tokens.
        released: for each group how many leading entries are the null block.
        prompt: the tokens it came with; None where nobody said.
        digests: its chain, as far as its tokens are known.
        contents: what of each was hashed; empty where nobody will ask.
        num_entered: leading digests that are entered among the preimages, the last one pinned.
        is_collided: whether a digest of its chain stands for something else: nothing more of it
            is cached.
    """

    request_id: Hashable
    row: int
    tables: list[array]
    released: list[int]
    prompt: Prompt | None = None
    digests: list[bytes] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)
    num_entered: int = 0
    is_collided: bool = False

    def blocks(self, group: int, start: int, end: int | None = None) -> Blocks:
        """Blocks of a stretch of a table, as an array of its own."""
        return np.array(self.tables[group][start:end], np.int32)

    def held(self) -> Blocks:
        """All blocks, group by group, each in the order of its tokens."""
        kept = [self.blocks(g, released) for g, released in enumerate(self.released)]
        return kept[0] if len(kept) == 1 else np.concatenate(kept)


class Rows:
    """A row of numbers for each request that holds blocks; rows are used again.

    Attributes:
        num_tokens: tokens that have slots, drafts included.
        num_drafts: how many of them, the last ones, are drafts.
        limit: tokens below which an append needs no new block, no copy and no release.
        committed: tokens whose ids are known and computed, from the first on.
        tail: the ids of those that fill no unit of the hash yet.
        holdings: the request of each row.
    """

    __slots__ = (
        "_free",
        "_mark",
        "committed",
        "holdings",
        "limit",
        "num_drafts",
        "num_tokens",
        "tail",
    )

    def __init__(self, unit: int) -> None:
        self.num_tokens: Int64[np.ndarray, " rows"] = np.zeros(0, np.int64)
        self.num_drafts: Int64[np.ndarray, " rows"] = np.zeros(0, np.int64)
        self.limit: Int64[np.ndarray, " rows"] = np.zeros(0, np.int64)
        self.committed: Int64[np.ndarray, " rows"] = np.zeros(0, np.int64)
        self.tail: Int32[np.ndarray, "rows unit"] = np.zeros((0, unit), np.int32)
        self.holdings: list[Holding | None] = []
        self._mark = np.zeros(0, np.int64)
        self._free: list[int] = []

    def take(self) -> int:
        """An empty row."""
        if not self._free:
            self._grow()
        return self._free.pop()

    def take_again(self, row: int) -> int:
        """A certain empty row, of a state that was saved.

        Raises:
            ValueError: it is in use.
        """
        while row >= len(self.holdings):
            self._grow()
        if self.holdings[row] is not None:
            raise ValueError(f"row: got {row}, which another request has")
        self._free.remove(row)
        return row

    def give_back(self, row: int) -> None:
        """Empty a row."""
        self.num_tokens[row] = self.num_drafts[row] = self.limit[row] = self.committed[row] = 0
        self.holdings[row] = None
        self._free.append(row)

    def checked(
        self, rows: Int64[np.ndarray, " batch"]
    ) -> tuple[Int64[np.ndarray, " batch"], Int64[np.ndarray, " batch"]]:
        """Rows of a batch, distinct and there, and the tokens of each: 0 where no request has it.

        Raises:
            ValueError: an array of another kind, a row that is not there, or one named twice.
        """
        rows = np.asarray(rows)
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            raise ValueError(
                f"rows: got shape {rows.shape} of {rows.dtype}, expected one axis of integers"
            )
        rows = rows.astype(np.int64, copy=False)
        if not rows.size:
            return rows, rows
        if checks.largest(rows) >= len(self.holdings):
            raise ValueError(
                f"rows: got {rows.min()} to {rows.max()}, expected rows that `row` gave"
            )
        num_tokens = self.num_tokens[rows]
        # Of a row that is named twice only the last place stays.
        places = np.arange(rows.size)
        self._mark[rows] = places
        if np.count_nonzero(self._mark[rows] == places) < rows.size:
            twice = rows[(self._mark[rows] != places).argmax()]
            raise ValueError(f"rows: got {twice} more than once, expected distinct rows")
        return rows, num_tokens

    def at(self, rows: Int64[np.ndarray, " batch"]) -> list[Holding]:
        """The requests of some rows.

        Raises:
            ValueError: a row that no request has.
        """
        found = []
        for row in rows.tolist():
            holding = self.holdings[row]
            if holding is None:
                raise ValueError(f"rows: got {row}, which no request has")
            found.append(holding)
        return found

    def _grow(self) -> None:
        before = len(self.holdings)
        after = max(_FIRST_ROWS, 2 * before)
        for name in ("num_tokens", "num_drafts", "limit", "committed", "_mark", "tail"):
            old = getattr(self, name)
            new = np.zeros((after, *old.shape[1:]), old.dtype)
            new[:before] = old
            setattr(self, name, new)
        self.holdings += [None] * (after - before)
        self._free += reversed(range(before, after))
