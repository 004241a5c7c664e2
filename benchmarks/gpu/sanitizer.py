"""NVIDIA's compute-sanitizer, memcheck, over `benchmarks.gpu.small`."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from glob import glob
from pathlib import Path
from typing import Any

_NAME = "compute-sanitizer"


def find_tool() -> str | None:
    """The tool's path: of PATH, of CUDA's folders, or beside torch's own libraries."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    folders = [os.path.join(home, "bin") for home in homes if home]
    folders += sorted(glob("/usr/local/cuda*/bin"), reverse=True)
    folders += glob(os.path.join(sysconfig.get_path("purelib"), "nvidia", "*", "bin"))
    return shutil.which(_NAME) or shutil.which(_NAME, path=os.pathsep.join(folders))


class Check:
    """The run, beside other steps: it is slow, and needs little of the machine."""

    def __init__(self, folder: Path, *, dry: bool) -> None:
        self._log = folder / "sanitizer.log"
        self._tool = None if dry else find_tool()
        self._dry = dry
        self._process = None
        command = [sys.executable, "-m", "benchmarks.gpu.small"]
        environment = os.environ | {"JAX_PLATFORMS": "cpu"}
        if dry:
            command.append("--dry")
            environment["TRITON_INTERPRET"] = "1"
        elif self._tool is None:
            return
        else:
            # Helpers that compile are not watched. Without torch's pool, what lies behind a tensor
            # is no other tensor's memory.
            options = ("--tool", "memcheck", "--target-processes", "application-only")
            command = [self._tool, *options, "--error-exitcode", "99", *command]
            environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment
            )

    def step(self, _: Any, deadline: float) -> dict[str, Any]:
        """What came of it, by a moment of `time.monotonic`."""
        if self._process is None:
            return {"status": "not_run", "reason": f"{_NAME} is not found"}
        try:
            code = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.close()
            return {"status": "not_run", "reason": "cut off by the budget"} | self._tail()
        return verdict(self._log.read_text(errors="replace"), code, dry=self._dry) | self._tail()

    def close(self) -> None:
        """Ends the run where it goes on."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _tail(self) -> dict[str, Any]:
        return {"output": self._log.read_text(errors="replace").strip().splitlines()[-40:]}


def verdict(log: str, code: int, *, dry: bool) -> dict[str, Any]:
    """Passed, failed, or not run where the tool itself could not work (a refused device)."""
    is_right = "small: right" in log
    if dry:
        passed = {"status": "passed", "reason": "dry: without the tool"}
        return passed if is_right and code == 0 else {"status": "failed", "reason": f"exit {code}"}
    found = re.findall(r"ERROR SUMMARY: (\d+) error", log)
    errors = int(found[-1]) if found else None
    if errors == 0 and is_right and code == 0:
        return {"status": "passed", "reason": ""}
    if errors is None or "not supported" in log:
        last = (log.strip().splitlines() or ["(it printed nothing)"])[-1]
        return {"status": "not_run", "reason": f"the tool did not work: {last[:200]}"}
    return {"status": "failed", "reason": f"{errors} errors, exit {code}"}
