"""Seeded faults: a suite is as good as the faults it catches.

report = paged.conformance.mutants.run_mutants("xla")
print(report.killed, report.total, report.stand_in_killed)
"""

from paged.conformance.mutants.catalog import MUTANTS, mutants_of
from paged.conformance.mutants.clone import clone
from paged.conformance.mutants.managers import run_manager_mutants
from paged.conformance.mutants.mutant import Mutant, StaleMutantError
from paged.conformance.mutants.report import MutantResult, MutationReport
from paged.conformance.mutants.run import run_mutants, select_mutants

__all__ = [
    "MUTANTS",
    "Mutant",
    "MutantResult",
    "MutationReport",
    "StaleMutantError",
    "clone",
    "mutants_of",
    "run_manager_mutants",
    "run_mutants",
    "select_mutants",
]
