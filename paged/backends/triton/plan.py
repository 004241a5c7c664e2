"""A launch plan: which kernels run over which arrays, as a plain value.

Both front ends, torch and JAX, run the same plan. It is made from shapes alone, without triton.
"""

from dataclasses import dataclass

from paged.backends.triton.form import AttendForm, WriteForm

ABSENT = "absent"
"""The name of an array that there is not: some other is passed, which the kernel leaves alone."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """An array that a plan makes.

    Attributes:
        name: as launches call it.
        shape: of it.
        dtype: by name.
        fill: what it begins with; None where the kernels write all that is read.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    fill: float | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch. The kernel takes inputs, scalars, outputs and its form, in this order.

    Attributes:
        kernel: its name, of `paged.backends.triton.kernels`.
        grid: programs.
        inputs: names of arrays.
        scalars: numbers.
        outputs: names of arrays that it writes.
        updated: those of `outputs` that it writes in part: they are among `inputs` too.
        form: what the kernel is compiled for.
        warps: of a program.
        stages: of its pipelines.
    """

    kernel: str
    grid: tuple[int, int, int]
    inputs: tuple[str, ...]
    scalars: tuple[int, ...]
    outputs: tuple[str, ...]
    updated: tuple[str, ...]
    form: AttendForm | WriteForm
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a call runs.

    Attributes:
        buffers: arrays that it makes.
        launches: in order.
        results: names of the arrays that the call gives back.
    """

    buffers: tuple[Buffer, ...]
    launches: tuple[Launch, ...]
    results: tuple[str, ...]
