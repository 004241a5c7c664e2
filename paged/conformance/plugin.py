"""What pytest's options ask for: the items of the suite, and how one result ends a test."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from paged.conformance.case import Case
from paged.conformance.lookup import find_backend
from paged.conformance.run import command
from paged.conformance.subject import Subject
from paged.conformance.suite import planned, run_case, select
from paged.layouts import Layout, get_layout


@dataclass(frozen=True, slots=True)
class Item:
    """One test.

    Attributes:
        asked: what the backend is called.
        subject: the backend; one for all items, so that compiled code is shared.
        case: which case.
        layout: on which layout.
        dtype: in which type.
        seed: of all numbers.
        full: whether large cases run.
        interpret: whether kernels are interpreted.
        is_wanted: False for a case that runs in other types only.
    """

    asked: str
    subject: Subject
    case: Case
    layout: Layout
    dtype: str
    seed: int
    full: bool
    interpret: bool
    is_wanted: bool

    def __str__(self) -> str:
        return f"{self.layout.name}-{self.case.name}-{self.dtype}"

    def run(self, record_property: Callable[[str, Any], None]) -> None:
        """Runs the case and ends the test as the result says."""
        if not self.is_wanted:
            pytest.skip(f"runs in {', '.join(self.case.dtypes or ())} only")
        result = run_case(
            self.subject, self.case, self.layout, self.dtype, seed=self.seed, full=self.full
        )
        if result.max_error is not None:
            record_property("max_error", result.max_error)
        if result.status == "not_run":
            pytest.skip(result.reason)
        if result.status == "refused":
            record_property("paged", "refused")
            record_property("paged_reason", result.reason)
        if result.status == "failed":
            again = command(self.asked, result, interpret=self.interpret)
            pytest.fail(f"{result.reason}\nexposes: {self.case.exposes}\n{again}", pytrace=False)


def items(config: pytest.Config) -> list[Item]:
    """Every item that the options ask for, in the suite's order.

    Raises:
        pytest.UsageError: no backend was named, or an option names what there is not.
    """
    asked = config.getoption("paged_backend", None)
    if asked is None:
        raise pytest.UsageError(
            "paged.conformance needs --paged-backend, a listed name or package.module:Class"
        )
    interpret = config.getoption("paged_interpret")
    dtypes = config.getoption("paged_dtype")
    full = config.getoption("paged_full")
    try:
        subject = Subject(find_backend(asked, interpret=interpret))
        layouts = config.getoption("paged_layout") or subject.backend.layouts
        cases = select(config.getoption("paged_case"))
        plan = planned(subject, cases, map(get_layout, layouts), dtypes and tuple(dtypes), full=full)
        return [
            Item(
                asked=asked,
                subject=subject,
                case=case,
                layout=layout,
                dtype=dtype,
                seed=config.getoption("paged_seed"),
                full=full,
                interpret=interpret,
                is_wanted=not dtypes or dtype in dtypes,
            )
            for case, layout, dtype in plan
        ]
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
