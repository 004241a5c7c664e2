"""Compiles with libtpu's listings, in a temporary folder that is deleted after reading.

They are hundreds of MB for a large kernel.
"""

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paged.lab.bundles import KernelFiles
from paged.lab.compile import Compiled
from paged.lab.processes import RESULT, Job, job_folder, live_folder, run_jobs
from paged.lab.program import Program, read_program
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
    with tempfile.TemporaryDirectory(prefix="paged-lab-") as name:
        folder = Path(name)
        flags = f"--xla_jf_dump_to={live_folder(folder)} {_DUMPED}"
        results = run_jobs(target, jobs, folder, flags=flags, timeout_s=timeout_s)
        yield [
            _collect(job_folder(folder, index), result)
            if (job_folder(folder, index) / RESULT).exists()
            else Dump(result)
            for index, result in enumerate(results)
        ]


def keep_needed(live: Path, kept: Path) -> None:
    """Moves the files that are read into a job's folder, and deletes the others."""
    for path in live.iterdir():
        if _FILE.match(path.name) or path.name.endswith(_PROGRAM):
            shutil.move(path, kept / path.name)
        else:
            path.unlink()


def _collect(folder: Path, compiled: Compiled) -> Dump:
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
