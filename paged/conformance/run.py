"""`Run`: a report, and the command that makes one of its results again."""

import shlex
from dataclasses import dataclass

from paged.conformance.report import Report, Result


@dataclass(frozen=True, slots=True)
class Run:
    """A report and how it was asked for.

    Attributes:
        report: what came of it.
        asked: what the backend was called: a listed name, or package.module:Class. Its own name
            by default.
        target: platform that was asked for, where it was not the backend's own.
        interpret: whether its kernels were interpreted.
        seconds: how long all of it took.
    """

    report: Report
    asked: str = ""
    target: str | None = None
    interpret: bool = False
    seconds: float = 0.0

    def command(self, result: Result) -> str:
        """The command that runs one result again, with the same numbers."""
        asked = self.asked or self.report.backend
        return command(asked, result, target=self.target, interpret=self.interpret)


def command(
    asked: str, result: Result, *, target: str | None = None, interpret: bool = False
) -> str:
    """The command that runs one result of a backend again, with the same numbers."""
    words = ["paged", "conform", asked, "--layout", result.layout, "--case", result.name]
    words += ["--dtype", result.dtype, "--seed", str(result.seed)]
    words += ["--target", target] if target else []
    words += ["--interpret"] if interpret else []
    words += ["--full"] if result.case.large else []
    return shlex.join(words)
