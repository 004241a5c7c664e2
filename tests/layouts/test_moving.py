"""Blocks are copied within caches, out of them and back, bit for bit and in place."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paged.dtypes import storage_dtype
from paged.layouts import LAYOUTS, KVCache, copy_blocks, put_blocks, take_blocks
from paged.spec import KVCacheSpec

DTYPES = ["float32", "bfloat16", "float8_e4m3fn", "int8"]
BLOCKS = 6
copy_donated = jax.jit(copy_blocks, donate_argnums=0)


def spec_for(layout, dtype):
    if layout.is_latent:
        return KVCacheSpec(1, 12, block_size=2, dtype=dtype, kv_lora_rank=8, qk_rope_head_dim=4)
    return KVCacheSpec(2, 4, block_size=2, dtype=dtype)


def random_bits(layout, dtype, seed=0, blocks=BLOCKS):
    """Any bits at all: NaN with every payload among them."""
    storage = np.dtype(storage_dtype(dtype))
    shape = layout.shape(blocks, spec_for(layout, dtype))
    size = int(np.prod(shape)) * storage.itemsize
    data = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    return data.view(storage).reshape(shape)


def cache_of(layout, data):
    return KVCache(jnp.asarray(data), layout)


def block(layout, data, number):
    return np.asarray(data).take(number, axis=layout.block_axis).tobytes()


def test_by_hand():
    """Four blocks of one token, keys and values of one number."""
    spec = KVCacheSpec(1, 1, block_size=1, dtype="float32")
    layout = LAYOUTS["packed"]
    data = np.float32([0, 0, 1, -1, 2, -2, 3, -3]).reshape(layout.shape(4, spec))
    (copied,) = copy_blocks([KVCache(data, layout)], np.int32([1, 2]), np.int32([3, 1]))
    # Block 1 was read before it was written.
    assert copied.data.reshape(-1).tolist() == [0, 0, 2, -2, 2, -2, 1, -1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=lambda layout: layout.name)
def test_any_bits_in_any_layout(layout, dtype):
    before = random_bits(layout, dtype)
    src, dst = np.int32([2, 4, 5, 0]), np.int32([3, 5, 4, -1])
    expected = [block(layout, before, number) for number in (0, 1, 2, 2, 5, 4)]
    for caches in (
        copy_donated([cache_of(layout, before)], src, dst),
        copy_blocks([KVCache(before.copy(), layout)], src, dst),
    ):
        found = [block(layout, caches[0].data, number) for number in range(BLOCKS)]
        assert found == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_come_back_from_the_host_byte_for_byte(dtype):
    layouts = [LAYOUTS["flash_attn"], LAYOUTS["tpu_packed"]]
    before = [random_bits(layout, dtype, seed) for seed, layout in enumerate(layouts)]
    caches = [cache_of(*pair) for pair in zip(layouts, before, strict=True)]
    kept = [np.asarray(blocks) for blocks in take_blocks(caches, np.int32([5, 2, 1]))]
    back = put_blocks(caches, np.int32([1, -1, 3]), kept)
    for layout, old, cache in zip(layouts, before, back, strict=True):
        found = [block(layout, cache.data, number) for number in range(BLOCKS)]
        assert found == [block(layout, old, number) for number in (0, 5, 2, 1, 4, 5)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["flash_attn", "pallas", "tpu_packed", "mla"])
def test_the_pool_itself_is_not_copied(name, dtype):
    layout, blocks = LAYOUTS[name], 512
    shape = layout.shape(blocks, spec_for(layout, dtype))
    pool = KVCache(jax.ShapeDtypeStruct(shape, storage_dtype(dtype)), layout)
    ids = jax.ShapeDtypeStruct((4,), jnp.int32)
    memory = copy_donated.lower([pool], ids, ids).compile().memory_analysis()
    pool_bytes = blocks * layout.page_bytes(spec_for(layout, dtype))
    assert memory.alias_size_in_bytes == pool_bytes
    assert memory.temp_size_in_bytes < pool_bytes // 16
