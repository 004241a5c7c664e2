"""The cases: each a fault that users of public engines met, and its neighbours.

Most share two shapes: a mixed step and a step of decodes, both of 8 rows over 40 blocks of 16.
A compiler then has little to do, and what differs is the data.
"""

from paged.conformance.case import Case
from paged.conformance.cases import arithmetic, interfaces, memory, shapes, steps

CASES: tuple[Case, ...] = (
    *steps.batches(),
    *memory.memory(),
    *steps.slots(),
    *steps.lengths(),
    *shapes.shapes(),
    *arithmetic.windows(),
    *arithmetic.logits(),
    *arithmetic.lse(),
    *arithmetic.quantised(),
    *arithmetic.dtypes(),
    *interfaces.layouts(),
    *interfaces.latent(),
    *interfaces.refusals(),
)
"""All cases, in the order in which they run: the plainest first."""
