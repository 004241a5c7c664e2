"""A run as a matrix, feature by layout, and what its results have in common."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from paged.conformance.report import Status
from paged.conformance.run import Run, Shown

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

    results: tuple[Shown, ...]

    @property
    def counts(self) -> dict[Status, int]:
        """How many ended in each status, the one that speaks for the cell first."""
        found: dict[Status, int] = {s: sum(r.status == s for r in self.results) for s in WORDS}
        return {status: count for status, count in found.items() if count}

    @property
    def status(self) -> Status:
        """Failed where anything failed, else passed where anything passed, and so on."""
        for status in self.counts:
            return status
        return "not_run"

    @property
    def words(self) -> list[str]:
        """Each status with its count, the one that speaks for the cell first."""
        return [f"{WORDS[status]} {count}" for status, count in self.counts.items()]


def matrix(run: Run) -> dict[str, dict[str, Cell]]:
    """Cells by feature and layout, in the order in which they were run."""
    features = dict.fromkeys(result.feature for result in run.results)
    return {
        feature: {layout: _cell(run, feature, layout) for layout in run.layouts}
        for feature in features
    }


def _cell(run: Run, feature: str, layout: str) -> Cell:
    return Cell(tuple(r for r in run.results if (r.feature, r.layout) == (feature, layout)))


def by_reason(results: Iterable[Shown], status: Status) -> dict[str, list[Shown]]:
    """Results of one status by their reason, the most frequent first."""
    grouped: dict[str, list[Shown]] = {}
    for result in results:
        if result.status == status:
            grouped.setdefault(result.reason, []).append(result)
    return dict(sorted(grouped.items(), key=lambda item: -len(item[1])))


def counted(summary: Mapping[Status, int]) -> str:
    """A summary in words: "12 passed, 1 failed, 0 refused, 3 not run"."""
    return ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in summary.items())
