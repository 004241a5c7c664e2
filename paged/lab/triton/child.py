"""The process that `paged.lab.triton.run` starts: compiles cases, and leaves a file for each.

Work arrives on stdin, pickled. An error of the compiler is a case's result; a compiler that ends
its process leaves no file for the case at which it did.
"""

import json
import pickle
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paged.lab.triton.compiling import counts_of
from paged.lab.triton.grid import Case
from paged.lab.triton.targets import GPU_TARGETS, GpuTarget


def result_file(folder: Path, index: int) -> Path:
    """Where the result of a case goes."""
    return folder / f"{index}.json"


def main() -> None:
    """Compile every case, in order."""
    folder, work = pickle.load(sys.stdin.buffer)
    for index, case, target_name in work:
        result = _result(case, GPU_TARGETS[target_name])
        path = result_file(Path(folder), index)
        # Moved into place, so that a file that is there is whole.
        part = path.with_suffix(".part")
        part.write_text(json.dumps(result))
        part.rename(path)


def _result(case: Case, target: GpuTarget) -> dict[str, Any]:
    try:
        return {"counts": asdict(counts_of(case, target))}
    except Exception as error:  # noqa: BLE001 - the compiler raises whatever it likes
        # The innermost cause is what a person can act on; the outer ones quote the kernel.
        while error.__cause__ is not None:
            error = error.__cause__
        return {"reason": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
