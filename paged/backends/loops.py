"""How often a kernel's loops run: what no compiler writes down, and a kernel's author knows.

A compiled loop whose bound depends on values (sequence lengths) has no trip count. A backend that
wants its cost per token counted by `paged lab` offers one method beside those of `Backend`:

    def lab_trips(self, query, cache, metadata, spec) -> tuple[LoopTrips, ...]

The arguments are those of `attend`, as shapes. The step meant is a full one: every sequence has
`metadata.max_seq_len` tokens, `metadata.max_query_len` of them queries.

A backend with sizes to choose has them tried out by `paged.backends.tuned`.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class LoopTrips:
    """How often the bodies of the loops that this names run in one call. The first match counts.

    Attributes:
        depth: nesting of the loop, 1 for the outermost.
        runs: times that the body runs in the whole call, those of the loops around it included;
            the average where it depends on the iteration.
        where: "kernel" for a loop inside a Pallas kernel or a fusion, "program" for a while loop
            of XLA's around kernels.
        holds: narrows to loops whose own body, nested loops aside, has this: "matmul" for matrix
            products, "copy" for copies from or to HBM.
        nth: narrows to the n-th loop of this depth in program order, from 0.
        kernel: narrows to kernels whose name starts with this.
    """

    depth: int
    runs: float
    where: Literal["kernel", "program"] = "kernel"
    holds: Literal["matmul", "copy"] | None = None
    nth: int | None = None
    kernel: str = ""
