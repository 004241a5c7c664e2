"""Cases in, rows out: the compiler runs in processes of its own.

Their environment is set before they import triton, which reads it then: no interpreter, and a cache
of compiled kernels that is new, so that what is counted is compiled now. A compiler that ends its
process takes only its own case along: the rest goes on in the next process.
"""

import importlib.util
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paged.lab.triton.child import result_file
from paged.lab.triton.grid import Case
from paged.lab.triton.read import Counts
from paged.lab.triton.targets import GpuTarget

MOST_WORKERS = 2
"""Processes side by side."""

_FIGURES = ("registers", "spills", "shared_bytes", "mma", "load_bytes")


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """What became of a case.

    Attributes:
        case: what was asked.
        target: for which GPU.
        counts: None where it did not compile.
        reason: why it did not; "" where it did.
    """

    case: Case
    target: GpuTarget
    counts: Counts | None
    reason: str = ""

    def row(self) -> dict[str, Any]:
        """The fixed form that scripts rely on; None where it is not known."""
        figures: dict[str, Any] = dict.fromkeys(_FIGURES)
        if self.counts is not None:
            figures = asdict(self.counts)
        return {
            "kernel": self.case.name,
            "layout": self.case.layout,
            "target": self.target.name,
            "dtype": self.case.dtype,
            "head_dim": self.case.head_dim,
            "group": self.case.group,
            "block_size": self.case.block_size,
            **figures,
        }


def require_triton() -> None:
    """Refuses to go on where there is no triton.

    Raises:
        ImportError: naming the command that installs it.
    """
    if importlib.util.find_spec("triton") is None:
        raise ImportError("compiling the kernels needs triton: pip install triton")


def compile_cases(
    target: GpuTarget,
    cases: Sequence[Case],
    *,
    workers: int = MOST_WORKERS,
    timeout_s: float = 3600,
) -> list[CompiledKernel]:
    """Compiles cases for a target; results in the order of the cases.

    Args:
        target: the GPU.
        cases: what to compile.
        workers: processes side by side, 1 or 2.
        timeout_s: for one process.

    Raises:
        ImportError: triton is not installed.
        ValueError: a number of workers that is not accepted.
    """
    require_triton()
    if not 1 <= workers <= MOST_WORKERS:
        raise ValueError(f"workers: got {workers}, expected 1 to {MOST_WORKERS}")
    indices = range(len(cases))
    # Neighbours cost about the same: dealt in turn, so that all have done at the same time.
    shares = [list(indices[first::workers]) for first in range(workers)]
    with tempfile.TemporaryDirectory(prefix="paged-lab-") as name, ThreadPoolExecutor() as pool:
        folder = Path(name)
        running = [
            pool.submit(_run_share, target, cases, share, folder, timeout_s) for share in shares
        ]
        crashes = {index: why for done in running for index, why in done.result().items()}
        return [
            CompiledKernel(cases[index], target, None, crashes[index])
            if index in crashes
            else _read(cases[index], target, result_file(folder, index))
            for index in indices
        ]


def _run_share(
    target: GpuTarget, cases: Sequence[Case], share: list[int], folder: Path, timeout_s: float
) -> dict[int, str]:
    """Compiles a share; of the cases that ended their process the reason."""
    crashes: dict[int, str] = {}
    while share:
        work = [(index, cases[index], target.name) for index in share]
        reason = _run_process(work, folder, timeout_s)
        share = [index for index in share if not result_file(folder, index).exists()]
        if share:
            crashes[share[0]] = reason
            share = share[1:]
    return crashes


def _run_process(work: list[tuple[int, Case, str]], folder: Path, timeout_s: float) -> str:
    """One process; why it ended early, if it did."""
    inherited = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    with tempfile.TemporaryDirectory(prefix="paged-lab-") as cache:
        environment = {
            **inherited,
            "JAX_PLATFORMS": "cpu",
            "TRITON_CACHE_DIR": cache,
            # The compiler's default, which triton warns about where it is left unsaid.
            "TRITON_DEFAULT_FP_FUSION": "1",
            # The package is found where this process found it.
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        }
        try:
            done = subprocess.run(
                [sys.executable, "-m", "paged.lab.triton.child"],
                input=pickle.dumps((str(folder), work)),
                capture_output=True,
                env=environment,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"the compiler took more than {timeout_s:.0f} s"
    words = " ".join(done.stderr.decode(errors="replace").splitlines()[-3:])
    return f"exit code {done.returncode}: {words}"


def _read(case: Case, target: GpuTarget, path: Path) -> CompiledKernel:
    result = json.loads(path.read_text())
    if "counts" in result:
        return CompiledKernel(case, target, Counts(**result["counts"]))
    return CompiledKernel(case, target, None, " ".join(result["reason"].split()))
