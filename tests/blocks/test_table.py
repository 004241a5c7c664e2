import numpy as np
import pytest

from paged.blocks import BlockTable, TableChanges


class Device:
    """Stands for a device: counts copies, and keeps what it got without copying, as a CPU may."""

    def __init__(self):
        self.copies = 0

    def put(self, rows):
        assert rows.dtype == np.int32
        self.copies += 1
        return rows


def make(max_rows=4, max_blocks_per_row=3, block_size=4, **kwargs):
    kwargs.setdefault("device_put", Device().put)
    return BlockTable(max_rows, max_blocks_per_row, block_size, **kwargs)


def state(table):
    return (
        table.host.tolist(),
        [table.num_blocks(row) for row in range(len(table.host))],
        table._lowest_changed,
    )


def test_by_hand():
    # 25, 47 and 12 tokens at 16 a block.
    table = make(max_rows=4, max_blocks_per_row=4, block_size=16)
    table.add_row(0, [1, 2])
    table.add_row(1, [3, 4, 5])
    table.add_row(2, [6])
    assert table.host.tolist() == [[1, 2, 0, 0], [3, 4, 5, 0], [6, 0, 0, 0], [0, 0, 0, 0]]
    assert table.host.dtype == np.int32
    assert [table.num_blocks(row) for row in range(4)] == [2, 3, 1, 0]
    # The last token of each: 1*16 + 8 of block 2, 46 = 2*16 + 14 of block 5, 11 of block 6.
    slots = table.slot_mapping(np.array([0, 1, 2]), np.array([24, 46, 11]))
    assert slots.tolist() == [2 * 16 + 8, 5 * 16 + 14, 6 * 16 + 11]
    assert slots.dtype == np.int32
    table.append_row(1, [7])
    assert table.host[1].tolist() == [3, 4, 5, 7]
    assert table.commit(2).tolist() == [[1, 2, 0, 0], [3, 4, 5, 7]]


def test_kernel_blocks_by_hand():
    # Blocks of 32 over kernel blocks of 16: block b is kernel blocks 2b and 2b+1.
    table = make(max_blocks_per_row=3, block_size=32, kernel_block_size=16)
    assert table.kernel_block_size == 16
    table.add_row(1, [5, 2])
    table.append_row(1, [7])
    assert table.host[1].tolist() == [10, 11, 4, 5, 14, 15]
    assert table.num_blocks(1) == 3
    # The slot is the same as in blocks of 32.
    positions = np.array([0, 15, 16, 31, 32, 48, 95])
    wanted = [5 * 32, 5 * 32 + 15, 5 * 32 + 16, 5 * 32 + 31, 2 * 32, 2 * 32 + 16, 7 * 32 + 31]
    assert table.slot_mapping(np.full(7, 1), positions).tolist() == wanted
    table.clear_row(1)
    assert table.host.max() == 0
    table.add_row(1, [5])
    with pytest.raises(ValueError, match=r"got 32 at index 0, expected less than 32: row 1 has 1"):
        table.slot_mapping(np.array([1]), np.array([32]))


def test_rows_follow_a_manager():
    table = make(block_size=4, kernel_block_size=2)
    table.add_row(0, [5])
    table.add_row(2, [5, 6])
    table.commit(4)
    # Row 2's last block is replaced by a copy and one added; the other entry is another group's.
    changes = TableChanges.of([(2, 0, 1, 7), (2, 0, 2, 8), (0, 1, 0, 9), (0, 0, 1, 3)])
    table.follow(changes)
    assert table.host.tolist() == [
        [10, 11, 6, 7, 0, 0],
        [0] * 6,
        [10, 11, 14, 15, 16, 17],
        [0] * 6,
    ]
    assert [table.num_blocks(row) for row in range(4)] == [2, 0, 3, 0]
    assert table.commit(4).tolist() == table.host.tolist()
    table.follow(changes, group=1)
    assert table.host[0].tolist() == [18, 19, 6, 7, 0, 0]
    before = state(table)
    table.follow(TableChanges.of(()))
    for change in ((4, 0, 0, 1), (0, 0, 3, 1)):
        with pytest.raises(ValueError, match="expected at most 3 and 2"):
            table.follow(TableChanges.of([change]))
    assert state(table) == before


