"""Jobs in, measurements out: compile for a target, read the dumps, count per token."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paged.backends import Backend
from paged.lab.bundles import KernelCounts, read_kernel
from paged.lab.compile import Call, Compiled, Status, refusals
from paged.lab.dump import Dump, dumps
from paged.lab.problem import Problem
from paged.lab.processes import Job
from paged.lab.roofline import (
    Total,
    Unknown,
    hbm_cycles_per_token,
    loop_runs,
    matmul_cycles_per_token,
    total,
)
from paged.lab.targets import Target, TpuTarget

_NOT_COMPILED = Unknown("not compiled")
_COMPILED = (
    "status",
    "reason",
    "argument_bytes",
    "output_bytes",
    "alias_bytes",
    "temp_bytes",
    "code_bytes",
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one backend does with one problem on one target.

    Attributes:
        kernel: the backend's name.
        problem: what was asked.
        target: for which hardware.
        call: "attend" or "write".
        compiled: the compiler's word.
        kernels: counts of the kernels that the figures are about: the custom ones where the
            program has any, and all of it otherwise.
        outside: counts of XLA's own kernels around custom ones.
        per_token: bundles per KV token, or why not.
        outside_per_token: the same of XLA's own kernels around.
        hbm_cycles: cycles of HBM per KV token; None for CUDA.
        matmul_cycles: cycles of the matrix units at peak per KV token; None for CUDA.
        runs: for each of `kernels`, how often each of its loops runs in a call.
    """

    kernel: str
    problem: Problem
    target: Target
    call: Call
    compiled: Compiled
    kernels: tuple[KernelCounts, ...] = ()
    outside: tuple[KernelCounts, ...] = ()
    per_token: Total | Unknown = _NOT_COMPILED
    outside_per_token: Total | Unknown = _NOT_COMPILED
    hbm_cycles: float | None = None
    matmul_cycles: float | None = None
    runs: tuple[tuple[float | None, ...], ...] = ()

    @property
    def status(self) -> Status:
        """Whether it compiled."""
        return self.compiled.status

    @property
    def vmem_bytes(self) -> int | None:
        """The most vector memory that any of the kernels has."""
        return max((kernel.vmem_bytes for kernel in self.kernels), default=None)

    @property
    def reason(self) -> str:
        """Why there are no figures, or no figures per token; "" where there are."""
        if self.status != "compiled":
            return f"{self.status}: {self.compiled.reason}"
        return self.per_token.reason if isinstance(self.per_token, Unknown) else ""

    def row(self) -> dict[str, Any]:
        """The fixed form that scripts rely on; None where it is not known."""
        spec = self.problem.spec
        counts = self.per_token if isinstance(self.per_token, Total) else None
        has_counts = bool(self.kernels)
        return {
            "kernel": self.kernel,
            "layout": self.problem.layout.name,
            "target": self.target.name,
            "block_size": self.problem.block_size,
            "num_heads": spec.num_heads,
            "num_kv_heads": spec.num_kv_heads,
            "head_dim": spec.head_dim,
            "kv_tokens": self.problem.kv_tokens,
            "scheduled_per_token": None if counts is None else round(counts.scheduled, 4),
            "issued_per_token": None if counts is None else round(counts.issued, 4),
            "bound_per_token": None if counts is None else round(counts.bound, 4),
            "hbm_cycles_per_token": None if self.hbm_cycles is None else round(self.hbm_cycles, 4),
            "fills": sum(kernel.fills for kernel in self.kernels) if has_counts else None,
            "spills": sum(kernel.spills for kernel in self.kernels) if has_counts else None,
            "vmem_bytes": self.vmem_bytes,
        }

    def report(self) -> dict[str, Any]:
        """All that was read, as plain data."""
        outside = self.outside_per_token
        compiled = {name: getattr(self.compiled, name) for name in _COMPILED}
        return {
            **self.row(),
            "call": self.call,
            "num_seqs": self.problem.num_seqs,
            "query_len": self.problem.query_len,
            "cache_dtype": self.problem.cache_dtype,
            "query_dtype": self.problem.query_dtype,
            "reason": self.reason,
            "matmul_cycles_per_token": self.matmul_cycles,
            "outside_per_token": outside.scheduled if isinstance(outside, Total) else None,
            "compiled": compiled,
            "kernels": [
                {
                    **asdict(kernel),
                    "runs": self.runs[index] if index < len(self.runs) else None,
                }
                for index, kernel in enumerate(self.kernels)
            ],
        }


def measure(
    target: Target,
    asks: Sequence[tuple[Backend, Problem]],
    *,
    call: Call = "attend",
    timeout_s: float = 1800,
) -> list[Measurement]:
    """Measures each ask on one target, in order.

    Asks that the backend refuses are not compiled.

    Raises:
        ImportError: the target's compiler is not installed.
    """
    found: dict[int, Measurement] = {}
    jobs: dict[int, Job] = {}
    for index, (backend, problem) in enumerate(asks):
        if reasons := refusals(backend, problem, target):
            compiled = Compiled("refused", reason="; ".join(dict.fromkeys(reasons)))
            found[index] = Measurement(backend.name, problem, target, call, compiled)
        else:
            jobs[index] = Job(backend, problem, call)
    if jobs:
        with dumps(target, list(jobs.values()), timeout_s=timeout_s) as left:
            for (index, job), dump in zip(jobs.items(), left, strict=True):
                found[index] = _measured(job, dump, target)
    return [found[index] for index in range(len(asks))]


def _measured(job: Job, dump: Dump, target: Target) -> Measurement:
    backend, problem = job.backend, job.problem
    program = dump.program
    if dump.compiled.status != "compiled" or program is None or not isinstance(target, TpuTarget):
        reason = "bundles are counted for TPU targets" if target.platform != "tpu" else "no program"
        return Measurement(
            backend.name, problem, target, job.call, dump.compiled, per_token=Unknown(reason)
        )
    counts = [read_kernel(files) for files in dump.kernels]
    custom = tuple(kernel for kernel in counts if kernel.name in program.custom)
    kernels = custom or tuple(counts)
    outside = tuple(kernel for kernel in counts if kernel not in kernels)
    rules = dump.compiled.trips
    copies = dump.copies or {}

    def per_token(some: tuple[KernelCounts, ...]) -> Total | Unknown:
        whole = total(some, program, copies, rules)
        return whole if isinstance(whole, Unknown) else whole.per(problem.total_kv_tokens)

    return Measurement(
        kernel=backend.name,
        problem=problem,
        target=target,
        call=job.call,
        compiled=dump.compiled,
        kernels=kernels,
        outside=outside,
        per_token=per_token(kernels),
        outside_per_token=per_token(outside),
        hbm_cycles=hbm_cycles_per_token(problem, target),
        matmul_cycles=matmul_cycles_per_token(problem, target),
        runs=tuple(loop_runs(kernel, 1.0, rules) for kernel in kernels),
    )
