"""The command: `python -m benchmarks.gpu [--dry]`. Exit code 1 where something is wrong."""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu import needs

STEPS = ("suite", "sanitizer", "timings")
_SUITE_SHARE = 0.5
_SANITIZER_SHARE = 0.3
"""Of the time that is left when the suite begins, and of what is left after it."""
_MOST_WORKERS = 12
_LAST_SECONDS = 8.0
"""Kept for the end: what is under way is waited for, and the report written."""


class NoDevice(Exception):
    """There is nothing to check on."""


def main() -> int:
    """Runs what is asked for and says what came of it."""
    arguments = _arguments()
    if names := needs.missing():
        print(needs.message(names), file=sys.stderr)
        return 2
    from benchmarks.gpu import show

    with tempfile.TemporaryDirectory(prefix="paged-gpu-", ignore_cleanup_errors=True) as name:
        _set_environment(Path(name))
        try:
            report = _checked(arguments, Path(name))
        except NoDevice as error:
            print(error, file=sys.stderr)
            return 2
    print()
    for line in show.lines(report):
        print(line)
    return 0 if report["ok"] else 1


def _checked(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The report. It is written after each step, so that a run that is ended leaves the rest."""
    from benchmarks.gpu import steps
    from benchmarks.gpu.pool import Pool
    from benchmarks.gpu.sanitizer import Check
    from benchmarks.gpu.targets import target_lines

    started = time.monotonic()
    end = started + 60 * arguments.minutes - _LAST_SECONDS
    dry, only = arguments.dry, arguments.only
    report: dict[str, Any] = {
        "made_by": " ".join(["python -m benchmarks.gpu", *sys.argv[1:]]),
        "dry": dry,
        "facts": {},
        "ceilings": None,
        "rows": [],
        "steps": {},
        "targets": [],
    }
    workers = 2 if dry else max(1, min(_MOST_WORKERS, (os.cpu_count() or 1) - 2))
    run = steps.Run(Pool(folder), dry, workers, report)

    def do(name: str, step: Any, share: float) -> None:
        until = time.monotonic() + share * (end - time.monotonic())
        report["steps"][name] = steps.timed(step, run, until)
        failed = any(done["status"] == "failed" for done in report["steps"].values())
        report["targets"] = target_lines(report["rows"], dry=dry)
        report.update(ok=not failed, seconds=time.monotonic() - started)
        if arguments.out is not None:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")

    is_timed = "timings" in only
    check = None
    try:
        do("facts", steps.facts, 1)
        if not dry and not report["facts"].get("device"):
            why = report["facts"].get("torch_error", "torch sees none")
            raise NoDevice(f"no GPU: {why}; --dry goes the same way without one")
        # It runs beside the suite, but not beside the timings.
        check = Check(folder, dry=dry) if "sanitizer" in only else None
        if "suite" in only:
            do("suite", steps.conformance, _SUITE_SHARE if is_timed else 1)
        if check is not None:
            do("sanitizer", check.step, _SANITIZER_SHARE if is_timed else 1)
        if is_timed:
            do("timings", steps.timings, 1)
    finally:
        if check is not None:
            check.close()
        run.pool.close()
    return report


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description="Checks and times the Triton kernels on a GPU."
    )
    parser.add_argument("--dry", action="store_true", help="without a GPU, interpreted and tiny")
    parser.add_argument("--minutes", type=_minutes, default=6.0, help="what all of it may take")
    parser.add_argument("--out", type=Path, help="write a JSON report here")
    parser.add_argument(
        "--only", type=_steps, default=STEPS, help="steps with commas between: suite,timings"
    )
    return parser.parse_args()


def _minutes(text: str) -> float:
    minutes = float(text)
    if not minutes >= 1:
        raise argparse.ArgumentTypeError(f"got {text}, expected at least 1")
    return minutes


def _steps(text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    if unknown := [name for name in chosen if name not in STEPS]:
        raise argparse.ArgumentTypeError(f"got {unknown[0]!r}, expected some of {', '.join(STEPS)}")
    return chosen


def _set_environment(folder: Path) -> None:
    """For all processes: caches that begin empty, and memory that is taken when it is needed."""
    os.environ |= {
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        # A process that is ended must not leave compilers behind.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    # Each process has its own; where they are set, they would hold for all.
    for variable in ("TRITON_INTERPRET", "JAX_PLATFORMS"):
        os.environ.pop(variable, None)


if __name__ == "__main__":
    sys.exit(main())
