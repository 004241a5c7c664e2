"""One cache in several layouts: converted, over one pool, or in a layout of the caller's own."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from paged.conformance.arrays import differing
from paged.conformance.case import Case
from paged.conformance.checks.attend import run
from paged.conformance.compare import compare_pool, compare_rows, expected_pool
from paged.conformance.problem import Problem, build
from paged.conformance.subject import Subject
from paged.conformance.verdict import NotRun, Refused, Violation
from paged.layouts import Layout, share_pool
from paged.metadata import NO_SLOT
from paged.spec import KVCacheSpec

_OWN = {
    False: Layout("ones_own", "slot block head (dim kv)"),
    True: Layout("ones_own_latent", "latent slot block"),
}


def converted(subject: Subject, case: Case, layout: Layout, dtype: str, seed: int) -> float:
    """Writes in one layout, converts to each other one and back, attends there."""
    problem = build(case.setup, layout, dtype, seed, case.name)
    subject.require_claim(problem)
    error, _, _, after = run(subject, problem, case.rules[0])
    pool = after.cache.data
    cache_spec = case.setup.cache_spec(layout, dtype)
    for other in _other_layouts(subject, problem, dtype):
        moved = subject.converted(pool, layout, other, cache_spec)
        back = subject.converted(moved, other, layout, cache_spec)
        if differing(back, pool).any():
            raise Violation("layout", f"{layout.name} to {other.name} and back is another cache")
        mirrored = build(case.setup, other, dtype, seed, case.name)
        if differing(moved, expected_pool(mirrored)).any():
            raise Violation("layout", f"{layout.name} converted to {other.name} is another cache")
        elsewhere = mirrored.with_pool(moved)
        out, lse = subject.attend(elsewhere)
        error = max(error, compare_rows(elsewhere, out, lse, rule="layout"))
    return error


def shared(subject: Subject, case: Case, layout: Layout, dtype: str, seed: int) -> float:
    """Writes one sequence through one layout and one through another, over one raw pool."""
    setup = case.setup
    problem = build(setup, layout, dtype, seed, case.name)
    subject.require_claim(problem)
    cache_spec = setup.cache_spec(layout, dtype)
    raw = problem.cache.data.reshape(-1)
    if not _shares(layout, cache_spec):
        try:
            share_pool(raw, cache_spec, [layout])
        except ValueError as error:
            raise Refused(str(error)) from error
        raise Violation("layout", f"{layout.name} may not share a pool, but is let in")
    others = [o for o in _other_layouts(subject, problem, dtype) if _shares(o, cache_spec)]
    if not others:
        raise NotRun("no other layout that may share a pool is claimed")
    error = 0.0
    for other in others:
        mirrored = build(setup, other, dtype, seed, case.name)
        first = _only(problem, 0)
        pool = subject.write(first)
        compare_pool(first, pool)
        through_other = share_pool(pool.reshape(-1), cache_spec, [other])[0]
        second = _only(mirrored, 1).with_pool(through_other)
        pool = subject.write(second)
        compare_pool(second, pool)
        views = share_pool(pool.reshape(-1), cache_spec, [layout, other])
        for part, view in zip((first, second), views, strict=True):
            seen = part.with_pool(view)
            error = max(error, compare_rows(seen, *subject.attend(seen), rule="layout"))
    return error


def own(subject: Subject, case: Case, layout: Layout, dtype: str, seed: int) -> float:
    """A declaration that the package does not know: served, or refused with a reason."""
    problem = build(case.setup, _OWN[layout.is_latent], dtype, seed, case.name)
    subject.require_claim(problem)
    return run(subject, problem, case.rules[0])[0]


def _shares(layout: Layout, cache_spec: KVCacheSpec) -> bool:
    """Whether blocks of this layout are ranges of a pool, as long as in any other."""
    is_dense = layout.page_bytes(cache_spec) == cache_spec.block_size * cache_spec.bytes_per_token
    return layout.is_block_major and is_dense


def _only(problem: Problem, sequence: int) -> Problem:
    """Writes the tokens of one sequence, and expects results of that one alone."""
    starts = problem.metadata.query_start_loc
    token = np.arange(problem.metadata.num_tokens)
    mine = (token >= starts[sequence]) & (token < starts[sequence + 1])
    slots = np.where(mine, problem.metadata.slot_mapping, NO_SLOT).astype(np.int32)
    return replace(
        problem,
        metadata=replace(problem.metadata, slot_mapping=slots),
        expected=mine | (problem.place[:, 0] < 0),
    )


def _other_layouts(subject: Subject, problem: Problem, dtype: str) -> Iterator[Layout]:
    mine = problem.cache.layout
    for other in subject.backend.layouts:
        if other == mine or other.is_latent != mine.is_latent:
            continue
        cache_spec = problem.setup.cache_spec(other, dtype)
        if not subject.reasons(problem.spec, other, cache_spec=cache_spec, dtype=dtype):
            yield other
