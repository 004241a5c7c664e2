"""Attention over parts of the keys, merged by lse, against attention over all of them."""

from dataclasses import replace

import numpy as np

from paged.backends import AttentionOutput, merge_states
from paged.conformance.case import Case
from paged.conformance.checks.attend import run
from paged.conformance.compare import compare_rows
from paged.conformance.problem import Problem, build
from paged.conformance.subject import Subject
from paged.conformance.verdict import NotRun, Violation
from paged.layouts import Layout

_TAIL = 64
"""Keys in the second part; the rest of the sequence is the first."""


def merge(subject: Subject, case: Case, layout: Layout, dtype: str, seed: int) -> float:
    """Splits the one sequence, merges the parts, and merges with empty states."""
    problem = build(case.setup, layout, dtype, seed, case.name)
    subject.require_claim(problem)
    if subject.denies("lse"):
        raise NotRun("the backend does not claim lse")
    error, out, lse, after = run(subject, problem, case.rules[0])
    if lse is None:
        raise NotRun("the backend returns no lse")
    (_, seq_len), block_size = case.setup.sequences[0], case.setup.block_size
    head = (seq_len - _TAIL) // block_size * block_size
    parts = [
        AttentionOutput(*subject.attend(_part(after, 0, head))),
        AttentionOutput(*subject.attend(_part(after, head // block_size, seq_len - head))),
    ]
    empty = AttentionOutput(np.zeros_like(out), np.full_like(lse, -np.inf))
    for first, second in (parts, parts[::-1]):
        merged = merge_states(first, second)
        errors = compare_rows(after, np.asarray(merged.out), np.asarray(merged.lse), rule="8")
        error = max(error, errors)
    for first, second in ((parts[0], empty), (empty, parts[0])):
        merged = merge_states(first, second)
        if not (
            np.array_equal(parts[0].out, np.asarray(merged.out))
            and np.array_equal(np.asarray(parts[0].lse), np.asarray(merged.lse))
        ):
            raise Violation("8", "merging with an empty state changes the other one")
    nothing = merge_states(empty, empty)
    if np.any(np.asarray(nothing.out) != 0) or not np.isneginf(np.asarray(nothing.lse)).all():
        raise Violation("8", "merging two empty states gives no empty state")
    return error


def _part(problem: Problem, first_block: int, keys: int) -> Problem:
    """The same query over some of the keys, as if they were all."""
    metadata = problem.metadata
    table, seq_lens = metadata.block_table.copy(), metadata.seq_lens.copy()
    table[0] = np.roll(table[0], -first_block)
    seq_lens[0] = keys
    return replace(problem, metadata=replace(metadata, block_table=table, seq_lens=seq_lens))
