"""How a check ends other than by passing."""

from dataclasses import dataclass

from paged.conformance.rules import RULES


@dataclass(frozen=True, slots=True)
class Where:
    """The place of the largest error.

    Attributes:
        token: row of the query; None for a place in the pool.
        head: query head, or KV head for a place in the pool.
        dim: entry of the row; None for an lse.
        block: physical block that holds it, for an output the token's own key.
        slot: offset in that block.
    """

    token: int | None
    head: int | None
    dim: int | None
    block: int | None
    slot: int | None

    def __str__(self) -> str:
        names = ("token", "head", "dim", "block", "slot")
        return ", ".join(
            f"{name} {getattr(self, name)}" for name in names if getattr(self, name) is not None
        )


class Violation(Exception):
    """A rule is broken.

    Args:
        rule: its key in `RULES`.
        message: what was seen and what was expected.
        error: largest absolute error, where there is one.
        where: its place.
    """

    def __init__(
        self,
        rule: str,
        message: str,
        *,
        error: float | None = None,
        where: Where | None = None,
    ) -> None:
        super().__init__(message)
        self.rule = RULES[rule]
        self.message = message
        self.error = error
        self.where = where

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        return f"{self.rule}: {self.message}{place}"


class Refused(Exception):
    """The ask is not claimed, and was refused as it should be."""


class NotRun(Exception):
    """The case does not apply, or was not asked for."""
