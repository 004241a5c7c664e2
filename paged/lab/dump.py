"""Runs the compiler in a process of its own that leaves libtpu's listings in a temporary folder.

libtpu reads its flags once, before jax loads it: hence the process, one for each target, which
compiles a list of jobs. A compiler that ends its process takes only its own job along: the rest
runs in the next process. The folder (hundreds of MB for a large kernel) is deleted after reading.
"""

import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paged.backends import Backend
from paged.lab.bundles import KernelFiles
from paged.lab.compile import Call, Compiled, one_line
from paged.lab.problem import Problem
from paged.lab.program import Program, read_program
from paged.lab.requirements import require
from paged.lab.targets import Target

_KINDS = {
    "packed-bundles-post-ra": "scheduled",
    "final_bundles": "issued",
    "final_hlo-static-per-bundle-utilization": "utilization",
    "original": "original",
    "post-delay-converter": "allocations",
}
_DEDUPLICATION = "deduplication-map"
# time-kernel-pass-kind.txt
_FILE = re.compile(rf"^(\d+)-(.+)-(\d+)-({'|'.join((*_KINDS, _DEDUPLICATION))})\.txt$")
# The whole program, as libtpu prints it: jaxlib cannot read back all that a newer XLA puts there.
_PROGRAM = "TLP-hlo.txt"
# Code around the program that every program has alike.
_FRAME = ("TLP", "<late-initialization>", "<late-finalization>")
_DUMPED = "--xla_jf_dump_llo_text=true --xla_jf_dump_hlo_text=true"
RESULT = "result.pickle"


@dataclass(frozen=True, slots=True)
class Job:
    """One call of one backend to compile. The backend must be importable, because it is pickled."""

    backend: Backend
    problem: Problem
    call: Call


@dataclass(frozen=True, slots=True)
class Dump:
    """What a job left behind.

    Attributes:
        compiled: the compiler's word.
        kernels: files of each kernel, for TPU targets.
        program: what of XLA's program the counting needs, for TPU targets.
        copies: for a kernel that serves several equal instructions of the program, all of them.
    """

    compiled: Compiled
    kernels: tuple[KernelFiles, ...] = ()
    program: Program | None = None
    copies: dict[str, tuple[str, ...]] | None = None


@contextmanager
def dumps(target: Target, jobs: Sequence[Job], *, timeout_s: float = 1800) -> Iterator[list[Dump]]:
    """Compiles jobs for one target; files exist until the context ends.

    Args:
        target: the hardware.
        jobs: what to compile.
        timeout_s: for one process.

    Raises:
        ImportError: the target's compiler is not installed.
    """
    require(target)
    with tempfile.TemporaryDirectory(prefix="paged-lab-") as name:
        folder = Path(name)
        failures: dict[int, Compiled] = {}
        remaining = list(range(len(jobs)))
        while remaining:
            reason = _run(target, jobs, remaining, folder, timeout_s)
            remaining = [i for i in remaining if not (job_folder(folder, i) / RESULT).exists()]
            if remaining:
                failures[remaining[0]] = Compiled("failed", reason=reason)
                remaining = remaining[1:]
        yield [
            Dump(failures[i]) if i in failures else _collect(job_folder(folder, i))
            for i in range(len(jobs))
        ]


def job_folder(folder: Path, index: int) -> Path:
    """Where a job's files go."""
    return folder / f"job{index}"


def keep_needed(live: Path, kept: Path) -> None:
    """Moves the files that are read into a job's folder, and deletes the others."""
    for path in live.iterdir():
        if _FILE.match(path.name) or path.name.endswith(_PROGRAM):
            shutil.move(path, kept / path.name)
        else:
            path.unlink()


def _run(
    target: Target, jobs: Sequence[Job], indices: list[int], folder: Path, timeout_s: float
) -> str:
    """One process; returns why it ended early, if it did."""
    live = folder / "live"
    shutil.rmtree(live, ignore_errors=True)
    live.mkdir()
    flags = os.environ.get("LIBTPU_INIT_ARGS", "")
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "LIBTPU_INIT_ARGS": f"{flags} --xla_jf_dump_to={live} {_DUMPED}".strip(),
        # A backend is found where this process found it.
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
    }
    work = pickle.dumps((target.name, str(folder), {i: jobs[i] for i in indices}))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "paged.lab.child"],
            input=work,
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


def _collect(folder: Path) -> Dump:
    compiled = pickle.loads((folder / RESULT).read_bytes())
    by_name: dict[str, dict[str, Path]] = {}
    copies: dict[str, tuple[str, ...]] = {}
    # In order of time: where a kernel was compiled more than once, the last one counts.
    for path in sorted(folder.glob("*.txt")):
        found = _FILE.match(path.name)
        if found and found[4] == _DEDUPLICATION:
            copies |= read_copies(path.read_text())
        elif found and found[2] not in _FRAME:
            by_name.setdefault(found[2], {})[_KINDS[found[4]]] = path
    whole = {"scheduled", "issued", "utilization"}
    kernels = tuple(
        KernelFiles(name, **files) for name, files in by_name.items() if whole <= files.keys()
    )
    programs = sorted(folder.glob(f"*{_PROGRAM}"))
    program = read_program(programs[-1].read_text()) if programs else None
    return Dump(compiled, kernels, program, copies)


def read_copies(text: str) -> dict[str, tuple[str, ...]]:
    """Which instructions share a kernel, by the name of the one that was compiled."""
    copies: dict[str, tuple[str, ...]] = {}
    for block in re.split(r"^key:", text, flags=re.MULTILINE)[1:]:
        lines = block.splitlines()
        start = next((i for i, line in enumerate(lines) if "equivalent_hlos" in line), len(lines))
        copies[lines[0].strip()] = tuple(
            line.strip() for line in lines[start + 1 :] if line.strip()
        )
    return copies
