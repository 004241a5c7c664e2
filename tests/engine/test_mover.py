"""Copy orders carried out on real caches: sources as they were before any of them, bit for bit."""

import jax.numpy as jnp
import numpy as np
import pytest

from paged.blocks import Copies, CopyOrders
from paged.dtypes import storage_dtype
from paged.engine.mover import BlockMover
from paged.engine.programs import Programs
from paged.layouts import LAYOUTS, KVCache
from paged.spec import KVCacheSpec

NONE = Copies(np.zeros(0, np.int32), np.zeros(0, np.int32))


def copies(*pairs):
    columns = np.int32(pairs).T
    return Copies(columns[0], columns[1])


def block_bytes(caches):
    """For each layer the bytes of each block."""
    return [
        [np.asarray(c.data).take(b, c.layout.block_axis).tobytes() for b in range(c.num_blocks)]
        for c in caches
    ]


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_out_within_and_back(dtype):
    rng = np.random.default_rng(2)
    caches = []
    for name in ("flash_attn", "pallas"):
        shape = LAYOUTS[name].shape(9, KVCacheSpec(2, 4, block_size=2, dtype=dtype))
        storage = np.dtype(storage_dtype(dtype))
        data = rng.integers(0, 256, (*shape[:-1], shape[-1] * storage.itemsize), np.uint8)
        caches.append(KVCache(jnp.asarray(data.view(storage)), LAYOUTS[name]))
    caches = tuple(caches)
    before = block_bytes(caches)
    programs = Programs()
    mover = BlockMover(caches, num_host_blocks=3, programs=programs)

    # Block 5 leaves, is overwritten by 6, and what 6 held stays where it is.
    caches = mover.carry_out(caches, CopyOrders(copies((5, 2), (1, 1)), copies((6, 5)), NONE))
    # Block 1 is written to as by a step; what left it does not change any more.
    caches = mover.carry_out(caches, CopyOrders(NONE, copies((7, 1), (1, 8)), NONE))
    caches = mover.carry_out(caches, CopyOrders(NONE, NONE, copies((1, 3), (2, 4))))
    for old, new in zip(before, block_bytes(caches), strict=True):
        assert new == [old[b] for b in (0, 7, 2, 1, 5, 6, 6, 7, 1)]
    assert len(programs) == 3
    assert programs.seconds > 0
    # Out and in again between two steps, through the same place.
    caches = mover.carry_out(caches, CopyOrders(copies((2, 3)), NONE, copies((1, 2))))
    caches = mover.carry_out(caches, CopyOrders(NONE, NONE, copies((3, 7))))
    for old, new in zip(before, block_bytes(caches), strict=True):
        assert (new[2], new[7]) == (old[1], old[2])
    assert len(programs) == 3
