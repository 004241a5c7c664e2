"""Faults of the XLA backend, and of the layouts' gather and write under it."""

from paged.conformance.mutants.mutant import Mutant
from paged.conformance.mutants.xla import contract, logits, seeing, softmax, storing, tiling

MUTANTS: tuple[Mutant, ...] = (
    *seeing.MUTANTS,
    *tiling.MUTANTS,
    *logits.MUTANTS,
    *softmax.MUTANTS,
    *storing.MUTANTS,
    *contract.MUTANTS,
)
"""All of them."""
