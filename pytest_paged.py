"""pytest's options for `pytest --pyargs paged.conformance --paged-backend my_pkg.my_mod:MyBackend`.

pytest loads this file in every run of every project wherever paged is installed. So it stands
outside the package, whose import brings jax, and imports nothing itself.
"""

_REFUSED = ("paged", "refused")


def pytest_addoption(parser):
    """Adds the options of the suite."""
    group = parser.getgroup("paged", "conformance of attention backends (paged.conformance)")
    group.addoption(
        "--paged-backend",
        metavar="NAME",
        help="backend under test: a listed name, or package.module:Class",
    )
    for what, text in {
        "layout": "only this layout; may be repeated",
        "dtype": "only queries of this type; may be repeated",
        "case": "only cases of this name or pattern; may be repeated",
    }.items():
        group.addoption(
            f"--paged-{what}", action="append", metavar=what.upper(), help=f"{text} (paged)"
        )
    group.addoption(
        "--paged-full", action="store_true", help="also the large cases; compiled as in use (paged)"
    )
    group.addoption(
        "--paged-interpret", action="store_true", help="run kernels by their interpreter (paged)"
    )
    group.addoption("--paged-seed", type=int, default=0, metavar="N", help="of all numbers (paged)")


def pytest_report_teststatus(report):
    """A refusal that the contract asks for is a pass, counted apart."""
    if report.when == "call" and report.passed and _REFUSED in _properties(report):
        return "refused", "r", "REFUSED"
    return None


def pytest_terminal_summary(terminalreporter):
    """Says what was refused, and with which words."""
    reasons = {}
    for report in terminalreporter.stats.get("refused", []):
        reason = dict(_properties(report)).get("paged_reason", "")
        reasons[reason] = reasons.get(reason, 0) + 1
    if reasons:
        terminalreporter.section("refused, as the contract asks")
        for reason, count in sorted(reasons.items(), key=lambda item: -item[1]):
            terminalreporter.write_line(f"{count:>4}  {reason}")


def _properties(report):
    # Lists once they have come from a worker of pytest-xdist.
    return [tuple(item) for item in getattr(report, "user_properties", ())]
