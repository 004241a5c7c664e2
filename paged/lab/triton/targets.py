"""GPUs that the Triton kernels are compiled for: names for triton, and facts for the plans."""

from dataclasses import dataclass

_KIB = 1024


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """One architecture.

    Attributes:
        name: what users call it.
        platform: "cuda" or "hip", as triton has it.
        arch: the architecture, as triton has it.
        warp_size: threads of a warp.
        num_sms: multiprocessors, of the device that plans are made for.
        native_float8: see `paged.backends.triton.planning.Device`.
        shared_limit: most shared memory that one program may have, bytes.
        device: which device that is, and the source of its figures.
    """

    name: str
    platform: str
    arch: int | str
    warp_size: int
    num_sms: int
    native_float8: bool
    shared_limit: int
    device: str


_CUDA_GUIDE = "CUDA programming guide, table of compute capabilities"

GPU_TARGETS: dict[str, GpuTarget] = {
    target.name: target
    for target in (
        GpuTarget("sm_80", "cuda", 80, 32, 108, False, 163 * _KIB, f"A100; {_CUDA_GUIDE}"),
        GpuTarget("sm_90", "cuda", 90, 32, 132, True, 227 * _KIB, f"H100; {_CUDA_GUIDE}"),
        GpuTarget("sm_100", "cuda", 100, 32, 148, True, 227 * _KIB, f"B200; {_CUDA_GUIDE}"),
        GpuTarget("gfx942", "hip", "gfx942", 64, 304, False, 64 * _KIB, "MI300X; CDNA 3 ISA guide"),
    )
}
"""By name."""


def get_gpu_targets(names: str) -> tuple[GpuTarget, ...]:
    """Targets by name, separated by commas; "all" is every one. Always in the order of the list.

    Raises:
        ValueError: a name that is no target.
    """
    wanted = [part.strip() for part in names.split(",")]
    for name in wanted:
        if name != "all" and name not in GPU_TARGETS:
            known = ", ".join((*GPU_TARGETS, "all"))
            raise ValueError(f"target: got {name!r}, expected some of {known}")
    return tuple(t for name, t in GPU_TARGETS.items() if name in wanted or "all" in wanted)
