"""Triton's interpreter: kernels as Python over numpy, on any host.

Triton decides when it is imported whether functions are compiled or interpreted, for the whole
process, by the variable TRITON_INTERPRET.
"""

import os
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from paged.backends.triton.catalog import kernel_of, load_kernels
from paged.backends.triton.plan import Launch, Plan

_VARIABLE = "TRITON_INTERPRET"


def prepare_interpreter() -> None:
    """Has triton interpret in this process.

    Raises:
        RuntimeError: triton was imported already, and compiles.
    """
    if "triton" not in sys.modules:
        os.environ[_VARIABLE] = "1"
    if not is_interpreting():
        raise RuntimeError(
            f"interpret: triton was imported without {_VARIABLE}=1 and compiles its kernels, "
            f"expected the variable to be set before triton is first imported"
        )
    # All kernels, now: what is wrong with one shows before the first call.
    load_kernels()


def is_interpreting() -> bool:
    """Whether triton interprets in this process."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction

    return isinstance(tl.zeros_like, InterpretedFunction)


def run_interpreted(plan: Plan, arrays: dict[str, np.ndarray]) -> None:
    """Runs a plan over numpy arrays, which are written where it says.

    Args:
        plan: what to run.
        arrays: by name, the plan's buffers among them. bfloat16 and float8 as ml_dtypes has them.
    """
    for launch in plan.launches:
        run_launch(launch, arrays)


def run_launch(launch: Launch, arrays: dict[str, np.ndarray]) -> None:
    """Runs one launch."""
    given = [_Pointer.to(arrays[name]) for name in launch.inputs]
    written = [_Pointer.to(arrays[name]) for name in launch.outputs]
    kernel = kernel_of(launch.kernel)
    # Parts of other sequences and rows that there are not give inf - inf, which no one reads.
    with np.errstate(all="ignore"):
        kernel[launch.grid](*given, *launch.scalars, *written, FORM=launch.form)


@dataclass(frozen=True, slots=True)
class _Pointer:
    """An address with a type, as the interpreter takes tensors: of torch it needs no more."""

    address: int
    dtype: str
    # What keeps the memory.
    array: np.ndarray

    @classmethod
    def to(cls, array: np.ndarray) -> "_Pointer":
        return cls(array.ctypes.data, array.dtype.name, array)

    def data_ptr(self) -> int:
        return self.address

    def untyped_storage(self) -> "_Pointer":
        return self

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return self.array.shape

    def stride(self) -> tuple[int, ...]:
        return self.array.strides

    def cpu(self) -> "_Pointer":
        return self

    def new_empty(self, *_: Any, **__: Any) -> "_Pointer":
        return self

    def set_(self, *_: Any) -> "_Pointer":
        return self

    def copy_(self, _: Any) -> "_Pointer":
        return self
