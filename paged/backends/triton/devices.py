"""What plans need to know of a device: from its architecture, for both front ends."""

from paged.backends.triton.planning import Device

_KIB = 1024

_SHARED_KIB = {(8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227}
"""By compute capability. Source: CUDA programming guide, table of compute capabilities."""
_OTHERS_SHARED_KIB = 99
"""Of the others from 8.6 on."""
_ROCM_SHARED_KIB = 64
"""LDS of a workgroup. Source: CDNA 3 ISA guide."""


def cuda_device(capability: tuple[int, int], num_sms: int) -> Device:
    """An NVIDIA GPU.

    Args:
        capability: compute capability, (9, 0) for Hopper.
        num_sms: multiprocessors.
    """
    return Device(
        num_sms=num_sms,
        native_float8=capability >= (8, 9),
        shared_bytes=_SHARED_KIB.get(capability, _OTHERS_SHARED_KIB) * _KIB,
    )


def rocm_device(num_sms: int) -> Device:
    """An AMD GPU; `num_sms` counts its compute units."""
    return Device(
        num_sms=num_sms, native_float8=False, shared_bytes=_ROCM_SHARED_KIB * _KIB, is_rocm=True
    )
