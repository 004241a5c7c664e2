"""`KVCache`: an array that knows its layout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paged.layouts import LAYOUTS, KVCache, check_slots_fit, get_layout
from paged.spec import KVCacheSpec

SPEC = KVCacheSpec(num_kv_heads=2, head_dim=8, block_size=4, dtype="bfloat16")
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
