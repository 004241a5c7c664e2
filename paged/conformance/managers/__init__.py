"""The block manager's part of the suite: does it give out blocks as the contract says?

report = paged.conformance.managers.run_manager_conformance("my_package.my_module:MyManager")
assert report.ok, report.failures[0].reason
"""

from paged.conformance.managers.case import ManagerCase
from paged.conformance.managers.cases import MANAGER_CASES
from paged.conformance.managers.protocol import Manager, ManagerFactory
from paged.conformance.managers.report import ManagerReport, ManagerResult
from paged.conformance.managers.rules import MANAGER_RULES
from paged.conformance.managers.run import run_manager_conformance

__all__ = [
    "MANAGER_CASES",
    "MANAGER_RULES",
    "Manager",
    "ManagerCase",
    "ManagerFactory",
    "ManagerReport",
    "ManagerResult",
    "run_manager_conformance",
]
