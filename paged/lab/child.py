"""The process of `paged.lab.processes`: compiles jobs for one target, and leaves their files.

Work arrives on stdin, pickled. An error that `compile_call` does not know ends the process, and
the parent takes its last line for the reason.
"""

import pickle
import sys
from pathlib import Path

from paged.lab.compile import compile_call
from paged.lab.dump import keep_needed
from paged.lab.processes import RESULT, job_folder, live_folder
from paged.lab.targets import TARGETS


def main() -> None:
    """Compile every job, in order."""
    target_name, folder_name, jobs = pickle.load(sys.stdin.buffer)
    folder = Path(folder_name)
    for index, job in jobs.items():
        kept = job_folder(folder, index)
        kept.mkdir()
        compiled = compile_call(job.backend, job.problem, TARGETS[target_name], job.call)
        keep_needed(live_folder(folder), kept)
        (kept / RESULT).write_bytes(pickle.dumps(compiled))


if __name__ == "__main__":
    main()