def test_rows_move_swap_and_clear():
    table = make()
    table.add_row(0, [1, 2, 3])
    table.add_row(1, [4])
    table.move_row(0, 3)
    assert table.host.tolist() == [[0, 0, 0], [4, 0, 0], [0, 0, 0], [1, 2, 3]]
    assert [table.num_blocks(row) for row in range(4)] == [0, 1, 0, 3]
    table.swap_row(1, 3)
    assert table.host.tolist() == [[0, 0, 0], [1, 2, 3], [0, 0, 0], [4, 0, 0]]
    table.swap_row(2, 1)  # with an empty one
    table.swap_row(3, 3)
    assert table.host.tolist() == [[0, 0, 0], [0, 0, 0], [1, 2, 3], [4, 0, 0]]
    table.clear_row(2)
    assert table.host.tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 0], [4, 0, 0]]
    assert [table.num_blocks(row) for row in range(4)] == [0, 0, 0, 1]
    table.add_row(2, [9])
    assert table.host[2].tolist() == [9, 0, 0]


def test_host_is_a_live_view_that_cannot_be_written():
    table = make()
    host = table.host
    table.add_row(0, [5])
    assert host[0, 0] == 5
    with pytest.raises(ValueError, match="read-only"):
        host[0, 0] = 7


def test_commit_copies_only_what_changed():
    device = Device()
    table = make(device_put=device.put)
    table.add_row(0, [1])
    first = table.commit(2)
    assert table.commit(2) is first
    table.add_row(2, [5])  # not among the rows committed, nor are the next two
    table.clear_row(2)
    table.add_row(3, [2])
    table.clear_row(1)  # was empty
    table.append_row(0, [])
    table.swap_row(0, 0)
    table.swap_row(1, 2)  # both empty
    assert table.commit(2) is first
    assert device.copies == 1

    for copies, change in enumerate(
        [
            lambda: table.append_row(0, [3]),
            lambda: table.move_row(0, 1),
            lambda: table.swap_row(0, 1),
            lambda: table.move_row(0, 2),
            lambda: table.swap_row(3, 1),
            lambda: table.clear_row(1),
            lambda: table.add_row(1, [4]),
        ],
        start=2,
    ):
        change()
        assert table.commit(2).tolist() == table.host[:2].tolist()
        assert device.copies == copies
        table.commit(2)
        assert device.copies == copies


def test_commit_of_other_rows_than_last_time():
    table = make()
    table.add_row(0, [1])
    table.commit(4)
    table.add_row(3, [2])
    assert table.commit(1).shape == (1, 3)
    assert table.commit(4)[3].tolist() == [2, 0, 0]


def test_a_committed_copy_does_not_change_with_the_table():
    table = make()
    table.add_row(0, [1])
    copy = table.commit(1)
    table.append_row(0, [2])
    assert copy.tolist() == [[1, 0, 0]]


def test_a_failed_copy_is_made_up_for():
    def put(rows):
        if failing:
            raise RuntimeError("no device")
        return rows

    table = make(device_put=put)
    failing = False
    table.commit(1)
    table.add_row(0, [1])
    failing = True
    with pytest.raises(RuntimeError, match="no device"):
        table.commit(1)
    failing = False
    assert table.commit(1).tolist() == [[1, 0, 0]]


def test_padding_tokens_have_no_slot():
    table = make()
    table.add_row(1, [7])
    rows = np.array([1, -1, 1, -1, 1], np.int32)
    positions = np.array([3, 0, -1, 10_000, 0], np.int32)
    assert table.slot_mapping(rows, positions).tolist() == [31, -1, -1, -1, 28]
    # A padding position excuses its row, whatever that says.
    assert table.slot_mapping(np.array([99]), np.array([-1])).tolist() == [-1]
    empty = table.slot_mapping(np.array([], np.int32), np.array([], np.int32))
    assert (empty.shape, empty.dtype) == ((0,), np.int32)


