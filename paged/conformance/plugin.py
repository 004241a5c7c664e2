"""What pytest's options ask for: the items of the suite, and how one result ends a test."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from paged.conformance.case import Case
from paged.conformance.lookup import find_backend, subject_of
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
            # Each backend refuses asks that contradict themselves, in words of its own.
            is_wrong = self.case.check == "refusal"
            record_property("paged_reason", "wrong asks" if is_wrong else result.reason)
        if result.status == "failed":
            again = command(self.asked, result, interpret=self.interpret, full=self.full)
            pytest.fail(f"{result.reason}\nexposes: {self.case.exposes}\n{again}", pytrace=False)


def items(config: pytest.Config) -> list[Item]:
    """Every item that the options ask for, in the suite's order.

    Raises:
        pytest.UsageError: no backend was named, or an option names what there is not.
    """

    def option(name: str) -> Any:
        return config.getoption(name)

    asked = option("paged_backend")
    if asked is None:
        raise pytest.UsageError(
            "paged.conformance needs --paged-backend, a listed name or package.module:Class"
        )
    interpret, full, seed = option("paged_interpret"), option("paged_full"), option("paged_seed")
    dtypes = tuple(option("paged_dtype") or ()) or None
    try:
        subject = subject_of(find_backend(asked, interpret=interpret), full=full)
        layouts = map(get_layout, option("paged_layout") or subject.backend.layouts)
        plan = planned(subject, select(option("paged_case")), layouts, dtypes, full=full)
        return [
            Item(
                asked=asked,
                subject=subject,
                case=case,
                layout=layout,
                dtype=dtype,
                seed=seed,
                full=full,
                interpret=interpret,
                is_wanted=dtypes is None or dtype in dtypes,
            )
            for case, layout, dtype in plan
        ]
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
