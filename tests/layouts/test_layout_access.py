"""Views, gather and write, against plain indexing, in every layout and library."""

import itertools
import re

import jax.numpy as jnp
import numpy as np
import pytest

from paged.dtypes import storage_dtype
from paged.layouts import LAYOUTS, Layout, get_layout
from paged.spec import KVCacheSpec

BLOCKS, BLOCK_SIZE, HEADS, DIM, VALUE_DIM = 5, 4, 3, 8, 6

OWN = (
    Layout("slot_outermost", "slot block kv head dim"),
    Layout("slot_before_block", "kv slot block head dim"),
    Layout("heads_apart", "head block (dim kv) slot"),
    Layout("latent_first", "latent block slot"),
)
EVERY = (*LAYOUTS.values(), *OWN)


@pytest.fixture(params=EVERY, ids=lambda layout: layout.name)
def layout(request):
    return request.param


@pytest.fixture(params=["float32", "bfloat16", "float8_e4m3fn"])
def dtype(request):
    return request.param


def spec_for(layout, dtype):
    if layout.is_latent:
        return KVCacheSpec(
            num_kv_heads=1,
            head_dim=DIM,
            block_size=BLOCK_SIZE,
            dtype=dtype,
            kv_lora_rank=VALUE_DIM,
            qk_rope_head_dim=DIM - VALUE_DIM,
        )
    return KVCacheSpec(num_kv_heads=HEADS, head_dim=DIM, block_size=BLOCK_SIZE, dtype=dtype)


def entry(layout, array, block, slot, kv):
    """`[head, dim]` of one token's key (0) or value (1), by the names in the pattern."""
    where = {"block": block, "slot": slot}
    sizes = layout.sizes(array.shape)
    apart = array.reshape([sizes[axis] for axis in layout.axes])
    order = [axis for axis in layout.axes if axis not in where]
    picked = apart[tuple(where.get(axis, slice(None)) for axis in layout.axes)]
    if layout.is_latent:
        return picked[None, : VALUE_DIM if kv else None]
    picked = np.moveaxis(picked, [order.index(axis) for axis in ("kv", "head", "dim")], [0, 1, 2])
    return picked[kv]


def rows_for(layout, dtype, tokens):
    """New keys and values. Finite: a library may quieten a NaN that it moves."""
    heads = 1 if layout.is_latent else HEADS
    rows = np.random.default_rng(1).normal(size=(2, tokens, heads, DIM))
    key, value = rows.astype(storage_dtype(dtype))
    return key, None if layout.is_latent else value


def test_views_are_the_entries_by_name(layout, dtype, library, random_bits):
    data = random_bits(layout.shape(BLOCKS, spec_for(layout, dtype)), dtype)
    value_dim = VALUE_DIM if layout.is_latent else None
    views = layout.views(library.array(data), value_dim=value_dim)
    bits = data.view(f"u{data.dtype.itemsize}")
    for kv, view in enumerate(views):
        seen = library.bits(view)
        assert seen.shape[:2] == (BLOCKS, BLOCK_SIZE)
        for block, slot in np.ndindex(BLOCKS, BLOCK_SIZE):
            expected = entry(layout, bits, block, slot, kv)
            np.testing.assert_array_equal(seen[block, slot], expected)


def test_views_share_memory_for_numpy(layout, random_bits):
    data = random_bits(layout.shape(BLOCKS, spec_for(layout, "float32")), "float32")
    assert all(np.shares_memory(view, data) for view in layout.views(data))


def test_gather_reads_the_named_blocks(layout, library, random_bits):
    spec = spec_for(layout, "bfloat16")
    data = library.array(random_bits(layout.shape(BLOCKS, spec), "bfloat16"))
    ids = np.array([[4, 1], [2, 2], [0, 3]], np.int32)
    indices = library.array(ids)
    for view, taken in zip(layout.views(data), layout.gather(data, indices), strict=True):
        np.testing.assert_array_equal(library.bits(taken), library.bits(view)[ids])


def test_gather_under_jax_survives_invalid_ids(layout, random_bits):
    data = jnp.asarray(random_bits(layout.shape(BLOCKS, spec_for(layout, "int8")), "int8"))
    keys, _ = layout.gather(data, jnp.asarray([-7, 2, 2**31 - 1], jnp.int32))
    every, _ = layout.views(data)
    np.testing.assert_array_equal(keys[1], every[2])


