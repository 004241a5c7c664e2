"""One row alone, in a batch, in another order, on other blocks, with other neighbours."""

import numpy as np

from paged.conformance.case import Case
from paged.conformance.checks.attend import require_same_bits, run
from paged.conformance.problem import assemble, draw_rows, generator
from paged.conformance.subject import Subject
from paged.layouts import Layout

# As many rows as the smallest bucket of `paged.Buckets`.
_FEW = 8


def batch(subject: Subject, case: Case, layout: Layout, dtype: str, seed: int) -> float:
    """All queries are of one token, so that token i is sequence i.

    Other blocks must give the same bits: the same numbers in the same order. The rest must where
    the backend declares `batch_invariant`, and is held to the oracle in any case.
    """
    setup, rule = case.setup, case.rules[0]
    rows = draw_rows(setup, layout, dtype, seed, case.name)
    others = draw_rows(setup, layout, dtype, seed + 1, case.name)
    count = len(rows)

    def place(chosen, word, **changes):
        lengths = tuple((len(row.query), len(row.key)) for row in chosen)
        changed = setup.but(sequences=lengths, **changes)
        return assemble(chosen, changed, layout, dtype, generator(seed, case.name, word))

    first = place(rows, "first")
    subject.require_claim(first)
    error, out, lse, _ = run(subject, first, rule)

    def same(problem, order, what, *, always=False):
        error, found, found_lse, _ = run(subject, problem, rule)
        if always or subject.claims("batch_invariant"):
            mine = (out[order], None if lse is None else lse[order])
            other = (found[: len(order)], None if found_lse is None else found_lse[: len(order)])
            require_same_bits(mine, other, "13", what)
        return error

    every = np.arange(count)
    errors = [error, same(place(rows, "other blocks"), every, "other blocks", always=True)]
    order = generator(seed, case.name, "order").permutation(count)
    errors.append(same(place(tuple(rows[i] for i in order), "other order"), order, "another order"))
    mixed = (*rows[:1], *others[1:])
    errors.append(same(place(mixed, "other neighbours"), every[:1], "other neighbours"))
    few = {"num_seqs": _FEW, "num_tokens": _FEW}
    for index in (0, count - 1):
        alone = place((rows[index],), f"alone {index}", **few)
        errors.append(same(alone, every[index : index + 1], f"row {index} alone"))
    return max(errors)
