"""A layout as strides: each entry lies where they say, in contiguous arrays and in views."""

import numpy as np
import pytest

from paged.layouts import LAYOUTS, KVStrides, Layout, kv_strides
from paged.spec import KVCacheSpec

SPEC = KVCacheSpec(num_kv_heads=3, head_dim=8, block_size=4)
LATENT = KVCacheSpec(1, 8, 4, kv_lora_rank=6, qk_rope_head_dim=2)


def test_flashinfer_by_hand():
    # (blocks, 2, 4 slots, 3 heads, 8): a slot is 24, keys of a block 96, a block 192.
    strides = kv_strides(LAYOUTS["flashinfer"], (5, 2, 4, 3, 8))
    assert strides == KVStrides(block=192, slot=24, head=8, dim=1, to_value=96)


def test_interleaved_heads_by_hand():
    # (blocks, 4 slots, 3 heads of a key and a value each, 8).
    strides = kv_strides(LAYOUTS["pallas"], (5, 4, 6, 8))
    assert strides == KVStrides(block=192, slot=48, head=16, dim=1, to_value=8)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=lambda layout: layout.name)
@pytest.mark.parametrize("step", [1, 2])
def test_every_entry_lies_where_the_strides_say(layout, step):
    spec = LATENT if layout.is_latent else SPEC
    shape = layout.shape(5, spec)
    whole = np.arange(np.prod(shape) * step).reshape((shape[0] * step, *shape[1:]))
    data = whole[::step]
    keys, values = layout.views(data, value_dim=6 if layout.is_latent else None)
    strides = kv_strides(layout, data.shape, tuple(s // data.itemsize for s in data.strides))
    rng = np.random.default_rng(0)
    for _ in range(50):
        block, slot = rng.integers(5), rng.integers(4)
        head, dim = rng.integers(spec.num_kv_heads), rng.integers(6)
        at = block * strides.block + slot * strides.slot + head * strides.head + dim * strides.dim
        assert whole.ravel()[at] == keys[block, slot, head, dim]
        assert whole.ravel()[at + strides.to_value] == values[block, slot, head, dim]


def test_a_layout_of_ones_own():
    own = Layout("own", "dim block (kv head) slot")
    strides = kv_strides(own, (8, 5, 6, 4))
    assert strides == KVStrides(block=24, slot=1, head=4, dim=120, to_value=12)


def test_strides_that_do_not_fit():
    with pytest.raises(ValueError, match="strides: got 2, expected 5 as the shape has"):
        kv_strides(LAYOUTS["flashinfer"], (5, 2, 4, 3, 8), (1, 2))
    shape = LAYOUTS["tpu_packed"].shape(2, KVCacheSpec(2, 8, 4, "bfloat16"))
    with pytest.raises(ValueError, match="between words of 2 values 128 apart, expected 256"):
        kv_strides(LAYOUTS["tpu_packed"], shape, (4096, 1024, 512, 128, 1))
