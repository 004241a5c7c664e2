"""Large pages: asked for where they may be, and never anybody's loss."""

import ctypes
import mmap
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paged import AttentionSpec, KVCacheSpec, resolve
from paged.backends.cpu import pages
from paged.backends.cpu.backend import CpuBackend
from paged.backends.cpu.pages import PAGE_BYTES, large_pages_at, use_large_pages


def large_bytes_at(address: int) -> int:
    """What the system says of the mapping around an address."""
    inside = False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
                inside = int(found[1], 16) <= address < int(found[2], 16)
            elif inside and line.startswith("AnonHugePages:"):
                return int(line.split()[1]) << 10
    raise AssertionError(f"no mapping around {address:#x}")


Asked = list[tuple[int, int, int]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Asked:
    """What a system that allows large pages, and then has none, was asked for."""
    notes: Asked = []

    def refuse(begin: int, num_bytes: int, advice: int) -> int:
        notes.append((begin, num_bytes, advice))
        return -1

    monkeypatch.setattr(pages, "_madvise", refuse)
    setting = tmp_path / "enabled"
    setting.write_text("always [madvise] never\n")
    monkeypatch.setattr(pages, "SETTING", setting)
    return notes


def test_only_whole_pages_inside_are_asked_for(asked):
    begin = 5 * PAGE_BYTES
    assert large_pages_at(begin - 64, 3 * PAGE_BYTES)
    assert {(at, size) for at, size, _ in asked} == {(begin, 2 * PAGE_BYTES)}
    # In this order: what cannot be moved at once may be later.
    assert [advice for *_, advice in asked] == [14, 25]


@pytest.mark.parametrize("num_bytes", [0, 64, PAGE_BYTES - 1, PAGE_BYTES + 63])
def test_nothing_is_asked_where_no_page_fits(asked, num_bytes):
    assert not large_pages_at(PAGE_BYTES - 64, num_bytes)
    assert not asked


@pytest.mark.parametrize("setting", ["always madvise [never]\n", None])
def test_what_the_owner_forbids_is_not_asked(asked, setting):
    if setting is None:
        pages.SETTING.unlink()
    else:
        pages.SETTING.write_text(setting)
    assert not large_pages_at(0, 8 * PAGE_BYTES)
    assert not asked


def test_refusal_leaves_the_array_as_it_was(asked):
    array = jnp.arange(2 * PAGE_BYTES, dtype=jnp.int32)
    use_large_pages(array)
    assert len(asked) == 2
    np.testing.assert_array_equal(array, np.arange(2 * PAGE_BYTES))


def test_numbers_and_address_stay_where_pages_are_moved():
    array = jnp.arange(4 * PAGE_BYTES, dtype=jnp.int32)  # 16 pages
    address = array.unsafe_buffer_pointer()
    use_large_pages(array)
    assert array.unsafe_buffer_pointer() == address
    np.testing.assert_array_equal(array, np.arange(4 * PAGE_BYTES))
    # As much as memory that the system gave for it: none on a machine without large pages.
    with mmap.mmap(-1, 16 * PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as control:
        control.write(bytes(16 * PAGE_BYTES))
        held = ctypes.c_char.from_buffer(control)
        at = ctypes.addressof(held)
        large_pages_at(at, 16 * PAGE_BYTES)
        has_large = large_bytes_at(at + 8 * PAGE_BYTES) > 0
        del held
    assert (large_bytes_at(address + 8 * PAGE_BYTES) > 0) == has_large


def test_the_backend_allocates_on_them(asked):
    spec = AttentionSpec(num_heads=8, num_kv_heads=8, head_dim=128, scale=1.0)
    attention = resolve(spec, layout="flash_attn", backend="cpu")
    cache = attention.allocate(num_blocks=64, block_size=32)
    assert sum(size for _, size, _ in asked[:1]) >= cache.data.nbytes - 2 * PAGE_BYTES
    assert not np.asarray(cache.data).any()


def test_a_traced_cache_has_no_memory_yet(asked):
    spec = AttentionSpec(num_heads=8, num_kv_heads=8, head_dim=128, scale=1.0)
    cache_spec = KVCacheSpec.of(spec, block_size=32, dtype="float32")
    cache = jax.jit(lambda: CpuBackend().allocate(cache_spec, "flash_attn", 64))()
    assert cache.num_blocks == 64
    assert not asked
