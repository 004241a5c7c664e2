"""`ManagerReport`: what came of each case, in the form that reports on kernels have."""

import json
from dataclasses import dataclass
from typing import Any

from paged.conformance.managers.case import ManagerCase
from paged.conformance.report import STATUSES, Status


@dataclass(frozen=True, slots=True)
class ManagerResult:
    """What came of one case.

    Attributes:
        case: the case.
        status: "passed", "failed" or "not_run"; "refused" is for kernels.
        reason: why, unless passed.
        seed: of the run.
        seconds: how long it took.
    """

    case: ManagerCase
    status: Status
    reason: str
    seed: int
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """The case's name."""
        return self.case.name

    @property
    def rule(self) -> str:
        """Key of the rule that the case is about."""
        return self.case.rule

    def as_json(self) -> dict[str, Any]:
        """The fixed form; a manager knows neither layouts nor dtypes."""
        return {
            "name": self.case.name,
            "layout": None,
            "dtype": None,
            "status": self.status,
            "reason": self.reason,
            "max_error": None,
            "seed": self.seed,
        }


@dataclass(frozen=True, slots=True)
class ManagerReport:
    """Results of one manager.

    Attributes:
        manager: its name.
        results: in the order in which they were run.
    """

    manager: str
    results: tuple[ManagerResult, ...]

    @property
    def summary(self) -> dict[str, int]:
        """How many ended in each status."""
        return {
            status: sum(result.status == status for result in self.results) for status in STATUSES
        }

    @property
    def failures(self) -> tuple[ManagerResult, ...]:
        """The results that failed."""
        return tuple(result for result in self.results if result.status == "failed")

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    def as_json(self) -> dict[str, Any]:
        """The fixed form."""
        return {
            "backend": self.manager,
            "layout": None,
            "cases": [result.as_json() for result in self.results],
            "summary": self.summary,
        }

    def to_json(self, *, indent: int | None = 2) -> str:
        """`as_json` as text."""
        return json.dumps(self.as_json(), indent=indent, allow_nan=False)