def test_write_fills_the_named_slots_and_no_other(layout, dtype, library, random_bits):
    before = random_bits(layout.shape(BLOCKS, spec_for(layout, dtype)), dtype)
    bits = before.view(f"u{before.dtype.itemsize}").copy()
    slots = np.array([19, -1, 4, 7, -1, 10], np.int32)
    key, value = rows_for(layout, dtype, len(slots))
    written = layout.write(
        library.array(before),
        library.array(key),
        None if value is None else library.array(value),
        library.array(slots),
    )

    expected = bits.copy()
    for token, slot in enumerate(slots):
        if slot < 0:
            continue
        block, within = divmod(int(slot), BLOCK_SIZE)
        for kv, rows in enumerate((key,) if layout.is_latent else (key, value)):
            target = entry(layout, expected, block, within, kv)
            assert target.base is not None
            target[...] = 0  # padding, where the layout has it
            target[: rows.shape[1], : rows.shape[2]] = rows[token].view(expected.dtype)
    np.testing.assert_array_equal(library.bits(written), expected)
    if library.name != "jax":
        np.testing.assert_array_equal(library.bits(library.array(before)), expected)


def test_all_slots_minus_one_change_nothing(layout, library, random_bits):
    dtype = "bfloat16"
    before = random_bits(layout.shape(BLOCKS, spec_for(layout, dtype)), dtype)
    bits = before.view(f"u{before.dtype.itemsize}").copy()
    key, value = rows_for(layout, dtype, 3)
    written = layout.write(
        library.array(before),
        library.array(key),
        None if value is None else library.array(value),
        library.array(np.full(3, -1, np.int32)),
    )
    np.testing.assert_array_equal(library.bits(written), bits)


def test_write_converts_to_the_storage_type(library):
    layout = get_layout("flashinfer")
    data = np.zeros(layout.shape(2, spec_for(layout, "bfloat16")), jnp.bfloat16)
    rows = np.full((1, HEADS, DIM), 1 + 2**-10, np.float32)
    written = layout.write(
        library.array(data),
        library.array(rows),
        library.array(rows),
        library.array(np.array([5], np.int32)),
    )
    key, _ = layout.views(written)
    np.testing.assert_array_equal(library.bits(key)[1, 1], 0x3F80)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_strided_pool_is_written_in_place(name, random_bits):
    layout = get_layout(name)
    shape = layout.shape(BLOCKS, spec_for(layout, "float32"))
    wide = random_bits((*shape[:-1], 2 * shape[-1]), "float32")
    pool, between = wide[..., ::2], wide[..., 1::2].copy()
    key, value = rows_for(layout, "float32", 1)
    layout.write(pool, key, value, np.array([5], np.int32))
    keys, _ = layout.views(pool, head_dim=DIM)
    np.testing.assert_array_equal(keys[1, 1], key[0])
    np.testing.assert_array_equal(wide[..., 1::2], between)


def test_rows_that_do_not_fit_are_refused(library, random_bits):
    layout = get_layout("flash_attn")
    data = library.array(random_bits(layout.shape(BLOCKS, spec_for(layout, "int8")), "int8"))
    slots = library.array(np.array([5, 6], np.int32))

    def rows(tokens=2, heads=HEADS, dim=DIM, dtype="int8"):
        return library.array(random_bits((tokens, heads, dim), dtype))

    for key, value, message in (
        (rows(), None, "value: got None, layout flash_attn expects an array"),
        (rows(heads=2), rows(), "key: got shape (2, 2, 8), expected (tokens, 3, 8)"),
        (rows(), rows(dim=7), "value: got shape (2, 3, 7), expected (tokens, 3, 8)"),
        (rows(tokens=1), rows(tokens=1), "key: got 1 tokens, expected 2 as in slot_mapping"),
        (rows(), rows(tokens=1), "value: got 1 tokens, expected 2 as in key"),
        (rows(dtype="float32"), rows(), "key: got dtype float32, expected int8: quantise"),
        (rows(), rows(dtype="float32"), "value: got dtype float32, expected int8: quantise"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            layout.write(data, key, value, slots)


def test_a_latent_has_no_value(random_bits):
    layout = get_layout("mla")
    data = random_bits(layout.shape(BLOCKS, spec_for(layout, "float32")), "float32")
    rows = random_bits((1, 1, DIM), "float32")
    with pytest.raises(ValueError, match="value: got an array, layout mla expects None"):
        layout.write(data, rows, rows, np.array([4], np.int32))


def test_slots_that_could_name_others_are_refused(library):
    layout = get_layout("flashinfer")
    before = np.zeros(layout.shape(BLOCKS, spec_for(layout, "float32")), np.float32)
    data, rows = library.array(before), library.array(np.ones((2, HEADS, DIM), np.float32))
    cases = [
        (np.array([5.0, 6.0], np.float32), "got float32(2,), expected int32"),
        (np.array([[5], [6]], np.int32), "got int32(2, 1), expected int32"),
    ]
    if library.name == "jax":
        cases.append((np.array([2**32 + 5, 6]), "got int64(2,), expected int32 of one dimension"))
    else:
        past = BLOCKS * BLOCK_SIZE
        for slots in (np.array([5, past], np.int32), np.array([5, 2**32 + 5])):
            message = (
                f"slot_mapping[1]: got {slots[1]}, expected less than {past} ({BLOCKS} blocks of "
                f"{BLOCK_SIZE} slots)"
            )
            cases.append((slots, message))
    for slots, message in cases:
        # jnp.asarray would cut int64 before the layout sees it.
        given = slots if library.name == "jax" else library.array(slots)
        with pytest.raises(ValueError, match=re.escape(message)):
            layout.write(data, rows, rows, given)
    assert not library.bits(data).any()
    with pytest.raises(ValueError, match="slot_mapping: got list without a dtype"):
        layout.write(data, rows, rows, [5, 6])


def test_a_narrow_slot_type_is_no_limit_on_the_block_size():
    layout = get_layout("mla")
    data = np.zeros((2, 300, 1), np.float32)
    layout.write(data, np.ones((1, 1, 1), np.float32), None, np.array([5], np.uint8))
    assert data[0, 5] == data.sum() == 1


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, -1], "block_ids[1]: got -1, expected 0 <= id < 5"),
        ([[1, 2], [5, 0]], "block_ids[1, 0]: got 5, expected 0 <= id < 5"),
        ([1.0], "block_ids: got dtype float"),
        ([True], "block_ids: got dtype"),
    ],
)
def test_gather_refuses_ids_out_of_range(ids, message, library):
    if library.name == "jax":
        pytest.skip("JAX clips ids")
    layout = get_layout("flashinfer")
    data = library.array(np.zeros(layout.shape(BLOCKS, spec_for(layout, "float32")), np.float32))
    for given in (ids, np.array(ids)):
        with pytest.raises(ValueError, match=re.escape(message)):
            layout.gather(data, given)


