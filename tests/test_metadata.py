"""The contract's fields, and the builder that fills them."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged import AttentionMetadata, Buckets, MetadataBuilder
from paged.metadata import NO_SLOT, NULL_BLOCK

SMALL = Buckets(min_seqs=4, min_tokens=8, min_blocks=2)


def worked_step():
    """Five requests over blocks of 4: two decodes, two prefills, a chunk with history."""
    block_table = np.array(
        [
            [7, 2, 9, 0],  # row 0: 6 tokens cached, 3 new: a chunk with history
            [5, 0, 0, 0],  # row 1: nothing cached, 3 new: a prefill
            [3, 8, 0, 0],  # row 2: 4 cached, 1 new: a decode that opens a block
            [1, 0, 0, 0],  # row 3: nothing cached, 1 new: one token counts as a decode
            [6, 4, 0, 0],  # row 4: not scheduled
            [10, 11, 0, 0],  # row 5: nothing cached, 5 new: a prefill
        ],
        np.int32,
    )
    num_computed = np.array([6, 0, 4, 0, 5, 0])
    requests = [(0, 3), (1, 3), (2, 1), (3, 1), (5, 5)]
    builder = MetadataBuilder(4, buckets=SMALL)
    return builder.build(requests, block_table=block_table, num_computed=num_computed)


def test_a_mixed_step_by_hand():
    step = worked_step()
    m = step.metadata
    # Decodes (rows 2 and 3), prefills (1 and 5), the rest (0); then three rows of padding.
    assert step.order.tolist() == [2, 3, 1, 4, 0]
    assert m.distribution.tolist() == [2, 4, 5]
    assert m.seq_lens.tolist() == [5, 1, 3, 5, 9, 0, 0, 0]
    assert m.query_start_loc.tolist() == [0, 1, 2, 5, 10, 13, 13, 13, 13]
    # 9 tokens in blocks of 4 need 3, which the buckets 2, 8, ... make 8.
    assert m.block_table.shape == (8, 8)
    assert m.block_table[:5, :4].tolist() == [
        [3, 8, 0, 0],
        [1, 0, 0, 0],
        [5, 0, 0, 0],
        [10, 11, 0, 0],
        [7, 2, 9, 0],
    ]
    assert not m.block_table[5:].any()
    assert m.slot_mapping.tolist() == [
        32,  # row 2 at position 4: block 8, offset 0
        4,  # row 3 at position 0: block 1
        *(20, 21, 22),  # row 1 at 0, 1, 2: block 5
        *(40, 41, 42, 43, 44),  # row 5 at 0 to 4: blocks 10 and 11
        *(10, 11, 36),  # row 0 at 6, 7, 8: block 2, then block 9
        *(-1, -1, -1),
    ]
    assert step.positions.tolist() == [4, 0, 0, 1, 2, 0, 1, 2, 3, 4, 6, 7, 8, 0, 0, 0]
    assert step.token_rows.tolist() == [2, 3, 1, 1, 1, 5, 5, 5, 5, 5, 0, 0, 0, -1, -1, -1]
    assert step.last_tokens.tolist() == [0, 1, 4, 9, 12, 0, 0, 0]
    assert (m.max_query_len, m.max_seq_len) == (8, 32)
    assert (m.num_seqs, m.num_tokens) == (8, 16)
    m.validate(block_size=4, num_blocks=12)


def test_a_step_of_decodes_has_one_row_and_one_token_each():
    table = np.arange(1, 7, dtype=np.int32).reshape(3, 2)
    step = MetadataBuilder(4, buckets=SMALL).build(
        [(2, 1), (0, 1)], block_table=table, num_computed=np.array([3, 0, 4])
    )
    m = step.metadata
    assert (m.num_seqs, m.num_tokens, m.max_query_len) == (4, 4, 1)
    assert m.distribution.tolist() == [2, 2, 2]
    assert m.slot_mapping.tolist() == [24, 7, -1, -1]


@st.composite
def steps(draw):
    """Block size, table, cached tokens and requests of a step that a scheduler might make."""
    block_size = draw(st.integers(1, 9))
    width = draw(st.integers(1, 12))
    capacity = block_size * width
    rows = draw(st.integers(1, 7))
    num_computed = np.array(draw(st.lists(st.integers(0, capacity), min_size=rows, max_size=rows)))
    scheduled = draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=rows, unique=True))
    requests = [
        (row, draw(st.integers(1, min(capacity - int(num_computed[row]), 20))))
        for row in scheduled
        if num_computed[row] < capacity
    ]
    if not requests:
        num_computed[scheduled[0]] = 0
        requests = [(scheduled[0], 1)]
    blocks = draw(st.permutations(range(1, rows * width + 1)))
    table = np.array(blocks, np.int32).reshape(rows, width)
    buckets = Buckets(
        min_seqs=draw(st.integers(1, 8)),
        min_tokens=draw(st.integers(1, 16)),
        min_blocks=draw(st.integers(1, 16)),
    )
    return block_size, table, num_computed, requests, buckets


@given(steps())
def test_whatever_is_built_is_valid_and_equals_a_plain_loop(drawn):
    block_size, table, num_computed, requests, buckets = drawn
    builder = MetadataBuilder(block_size, buckets=buckets)
    step = builder.build(requests, block_table=table, num_computed=num_computed)
    m = step.metadata
    m.validate(block_size=block_size, num_blocks=table.size + 1)

    assert sorted(step.order.tolist()) == list(range(len(requests)))
    token = 0
    for s, index in enumerate(step.order.tolist()):
        row, query_len = requests[index]
        assert m.query_start_loc[s] == token
        assert m.seq_lens[s] == num_computed[row] + query_len
        for offset in range(query_len):
            position = int(num_computed[row]) + offset
            block = int(table[row, position // block_size])
            assert m.slot_mapping[token] == block * block_size + position % block_size
            assert step.positions[token] == position
            assert step.token_rows[token] == row
            token += 1
        assert step.last_tokens[s] == token - 1
    assert (m.slot_mapping[token:] == NO_SLOT).all()
    assert (step.token_rows[token:] == -1).all()
    assert (m.query_start_loc[len(requests) :] == token).all()
    assert (m.seq_lens[len(requests) :] == 0).all()
    assert (m.block_table[len(requests) :] == NULL_BLOCK).all()
    one_token = [query_len == 1 for _, query_len in requests]
    fresh = [num_computed[row] == 0 for row, _ in requests]
    first = sum(one_token)
    second = first + sum(new and not one for one, new in zip(one_token, fresh, strict=True))
    assert m.distribution.tolist() == [first, second, len(requests)]
    assert all(
        array.dtype == np.int32
        for array in (*jax.tree.leaves(m), step.positions, step.token_rows, step.last_tokens)
    )


@pytest.mark.parametrize(
    ("method", "sizes"),
    [
        ("seqs", {1: 8, 8: 8, 9: 16, 64: 64, 65: 128}),
        ("tokens", {1: 16, 17: 32, 512: 512}),
        ("query_len", {2: 16, 17: 64, 64: 64, 65: 256}),
        ("blocks", {1: 16, 17: 64, 128: 256}),
    ],
)
def test_buckets(method, sizes):
    assert {count: getattr(Buckets(), method)(count) for count in sizes} == sizes


def test_the_number_of_compiled_shapes_is_as_documented():
    """64 sequences, 512 tokens a step, 2,048 tokens a sequence in blocks of 16."""
    buckets = Buckets()
    decode = {buckets.seqs(count) for count in range(1, 65)}
    others = set()
    for count in range(1, 65):
        for total in range(count + 1, 513):
            shortest, longest = max(2, -(-total // count)), total - count + 1
            for query_len in (2, 16, 17, 64, 65, 256, 257, 512):
                if shortest <= query_len <= longest:
                    shape = (buckets.seqs(count), buckets.tokens(total))
                    others.add((*shape, buckets.query_len(query_len)))
    assert len(decode) == 4
    assert len(others) == 52
    assert len({buckets.blocks(count) for count in range(1, 129)}) == 3


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([], "requests: got none, expected at least one"),
        ([(0, 1), (6, 1)], r"requests\[1\]: got row 6, expected 0 <= row < 2"),
        ([(-1, 1)], r"requests\[0\]: got row -1, expected 0 <= row < 2"),
        ([(0, 1), (1, 1), (0, 2)], r"requests\[2\]: row 0 is named twice"),
        ([(1, 0)], r"requests\[0\]: got query length 0, expected at least 1"),
        ([(0, 1), (1, 6)], r"requests\[1\]: row 1 has 9 tokens .* its table has room for 8"),
    ],
)
def test_a_step_that_cannot_be_is_refused(requests, message):
    table = np.array([[1, 2], [3, 4]], np.int32)
    with pytest.raises(ValueError, match=message):
        MetadataBuilder(4).build(requests, block_table=table, num_computed=np.array([0, 3]))


def test_a_slot_beyond_int32_is_refused():
    table = np.array([[5, 2**27 + 5]], np.int32)
    with pytest.raises(
        ValueError, match=r"block_table\[0, 1\]: got block 134217733, .* < 134217728"
    ):
        MetadataBuilder(16).build([(0, 1)], block_table=table, num_computed=np.array([16]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"requests": [(0, 4, 5)]}, "requests[0]: got (0, 4, 5), expected a pair of integers"),
        ({"requests": [(1, 1), (0, 4, 5)]}, "requests[1]: got (0, 4, 5), expected a pair"),
        ({"requests": [0, 4]}, "requests[0]: got 0, expected a pair of integers"),
        ({"requests": [(1, 1), (0, 1.9)]}, "requests[1]: got (0, 1.9), expected a pair"),
        ({"requests": [(0, 2**70)]}, "requests: got integers beyond int64"),
        ({"requests": [(0, 2**63 - 1)]}, "requests[0]: row 0 has 9223372036854775807 tokens"),
        ({"num_computed": [-3, 0]}, "num_computed[0]: got -3, expected 0 <= tokens < 2147483648"),
        ({"num_computed": [0, -20]}, "num_computed[1]: got -20, expected 0 <= tokens"),
        ({"num_computed": [0.0, 0.0]}, "num_computed: got float64(2,), expected integers of 1"),
        ({"num_computed": [[0, 0]]}, "num_computed: got int64(1, 2), expected integers of 1"),
        ({"block_table": [7, 3]}, "block_table: got int64(2,), expected integers of 2 dimension"),
        ({"block_table": [[7, 3], [5]]}, "block_table: got rows that are no array, expected"),
        ({"block_table": [[np.nan, 3], [5, 2]]}, "block_table: got float64(2, 2), expected"),
        (
            {"block_table": [[7, 3], [2**32 + 7, 2]]},
            "block_table[1, 0]: got block 4294967303, expected 0 <= block < 134217728",
        ),
        ({"block_table": [[-1, 3], [5, 2]]}, "block_table[0, 0]: got block -1, expected 0 <="),
        (
            {"block_table": [[7, 3], [5, 0]], "num_computed": [0, 16]},
            "block_table[1, 1]: got block 0, expected at least 1: this step writes position 16",
        ),
        (
            {"block_size": 2**30, "num_computed": [2**31 - 1, 0]},
            "requests[0]: row 0 has 2147483651 tokens after this step, its table has room for",
        ),
        (
            {
                "block_size": 2**30,
                "num_computed": [2**31 - 1, 0],
                "block_table": [[1, 1, 1], [1, 1, 1]],
            },
            "requests[0]: row 0 has 2147483651 tokens after this step, expected fewer than 21474",
        ),
    ],
)
def test_input_that_would_make_another_step_is_refused(changes, message):
    arguments = {
        "requests": [(0, 4), (1, 4)],
        "block_table": [[7, 3], [5, 2]],
        "num_computed": [0, 0],
        "block_size": 16,
        **changes,
    }
    builder = MetadataBuilder(arguments.pop("block_size"))
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        builder.build(arguments.pop("requests"), **arguments)


def test_what_this_step_neither_owns_nor_writes_may_be_anything():
    """A window returned the first block; entries past the end and other rows are not looked at."""
    table = [[0, 3, -1], [2**40, -7, -7]]
    step = MetadataBuilder(4).build([(0, 1)], block_table=table, num_computed=[5, -9])
    assert step.metadata.slot_mapping[0] == 3 * 4 + 1
    assert step.metadata.block_table[0, :2].tolist() == [0, 3]


@pytest.mark.parametrize("block_size", [0, 16.5, True, "16"])
def test_a_block_size_of_nothing_is_refused(block_size):
    message = f"block_size: got {block_size!r}, expected an integer of at least 1"
    with pytest.raises(ValueError, match=message):
        MetadataBuilder(block_size)


@pytest.mark.parametrize("name", ["min_seqs", "min_tokens", "min_blocks"])
@pytest.mark.parametrize("size", [0, -1, 2.5])
def test_a_bucket_that_would_never_grow_is_refused(name, size):
    with pytest.raises(ValueError, match=f"{name}: got {size}, expected an integer of at least 1"):
        Buckets(**{name: size})


def test_it_is_a_pytree_with_static_bounds():
    m = worked_step().metadata
    traced = []

    @jax.jit
    def total(metadata):
        traced.append((metadata.max_query_len, metadata.max_seq_len))
        metadata.static_validate()
        return metadata.seq_lens.sum()

    assert int(total(m)) == int(total(m.map(jnp.asarray))) == 23
    assert traced == [(8, 32)]
    assert int(total(dataclasses.replace(m, max_query_len=16))) == 23
    assert traced == [(8, 32), (16, 32)]
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(m)]
    assert names == [
        *(".block_table", ".slot_mapping", ".seq_lens", ".query_start_loc", ".distribution")
    ]


def test_map_reaches_every_array_and_nothing_else():
    m = worked_step().metadata.map(jnp.asarray)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(m))
    assert (m.max_query_len, m.max_seq_len) == (8, 32)


def as_torch(array):
    torch = pytest.importorskip("torch", reason="torch is not installed in this lane")
    return torch.from_numpy(np.array(array))


@pytest.mark.parametrize("convert", [np.asarray, jnp.asarray, as_torch])
def test_a_managers_block_is_several_of_a_kernels(convert):
    table = np.array([[3, 1, 7], [2, 0, 0]], np.int32)
    m = AttentionMetadata(
        block_table=table,
        slot_mapping=np.array([2 * 32 + 5, -1], np.int32),
        seq_lens=np.array([90, 6], np.int32),
        query_start_loc=np.array([0, 0, 1], np.int32),
        distribution=np.array([0, 0, 2], np.int32),
        max_query_len=1,
        max_seq_len=96,
    ).map(convert)
    fine = m.with_kernel_blocks(2)
    assert type(fine.block_table) is type(m.block_table)
    assert fine.block_table.tolist() == [[6, 7, 2, 3, 14, 15], [4, 5, 0, 1, 0, 1]]
    assert fine.slot_mapping is m.slot_mapping
    # The same slot through blocks of 16: kernel block 4, offset 5.
    assert int(fine.slot_mapping[0]) == 4 * 16 + 5
    assert m.with_kernel_blocks(1).block_table.tolist() == table.tolist()
    with pytest.raises(ValueError, match="ratio: got 0, expected an integer of at least 1"):
        m.with_kernel_blocks(0)


@given(steps(), st.integers(1, 4))
def test_slots_and_tables_agree_in_a_kernels_blocks_too(drawn, ratio):
    block_size, table, num_computed, requests, buckets = drawn
    builder = MetadataBuilder(block_size * ratio, buckets=buckets)
    step = builder.build(requests, block_table=table, num_computed=num_computed)
    fine = step.metadata.with_kernel_blocks(ratio)
    fine.validate(block_size=block_size, num_blocks=(table.size + 1) * ratio)
