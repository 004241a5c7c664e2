"""Multi-head latent attention: absorbed over the latent, against its definition.

DeepSeek-V2, arXiv:2405.04434, section 2.1: with the latent c of a token, head h has the key
(W_UK[h] c, k_rope), the rotary part shared by all heads, and the value W_UV[h] c. Since
q . (W_UK c) = (W_UK^T q) . c, a query multiplied by W_UK^T may meet the latents themselves.
"""

from dataclasses import replace

import numpy as np

from paged.conformance.case import Case
from paged.conformance.checks.attend import run
from paged.conformance.plain import plain
from paged.conformance.problem import Problem, Row, assemble, draw_rows, generator
from paged.conformance.subject import Subject
from paged.conformance.tolerance import allowed
from paged.conformance.verdict import Violation, Where
from paged.layouts import Layout

_NOPE_DIM, _VALUE_DIM = 16, 12


def absorbed(subject: Subject, case: Case, layout: Layout, dtype: str, seed: int) -> float:
    """Compares with the oracle, then with keys and values of every head made explicitly."""
    setup = case.setup
    spec = setup.spec(layout)
    rank, heads = spec.value_dim, spec.num_heads
    rng = generator(seed, case.name, "weights")
    w_key = rng.normal(size=(heads, _NOPE_DIM, rank)) / _NOPE_DIM**0.5
    w_value = rng.normal(size=(heads, _VALUE_DIM, rank)) / rank**0.5
    rows, queries = [], []
    for row in draw_rows(setup, layout, dtype, seed, case.name):
        nope = rng.normal(size=(len(row.query), heads, _NOPE_DIM))
        rope = row.query[..., rank:].astype(np.float64)
        query = np.concatenate([np.einsum("qhn,hnr->qhr", nope, w_key), rope], axis=-1)
        rows.append(replace(row, query=query.astype(row.query.dtype)))
        queries.append(np.concatenate([nope, rope], axis=-1))
    problem = assemble(tuple(rows), setup, layout, dtype, generator(seed, case.name, "pool"))
    subject.require_claim(problem)
    error, out, _, after = run(subject, problem, case.rules[0])

    exact = _explicit(problem, rows, queries, w_key, w_value)
    found, rough = (
        np.einsum("qhr,hvr->qhv", result.astype(np.float64), w_value)
        for result in (out, plain(after)[0])
    )
    limit = allowed(rough, exact, dtype=dtype, cache_dtype=problem.cache.dtype)
    apart = np.abs(found - exact)
    if (apart > limit[:, None, None]).any() or np.isnan(apart).any():
        token, head, dim = (int(i) for i in np.unravel_index(np.argmax(apart), apart.shape))
        block, slot = (int(part) for part in problem.place[token])
        raise Violation(
            case.rules[0],
            f"absorbed attention is {found[token, head, dim]:.6g} after W_UV, expected "
            f"{exact[token, head, dim]:.6g} as keys and values of each head give",
            error=float(apart[token, head, dim]),
            where=Where(token, head, dim, block, slot),
        )
    return error


def _explicit(
    problem: Problem,
    rows: list[Row],
    queries: list[np.ndarray],
    w_key: np.ndarray,
    w_value: np.ndarray,
) -> np.ndarray:
    """`[T, num_heads, _VALUE_DIM]` by keys and values of each head, in float64."""
    rank, heads = w_key.shape[2], len(w_key)
    result = np.zeros((problem.metadata.num_tokens, heads, _VALUE_DIM))
    start = 0
    for row, query in zip(rows, queries, strict=True):
        latent = row.key[:, 0].astype(np.float64)
        own = np.arange(len(latent) - len(query), len(latent))[:, None]
        for head in range(heads):
            keys = np.concatenate([latent[:, :rank] @ w_key[head].T, latent[:, rank:]], axis=1)
            logits = problem.spec.scale * query[:, head] @ keys.T
            logits = np.where(np.arange(len(latent)) <= own, logits, -np.inf)
            weights = np.exp(logits - logits.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            result[start : start + len(query), head] = weights @ (
                latent[:, :rank] @ w_value[head].T
            )
        start += len(query)
    return result
