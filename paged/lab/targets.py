"""Hardware that kernels are compiled for: what it is called, and its figures with their source.

All TPU figures are of one TensorCore, because a schedule is one core's. v4, v5p and v7x have two
cores on a chip, which share its HBM evenly here.
"""

from dataclasses import dataclass

from paged.lab.cuda import CudaTarget


@dataclass(frozen=True, slots=True)
class TpuTarget:
    """One generation of TPU.

    Attributes:
        name: what users call it.
        topology: name of a small topology, for `jax.experimental.topologies`.
        device_kind: what JAX calls its devices.
        hbm_gbps: HBM bandwidth of one core, 1e9 bytes per second.
        bf16_tflops: peak of one core's matrix units, bf16, 1e12 per second.
        flop_per_bundle: most matrix FLOP (2 per multiply-add) that one bundle can issue.
        vmem_bytes: vector memory of one core.
        cores_per_chip: TensorCores.
        mxu: matrix units of one core and their sides.
        source: where the figures are from.
    """

    name: str
    topology: str
    device_kind: str
    hbm_gbps: float
    bf16_tflops: float
    flop_per_bundle: int
    vmem_bytes: int
    cores_per_chip: int
    mxu: str
    source: str

    platform = "tpu"

    @property
    def clock_ghz(self) -> float:
        """Bundles per second of one core, 1e9; derived, because no vendor publishes it for all."""
        return self.bf16_tflops * 1e3 / self.flop_per_bundle

    def hbm_cycles(self, num_bytes: float) -> float:
        """Cycles of one core in which its HBM moves this many bytes."""
        return num_bytes / self.hbm_gbps * self.clock_ghz


Target = TpuTarget | CudaTarget

_MIB = 1 << 20
_COUNTED = (
    "flop_per_bundle: counted, the extra bundles of a (M, 512) x (512, 512) bf16 kernel as M "
    "grows (libtpu 0.0.52); VMEM and matrix units: jax 0.10.2, tpu_info"
)

_TPUS = (
    TpuTarget(
        name="v4",
        topology="v4:2x2x1",
        device_kind="TPU v4",
        hbm_gbps=614,
        bf16_tflops=137.5,
        flop_per_bundle=131_072,
        vmem_bytes=16 * _MIB,
        cores_per_chip=2,
        mxu="4 of 128 x 128",
        source="chip: 1228 GB/s, 275 TFLOP/s, cloud.google.com/tpu/docs/v4; " + _COUNTED,
    ),
    TpuTarget(
        name="v5e",
        topology="v5e:2x2",
        device_kind="TPU v5 lite",
        hbm_gbps=819,
        bf16_tflops=197,
        flop_per_bundle=131_072,
        vmem_bytes=128 * _MIB,
        cores_per_chip=1,
        mxu="4 of 128 x 128",
        source="chip: 819 GB/s, 197 TFLOP/s, cloud.google.com/tpu/docs/v5e; " + _COUNTED,
    ),
    TpuTarget(
        name="v5p",
        topology="v5p:2x2x1",
        device_kind="TPU v5",
        hbm_gbps=1382.5,
        bf16_tflops=229.5,
        flop_per_bundle=131_072,
        vmem_bytes=64 * _MIB,
        cores_per_chip=2,
        mxu="4 of 128 x 128",
        source="chip: 2765 GB/s, 459 TFLOP/s, cloud.google.com/tpu/docs/v5p; " + _COUNTED,
    ),
    TpuTarget(
        name="v6e",
        topology="v6e:2x2",
        device_kind="TPU v6 lite",
        hbm_gbps=1640,
        bf16_tflops=918,
        flop_per_bundle=524_288,
        vmem_bytes=128 * _MIB,
        cores_per_chip=1,
        mxu="2 of 256 x 256",
        source="chip: 1640 GB/s, 918 TFLOP/s, cloud.google.com/tpu/docs/v6e; " + _COUNTED,
    ),
    TpuTarget(
        name="v7x",
        topology="tpu7x:2x2x1",
        device_kind="TPU7x",
        hbm_gbps=3690,
        bf16_tflops=1153.5,
        flop_per_bundle=524_288,
        vmem_bytes=64 * _MIB,
        cores_per_chip=2,
        mxu="2 of 256 x 256",
        source="chip: 7380 GB/s, 2307 TFLOP/s, cloud.google.com/tpu/docs/tpu7x; " + _COUNTED,
    ),
)

_CUDA = (
    CudaTarget(
        name="a100",
        device_kind="NVIDIA A100-SXM4-80GB",
        compute_capability=(8, 0),
        core_count=108,
        clock_ghz=1.41,
        hbm_gbps=2039,
        bf16_tflops=312,
        memory_bytes=80 * 1024 * _MIB,
        l2_bytes=40 * _MIB,
        shared_bytes_per_core=164 * 1024,
        shared_bytes_per_block=163 * 1024,
        source="NVIDIA A100 data sheet and CUDA programming guide",
    ),
    CudaTarget(
        name="h100",
        device_kind="NVIDIA H100 80GB HBM3",
        compute_capability=(9, 0),
        core_count=132,
        clock_ghz=1.98,
        hbm_gbps=3350,
        bf16_tflops=989,
        memory_bytes=80 * 1024 * _MIB,
        l2_bytes=50 * _MIB,
        shared_bytes_per_core=228 * 1024,
        shared_bytes_per_block=227 * 1024,
        source="NVIDIA H100 SXM data sheet and CUDA programming guide",
    ),
    CudaTarget(
        name="b200",
        device_kind="NVIDIA B200",
        compute_capability=(10, 0),
        core_count=148,
        clock_ghz=1.965,
        hbm_gbps=8000,
        bf16_tflops=2250,
        memory_bytes=180 * 1024 * _MIB,
        l2_bytes=126 * _MIB,
        shared_bytes_per_core=228 * 1024,
        shared_bytes_per_block=227 * 1024,
        source="NVIDIA Blackwell data sheet and CUDA programming guide",
    ),
)

TARGETS: dict[str, Target] = {target.name: target for target in (*_TPUS, *_CUDA)}
"""By name."""


def get_targets(names: str) -> tuple[Target, ...]:
    """Targets by name, separated by commas; "all" is every TPU, "cuda" every CUDA device.

    Raises:
        ValueError: a name that is no target.
    """
    groups: dict[str, tuple[Target, ...]] = {"all": _TPUS, "tpu": _TPUS, "cuda": _CUDA}
    found: dict[str, Target] = {}
    for name in (part.strip() for part in names.split(",")):
        if name not in groups and name not in TARGETS:
            known = ", ".join((*TARGETS, *groups))
            raise ValueError(f"target: got {name!r}, expected some of {known}")
        for target in groups.get(name) or (TARGETS[name],):
            found[target.name] = target
    return tuple(found.values())
