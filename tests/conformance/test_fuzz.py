"""Random whole problems: valid, true to an independent formula, and shrunk where they fail."""

import hypothesis
import numpy as np
import pytest

from paged.backends import load_backend
from paged.backends.reference import ReferenceBackend, oracle
from paged.backends.reference.writing import quantized, scale_of
from paged.conformance import Subject, Violation
from paged.conformance.compare import expected_pool
from paged.conformance.fuzz import ANY, FEW, fails, fuzz, problems
from paged.conformance.subject import quick_options


@hypothesis.settings(max_examples=60)
@hypothesis.given(problems())
def test_what_is_drawn_keeps_the_contract(drawn):
    problem = drawn.problem()
    problem.metadata.validate(
        query=problem.query,
        cache=problem.cache,
        spec=problem.spec,
        num_blocks=problem.setup.num_blocks,
    )


def dense(problem):
    """Out and lse from each sequence's own rows: no pool, no table, one head at a time."""
    spec, cache = problem.spec, problem.cache
    tokens = problem.metadata.num_tokens
    out = np.zeros((tokens, spec.num_heads, spec.value_dim))
    lse = np.full((tokens, spec.num_heads), -np.inf)
    start = 0
    for row in problem.rows:
        own = np.arange(len(row.key) - len(row.query), len(row.key))[:, None]
        key = np.arange(len(row.key))
        seen = (key <= own) & (key > own - (spec.window or len(row.key) + 1))
        end = start + len(row.query)
        for head in range(spec.num_heads):
            kv_head = head // spec.group_size
            keys, values = (
                quantized(part[:, kv_head], scale_of(scale, kv_head), cache.dtype).astype(float)
                * scale_of(scale, kv_head)
                for part, scale in ((row.key, cache.k_scale), (row.value, cache.v_scale))
            )
            values = keys[:, : spec.value_dim] if spec.is_latent else values
            logits = spec.scale * row.query[:, head].astype(float) @ keys.T
            if spec.soft_cap is not None:
                logits = spec.soft_cap * np.tanh(logits / spec.soft_cap)
            logits = np.where(seen, logits, -np.inf)
            if problem.sinks is not None:
                sink = np.full((len(logits), 1), float(problem.sinks[head]))
                logits = np.concatenate([logits, sink], axis=1)
                values = np.concatenate([values, np.zeros_like(values[:1])])
            if end > start and not row.is_nan:
                lse[start:end, head] = np.logaddexp.reduce(logits, axis=1)
                weights = np.exp(logits - lse[start:end, head, None])
                out[start:end, head] = weights @ values
        start = end
    return out, lse


@hypothesis.settings(max_examples=80)
@hypothesis.given(problems())
def test_the_oracle_is_the_dense_formula(drawn):
    problem = drawn.problem()
    after = problem.with_pool(expected_pool(problem))
    found = oracle(after.query, after.cache, after.metadata, after.spec, after.sinks)
    for name, array, expected in zip(("out", "lse"), found, dense(problem), strict=True):
        rows = problem.expected
        np.testing.assert_allclose(array[rows], expected[rows], rtol=1e-9, atol=1e-9, err_msg=name)


def test_the_reference_passes():
    report = fuzz(ReferenceBackend(), examples=40, seed=1)
    assert report.failure is None, report.failure
    assert report.examples >= 40


def test_xla_passes_a_few():
    report = fuzz(
        load_backend("xla"), examples=12, seed=2, shapes=FEW, compiler_options=quick_options()
    )
    assert report.failure is None, report.failure


@pytest.mark.full
@pytest.mark.parametrize("backend", ["reference", "xla"])
def test_many(backend):
    examples = 2000 if backend == "reference" else 300
    options = quick_options() if backend == "xla" else None
    for shapes in (FEW, ANY):
        report = fuzz(
            load_backend(backend), examples, seed=3, shapes=shapes, compiler_options=options
        )
        assert report.failure is None, report.failure


class WrongForLongSequences(ReferenceBackend):
    """Wrong where a sequence is longer than 20 tokens."""

    def _attend(self, query, cache, metadata, spec, sinks):
        out, lse = super()._attend(query, cache, metadata, spec, sinks)
        starts = metadata.query_start_loc
        for sequence, seq_len in enumerate(metadata.seq_lens.tolist()):
            if seq_len > 20:
                out[starts[sequence] : starts[sequence + 1]] *= 1.5
        return out, lse


def test_a_failure_shrinks_to_the_smallest():
    report = fuzz(WrongForLongSequences(), examples=200, seed=0, layouts=["packed"])
    assert report.failure is not None
    drawn = report.failure.drawn
    (sequence,) = drawn.setup.sequences
    assert sequence == (1, 21), "one query of one sequence, as long as it must be"
    plainest = drawn.setup
    assert (plainest.window, plainest.soft_cap, plainest.sinks) == (None, None, None)
    assert (plainest.poison, plainest.placement) == ("zero", "identity")
    assert str(report.failure).startswith("rule 2")
    with pytest.raises(Violation):
        fails(Subject(WrongForLongSequences(), explains=False), drawn)
