"""Conversion between any two layouts, and several layouts over one pool."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from paged.layouts import LAYOUTS, Layout, convert, get_layout, share_pool
from paged.spec import KVCacheSpec

SPEC = KVCacheSpec(num_kv_heads=3, head_dim=8, block_size=4, dtype="bfloat16")
LATENT = KVCacheSpec(
    num_kv_heads=1,
    head_dim=8,
    block_size=4,
    dtype="bfloat16",
    kv_lora_rank=6,
    qk_rope_head_dim=2,
)
KEYS_AND_VALUES = [layout for layout in LAYOUTS.values() if not layout.is_latent]
BY_DIM = Layout("by_dim", "dim block (head kv) slot")
HEAD_KV_APART = Layout("head_kv_apart", "block slot head kv dim")


def pair_id(layout):
    return layout.name


@pytest.mark.parametrize("dst", [*KEYS_AND_VALUES, BY_DIM], ids=pair_id)
@pytest.mark.parametrize("src", [*KEYS_AND_VALUES, BY_DIM], ids=pair_id)
def test_there_and_back_byte_for_byte(src, dst, library, random_bits):
    data = random_bits(src.shape(5, SPEC), "bfloat16")
    original = library.array(data)
    moved = convert(original, src, dst, spec=SPEC)
    assert tuple(moved.shape) == dst.shape(5, SPEC)
    held = {"num_kv_heads": SPEC.num_kv_heads, "head_dim": SPEC.head_dim}
    pairs = zip(dst.views(moved, **held), src.views(original, **held), strict=True)
    for seen, expected in pairs:
        np.testing.assert_array_equal(library.bits(seen), library.bits(expected))
    back = convert(moved, dst, src, spec=SPEC)
    if not src.is_padded:
        np.testing.assert_array_equal(library.bits(back), data.view(np.uint16))
    again = convert(back, src, dst, spec=SPEC)
    np.testing.assert_array_equal(library.bits(again), library.bits(moved))


@pytest.mark.parametrize(
    ("dtype", "heads", "shape"),
    [
        ("float32", 3, (5, 4, 6, 1, 128)),
        ("bfloat16", 3, (5, 4, 3, 2, 128)),
        ("int8", 3, (5, 4, 2, 4, 128)),
        ("float8_e4m3fn", 1, (5, 4, 1, 4, 128)),
        ("float8_e5m2", 2, (5, 4, 1, 4, 128)),
    ],
)
def test_padding_is_zero_and_is_cut_off_again(dtype, heads, shape, library, random_bits):
    spec = KVCacheSpec(num_kv_heads=heads, head_dim=8, block_size=4, dtype=dtype)
    data = random_bits(get_layout("pallas").shape(5, spec), dtype)
    packed = convert(library.array(data), "pallas", "tpu_packed")
    assert tuple(packed.shape) == shape == get_layout("tpu_packed").shape(5, spec)
    bits = library.bits(packed).reshape(5, 4, -1, 128)
    np.testing.assert_array_equal(bits[:, :, : 2 * heads, :8], data.view(bits.dtype))
    assert not bits[:, :, 2 * heads :].any()
    assert not bits[..., 8:].any()
    back = convert(packed, "tpu_packed", "pallas", spec=spec)
    np.testing.assert_array_equal(library.bits(back), data.view(bits.dtype))


def test_another_spec_than_the_arrays_is_refused():
    data = np.zeros(get_layout("tpu_packed").shape(5, SPEC), jnp.bfloat16)
    other = KVCacheSpec(num_kv_heads=4, head_dim=8, block_size=4, dtype="bfloat16")
    with pytest.raises(
        ValueError, match=r"data: got shape \(5, 4, 3, 2, 128\), expected \(5, 4, 4"
    ):
        convert(data, "tpu_packed", "pallas", spec=other)


def test_a_layout_that_pads_may_not_share_a_pool():
    pool = np.zeros(5 * SPEC.block_size * SPEC.values_per_token, jnp.bfloat16)
    with pytest.raises(ValueError, match="tpu_packed pads a block to 6144 bytes"):
        share_pool(pool, SPEC, ["pallas", "tpu_packed"])
    whole = KVCacheSpec(num_kv_heads=3, head_dim=128, block_size=4, dtype="bfloat16")
    pool = np.zeros(5 * whole.block_size * whole.values_per_token, jnp.bfloat16)
    arrays = share_pool(pool, whole, ["pallas", "tpu_packed"])
    assert [array.shape for array in arrays] == [(5, 4, 6, 128), (5, 4, 3, 2, 128)]


@pytest.mark.parametrize("dtype", ["float32", "float16", "float8_e4m3fn", "float8_e5m2", "int8"])
def test_every_storage_type_is_converted(dtype, library, random_bits):
    src, dst = get_layout("flash_attn"), get_layout("packed")
    data = random_bits(src.shape(5, SPEC), dtype)
    moved = convert(library.array(data), src, dst)
    assert moved.dtype == library.array(data).dtype
    back = library.bits(convert(moved, dst, src))
    np.testing.assert_array_equal(back, data.view(back.dtype))


def test_a_latent_layout_converts_to_another(library, random_bits):
    other = Layout("latent_first", "latent block slot")
    data = random_bits(get_layout("mla").shape(5, LATENT), "bfloat16")
    moved = convert(library.array(data), "mla", other)
    np.testing.assert_array_equal(library.bits(moved), data.transpose(2, 0, 1).view(np.uint16))


def test_a_latent_in_whole_lanes_converts_there_and_back(library, random_bits):
    data = random_bits(get_layout("mla").shape(5, LATENT), "bfloat16")
    padded = convert(library.array(data), "mla", "tpu_mla")
    assert tuple(padded.shape) == (5, 4, 128)
    bits = library.bits(padded)
    np.testing.assert_array_equal(bits[..., :8], data.view(np.uint16))
    assert not bits[..., 8:].any()
    back = convert(padded, "tpu_mla", "mla", spec=LATENT)
    np.testing.assert_array_equal(library.bits(back), data.view(np.uint16))


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        ("pallas", HEAD_KV_APART),
        (HEAD_KV_APART, "pallas"),
        ("flashinfer", "flashinfer"),
        ("mla", "mla"),
    ],
)
def test_equal_bytes_are_not_copied(src, dst, library, random_bits):
    src, dst = get_layout(src), get_layout(dst)
    spec = LATENT if src.is_latent else SPEC
    data = library.array(random_bits(src.shape(5, spec), "bfloat16"))
    moved = convert(data, src, dst)
    assert tuple(moved.shape) == dst.shape(5, spec)
    if library.name != "jax":
        assert library.address(moved) == library.address(data)


def test_one_head_makes_nhd_and_hnd_the_same_bytes(library, random_bits):
    spec = KVCacheSpec(num_kv_heads=1, head_dim=8, block_size=4, dtype="float32")
    data = library.array(random_bits(get_layout("flashinfer").shape(5, spec), "float32"))
    moved = convert(data, "flashinfer", "flashinfer_hnd")
    if library.name != "jax":
        assert library.address(moved) == library.address(data)


def test_what_is_not_a_view_is_contiguous(random_bits):
    data = random_bits(get_layout("flashinfer").shape(5, SPEC), "float32")
    moved = convert(data, "flashinfer", "flash_attn")
    assert moved.flags.c_contiguous
    assert not np.shares_memory(moved, data)


def test_strides_that_forbid_a_view_are_refused(random_bits):
    wide = random_bits((5, 4, 3, 4, 8), "float32")
    with pytest.raises(ValueError, match=r"data: strides \(.*\) do not allow a view"):
        convert(wide[:, :, :, :2], HEAD_KV_APART, "pallas")
    # Every other one leaves keys and values evenly spaced.
    assert np.shares_memory(convert(wide[:, :, :, ::2], HEAD_KV_APART, "pallas"), wide)


def test_torch_strides_that_forbid_a_view_are_refused():
    torch = pytest.importorskip("torch", reason="torch is not installed in this lane")
    wide = torch.zeros(5, 4, 3, 4, 8)
    with pytest.raises(ValueError, match=r"data: strides \(.*\) do not allow a view"):
        convert(wide[:, :, :, :2], HEAD_KV_APART, "pallas")


@pytest.mark.parametrize(("src", "dst"), [("mla", "packed"), ("packed", "mla")])
def test_a_latent_is_no_key_and_value(src, dst):
    spec = LATENT if src == "mla" else SPEC
    with pytest.raises(ValueError, match=f"dst: cannot convert {src} .* to {dst}"):
        convert(np.zeros(get_layout(src).shape(5, spec)), src, dst)


def test_data_in_another_layout_is_refused():
    with pytest.raises(ValueError, match="expected 5 dimensions for layout flash_attn"):
        convert(np.zeros((5, 4, 6, 8)), "flash_attn", "pallas")


BLOCK_MAJOR = [
    layout for layout in KEYS_AND_VALUES if layout.is_block_major and not layout.is_padded
]


@pytest.mark.parametrize(
    "pair", list(itertools.permutations(BLOCK_MAJOR, 2)), ids=lambda p: "-".join(x.name for x in p)
)
def test_two_layouts_over_one_pool_keep_out_of_each_others_blocks(pair, random_bits):
    first, second = pair
    block_values = SPEC.block_size * SPEC.values_per_token
    pool = random_bits((5 * block_values,), "bfloat16")
    before = pool.copy().view(np.uint16).reshape(5, -1)
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(2, 2, SPEC.block_size, 3, 8)).astype(pool.dtype)
    seen = share_pool(pool, SPEC, [first, second])
    for block, (layout, array, (key, value)) in enumerate(zip(pair, seen, rows, strict=True), 1):
        assert np.shares_memory(array, pool)
        slots = np.arange(SPEC.block_size, dtype=np.int32) + block * SPEC.block_size
        layout.write(array, key, value, slots)
    for block, (layout, array, expected) in enumerate(zip(pair, seen, rows, strict=True), 1):
        for read, wanted in zip(layout.gather(array, np.array([block])), expected, strict=True):
            np.testing.assert_array_equal(read[0].view(np.uint16), wanted.view(np.uint16))
    after = pool.view(np.uint16).reshape(5, -1)
    np.testing.assert_array_equal(after[[0, 3, 4]], before[[0, 3, 4]])


def test_torch_shares_a_pool_too():
    torch = pytest.importorskip("torch", reason="torch is not installed in this lane")
    pool = torch.zeros(5 * SPEC.block_size * SPEC.values_per_token, dtype=torch.bfloat16)
    arrays = share_pool(pool, SPEC, ["pallas", "flashinfer_hnd"])
    assert all(array.data_ptr() == pool.data_ptr() for array in arrays)


def test_latents_of_two_layouts_share_a_pool():
    pool = np.zeros(5 * LATENT.block_size * LATENT.values_per_token, jnp.bfloat16)
    other = Layout("latent_by_dim", "block latent slot")
    arrays = share_pool(pool, LATENT, ["mla", other])
    assert [array.shape for array in arrays] == [(5, 4, 8), (5, 8, 4)]


@pytest.mark.parametrize("name", ["flash_attn", BY_DIM])
def test_a_layout_whose_blocks_are_scattered_may_not_share(name):
    pool = np.zeros(5 * SPEC.block_size * SPEC.values_per_token, jnp.bfloat16)
    with pytest.raises(ValueError, match=r"may not share a pool, expected layouts with 'block'"):
        share_pool(pool, SPEC, ["pallas", name])


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        (np.zeros((5, 192), jnp.bfloat16), r"pool: got shape \(5, 192\), expected one dimension"),
        (np.zeros(5 * 192 + 1, jnp.bfloat16), r"pool: got shape \(961,\), .* multiple of 192"),
        (np.zeros(5 * 192, np.float16), r"pool: got dtype float16, expected bfloat16"),
    ],
)
def test_a_pool_of_the_wrong_size_or_type_is_refused(pool, message):
    with pytest.raises(ValueError, match=message):
        share_pool(pool, SPEC, ["pallas", "packed"])
