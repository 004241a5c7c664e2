"""`MutationReport`: which faults the suite caught, and which the usual way of testing would."""

import json
from dataclasses import dataclass
from typing import Any

from paged.conformance.mutants.mutant import Mutant


@dataclass(frozen=True, slots=True)
class MutantResult:
    """What became of one mutant.

    Attributes:
        mutant: the fault.
        killed: whether a case failed.
        case: the case that did, None of a survivor.
        layout: of that run.
        dtype: of that run.
        reason: what the case said.
        rule: key of the rule that it named.
        seconds: until the kill, compilation included.
        stand_in_killed: whether the stand-in caught it; None where it was not asked.
        stand_in_reason: what the stand-in saw.
    """

    mutant: Mutant
    killed: bool
    case: str | None = None
    layout: str | None = None
    dtype: str | None = None
    reason: str = ""
    rule: str | None = None
    seconds: float = 0.0
    stand_in_killed: bool | None = None
    stand_in_reason: str = ""

    @property
    def name(self) -> str:
        """The mutant's name."""
        return self.mutant.name

    def as_json(self) -> dict[str, Any]:
        """One entry of "mutants"."""
        return {
            "name": self.mutant.name,
            "kind": self.mutant.kind,
            "module": self.mutant.module,
            "killed": self.killed,
            "case": self.case,
            "layout": self.layout,
            "dtype": self.dtype,
            "reason": self.reason,
            "seconds": round(self.seconds, 3),
            "stand_in_killed": self.stand_in_killed,
        }


@dataclass(frozen=True, slots=True)
class MutationReport:
    """Two scores over the same faults: the suite's and the stand-in's.

    Attributes:
        backend: its name.
        results: one for each mutant, in the order in which they were tried.
        seed: of all numbers.
    """

    backend: str
    results: tuple[MutantResult, ...]
    seed: int = 0

    @property
    def total(self) -> int:
        """Faults that were seeded."""
        return len(self.results)

    @property
    def killed(self) -> int:
        """Faults that the suite caught."""
        return sum(result.killed for result in self.results)

    @property
    def survivors(self) -> tuple[MutantResult, ...]:
        """Faults that it did not."""
        return tuple(result for result in self.results if not result.killed)

    @property
    def stand_in_killed(self) -> int | None:
        """Faults that the stand-in caught; None where it was not asked."""
        asked = [r.stand_in_killed for r in self.results if r.stand_in_killed is not None]
        return sum(asked) if asked else None

    @property
    def ok(self) -> bool:
        """Whether nothing survived."""
        return not self.survivors

    def as_json(self) -> dict[str, Any]:
        """The fixed form, and each mutant beside it."""
        return {
            "backend": self.backend,
            "total": self.total,
            "killed": self.killed,
            "survivors": [result.name for result in self.survivors],
            "stand_in": {"killed": self.stand_in_killed},
            "seed": self.seed,
            "mutants": [result.as_json() for result in self.results],
        }

    def to_json(self, *, indent: int | None = 2) -> str:
        """`as_json` as text."""
        return json.dumps(self.as_json(), indent=indent, allow_nan=False)
