"""What follows from a pattern without touching an array."""

import math
import re

import pytest

from paged.layouts import LAYOUTS, Layout, get_layout
from paged.spec import KVCacheSpec

SPEC = KVCacheSpec(num_kv_heads=4, head_dim=64, block_size=16, dtype="bfloat16")
LATENT = KVCacheSpec(
    num_kv_heads=1,
    head_dim=576,
    block_size=16,
    dtype="bfloat16",
    kv_lora_rank=512,
    qk_rope_head_dim=64,
)


def spec_for(layout):
    return LATENT if layout.is_latent else SPEC


@pytest.mark.parametrize(
    ("name", "shape", "sharding_axis", "block_major"),
    [
        ("flash_attn", (2, 10, 16, 4, 64), 3, False),
        ("flashinfer", (10, 2, 16, 4, 64), 3, True),
        ("flashinfer_hnd", (10, 2, 4, 16, 64), 2, True),
        ("pallas", (10, 16, 8, 64), 2, True),
        ("packed", (10, 4, 16, 128), 1, True),
        ("tpu_packed", (10, 16, 4, 2, 128), 2, True),
        ("mla", (10, 16, 576), None, True),
        ("tpu_mla", (10, 16, 640), None, True),
    ],
)
def test_the_layouts_by_hand(name, shape, sharding_axis, block_major):
    layout = get_layout(name)
    assert layout.shape(10, spec_for(layout)) == shape
    assert layout.sharding_axis == sharding_axis
    assert layout.is_block_major is block_major
    assert shape[layout.block_axis] == 10


def test_this_table_is_complete():
    assert set(LAYOUTS) == {
        *("flash_attn", "flashinfer", "flashinfer_hnd", "pallas", "packed", "tpu_packed"),
        *("mla", "tpu_mla"),
    }


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=lambda layout: layout.name)
def test_sizes_undo_shape(layout):
    spec = spec_for(layout)
    sizes = layout.sizes(layout.shape(10, spec))
    assert sizes["block"] == 10
    assert sizes["slot"] == 16
    if layout.is_latent:
        assert sizes["latent"] == (640 if layout.is_padded else 576)
    else:
        width = 128 if layout.is_padded else 64
        assert (sizes["kv"], sizes["head"], sizes["dim"]) == (2, 4, width)
    if layout.is_padded:
        return
    assert math.prod(sizes.values()) == 10 * 16 * spec.values_per_token


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=lambda layout: layout.name)
@pytest.mark.parametrize("target", [None, "cpu", "cuda", "rocm"])
def test_a_page_is_dense_where_memory_is_linear(layout, target):
    spec = spec_for(layout)
    dense = 16 * spec.bytes_per_token
    padded = dense * 640 // 576 if layout.is_latent else 2 * dense
    expected = padded if layout.is_padded else dense
    assert layout.page_bytes(spec, target=target) == expected


@pytest.mark.parametrize(
    ("name", "changes", "rows", "lanes"),
    [
        # The two innermost dimensions of a page, as a TPU stores them.
        ("flash_attn", {}, 4, 128),
        ("flash_attn", {"head_dim": 128, "num_kv_heads": 1}, 2, 128),
        ("flash_attn", {"head_dim": 128, "num_kv_heads": 1, "dtype": "int8"}, 4, 128),
        ("flash_attn", {"head_dim": 128, "num_kv_heads": 1, "dtype": "float32"}, 1, 128),
        ("flash_attn", {"head_dim": 129, "num_kv_heads": 5, "dtype": "float32"}, 8, 256),
        ("flashinfer_hnd", {"block_size": 12}, 16, 128),
        ("pallas", {"num_kv_heads": 3}, 8, 128),
        ("pallas", {"num_kv_heads": 10}, 24, 128),
        ("packed", {}, 16, 128),
        ("packed", {"head_dim": 80, "block_size": 1}, 2, 256),
        ("tpu_packed", {}, 2, 128),
        ("tpu_packed", {"head_dim": 192, "num_kv_heads": 3}, 2, 256),
        ("tpu_packed", {"num_kv_heads": 3, "dtype": "int8"}, 4, 128),
        ("tpu_packed", {"num_kv_heads": 3, "dtype": "float32"}, 1, 128),
    ],
)
def test_a_page_on_a_tpu_is_padded_to_tiles(name, changes, rows, lanes):
    sizes = {"num_kv_heads": 4, "head_dim": 64, "block_size": 16, "dtype": "bfloat16", **changes}
    spec = KVCacheSpec(**sizes)
    layout = get_layout(name)
    outer = math.prod(layout.shape(1, spec)[:-2])
    itemsize = {"bfloat16": 2, "int8": 1, "float32": 4}[spec.dtype]
    assert layout.page_bytes(spec, target="tpu") == outer * rows * lanes * itemsize


