"""`Run`: one subject's results in the form in which every report shows them.

Backends and block managers have results of their own kinds; a page, a table and JUnit show both.
"""

import shlex
from dataclasses import dataclass
from typing import Any

from paged.conformance.managers import MANAGER_RULES, ManagerReport
from paged.conformance.report import STATUSES, Report, Result, Status
from paged.conformance.rules import RULES

BLOCKS = "blocks"
"""What this project's block manager is called where it is a subject like any backend; another is
called "blocks=package.module:Class"."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One result.

    Attributes:
        name: of the case, "feature/what".
        layout: on which layout; the column of a matrix.
        dtype: in which type, empty for a manager.
        status: how it ended.
        reason: why, unless passed.
        exposes: the fault that the case brings to light.
        command: what runs it again, with the same numbers.
        rule: the rule that is broken, as a sentence; empty where none is.
        where: place of the largest error, in words.
        max_error: largest absolute error.
        seconds: how long it took.
        source: public report of the fault.
        is_wrong_ask: whether the case is an ask that contradicts itself, refused by all.
    """

    name: str
    layout: str
    dtype: str
    status: Status
    reason: str
    exposes: str
    command: str
    rule: str = ""
    where: str = ""
    max_error: float | None = None
    seconds: float = 0.0
    source: str = ""
    is_wrong_ask: bool = False

    @property
    def feature(self) -> str:
        """The first part of the case's name; the row of a matrix."""
        return self.name.partition("/")[0]

    @property
    def place(self) -> str:
        """Layout and type, in words."""
        return f"{self.layout}, {self.dtype}" if self.dtype else self.layout


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one subject.

    Attributes:
        name: its own.
        asked: what it was called on the command line.
        layouts: those it was tried on.
        results: in the order in which they were run.
        form: the fixed JSON form.
        seconds: how long all of it took.
    """

    name: str
    asked: str
    layouts: tuple[str, ...]
    results: tuple[Shown, ...]
    form: dict[str, Any]
    seconds: float = 0.0

    @property
    def summary(self) -> dict[Status, int]:
        """How many ended in each status."""
        return {s: sum(result.status == s for result in self.results) for s in STATUSES}

    @property
    def failures(self) -> tuple[Shown, ...]:
        """The results that failed."""
        return tuple(result for result in self.results if result.status == "failed")

    @property
    def has_tested(self) -> bool:
        """Whether anything was shown: a case that ran, or a wrong ask that was refused."""
        return any(
            result.status in ("passed", "failed")
            or (result.status == "refused" and result.is_wrong_ask)
            for result in self.results
        )


def of_backend(
    report: Report,
    asked: str | None = None,
    *,
    target: str | None = None,
    interpret: bool = False,
    full: bool = False,
    seconds: float = 0.0,
) -> Run:
    """A backend's run.

    Args:
        report: what came of it.
        asked: a listed name, or package.module:Class; the backend's own name by default.
        target: platform that was asked for, where it was not the backend's own.
        interpret: whether its kernels were interpreted.
        full: whether large cases ran, and code was compiled as in use.
        seconds: how long all of it took.
    """
    asked = asked or report.backend
    results = tuple(
        Shown(
            name=result.name,
            layout=result.layout,
            dtype=result.dtype,
            status=result.status,
            reason=result.reason,
            exposes=result.case.exposes,
            command=command(asked, result, target=target, interpret=interpret, full=full),
            rule=str(RULES[result.rule]) if result.rule else "",
            where=str(result.where) if result.where else "",
            max_error=result.max_error,
            seconds=result.seconds,
            source=result.case.source or "",
            is_wrong_ask=result.case.check == "refusal",
        )
        for result in report.results
    )
    return Run(report.backend, asked, report.layouts, results, report.as_json(), seconds)


def is_manager(asked: str) -> bool:
    """Whether a name means a block manager."""
    return asked == BLOCKS or asked.startswith(f"{BLOCKS}=")


def of_manager(report: ManagerReport, asked: str = BLOCKS, *, seconds: float = 0.0) -> Run:
    """A block manager's run."""
    results = tuple(
        Shown(
            name=result.name,
            layout=BLOCKS,
            dtype="",
            status=result.status,
            reason=result.reason,
            exposes=result.case.exposes,
            command=shlex.join(
                ["paged", "conform", asked, "--case", result.name, "--seed", str(result.seed)]
            ),
            rule=str(MANAGER_RULES[result.rule]) if result.status == "failed" else "",
            seconds=result.seconds,
            source=result.case.source or "",
        )
        for result in report.results
    )
    return Run(report.manager, asked, (BLOCKS,), results, report.as_json(), seconds)


def command(
    asked: str,
    result: Result,
    *,
    target: str | None = None,
    interpret: bool = False,
    full: bool = False,
) -> str:
    """The command that runs one result of a backend again, with the same numbers."""
    words = ["paged", "conform", asked, "--layout", result.layout, "--case", result.name]
    words += ["--dtype", result.dtype, "--seed", str(result.seed)]
    words += ["--target", target] if target else []
    words += ["--interpret"] if interpret else []
    words += ["--full"] if full or result.case.large else []
    return shlex.join(words)
