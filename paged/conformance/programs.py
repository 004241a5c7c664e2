"""Compiled programs are dropped before a process has no room for more."""

import os
from pathlib import Path

import jax

# Linux allows 65,530 mappings by default (vm.max_map_count), and each compiled program of XLA:CPU
# takes several: some 250 interpreted Pallas kernels are too many. An error then ends the process.
_MOST_MAPPINGS = 20_000
# The suite is to run in 2 GiB, one large case included.
_MOST_BYTES = 5 << 28


def release_programs() -> None:
    """Forgets all compiled programs where they are many; only Linux tells how many."""
    process = Path("/proc/self")
    if not (process / "statm").exists():
        return
    mappings = (process / "maps").read_bytes().count(b"\n")
    resident = int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if mappings > _MOST_MAPPINGS or resident > _MOST_BYTES:
        jax.clear_caches()
