"""Offsets past 2^31 elements, without a pool of that size."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from paged.conformance.case import Case
from paged.conformance.compare import compare_rows, expected_pool
from paged.conformance.problem import Problem, build
from paged.conformance.subject import Subject, moved, served
from paged.conformance.verdict import NotRun, Violation
from paged.layouts import KVCache, Layout

_INT32 = 2**31
_INDEXED = {"gather", "scatter", "scatter-add", "dynamic_slice", "dynamic_update_slice"}
_OPAQUE = ("callback", "ffi_call", "custom_call", "pallas_call", "triton", "mosaic")


def offsets(subject: Subject, case: Case, layout: Layout, dtype: str, seed: int) -> float | None:
    """A numpy backend meets a pool whose untouched pages take no memory, a JAX backend is traced.

    Indices of an array of many dimensions stay small. What overflows is one long dimension of
    2^31 or more elements under an int32 index; such a one is looked for in the traced program.
    """
    problem = build(case.setup, layout, dtype, seed, case.name)
    subject.require_claim(problem)
    if subject.arrays == "numpy":
        return _in_a_hollow_pool(subject, problem, case)
    if subject.arrays != "jax" or not getattr(subject.backend, "traceable", True):
        raise NotRun(f"no way to see the offsets of a backend on {subject.arrays} arrays")
    _trace(subject, problem)
    return None


def _in_a_hollow_pool(subject: Subject, problem: Problem, case: Case) -> float:
    layout, setup = problem.cache.layout, problem.setup
    pool = expected_pool(problem)
    block_elements = pool.size // setup.num_blocks
    num_blocks = _INT32 // block_elements + setup.num_blocks
    shape = layout.shape(num_blocks, setup.cache_spec(layout, problem.dtype))
    # calloc: the operating system gives memory to the pages that are touched.
    hollow = np.zeros(shape, pool.dtype)
    tail = [slice(None)] * hollow.ndim
    tail[layout.block_axis] = slice(num_blocks - setup.num_blocks, None)
    hollow[tuple(tail)] = pool
    metadata = problem.metadata
    table = np.where(metadata.block_table > 0, metadata.block_table, 0).astype(np.int64)
    table = np.minimum(table + num_blocks - setup.num_blocks, _INT32 - 1).astype(np.int32)
    far = KVCache(hollow, layout, problem.cache.k_scale, problem.cache.v_scale)
    far_metadata = replace(metadata, block_table=table)
    out, lse = served(
        "attend",
        problem.spec,
        lambda: subject.backend.attend(
            problem.query, far, far_metadata, problem.spec, sinks=problem.sinks
        ),
    )
    return compare_rows(problem.with_pool(pool), out, lse, rule=case.rules[0])


def _trace(subject: Subject, problem: Problem) -> None:
    layout, setup = problem.cache.layout, problem.setup
    block_elements = problem.cache.data.size // setup.num_blocks
    num_blocks = 4 * _INT32 // block_elements
    shape = layout.shape(num_blocks, setup.cache_spec(layout, problem.dtype))
    query, cache, metadata, sinks = moved(problem, _abstract)
    cache = cache.with_data(jax.ShapeDtypeStruct(shape, cache.data.dtype))
    rows = [None if part is None else _abstract(part) for part in (problem.key, problem.value)]
    backend = subject.backend
    trace_attend = jax.make_jaxpr(
        lambda query, cache, metadata, sinks: backend.attend(
            query, cache, metadata, problem.spec, sinks=sinks
        )
    )
    trace_write = jax.make_jaxpr(lambda *args: backend.write(*args))
    spec = problem.spec
    attend = served("attend", spec, lambda: trace_attend(query, cache, metadata, sinks))
    write = served("write", spec, lambda: trace_write(cache, *rows, metadata.slot_mapping))
    for call, traced in (("attend", attend), ("write", write)):
        for equation in _equations(traced.jaxpr):
            name = equation.primitive.name
            if any(word in name for word in _OPAQUE):
                raise NotRun(f"{call} computes its offsets inside {name}, which hides them")
            if name not in _INDEXED:
                continue
            longest = max(equation.invars[0].aval.shape)
            if longest >= _INT32:
                raise Violation(
                    "12",
                    f"{call} indexes a dimension of {longest} elements ({name}) for a pool of "
                    f"{num_blocks} blocks",
                )


def _abstract(array: np.ndarray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _equations(jaxpr: Any) -> Iterator[Any]:
    """All equations, those of inner programs included."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _equations(inner)
