"""What it costs to take a request's blocks, by either of the two ways to give them back later."""

from dataclasses import dataclass
from typing import Literal, get_args

PreemptionMode = Literal["auto", "recompute", "swap"]

FLOPS_PER_BYTE_MOVED = {"cpu": 20.0, "cuda": 8000.0, "tpu": 8000.0}
"""Floating-point operations that a device does in the time in which one byte moves between it and
the host, by platform. An estimate from data sheets, not a measurement: 400 TFLOP/s of matrix
products in practice beside a PCIe 5.0 link of 50 GB/s; on a CPU 100 GFLOP/s beside copies at
5 GB/s. What is not listed counts as "cuda"."""


@dataclass(frozen=True, slots=True)
class PreemptionCost:
    """Compares moving a request's blocks with computing its tokens again.

    Attributes:
        block_bytes: bytes of a block over all layers.
        flops_per_token: operations to compute a token: two for each parameter.
        platform: of the device, as in `FLOPS_PER_BYTE_MOVED`.
        mode: "auto" compares; the others settle it.

    Raises:
        ValueError: an unknown mode.
    """

    block_bytes: int = 0
    flops_per_token: float = 0.0
    platform: str = "cpu"
    mode: PreemptionMode = "auto"

    def __post_init__(self) -> None:
        if self.mode not in get_args(PreemptionMode):
            modes = ", ".join(get_args(PreemptionMode))
            raise ValueError(f"preemption: got {self.mode!r}, expected one of {modes}")

    def prefers_swap(self, *, num_blocks: int, num_tokens: int) -> bool:
        """Whether moving `num_blocks` blocks out and in is cheaper than computing the tokens."""
        if self.mode != "auto":
            return self.mode == "swap"
        per_byte = FLOPS_PER_BYTE_MOVED.get(self.platform, FLOPS_PER_BYTE_MOVED["cuda"])
        return 2 * num_blocks * self.block_bytes * per_byte < num_tokens * self.flops_per_token
