"""`KVCache`: an array that knows its layout."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paged.layouts import LAYOUTS, KVCache, check_slots_fit, get_layout
from paged.spec import AttentionSpec, KVCacheSpec

SPEC = KVCacheSpec(num_kv_heads=2, head_dim=8, block_size=4, dtype="bfloat16")
QUANTISED = KVCacheSpec(num_kv_heads=2, head_dim=8, block_size=4, dtype="int8")
LATENT = KVCacheSpec(
    num_kv_heads=1,
    head_dim=8,
    block_size=4,
    dtype="bfloat16",
    kv_lora_rank=6,
    qk_rope_head_dim=2,
)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=lambda layout: layout.name)
def test_allocate_and_read_the_sizes_back(layout):
    spec = LATENT if layout.is_latent else SPEC
    cache = KVCache.allocate(spec, layout.name, num_blocks=5)
    assert isinstance(cache.data, jax.Array)
    assert not cache.data.any()
    assert (cache.num_blocks, cache.block_size, cache.dtype) == (5, 4, "bfloat16")
    width = 128 if layout.is_padded else spec.head_dim
    assert (cache.num_kv_heads, cache.head_dim) == (spec.num_kv_heads, width)
    assert layout.holds(cache.data.shape, spec.num_kv_heads, spec.head_dim)
    assert cache.data.nbytes == 5 * layout.page_bytes(spec)


def test_it_is_a_pytree_whose_layout_is_static():
    cache = KVCache.allocate(SPEC, "pallas", 5, k_scale=jnp.float32(0.5), v_scale=jnp.float32(2))
    seen = []

    @jax.jit
    def double(cache):
        seen.append(cache.layout)
        return cache.with_data(cache.data * 2)

    doubled = double(double(cache))
    assert isinstance(doubled, KVCache)
    assert (doubled.layout, float(doubled.k_scale)) == (get_layout("pallas"), 0.5)
    assert seen == [get_layout("pallas")], "traced once: the layout is no new static value"
    assert len(jax.tree.leaves(cache)) == 3
    assert len(jax.tree.leaves(KVCache.allocate(SPEC, "pallas", 5))) == 1


def test_other_libraries_have_the_same_sizes():
    cache = KVCache(np.zeros((5, 2, 4, 2, 8), np.float32), get_layout("flashinfer"))
    assert (cache.num_blocks, cache.block_size, cache.dtype) == (5, 4, "float32")
    torch = pytest.importorskip("torch", reason="torch is not installed in this lane")
    cache = cache.with_data(torch.zeros(5, 2, 4, 2, 8, dtype=torch.bfloat16))
    assert (cache.num_blocks, cache.head_dim, cache.dtype) == (5, 8, "bfloat16")


def test_a_pool_whose_slots_do_not_fit_int32_is_refused():
    check_slots_fit(2**27 - 1, 16)
    with pytest.raises(
        ValueError, match=r"num_blocks: got 134217728 blocks of 16 slots.*2147483648"
    ):
        check_slots_fit(2**27, 16)
    with pytest.raises(ValueError, match="num_blocks: got 134217728"):
        KVCache.allocate(KVCacheSpec(1, 1, block_size=16), "pallas", 2**27)


def test_a_pool_of_the_null_block_alone_is_refused():
    with pytest.raises(ValueError, match="num_blocks: got 1, expected at least 2"):
        KVCache.allocate(SPEC, "pallas", 1)


@pytest.mark.parametrize("num_blocks", [4.5, "4", True])
def test_a_number_of_blocks_that_is_none_is_refused(num_blocks):
    message = f"num_blocks: got {num_blocks!r}, expected an integer of at least 2"
    with pytest.raises(ValueError, match=message):
        KVCache.allocate(SPEC, "pallas", num_blocks)


def test_a_layout_that_cannot_hold_the_spec_is_refused():
    with pytest.raises(ValueError, match="layout mla holds one latent per token"):
        KVCache.allocate(SPEC, "mla", 5)


@pytest.mark.parametrize("scale", [0.5, 2, np.float32(0.5), jnp.bfloat16(0.5), np.ones(2), None])
def test_scales_that_are_numbers_are_kept_as_they_are(scale):
    cache = KVCache.allocate(QUANTISED, "pallas", 5, k_scale=scale, v_scale=0.25)
    assert cache.k_scale is scale
    assert cache.v_scale == 0.25


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        ("x", "v_scale: got str, expected a number, an array or None"),
        (True, "v_scale: got bool, expected a number, an array or None"),
        ([0.5, 0.5], "v_scale: got list, expected a number, an array or None"),
        (np.array([True, True]), "v_scale: got dtype bool, expected float32"),
        (np.ones(2, complex), "v_scale: got dtype complex128, expected float32"),
        (jnp.ones(3), "v_scale: got shape (3,), expected () or (2,) (num_kv_heads)"),
        (jnp.ones((2, 1)), "v_scale: got shape (2, 1), expected () or (2,) (num_kv_heads)"),
        (0, "v_scale: got 0, expected a positive number"),
        (-0.5, "v_scale: got -0.5, expected a positive number"),
        (float("nan"), "v_scale: got nan, expected a positive number"),
        (10**40, f"v_scale: got {10**40}, expected a positive number"),
        (1e-40, "v_scale: got 1e-40, expected a positive number, from 1.175494e-38 to 3.402823e+3"),
        (jnp.float32(jnp.inf), "v_scale: got inf, expected a positive number"),
        (jnp.array([0.5, 0.0]), "v_scale[1]: got 0.0, expected a positive number"),
        (np.array([-1.0, 1.0]), "v_scale[0]: got -1.0, expected a positive number"),
    ],
)
def test_scales_by_which_nothing_can_be_divided_are_refused(scale, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        KVCache.allocate(QUANTISED, "pallas", 5, k_scale=0.5, v_scale=scale)


def test_traced_scales_are_taken_at_their_word():
    allocate = jax.jit(lambda scale: KVCache.allocate(QUANTISED, "pallas", 5, k_scale=scale))
    assert float(allocate(jnp.float32(0)).k_scale) == 0
    with pytest.raises(ValueError, match=re.escape("k_scale: got shape (3,), expected () or (2,)")):
        allocate(jnp.ones(3))


def test_a_cache_lies_where_it_is_asked_to():
    device = jax.devices()[0]
    for sharding in (None, device, jax.sharding.SingleDeviceSharding(device)):
        assert KVCache.allocate(SPEC, "pallas", 5, sharding=sharding).data.devices() == {device}
    for wrong in ("x", 0, jax.sharding.PartitionSpec("heads")):
        message = re.escape(f"sharding: got {wrong!r}, expected a Sharding, a Device or None")
        with pytest.raises(ValueError, match=message):
            KVCache.allocate(SPEC, "pallas", 5, sharding=wrong)


def test_what_is_no_spec_is_refused():
    attention = AttentionSpec(num_heads=2, num_kv_heads=2, head_dim=8, scale=1.0)
    for wrong in ("bfloat16", None, attention):
        with pytest.raises(ValueError, match=r"^spec: got .*, expected a KVCacheSpec"):
            KVCache.allocate(wrong, "pallas", 5)
