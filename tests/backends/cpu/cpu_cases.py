"""Conformance cases for the CPU kernels, however they are run."""

from typing import Any

from paged.conformance import Subject, run_conformance
from paged.conformance.subject import quick_options

# One case of each thing that the kernels do in a way of their own.
ESSENTIAL = (
    *(
        "batch/mixed",
        "batch/full",
        "batch/invariance",
        "lengths/query_tiles",
        "lengths/tiles_rising",
    ),
    *("memory/nan", "window/8", "window/decode", "sinks/cap_window", "lse/split_3072_and_64"),
    *("quantised/*_per_head", "quantised/*_saturating", "dtype/float16", "head_dim/33"),
    *("heads/group_5", "heads/48_to_1", "block_size/1", "block_size/manager_32_kernel_16"),
    *("slots/*", "logits/both_signs", "soft_cap/2"),
)


def passes(backend: Any, **asked: Any) -> None:
    """Asserts that a backend passes what `run_conformance` is asked for, and that it ran."""
    subject = Subject(backend, compiler_options=quick_options())
    report = run_conformance(subject, **asked)
    assert [str(failure) for failure in report.failures] == []
    assert report.summary["passed"]
