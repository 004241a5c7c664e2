"""A report as a matrix, feature by layout, and what its results have in common."""

from collections.abc import Iterable
from dataclasses import dataclass

from paged.conformance.report import STATUSES, Report, Result, Status

WORDS: dict[Status, str] = {
    "failed": "fail",
    "passed": "pass",
    "refused": "refused",
    "not_run": "not run",
}
"""How a status is called in a matrix; the first that occurs speaks for a cell."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One feature on one layout.

    Attributes:
        results: of its cases.
    """

    results: tuple[Result, ...]

    @property
    def counts(self) -> dict[Status, int]:
        """How many ended in each status, the one that speaks for the cell first."""
        found: dict[Status, int] = {
            s: sum(result.status == s for result in self.results) for s in WORDS
        }
        return {status: count for status, count in found.items() if count}

    @property
    def status(self) -> Status:
        """Failed where anything failed, else passed where anything passed, and so on."""
        for status in self.counts:
            return status
        return "not_run"

    def __str__(self) -> str:
        return ", ".join(f"{WORDS[status]} {count}" for status, count in self.counts.items())


def matrix(report: Report) -> dict[str, dict[str, Cell]]:
    """Cells by feature and layout. A feature is the first part of its cases' names."""
    features = dict.fromkeys(feature_of(result) for result in report.results)
    return {
        feature: {
            layout: Cell(
                tuple(
                    result
                    for result in report.results
                    if result.layout == layout and feature_of(result) == feature
                )
            )
            for layout in report.layouts
        }
        for feature in features
    }


def feature_of(result: Result) -> str:
    """The first part of a case's name."""
    return result.name.partition("/")[0]


def by_reason(results: Iterable[Result], status: Status) -> dict[str, list[Result]]:
    """Results of one status by their reason, the most frequent first."""
    if status not in STATUSES:
        raise ValueError(f"status: got {status!r}, expected one of {', '.join(STATUSES)}")
    grouped: dict[str, list[Result]] = {}
    for result in results:
        if result.status == status:
            grouped.setdefault(result.reason, []).append(result)
    return dict(sorted(grouped.items(), key=lambda item: -len(item[1])))


def counted(summary: dict[str, int]) -> str:
    """A summary in words: "12 passed, 1 failed, 0 refused, 3 not run"."""
    return ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in summary.items())
