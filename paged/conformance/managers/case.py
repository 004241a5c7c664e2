"""`ManagerCase`: one thing that has broken real block managers, as data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ManagerCase:
    """A case: data only; `check` names the procedure in `paged.conformance.managers.checks`.

    Attributes:
        name: "blocks/what".
        exposes: the fault that it brings to light.
        rule: key of `MANAGER_RULES`.
        check: the procedure.
        needs: words for what the manager must have; a manager without them is not run.
        source: public report of the fault, where one is known.
    """

    name: str
    exposes: str
    rule: str
    check: str
    needs: tuple[str, ...] = ()
    source: str | None = None
