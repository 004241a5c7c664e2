"""Compiled programs are dropped before a process has no room for more."""

from pathlib import Path

import jax

# Linux allows 65,530 mappings by default (vm.max_map_count), and each compiled program of XLA:CPU
# takes several: some 250 interpreted Pallas kernels are too many. An error then ends the process.
_MOST_MAPPINGS = 20_000


def release_programs() -> None:
    """Forgets all compiled programs where they are many; where nobody counts, nothing is done."""
    mappings = Path("/proc/self/maps")
    if mappings.exists() and mappings.read_bytes().count(b"\n") > _MOST_MAPPINGS:
        jax.clear_caches()
