"""The block table: what the kernels read, one row a running sequence."""

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import numpy as np
from jaxtyping import Int32, Integer

from paged.blocks import checks
from paged.blocks.growth import TableChanges
from paged.blocks.pool import NULL_BLOCK

DeviceArray = TypeVar("DeviceArray")


class BlockTable(Generic[DeviceArray]):
    """Rows of block ids, kept on the host and copied to the device when they changed.

    Kernel blocks may be smaller than the manager's, r to one. Everything here counts the manager's
    blocks, except the entries of the rows: manager block b stands there as kernel blocks
    b*r .. b*r + r-1. A slot is the same number in both: b * block_size + offset, and so is the
    null block: entries past a row's end are 0.

    A call that raises has changed nothing.

    Args:
        max_rows: sequences that can run at once.
        max_blocks_per_row: blocks of the longest sequence.
        block_size: tokens per block of the manager.
        device_put: takes an int32 array [num_rows, columns] to the device. It gets an array that
            nothing else writes to, so it may keep it, alias it or copy it later.
        kernel_block_size: tokens per block of the kernel, a divisor of `block_size`; None where
            the two are the same.

    Raises:
        ValueError: an argument out of range, or max_blocks_per_row * block_size of 2**31 or more.
    """

    def __init__(
        self,
        max_rows: int,
        max_blocks_per_row: int,
        block_size: int,
        *,
        device_put: Callable[[np.ndarray], DeviceArray],
        kernel_block_size: int | None = None,
    ) -> None:
        self._max_rows = checks.integer("max_rows", max_rows, at_least=1)
        self._max_blocks = checks.integer("max_blocks_per_row", max_blocks_per_row, at_least=1)
        self._block_size = checks.integer("block_size", block_size, at_least=1)
        checks.slots_fit("max_blocks_per_row", self._max_blocks, self._block_size)
        self._kernel_block_size = self._block_size
        if kernel_block_size is not None:
            self._kernel_block_size = checks.integer(
                "kernel_block_size", kernel_block_size, at_least=1
            )
        if self._block_size % self._kernel_block_size:
            raise ValueError(
                f"kernel_block_size: got {kernel_block_size}, expected a divisor of "
                f"block_size {self._block_size}"
            )
        self._ratio = self._block_size // self._kernel_block_size
        self._device_put = device_put
        columns = self._max_blocks * self._ratio
        self._entries = np.full((self._max_rows, columns), NULL_BLOCK, np.int32)
        self._num_blocks = np.zeros(self._max_rows, np.int64)
        self._committed: tuple[int, DeviceArray] | None = None
        # The lowest row changed since then; max_rows where none was.
        self._lowest_changed = self._max_rows

    @property
    def host(self) -> Int32[np.ndarray, "rows columns"]:
        """All rows as they stand now: a read-only view, max_blocks_per_row * r columns."""
        view = self._entries.view()
        view.flags.writeable = False
        return view

    @property
    def kernel_block_size(self) -> int:
        """Tokens per entry of a row."""
        return self._kernel_block_size

    def num_blocks(self, row: int) -> int:
        """Blocks in a row; 0 where it is empty.

        Raises:
            ValueError: no such row.
        """
        return int(self._num_blocks[self._row("row", row)])

    def add_row(self, row: int, block_ids: Iterable[int]) -> None:
        """Fill an empty row.

        Raises:
            ValueError: as `append_row`, or the row has blocks.
        """
        self._require_empty("row", self._row("row", row))
        self.append_row(row, block_ids)

    def append_row(self, row: int, block_ids: Iterable[int]) -> None:
        """Add blocks at the end of a row.

        Raises:
            ValueError: no such row, more blocks than fit in it, the null block, or an id whose
                slots would not fit int32.
        """
        row = self._row("row", row)
        # Block b needs a pool of at least b + 1 blocks, whose slots have to fit int32.
        most = (checks.MAX_SLOTS - 1) // self._block_size
        blocks = checks.ids("block_ids", block_ids, at_least=NULL_BLOCK + 1, below=most)
        start = int(self._num_blocks[row])
        end = start + len(blocks)
        if end > self._max_blocks:
            raise ValueError(
                f"block_ids: got {len(blocks)} block(s) for row {row}, expected at most "
                f"{self._max_blocks - start}: it has {start} of {self._max_blocks}"
            )
        if not blocks:
            return
        first = np.array(blocks, np.int32)[:, None] * np.int32(self._ratio)
        kernel_blocks = first + np.arange(self._ratio, dtype=np.int32)
        self._entries[row, start * self._ratio : end * self._ratio] = kernel_blocks.reshape(-1)
        self._num_blocks[row] = end
        self._lowest_changed = min(self._lowest_changed, row)

    def follow(self, changes: TableChanges, group: int = 0) -> None:
        """Write the entries that a manager has written to the tables of one of its groups.

        Rows are the manager's. An entry that lies behind a row's end makes the row longer.

        Raises:
            ValueError: a row or a column that the table does not have.
        """
        mine = changes.groups == group
        rows, columns = changes.rows[mine], changes.columns[mine]
        if not rows.size:
            return
        if rows.max() >= self._max_rows or columns.max() >= self._max_blocks:
            raise ValueError(
                f"changes: got row {rows.max()} and column {columns.max()}, expected at most "
                f"{self._max_rows - 1} and {self._max_blocks - 1}"
            )
        inner = np.arange(self._ratio, dtype=np.int32)
        places = columns[:, None] * self._ratio + inner
        self._entries[rows[:, None], places] = changes.blocks[mine, None] * self._ratio + inner
        np.maximum.at(self._num_blocks, rows, columns + 1)
        self._lowest_changed = min(self._lowest_changed, int(rows.min()))

    def move_row(self, src: int, dst: int) -> None:
        """Move a row to an empty one and leave its old place empty.

        To overwrite a row, clear it first: a sequence is then dropped only where the caller says
        so.

        Raises:
            ValueError: no such row, or `dst` has blocks.
        """
        src, dst = self._row("src", src), self._row("dst", dst)
        self._require_empty("dst", dst)
        self._exchange(src, dst)

    def swap_row(self, a: int, b: int) -> None:
        """Exchange two rows; a row may be exchanged with itself or with an empty one.

        Raises:
            ValueError: no such row.
        """
        self._exchange(self._row("a", a), self._row("b", b))

    def clear_row(self, row: int) -> None:
        """Empty a row; one that is empty stays so.

        Raises:
            ValueError: no such row.
        """
        row = self._row("row", row)
        width = int(self._num_blocks[row]) * self._ratio
        if width == 0:
            return
        self._entries[row, :width] = NULL_BLOCK
        self._num_blocks[row] = 0
        self._lowest_changed = min(self._lowest_changed, row)

    def commit(self, num_rows: int) -> DeviceArray:
        """The first `num_rows` rows on the device, copied only if they changed.

        The copy of the last call is kept and returned again while `num_rows` stays the same and
        none of these rows changed. So do not donate it to a computation, nor write to it.

        Returns:
            What `device_put` made of an int32 array [num_rows, columns].

        Raises:
            ValueError: `num_rows` is not an integer between 1 and max_rows.
        """
        num_rows = checks.integer("num_rows", num_rows, at_least=1)
        if num_rows > self._max_rows:
            raise ValueError(f"num_rows: got {num_rows}, expected at most {self._max_rows}")
        last = self._committed
        if last is not None and last[0] == num_rows and self._lowest_changed >= num_rows:
            return last[1]
        # A copy of its own: on a CPU the device array may alias it, elsewhere the transfer may
        # still run when the next change of a row comes.
        copy = self._device_put(self._entries[:num_rows].copy())
        self._committed = (num_rows, copy)
        self._lowest_changed = self._max_rows
        return copy

    def slot_mapping(
        self, rows: Integer[np.ndarray, " tokens"], positions: Integer[np.ndarray, " tokens"]
    ) -> Int32[np.ndarray, " tokens"]:
        """The slot of each token, block * block_size + offset.

        Args:
            rows: [tokens] the row of each token's sequence; negative for padding.
            positions: [tokens] the token's position in its sequence; negative for padding.

        Returns:
            [tokens] int32; -1 for padding, that is, where either is negative.

        Raises:
            ValueError: arrays of other shapes or types, no such row, or a position past the blocks
                of its row.
        """
        rows = _token_array("rows", rows)
        positions = _token_array("positions", positions)
        if rows.shape != positions.shape:
            raise ValueError(
                f"positions: got {positions.size} entries, expected {rows.size}, one for each "
                "entry of rows"
            )
        real = (rows >= 0) & (positions >= 0)
        beyond = real & (rows >= self._max_rows)
        if beyond.any():
            index = int(beyond.argmax())
            raise ValueError(
                f"rows: got {rows[index]} at index {index}, expected at most {self._max_rows - 1}"
            )
        row = np.where(real, rows, 0)
        position = np.where(real, positions, 0)
        limit = self._num_blocks[row] * self._block_size
        past = real & (position >= limit)
        if past.any():
            index = int(past.argmax())
            raise ValueError(
                f"positions: got {position[index]} at index {index}, expected less than "
                f"{limit[index]}: row {row[index]} has {self._num_blocks[row[index]]} block(s) "
                f"of {self._block_size}"
            )
        column, offset = np.divmod(position, self._kernel_block_size)
        slots = self._entries[row, column].astype(np.int64) * self._kernel_block_size + offset
        return np.where(real, slots, -1).astype(np.int32)

    def _row(self, name: str, row: int) -> int:
        number = checks.integer(name, row, at_least=0)
        if number >= self._max_rows:
            raise ValueError(f"{name}: got {number}, expected at most {self._max_rows - 1}")
        return number

    def _require_empty(self, name: str, row: int) -> None:
        if self._num_blocks[row]:
            raise ValueError(
                f"{name}: got {row}, which has {self._num_blocks[row]} block(s), expected an "
                "empty row"
            )

    def _exchange(self, a: int, b: int) -> None:
        width = int(max(self._num_blocks[a], self._num_blocks[b])) * self._ratio
        if a == b or width == 0:
            return
        # The index arrays make copies, so that neither row is read after it was written.
        self._entries[[a, b], :width] = self._entries[[b, a], :width]
        self._num_blocks[[a, b]] = self._num_blocks[[b, a]]
        self._lowest_changed = min(self._lowest_changed, a, b)


def _token_array(name: str, values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name}: got shape {array.shape}, expected one axis, [tokens]")
    # An empty list has no type of its own. uint64 is refused: its large values wrap to padding.
    if array.size and not (array.dtype.kind in "iu" and np.can_cast(array.dtype, np.int64)):
        raise ValueError(f"{name}: got dtype {array.dtype}, expected integers up to int64")
    return array.astype(np.int64)
