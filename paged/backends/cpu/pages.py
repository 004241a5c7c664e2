"""Large pages under an array.

A cache is read in blocks at random addresses, and with pages of 4 KiB each block costs several
walks through the page tables: decodes took 5 to 6 % longer, over latents 3 %, and a plain sum 15 %
(EPYC Zen 5 under KVM, 2026-11-30). Linux puts large pages under memory that is there already when
it is asked to (`madvise(2)`, MADV_COLLAPSE, Linux 6.1), or later by itself (MADV_HUGEPAGE).
Addresses stay what they are, so that it may happen beneath an array in use.
"""

import ctypes
from pathlib import Path

import jax
from jax.core import Tracer

PAGE_BYTES = 2 << 20
"""A large page of x86-64, and of Arm with pages of 4 KiB."""

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
"""What the machine's owner allows: one word of three in brackets."""

_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25


def use_large_pages(array: jax.Array) -> None:
    """Asks for large pages under an array's memory, as far as it has room for whole ones.

    Where the system has none, does not allow them or has no memory left for them, nothing changes.
    A tracer has no memory and is left alone.
    """
    if isinstance(array, Tracer):
        return
    jax.block_until_ready(array)
    for shard in array.addressable_shards:
        large_pages_at(shard.data.unsafe_buffer_pointer(), shard.data.nbytes)


def large_pages_at(address: int, num_bytes: int) -> bool:
    """The same for memory at an address. Says whether the system was asked."""
    begin = -(-address // PAGE_BYTES) * PAGE_BYTES
    whole = (address + num_bytes - begin) // PAGE_BYTES * PAGE_BYTES
    if whole <= 0 or not _is_allowed():
        return False
    for advice in (_MADV_HUGEPAGE, _MADV_COLLAPSE):
        # What is refused is no error: it is advice, and some of the memory may have been moved.
        _madvise(begin, whole, advice)
    return True


def _madvise(begin: int, num_bytes: int, advice: int) -> int:
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc.madvise(begin, num_bytes, advice)


def _is_allowed() -> bool:
    try:
        return "[never]" not in SETTING.read_text()
    except OSError:
        # Another system than Linux, or one without large pages.
        return False
