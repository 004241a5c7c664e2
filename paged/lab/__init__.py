"""Ahead-of-time compilation for hardware that is not there, and the static roofline.

What is counted is the compiler's own output: VLIW bundles of each loop body, slots used, spills,
VMEM. The figures are exact and repeatable, and they are no measurement of time. Not seen:

    stalls of copies and memory, bank conflicts, how well small copies use the HBM
    which predicated regions run: all are counted as taken
    trip counts that depend on values: these come from the backend (`paged.backends.loops`)
    the launch of kernels, host time, and everything between chips
"""

from paged.lab.problem import Problem
from paged.lab.targets import TARGETS, Target, get_targets

BLIND_SPOTS = (
    "Static counts, not time. Not seen: copy and memory stalls, bank conflicts, how well small "
    "copies use the HBM, which predicated regions run (all count as taken), kernel launches. "
    "Trip counts that depend on values are the backend's word."
)
"""Printed under every table."""

__all__ = ["BLIND_SPOTS", "TARGETS", "Problem", "Target", "get_targets"]
