"""This project's plain backends against every case, on every layout.

All neighbours of a fault run on one layout of each kind. The other layouts run what the others do
not share with it: each kind of fault at least once.
"""

import functools

import pytest

from paged.backends import load_backend
from paged.conformance import CASES, Case, Subject, run_conformance
from paged.conformance.subject import quick_options
from paged.layouts import LAYOUTS

FULL = ("flashinfer", "mla")
GROUPS = tuple(dict.fromkeys(case.name.partition("/")[0] for case in CASES))
ITEMS = range(1, 26)
# Where another layout may treat another type of query in another way.
BY_TYPE = ("batch", "dtype", "layouts")


@functools.cache
def subject_of(backend: str) -> Subject:
    return Subject(load_backend(backend), compiler_options=quick_options())


def essential() -> tuple[Case, ...]:
    """The first two cases of each kind of fault, and those that are about layouts."""
    chosen = [case for case in CASES if case.check != "attend" and case.check != "refusal"]
    for item in ITEMS:
        chosen += [case for case in CASES if item in case.items and not case.large][:2]
    return tuple(case for case in CASES if case in chosen)


def cases_of(layout: str, group: str) -> list[Case]:
    """All neighbours on two layouts, the essential ones on the others."""
    cases = CASES if layout in FULL else essential()
    return [case for case in cases if case.name.startswith(f"{group}/")]


RUNS = [
    (layout, group)
    for layout in sorted(LAYOUTS, key=lambda name: name not in FULL)
    for group in GROUPS
    if cases_of(layout, group)
]


@pytest.mark.parametrize(("layout", "group"), RUNS)
@pytest.mark.parametrize("backend", ["xla", "reference"])
def test_backend(backend, layout, group):
    mine = cases_of(layout, group)
    plain = layout not in FULL and group not in BY_TYPE
    dtypes = ["float32"] if plain else None
    report = run_conformance(subject_of(backend), cases=mine, layouts=[layout], dtypes=dtypes)
    assert report.ok, "\n".join(
        f"{result.name} {result.layout} {result.dtype}: {result.reason}"
        for result in report.failures
    )
    kind = "latent" if LAYOUTS[layout].is_latent else "kv"
    for result in report.results:
        applies = result.case.only in (None, kind) and not result.case.large
        applies = applies and not (dtypes and result.case.dtypes)
        if applies and group != "refuse":
            may_be_left = ("layouts/ones_own", "layouts/shared_pool")
            assert result.status == "passed" or result.name in may_be_left, result.reason
        assert result.status == "passed" or result.reason


def test_every_item_is_essential():
    for item in ITEMS:
        assert any(item in case.items for case in essential()), item
