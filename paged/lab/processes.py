"""Compiles jobs in a process of their own, one for each target.

libtpu reads its flags once, before jax loads it, and a compiler may end the process that it is in:
such a one takes only its own job along, and the rest runs in the next process.
"""

import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paged.backends import Backend
from paged.lab.compile import Call, Compiled, one_line
from paged.lab.problem import Problem
from paged.lab.requirements import require
from paged.lab.targets import Target

RESULT = "result.pickle"
"""In a job's folder: what came of it."""


@dataclass(frozen=True, slots=True)
class Job:
    """One call of one backend to compile. The backend must be importable, because it is pickled."""

    backend: Backend
    problem: Problem
    call: Call


def job_folder(folder: Path, index: int) -> Path:
    """Where a job's files go."""
    return folder / f"job{index}"


def live_folder(folder: Path) -> Path:
    """Where the compiler puts the listings that its flags ask for."""
    return folder / "live"


def run_jobs(
    target: Target, jobs: Sequence[Job], folder: Path, *, flags: str = "", timeout_s: float = 1800
) -> list[Compiled]:
    """Compiles jobs for one target; what each left behind is in its folder.

    Args:
        target: the hardware.
        jobs: what to compile.
        folder: an empty one.
        flags: of libtpu, beside those of the environment.
        timeout_s: for one process.

    Raises:
        ImportError: the target's compiler is not installed.
    """
    require(target)
    failures: dict[int, Compiled] = {}
    remaining = list(range(len(jobs)))
    while remaining:
        reason = _run(target, {i: jobs[i] for i in remaining}, folder, flags, timeout_s)
        remaining = [i for i in remaining if not (job_folder(folder, i) / RESULT).exists()]
        if remaining:
            failures[remaining[0]] = Compiled("failed", reason=reason)
            remaining = remaining[1:]
    return [
        failures.get(i) or pickle.loads((job_folder(folder, i) / RESULT).read_bytes())
        for i in range(len(jobs))
    ]


def compile_jobs(target: Target, jobs: Sequence[Job], *, timeout_s: float) -> list[Compiled]:
    """Compiles jobs for one target without any listings, which is several times as fast.

    Raises:
        ImportError: the target's compiler is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="paged-lab-") as name:
        return run_jobs(target, jobs, Path(name), timeout_s=timeout_s)


def _run(target: Target, jobs: dict[int, Job], folder: Path, flags: str, timeout_s: float) -> str:
    """One process; returns why it ended early, if it did."""
    live = live_folder(folder)
    shutil.rmtree(live, ignore_errors=True)
    live.mkdir()
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "LIBTPU_INIT_ARGS": f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {flags}".strip(),
        # A backend is found where this process found it.
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "paged.lab.child"],
            input=pickle.dumps((target.name, str(folder), jobs)),
            capture_output=True,
            env=environment,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the compiler took more than {timeout_s:.0f} s"
    return one_line(f"exit code {done.returncode}: {_last_words(done.stderr)}")


def _last_words(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").splitlines()
    # The line of a Python exception stands at the margin, before notes that jax may add.
    errors = [line for line in lines if re.match(r"^[\w.]+(Error|Exception): ", line)]
    return errors[-1] if errors else " ".join(lines[-3:])
