"""Every rule of the contract, broken one at a time: the message names field, index and numbers."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paged import AttentionMetadata, AttentionSpec, KVCache, KVCacheSpec, MetadataBuilder

BLOCK_SIZE, NUM_BLOCKS = 4, 12
SPEC = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=8, scale=0.5)


def valid(**changes):
    """Two decodes, one prefill, one chunk with history, one row of padding; blocks of 4.

    seq 0: 5 tokens in blocks 3, 8; seq 1: 1 token in block 1; seq 2: 3 tokens in block 5;
    seq 3: 9 tokens, 3 of them new, in blocks 7, 2, 9.
    """
    fields = {
        "block_table": [[3, 8, 999], [1, 999, 999], [5, 999, 999], [7, 2, 9], [0, 0, 0]],
        "slot_mapping": [32, 4, 20, 21, 22, 10, 11, 36, -1, -1],
        "seq_lens": [5, 1, 3, 9, 0],
        "query_start_loc": [0, 1, 2, 5, 8, 8],
        "distribution": [2, 3, 4],
    }
    statics = {"max_query_len": 4, "max_seq_len": 12}
    for name, change in changes.items():
        if name in statics:
            statics[name] = change
        elif isinstance(change, dict):
            array = np.array(fields[name], np.int32)
            for index, value in change.items():
                array[index] = value
            fields[name] = array
        else:
            fields[name] = change
    arrays = {
        name: value if hasattr(value, "dtype") else np.array(value, np.int32)
        for name, value in fields.items()
    }
    return AttentionMetadata(**arrays, **statics)


def check(metadata, **arguments):
    metadata.validate(**{"block_size": BLOCK_SIZE, "num_blocks": NUM_BLOCKS, **arguments})


def test_the_example_is_valid():
    check(valid())


@pytest.mark.parametrize(("built", "asked"), [(16, 32), (32, 16)])
@pytest.mark.parametrize("lengths", [[5, 40], [64], [1]])
def test_metadata_of_another_block_size_is_told_as_that(built, asked, lengths):
    table = np.array([[7, 1, 2, 3], [4, 5, 6, 0]], np.int32)
    step = MetadataBuilder(built).build(
        list(enumerate(lengths)), block_table=table, num_computed=np.zeros(2, int)
    )
    metadata = step.metadata
    metadata.validate(block_size=built, num_blocks=8)
    for also in ({}, {"num_blocks": 8}, {"spec": SPEC}):
        message = f"slot_mapping: got the slots of blocks of {built} tokens, .* blocks of {asked}:"
        with pytest.raises(ValueError, match=message):
            metadata.validate(block_size=asked, **also)
    # A bound that is not of the table tells no size: then the message has the one it counts with.
    other = dataclasses.replace(metadata, max_seq_len=metadata.max_seq_len - 1)
    with pytest.raises(ValueError, match=f"^(block_table|slot_mapping).*block size {asked}"):
        other.validate(block_size=asked)


def as_torch(array):
    torch = pytest.importorskip("torch", reason="torch is not installed in this lane")
    return torch.from_numpy(np.array(array))


@pytest.mark.parametrize("convert", [jnp.asarray, as_torch])
def test_other_libraries_are_checked_too(convert):
    check(valid().map(convert))
    with pytest.raises(ValueError, match=r"seq_lens\[3\]: got 2, expected at least its query"):
        check(valid(seq_lens={3: 2}).map(convert))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        # Rule 2: prefix sums, and a query is part of its sequence.
        ({"query_start_loc": {0: 1}}, "query_start_loc[0]: got 1, expected 0"),
        (
            {"query_start_loc": {3: 1}},
            "query_start_loc[3]: got 1, expected at least 2 (query_start_loc[2])",
        ),
        (
            {"query_start_loc": {4: 11, 5: 11}},
            "query_start_loc[5]: got 11, expected at most 10 (the length of slot_mapping)",
        ),
        ({"seq_lens": {3: 2}}, "seq_lens[3]: got 2, expected at least its query length 3"),
        # The static bounds.
        (
            {"max_query_len": 2},
            "query_start_loc[3]: sequence 2 has query length 3, expected at most max_query_len 2",
        ),
        ({"max_seq_len": 8}, "seq_lens[3]: got 9, expected at most max_seq_len 8"),
        # Rule 1: the order of the kinds.
        (
            {"distribution": {0: 1}},
            "distribution[0]: got 1, but sequence 1 has query length 1, expected those first",
        ),
        (
            {"distribution": {0: 3}},
            "distribution[0]: got 3, but sequence 2 has query length 3, expected 1",
        ),
        (
            {"distribution": {1: 4}},
            "distribution[1]: got 4, but sequence 3 has query length 3 and seq_len 9, expected "
            "them equal",
        ),
        ({"distribution": {0: -1}}, "distribution[0]: got -1, expected 0 <= value <= 5"),
        ({"distribution": {1: 1}}, "distribution[1]: got 1, expected 2 <= value <= 5"),
        ({"distribution": {2: 6}}, "distribution[2]: got 6, expected 3 <= value <= 5"),
        # Padding.
        (
            {"distribution": {2: 3}},
            "query_start_loc[3]: a query of length 3, expected 0 in padding (distribution[2] is 3)",
        ),
        ({"seq_lens": {4: 2}}, "seq_lens[4]: got 2, expected 0 in padding (distribution[2] is 4)"),
        # The table.
        (
            {"block_table": {(3, 1): 12}},
            "block_table[3, 1]: got block 12, expected 0 <= block < 12",
        ),
        (
            {"block_table": {(0, 0): -1}},
            "block_table[0, 0]: got block -1, expected 0 <= block < 12",
        ),
        (
            {"seq_lens": {0: 12}, "block_table": np.zeros((5, 2), np.int32)},
            "block_table[0]: has 2 entries, expected at least 3 for seq_lens[0] = 12 and block "
            "size 4",
        ),
        (
            {"block_table": {(3, 2): 7}},
            "block_table[3, 2]: got block 7, which the row already owns at block_table[3, 0], "
            "expected each block once in a row",
        ),
        # Slots.
        (
            {"slot_mapping": {5: 12}},
            "slot_mapping[5]: got 12, expected 10 as the block table says for block size 4",
        ),
        ({"slot_mapping": {0: 33}}, "slot_mapping[0]: got 33, expected 32 as the block table"),
        ({"slot_mapping": {0: -2}}, "slot_mapping[0]: got -2, expected 32 as the block table"),
        (
            {"slot_mapping": {9: 44}},
            "slot_mapping[9]: got 44, expected -1 in padding (query_start_loc ends at 8)",
        ),
        # Rule 5: the null block is never written.
        (
            {"slot_mapping": {1: 0}},
            "slot_mapping[1]: got 0, expected at least 4 or -1: the null block is never written",
        ),
        (
            {"block_table": {(3, 1): 0}, "slot_mapping": {5: 2, 6: 3}},
            "slot_mapping[5]: got 2, expected at least 4 or -1: the null block is never written",
        ),
        # Two tokens in one slot: two sequences that own the same block.
        (
            {"block_table": {(2, 0): 1}, "slot_mapping": {2: 4, 3: 5, 4: 6}},
            "slot_mapping[2]: got 4, already written by slot_mapping[1]",
        ),
    ],
)
def test_a_broken_rule_is_named_with_its_numbers(changes, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        check(valid(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seq_lens": np.zeros(5, np.int64)}, "seq_lens: got dtype int64, expected int32"),
        ({"block_table": np.zeros((5, 3), np.float32)}, "block_table: got dtype float32, expected"),
        (
            {"slot_mapping": np.zeros(8, np.uint32)},
            "slot_mapping: got dtype uint32, expected int32",
        ),
        ({"block_table": np.zeros(5, np.int32)}, "block_table: got shape (5,), expected 2 dim"),
        (
            {"query_start_loc": np.zeros((6, 1), np.int32)},
            "query_start_loc: got shape (6, 1), expected 1 dimension(s)",
        ),
        ({"seq_lens": [1, 2]}, "seq_lens: got length 2, expected 5 (block_table has 5 rows)"),
        ({"query_start_loc": [0] * 5}, "query_start_loc: got length 5, expected 6 (block_table"),
        ({"distribution": [0, 0]}, "distribution: got length 2, expected 3"),
        ({"max_query_len": 0}, "max_query_len: got 0, expected a static integer of at least 1"),
        ({"max_seq_len": 8.0}, "max_seq_len: got 8.0, expected a static integer of at least 1"),
    ],
)
def test_shapes_and_dtypes(changes, message):
    metadata = valid(**changes)
    for refuse in (metadata.static_validate, lambda: check(metadata)):
        with pytest.raises(ValueError, match="^" + re.escape(message)):
            refuse()


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (
            np.zeros((9, 4, 8), np.float32),
            "query: got shape (9, 4, 8), expected (tokens, num_heads",
        ),
        (np.zeros((10, 32), np.float32), "query: got shape (10, 32), expected (tokens, num_heads"),
        (np.zeros((10, 6, 8), np.float32), "query.shape[1]: got 6, expected num_heads 4"),
        (np.zeros((10, 4, 16), np.float32), "query.shape[2]: got 16, expected head_dim 8"),
        (np.zeros((10, 4, 8), np.float64), "query: got dtype float64, expected one of float32,"),
        (np.zeros((10, 4, 8), np.int8), "query: got dtype int8, expected one of float32,"),
    ],
)
def test_a_query_that_is_not_the_specs(query, message):
    valid().static_validate(query=np.zeros((10, 4, 8), np.float16), spec=SPEC)
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        valid().static_validate(query=query, spec=SPEC)


def cache_for(spec, layout="pallas", num_blocks=NUM_BLOCKS):
    cache_spec = KVCacheSpec.of(spec, block_size=BLOCK_SIZE)
    return KVCache.allocate(cache_spec, layout, num_blocks)


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        (
            cache_for(dataclasses.replace(SPEC, num_kv_heads=4)),
            "cache.num_kv_heads: got 4, expected 2",
        ),
        (cache_for(dataclasses.replace(SPEC, head_dim=16)), "cache.head_dim: got 16, expected 8"),
        (
            cache_for(AttentionSpec(4, 1, 8, scale=0.5, kv_lora_rank=6, qk_rope_head_dim=2), "mla"),
            "cache: layout mla holds latents, the spec is not latent",
        ),
    ],
)
def test_a_cache_that_is_not_the_specs(cache, message):
    valid().static_validate(cache=cache_for(SPEC), spec=SPEC)
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        valid().static_validate(cache=cache, spec=SPEC)


def test_the_cache_gives_block_size_and_number_of_blocks():
    valid().validate(cache=cache_for(SPEC))
    with pytest.raises(ValueError, match=r"block_table\[3, 2\]: got block 9, expected 1 <= .* < 9"):
        valid().validate(cache=cache_for(SPEC, num_blocks=9))


def test_without_a_block_size_the_rest_is_checked():
    valid(slot_mapping={0: 33}).validate()
    with pytest.raises(ValueError, match=r"seq_lens\[3\]: got 2"):
        valid(seq_lens={3: 2}).validate()


def test_without_a_number_of_blocks_any_block_will_do():
    big = 10**6
    metadata = valid(block_table={(1, 0): big}, slot_mapping={1: 4 * big})
    metadata.validate(block_size=BLOCK_SIZE)


@pytest.mark.parametrize("name", ["block_size", "num_blocks"])
def test_sizes_of_nothing_are_refused(name):
    with pytest.raises(ValueError, match=f"{name}: got 0, expected an integer of at least 1"):
        check(valid(), **{name: 0})


def test_a_pool_whose_slots_do_not_fit_int32_is_refused():
    with pytest.raises(
        ValueError, match=r"num_blocks: got 536870912 blocks of 4 slots, .*2147483648"
    ):
        check(valid(), num_blocks=2**29)


def test_a_token_may_be_left_unwritten():
    check(valid(slot_mapping=[-1] * 10))


def test_entries_past_the_end_may_hold_anything():
    wild = {(0, 2): -(2**31), (1, 1): 2**31 - 1, (4, 0): 999, (4, 2): -5}
    check(valid(block_table=wild))


def test_a_row_may_hold_the_null_block_twice():
    check(valid(block_table={(3, 0): 0, (3, 1): 0}, slot_mapping={5: -1, 6: -1}))


def test_a_sequence_that_runs_no_query_this_step():
    metadata = valid(
        seq_lens={3: 9}, query_start_loc=[0, 1, 2, 5, 5, 5], slot_mapping={5: -1, 6: -1, 7: -1}
    )
    check(metadata)


WINDOW = dataclasses.replace(SPEC, window=3)


@pytest.mark.parametrize(
    ("spec", "entry", "refused"),
    [
        # Sequence 3 has 9 tokens and asks for the last 3: window 3 sees keys 4 to 8.
        (WINDOW, (3, 0), False),
        (WINDOW, (3, 1), True),
        # Window 4 sees key 3, the last of block 0.
        (dataclasses.replace(SPEC, window=4), (3, 0), True),
        (SPEC, (3, 0), True),
        (None, (3, 0), False),
    ],
)
def test_the_null_block_where_a_window_has_passed(spec, entry, refused):
    metadata = valid(block_table={entry: 0}, slot_mapping={5: -1, 6: -1})
    if not refused:
        check(metadata, spec=spec)
        return
    row, column = entry
    message = f"block_table[{row}, {column}]: got block 0, expected 1 <= block < 12"
    with pytest.raises(ValueError, match=re.escape(message)):
        check(metadata, spec=spec)


def test_static_validation_runs_under_a_trace():
    @jax.jit
    def step(metadata, query):
        metadata.static_validate(query=query, spec=SPEC)
        return query

    step(valid().map(jnp.asarray), jnp.zeros((10, 4, 8)))
    with pytest.raises(ValueError, match=r"query.shape\[1\]: got 5, expected num_heads 4"):
        step(valid().map(jnp.asarray), jnp.zeros((10, 5, 8)))


def test_what_a_window_left_behind_may_repeat():
    # Manager blocks of two kernel blocks each: the null block is kernel blocks 0 and 1, twice.
    metadata = AttentionMetadata(
        block_table=np.array([[0, 1, 0, 1, 6, 7]], np.int32),
        slot_mapping=np.array([7 * 4 + 3], np.int32),
        seq_lens=np.array([24], np.int32),
        query_start_loc=np.array([0, 1], np.int32),
        distribution=np.array([1, 1, 1], np.int32),
        max_query_len=1,
        max_seq_len=64,
    )
    metadata.validate(block_size=4, num_blocks=12)
    spec = AttentionSpec(1, 1, 4, 1.0, window=4)
    metadata.validate(block_size=4, num_blocks=12, spec=spec)