@pytest.mark.parametrize(
    ("rows", "positions", "message"),
    [
        ([0, 1], [7, 4], r"positions: got 4 at index 1, expected less than 4: row 1 has 1 block"),
        ([0, 0], [7, 8], r"positions: got 8 at index 1, expected less than 8: row 0 has 2 block"),
        ([-1, 2], [0, 0], r"positions: got 0 at index 1, expected less than 0: row 2 has 0 block"),
        ([0], [2**40], r"positions: got 1099511627776 at index 0, expected less than 8"),
        ([0, 4], [0, 0], "rows: got 4 at index 1, expected at most 3"),
        ([0, 1], [0], "positions: got 1 entries, expected 2"),
        ([[0]], [[0]], r"rows: got shape \(1, 1\), expected one axis"),
        ([0], 0, r"positions: got shape \(\), expected one axis"),
        ([0], [0.0], "positions: got dtype float64, expected integers"),
        ([False], [0], "rows: got dtype bool, expected integers"),
        (np.array([0]), np.array([2**64 - 1], np.uint64), "positions: got dtype uint64"),
    ],
)
def test_slot_mapping_refuses(rows, positions, message):
    table = make()
    table.add_row(0, [1, 2])
    table.add_row(1, [3])
    with pytest.raises(ValueError, match=message):
        table.slot_mapping(rows, positions)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t.add_row(0, [3]), r"row: got 0, which has 2 block\(s\), expected an empty row"),
        (lambda t: t.add_row(0, []), "row: got 0, which has 2"),
        (lambda t: t.add_row(4, [3]), "row: got 4, expected at most 3"),
        (lambda t: t.add_row(-1, [3]), "row: got -1, expected an integer of at least 0"),
        (lambda t: t.add_row(1, [3, 4, 5, 6]), "got 4 block.* for row 1, expected at most 3: it"),
        (lambda t: t.append_row(0, [3, 4]), "got 2 block.* for row 0, expected at most 1: it has"),
        (lambda t: t.append_row(0, [0]), "block_ids: got 0 at index 0, .* at least 1"),
        (lambda t: t.add_row(1, [3, -1]), "block_ids: got -1 at index 1"),
        (lambda t: t.add_row(1, [3, 1.5]), r"block_ids: got 1\.5 at index 1"),
        (lambda t: t.add_row(1, [2**29 - 1]), "got 536870911 at index 0, .* at most 536870910"),
        (lambda t: t.add_row(1, 3), "block_ids: got 3, expected a sequence"),
        (lambda t: t.append_row("0", [3]), "row: got '0', expected an integer"),
        (lambda t: t.move_row(3, 0), r"dst: got 0, which has 2 block\(s\), expected an empty row"),
        (lambda t: t.move_row(0, 0), "dst: got 0, which has 2"),
        (lambda t: t.move_row(4, 1), "src: got 4, expected at most 3"),
        (lambda t: t.move_row(0, -1), "dst: got -1, expected an integer of at least 0"),
        (lambda t: t.swap_row(4, 0), "a: got 4, expected at most 3"),
        (lambda t: t.swap_row(0, 4), "b: got 4, expected at most 3"),
        (lambda t: t.clear_row(-1), "row: got -1"),
        (lambda t: t.num_blocks(4), "row: got 4, expected at most 3"),
        (lambda t: t.commit(0), "num_rows: got 0, expected an integer of at least 1"),
        (lambda t: t.commit(5), "num_rows: got 5, expected at most 4"),
    ],
)
def test_bad_calls_change_nothing(call, message):
    table = make()
    table.add_row(0, [1, 2])
    table.commit(4)
    before = state(table)
    with pytest.raises(ValueError, match=message):
        call(table)
    assert state(table) == before


def test_the_largest_block_has_slots_that_fit():
    table = make()  # 4 tokens a block, so blocks up to 2**29 - 2
    table.add_row(0, [2**29 - 2])
    assert table.slot_mapping(np.array([0]), np.array([3])).tolist() == [2**31 - 5]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"max_rows": 0}, "max_rows: got 0"),
        ({"max_blocks_per_row": -1}, "max_blocks_per_row: got -1"),
        ({"block_size": 2.0}, r"block_size: got 2\.0"),
        ({"kernel_block_size": 0}, "kernel_block_size: got 0, expected an integer of at least 1"),
        ({"kernel_block_size": 3}, "kernel_block_size: got 3, expected a divisor of block_size 4"),
        ({"kernel_block_size": 8}, "kernel_block_size: got 8, expected a divisor of block_size 4"),
        (
            {"max_blocks_per_row": 2**29},
            "max_blocks_per_row: got 536870912 with block_size 4, expected at most 536870911",
        ),
    ],
)
def test_bad_tables_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        make(**kwargs)
