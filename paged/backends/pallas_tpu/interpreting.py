"""Pallas' interpreter for TPU kernels, in its strictest form, and what it says of a run.

It keeps each buffer's own memory, filled with NaN, lets copies run apart from the kernel, and
notices what is read or written while a copy is under way. It prints what it sees.
"""

import contextlib
import io
import re
from collections.abc import Iterator

from jax.experimental.pallas import tpu as pltpu

_COMPLAINTS = ("RACE DETECTED", "non-zero count")


def strict() -> pltpu.InterpretParams:
    """Races are looked for, reads out of bounds raise, memory starts as NaN."""
    return pltpu.InterpretParams(
        detect_races=True, out_of_bounds_reads="raise", uninitialized_memory="nan"
    )


@contextlib.contextmanager
def watching() -> Iterator[list[str]]:
    """What the interpreter complains about until the context ends, one line each."""
    seen: list[str] = []
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            yield seen
    except BaseException:
        # What an interrupted kernel leaves behind would fail the next one.
        pltpu.reset_tpu_interpret_mode_state()
        raise
    text = said.getvalue()
    # A race is told in several lines: what, where, and what it met.
    for part in re.split(r"\n(?=RACE DETECTED|Semaphore )", text):
        if any(complaint in part for complaint in _COMPLAINTS):
            seen.append(" ".join(part.split()))
