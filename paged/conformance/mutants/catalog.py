"""Which mutants there are, by the name of the backend that they are faults of."""

from paged.conformance.mutants import cpu, pallas_tpu, reference, triton, xla
from paged.conformance.mutants.mutant import Mutant

MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "xla": xla.MUTANTS,
    "pallas_tpu": pallas_tpu.MUTANTS,
    "triton": triton.MUTANTS,
    "cpu": cpu.MUTANTS,
    "reference": reference.MUTANTS,
}
"""By name of the backend."""


def mutants_of(backend: str) -> tuple[Mutant, ...]:
    """The listed mutants of a backend.

    Raises:
        ValueError: none are listed.
    """
    if backend not in MUTANTS:
        raise ValueError(
            f"backend: no mutants are listed for {backend!r}, expected one of {', '.join(MUTANTS)}"
        )
    return MUTANTS[backend]