@pytest.mark.parametrize("layout", ["mla", "tpu_mla"])
def test_a_latent_on_a_tpu_pads_576_to_640(layout):
    assert get_layout(layout).page_bytes(LATENT, target="tpu") == 16 * 640 * 2


def test_an_array_of_latents_holds_one_head_of_any_width_up_to_its_lanes():
    layout = get_layout("tpu_mla")
    shape = layout.shape(10, LATENT)
    assert [layout.holds(shape, 1, width) for width in (512, 513, 640, 641)] == [
        *(False, True, True, False)
    ]
    assert not layout.holds(shape, 2, 576)


def test_rows_on_a_tpu_as_its_compiler_lays_them_out():
    # Read from libtpu 0.0.52 (v5e and v6e): rows occupied by an array of n rows by 100 lanes.
    occupied = {
        "float32": {1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 6: 8, 8: 8, 10: 16, 16: 16, 20: 24, 40: 40},
        "bfloat16": {1: 2, 2: 2, 3: 4, 4: 4, 5: 8, 6: 8, 8: 8, 10: 16, 16: 16, 20: 24, 40: 40},
        "int8": {1: 4, 2: 4, 3: 4, 4: 4, 5: 8, 6: 8, 8: 8, 10: 16, 16: 16, 20: 24, 40: 40},
    }
    for dtype, table in occupied.items():
        for rows, expected in table.items():
            spec = KVCacheSpec(num_kv_heads=rows, head_dim=100, block_size=1, dtype=dtype)
            size = get_layout("flashinfer").page_bytes(spec, target="tpu")
            itemsize = spec.bytes_per_token // spec.values_per_token
            assert size == 2 * expected * 128 * itemsize, (dtype, rows)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=lambda layout: layout.name)
