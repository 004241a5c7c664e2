"""Runs conformance cases over kernels that watch their memory; a process of its own.

LD_PRELOAD=libasan.so python sanitized.py PATH CASE...
"""

import sys

from paged.backends.cpu.backend import CpuBackend
from paged.conformance import run_conformance

FLAGS = (
    *("-O1", "-g", "-fno-omit-frame-pointer"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
)

if __name__ == "__main__":
    path, *cases = sys.argv[1:]
    backend = CpuBackend.rebuilt({}, path=path, flags=FLAGS)
    layouts = ["flashinfer", "packed", "mla"]
    report = run_conformance(backend, cases=cases, layouts=layouts, dtypes=["float32", "bfloat16"])
    for failure in report.failures:
        print(failure)
    print(report.summary)
    sys.exit(0 if report.ok and report.summary["passed"] else 1)