def test_cells_are_the_new_tokens_as_a_write_leaves_them(layout, dtype, library):
    shape = layout.shape(BLOCKS, spec_for(layout, dtype))
    data = library.array(np.zeros(shape, storage_dtype(dtype)))
    key, value = rows_for(layout, dtype, 3)
    given = [None if rows is None else library.array(rows) for rows in (key, value)]
    slots = np.array([2, 9, 19], np.int32)
    cells = library.bits(layout.cells(data, *given))
    written = library.bits(layout.write(data, *given, library.array(slots)))
    axes = (layout.block_axis, layout.dimensions.index(("slot",)))
    by_slot = np.moveaxis(written, axes, (0, 1)).reshape(BLOCKS * BLOCK_SIZE, *cells.shape[1:])
    np.testing.assert_array_equal(cells, by_slot[slots])


def test_cells_refuse_what_a_write_refuses(layout):
    data = np.zeros(layout.shape(BLOCKS, spec_for(layout, "int8")), np.int8)
    key, value = rows_for(layout, "float32", 3)
    with pytest.raises(ValueError, match=r"key: got dtype float32, expected int8"):
        layout.cells(data, key, value)
    with pytest.raises(ValueError, match=r"key: got shape \(3, 8\)"):
        layout.cells(data, key[:, 0], value)


@pytest.mark.parametrize(("words", "count"), [(False, 14 + 8 + 10), (True, 10 + 4 + 6)])
def test_whatever_padding_is_accepted_is_written_and_read_back(words, count):
    """A declaration that no array could follow is refused when it is made."""
    forms = ("block slot {} {} {}", "slot block ({} {}) {}", "block slot {} ({} {})")
    accepted = 0
    for form, axes, lanes in itertools.product(
        forms, itertools.permutations(["kv", "head", "dim"]), (1, 3, 4)
    ):
        try:
            layout = Layout("own", form.format(*axes), lanes=lanes, words=words)
        except ValueError:
            continue
        accepted += 1
        for dtype, heads, dim in itertools.product(("float32", "int8"), (1, 3), (2, 5)):
            spec = KVCacheSpec(heads, dim, BLOCK_SIZE, dtype)
            data = np.zeros(layout.shape(BLOCKS, spec), dtype)
            key = np.arange(1, 2 * heads * dim + 1).reshape(2, heads, dim).astype(dtype)
            layout.write(data, key, -key, np.array([6, 7], np.int32))
            keys, values = layout.views(data, num_kv_heads=heads, head_dim=dim)
            np.testing.assert_array_equal(keys[1, 2:4], key, err_msg=f"{layout}")
            np.testing.assert_array_equal(values[1, 2:4], -key, err_msg=f"{layout}")
    assert accepted == count
