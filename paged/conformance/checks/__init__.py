"""The procedures that cases name, each `(subject, case, layout, dtype, seed) -> max_error`."""

from collections.abc import Callable

from paged.conformance.case import Case
from paged.conformance.checks import (
    attend,
    batch,
    latent,
    layouts,
    merge,
    offsets,
    refusals,
)
from paged.conformance.subject import Subject
from paged.layouts import Layout

Check = Callable[[Subject, Case, Layout, str, int], float | None]

CHECKS: dict[str, Check] = {
    "attend": attend.attend,
    "eager": attend.eager,
    "repeat": attend.repeat,
    "batch": batch.batch,
    "merge": merge.merge,
    "convert": layouts.converted,
    "share": layouts.shared,
    "own_layout": layouts.own,
    "latent": latent.absorbed,
    "offsets": offsets.offsets,
    "refusal": refusals.refusal,
}
"""By the word in `Case.check`. Each returns the largest error of an output, or None."""
