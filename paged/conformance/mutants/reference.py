"""x"""

from paged.conformance.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = ()
