"""`Report`: what came of each case, and its JSON."""

import json
import math
from dataclasses import dataclass
from typing import Any, Literal

from paged.conformance.case import Case
from paged.conformance.verdict import Where

Status = Literal["passed", "failed", "refused", "not_run"]
STATUSES: tuple[Status, ...] = ("passed", "failed", "refused", "not_run")


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one case on one layout in one dtype.

    Attributes:
        case: the case.
        layout: name of the layout.
        dtype: of the queries.
        status: "passed"; "failed"; "refused", which is right for what is not claimed; or
            "not_run".
        reason: why, unless passed.
        max_error: largest absolute error of an output; None where there was none to compare,
            or where it has no bound (NaN, Inf).
        seed: of the run; with the case's name it gives the same numbers.
        rule: key of the rule that is broken.
        where: place of the largest error.
        seconds: how long it took, compilation included.
    """

    case: Case
    layout: str
    dtype: str
    status: Status
    reason: str
    max_error: float | None
    seed: int
    rule: str | None = None
    where: Where | None = None
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """The case's name."""
        return self.case.name

    def as_json(self) -> dict[str, Any]:
        """The fixed form."""
        error = self.max_error
        return {
            "name": self.case.name,
            "layout": self.layout,
            "dtype": self.dtype,
            "status": self.status,
            "reason": self.reason,
            "max_error": None if error is None or not math.isfinite(error) else error,
            "seed": self.seed,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """Results of one backend.

    Attributes:
        backend: its name.
        layouts: names of the layouts it was tried on.
        results: in the order in which they were run.
    """

    backend: str
    layouts: tuple[str, ...]
    results: tuple[Result, ...]

    @property
    def summary(self) -> dict[str, int]:
        """How many ended in each status."""
        return {
            status: sum(result.status == status for result in self.results) for status in STATUSES
        }

    @property
    def failures(self) -> tuple[Result, ...]:
        """The results that failed."""
        return tuple(result for result in self.results if result.status == "failed")

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    def as_json(self) -> dict[str, Any]:
        """The fixed form. "layout" is a name, or the list of them where there are several."""
        return {
            "backend": self.backend,
            "layout": self.layouts[0] if len(self.layouts) == 1 else list(self.layouts),
            "cases": [result.as_json() for result in self.results],
            "summary": self.summary,
        }

    def to_json(self, *, indent: int | None = 2) -> str:
        """`as_json` as text."""
        return json.dumps(self.as_json(), indent=indent, allow_nan=False)