def test_the_other_kind_of_cache_is_refused(layout):
    other = SPEC if layout.is_latent else LATENT
    assert layout.refusals(spec_for(layout)) == []
    (reason,) = layout.refusals(other)
    assert layout.name in reason
    with pytest.raises(ValueError, match=f"layout {layout.name} holds"):
        layout.shape(4, other)
    with pytest.raises(ValueError, match=f"layout {layout.name} holds"):
        layout.page_bytes(other)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("flash_attn", (2, 10, 16, 4), "got (2, 10, 16, 4), expected 5 dimensions"),
        ("flash_attn", (3, 10, 16, 4, 64), "shape[0]: got 3, expected 2"),
        ("pallas", (10, 16, 7, 64), "shape[2]: got 7, expected an even number"),
        ("mla", (10, 16, 4, 64), "expected 3 dimensions for layout mla"),
    ],
)
def test_a_shape_of_another_layout_is_refused(name, shape, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        get_layout(name).sizes(shape)


def test_an_own_layout_is_one_declaration():
    mine = Layout("mine", "head block (dim kv) slot")
    assert mine.shape(10, SPEC) == (4, 10, 128, 16)
    assert mine.axes == ("head", "block", "dim", "kv", "slot")
    assert (mine.sharding_axis, mine.block_axis, mine.is_block_major) == (0, 1, False)
    assert get_layout(mine) is mine


def test_kv_merged_outside_of_head_cannot_be_sharded_by_slicing():
    assert Layout("mine", "block slot (kv head) dim").sharding_axis is None
    # An array has one dimension more where words are split off, before the last.
    words = Layout("mine", "block slot dim (head kv)", words=True)
    assert words.sharding_axis == 4
    assert words.shape(5, KVCacheSpec(3, 8, 4, "bfloat16"))[4] == 6
    assert Layout("mine", "block slot (head kv) dim", words=True).sharding_axis == 2


@pytest.mark.parametrize(
    ("heads", "head_dim", "dtype", "fits"),
    [
        (4, 64, "bfloat16", True),
        (4, 128, "bfloat16", True),
        (4, 129, "bfloat16", False),
        (3, 64, "bfloat16", False),
        (4, 64, "int8", True),
        (3, 64, "int8", True),
        (2, 64, "int8", False),
    ],
)
def test_what_an_array_with_padding_may_hold(heads, head_dim, dtype, fits):
    layout = get_layout("tpu_packed")
    spec = KVCacheSpec(num_kv_heads=4, head_dim=64, block_size=16, dtype=dtype)
    assert layout.holds(layout.shape(10, spec), heads, head_dim) is fits


@pytest.mark.parametrize(
    ("pattern", "padding"),
    [
        ("block slot (head kv) dim", {"lanes": 0}),
        ("kv head dim block slot", {"lanes": 128}),
        ("kv head dim slot block", {"words": True}),
        ("block kv head slot dim", {"words": True}),
    ],
)
def test_padding_of_blocks_and_slots_is_refused(pattern, padding):
    with pytest.raises(ValueError, match=r"^(lanes|pattern): got"):
        Layout("bad", pattern, **padding)


@pytest.mark.parametrize(
    ("pattern", "padding", "padded"),
    [
        ("block slot head (kv dim)", {"lanes": 3}, "kv dim"),
        ("block slot dim (kv head)", {"lanes": 128}, "kv head"),
        ("block slot head dim kv", {"lanes": 4}, "kv"),
        ("block slot (kv head) dim", {"words": True}, "kv head"),
        ("block slot head kv dim", {"words": True}, "kv"),
    ],
)
def test_padding_between_keys_and_values_is_refused(pattern, padding, padded):
    message = f"pattern: got '{pattern}' with .*, which would pad ({padded}), expected kv after"
    with pytest.raises(ValueError, match=re.escape(message).replace(r"\.\*", ".*")):
        Layout("bad", pattern, **padding)


@pytest.mark.parametrize("lanes", [2.5, True, "128", 0, -1])
def test_lanes_that_are_no_number_of_them(lanes):
    with pytest.raises(ValueError, match=f"^lanes: got {lanes!r}, expected an integer of at leas"):
        Layout("bad", "block slot head kv dim", lanes=lanes)


def test_an_odd_number_of_lanes_would_part_a_pair():
    assert Layout("mine", "block slot kv head dim", lanes=3).shape(2, SPEC)[-1] == 66
    with pytest.raises(ValueError, match=r"^lanes: got 3, expected an even .* is \(dim kv\)"):
        Layout("bad", "block slot head (dim kv)", lanes=3)


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "block slot head dim",
        "block slot head dim kv kv",
        "block slot head dim kv latent",
        "block slot latent head",
        "block page head dim kv",
        "block slot ... dim kv head",
        "(block slot) head dim kv",
        "(block kv) slot head dim",
        "block (slot kv) head dim",
        "block (slot head) dim kv",
        "block slot (head dim kv)",
        "block slot (head kv dim",
        "block slot head kv) dim",
        "block slot () head kv dim",
        "block slot ((head kv)) dim",
        "block slot (head (kv)) dim",
        "block slot head kv dim -> dim",
    ],
)
def test_a_bad_pattern_is_refused(pattern):
    with pytest.raises(ValueError, match=r"^pattern: got .*expected"):
        Layout("bad", pattern)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"layout: got 'nhd', expected one of flash_attn, .*mla"):
        get_layout("nhd")
