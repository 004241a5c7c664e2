"""In which type a model is fast: decided here and nowhere else."""

from functools import cache
from pathlib import Path

_SIXTEEN_BITS = ("bfloat16", "float16")

_CPUINFO = Path("/proc/cpuinfo")

_FAST_FLAGS = frozenset({"amx_bf16"})
"""What the kernel calls the instructions for which XLA:CPU has products of bfloat16.

Not `avx512_bf16`: XLA widens to float32 all the same, every weight in every step. A decode step of
32 requests through 102 M parameters took 106 ms in bfloat16 and 38 ms in float32 (2 cores of an AMD
EPYC Zen 5, which has it; jax 0.10.2, 2026-11-30). AMX has not been measured: jaxlib has kernels for
it, and for nothing else."""


def running_dtype(stored: str, *, platform: str) -> str:
    """The type in which a model that is stored in `stored` runs, unless somebody names one.

    On a CPU that XLA has no 16-bit products for it is float32.

    Args:
        stored: a dtype's name.
        platform: where it runs, as JAX calls it.
    """
    if platform != "cpu" or stored not in _SIXTEEN_BITS:
        return stored
    return stored if stored == "bfloat16" and _has_bfloat16_products() else "float32"


@cache
def _has_bfloat16_products() -> bool:
    return not _FAST_FLAGS.isdisjoint(cpu_flags(_CPUINFO))


def cpu_flags(file: Path) -> frozenset[str]:
    """The processor's flags by a file like Linux's /proc/cpuinfo; none where there is no such."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())
