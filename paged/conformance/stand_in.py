"""A stand-in for how paged attention is usually tested, to be scored beside the suite.

It has what public tests of such kernels have in common: one absolute tolerance (0.15, as in jax's
tests/pallas/tpu_ragged_paged_attention_test.py, which also gave the lengths' kind, the window of 5,
the soft cap of 50 and the scales of 0.5), uniform numbers in [0, 1), scale 1, sequences in
neighbouring blocks, a pool of zeros, and one set of plain lengths, by itself and with each feature.
In its favour it compares the whole pool after a write, to the same tolerance. It looks neither at
lse nor at rows of padding.
"""

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

import jax
import numpy as np

from paged.backends.reference import oracle
from paged.conformance.arrays import given, to_numpy
from paged.conformance.compare import expected_pool
from paged.conformance.problem import Problem, Row, assemble, generator
from paged.conformance.setup import Setup
from paged.dtypes import storage_dtype
from paged.layouts import Layout
from paged.metadata import NULL_BLOCK

TOLERANCE = 0.15

_PLAIN = Setup(
    ((1, 64), (1, 129), (5, 18), (20, 122)),
    num_kv_heads=8,
    group_size=4,
    head_dim=128,
    latent=(512, 64),
    num_tokens=32,
    table_width=9,
    placement="identity",
    poison="zero",
)
SETUPS = {
    "plain": _PLAIN,
    "window": _PLAIN.but(window=5),
    "soft cap": _PLAIN.but(soft_cap=50.0),
    "sinks": _PLAIN.but(sinks="positive"),
    "quantised": _PLAIN.but(cache_dtype="float8_e4m3fn", k_scale=0.5, v_scale=0.5),
}
_WRITTEN = ("plain", "quantised")


class StandIn:
    """The tests, with what they expect worked out once.

    Args:
        compiler_options: for `jax.jit`.
    """

    def __init__(self, compiler_options: dict[str, Any] | None = None) -> None:
        self._options = compiler_options
        self._expected: dict[tuple[str, str, str], tuple[Problem, np.ndarray]] = {}
        self._verdicts: dict[tuple[str, ...], str | None] = {}

    def fault_seen(self, backend: Any, layout: Layout, dtype: str = "float32") -> str | None:
        """What these tests have against a backend; None where they pass it.

        Args:
            backend: the backend.
            layout: of the cache.
            dtype: of queries, and of the cache where it is not quantised.
        """
        for name in SETUPS:
            try:
                wrong = None
                if name in _WRITTEN:
                    wrong = self._wrong_pool(backend, name, layout, dtype)
                wrong = wrong or self._wrong_rows(backend, name, layout, dtype)
            except Exception as error:  # noqa: BLE001 (whatever a faulty backend raises)
                wrong = f"raised {type(error).__name__}"
            if wrong:
                return f"{name}: {wrong}"
        return None

    def _wrong_pool(self, backend: Any, name: str, layout: Layout, dtype: str) -> str | None:
        problem, _ = self._prepared(name, layout, dtype)
        tokens = int(problem.metadata.query_start_loc[-1])
        slots = problem.metadata.slot_mapping[:tokens]
        rows = [None if r is None else r[:tokens] for r in (problem.key, problem.value)]
        return self._verdict(
            backend,
            ("write", name, layout.name, dtype),
            lambda cache, key, value, slots: backend.write(cache, key, value, slots).data,
            (problem.cache, *rows, slots),
            lambda found: _apart("pool", to_numpy(found), expected_pool(problem)),
        )

    def _wrong_rows(self, backend: Any, name: str, layout: Layout, dtype: str) -> str | None:
        problem, expected = self._prepared(name, layout, dtype)
        cache = problem.cache.with_data(expected_pool(problem))
        tokens = int(problem.metadata.query_start_loc[-1])
        return self._verdict(
            backend,
            ("attend", name, layout.name, dtype),
            lambda query, cache, metadata, sinks: backend.attend(
                query, cache, metadata, problem.spec, sinks=sinks
            )[0],
            (problem.query, cache, problem.metadata, problem.sinks),
            lambda found: _apart("out", to_numpy(found)[:tokens], expected[:tokens]),
        )

    def _verdict(
        self,
        backend: Any,
        what: tuple[str, ...],
        call: Callable[..., Any],
        arguments: tuple[Any, ...],
        judge: Callable[[Any], str | None],
    ) -> str | None:
        """The judge's word on a call. The same program gets the same word: it runs once."""
        arrays = getattr(backend, "arrays", "jax")
        arguments = jax.tree.map(lambda array: given(array, arrays), arguments)
        if arrays != "jax" or not getattr(backend, "traceable", True):
            return judge(call(*arguments))
        lowered = jax.jit(call).lower(*arguments)
        key = (*what, sha256(lowered.as_text().encode()).hexdigest())
        if key not in self._verdicts:
            self._verdicts[key] = judge(lowered.compile(self._options)(*arguments))
        return self._verdicts[key]

    def _prepared(self, name: str, layout: Layout, dtype: str) -> tuple[Problem, np.ndarray]:
        key = (name, layout.name, dtype)
        if key not in self._expected:
            problem = plain_problem(SETUPS[name], layout, dtype)
            after = problem.with_pool(expected_pool(problem))
            out, _ = oracle(after.query, after.cache, after.metadata, after.spec, after.sinks)
            self._expected[key] = problem, out
        return self._expected[key]


def plain_problem(setup: Setup, layout: Layout, dtype: str) -> Problem:
    """Uniform numbers, scale 1, zeros past the end of each row of the table."""
    spec = setup.spec(layout)
    storage = storage_dtype(dtype)
    rng = generator(0, "stand-in")
    rows = []
    for query_len, seq_len in setup.sequences:
        query = rng.random((query_len, spec.num_heads, spec.head_dim)).astype(storage)
        key, value = (
            rng.random((seq_len, spec.num_kv_heads, spec.head_dim)).astype(storage)
            for _ in range(2)
        )
        rows.append(Row(query, key, value))
    problem = assemble(tuple(rows), setup, layout, dtype, rng)
    table = problem.metadata.block_table.copy()
    for row, (_, seq_len) in enumerate(setup.sequences):
        table[row, -(-seq_len // setup.block_size) :] = NULL_BLOCK
    return replace(
        problem,
        spec=replace(problem.spec, scale=1.0),
        query=np.nan_to_num(problem.query),
        metadata=replace(problem.metadata, block_table=table),
    )


def _apart(name: str, found: np.ndarray, expected: np.ndarray) -> str | None:
    if found.shape != expected.shape:
        return f"{name} has shape {found.shape}, expected {expected.shape}"
    error = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    # A NaN is not close to anything.
    if (error <= TOLERANCE).all():
        return None
    return f"{name} is off by {error.max():.3g}"
