"""The conformance suite: does a backend compute what the contract says?

report = paged.conformance.run_conformance(MyBackend())
assert report.ok, report.failures[0].reason
"""

from paged.conformance.case import Case
from paged.conformance.cases import CASES
from paged.conformance.report import Report, Result
from paged.conformance.rules import RULES, Rule
from paged.conformance.setup import Setup
from paged.conformance.subject import Subject
from paged.conformance.suite import run_case, run_conformance, select
from paged.conformance.verdict import Violation, Where

__all__ = [
    "CASES",
    "RULES",
    "Case",
    "Report",
    "Result",
    "Rule",
    "Setup",
    "Subject",
    "Violation",
    "Where",
    "run_case",
    "run_conformance",
    "select",
]
