"""The same formula, dense and without a cache, in the precision of the call.

Its error is the measure of what the precision allows. Storage types hold the inputs, the softmax
weights and the output; products, maxima and sums are float32 (rule 14), as in any careful kernel.
"""

import numpy as np
from jaxtyping import Float, Shaped

from paged.backends.reference.writing import quantized, scale_of
from paged.conformance.problem import Problem
from paged.dtypes import storage_dtype

# OpenBLAS hands a product of 2^19 multiplications and more to several threads, which then wait for
# the next one in a loop: 11 ms of CPU time where one thread takes 0.05 ms, in all a fifth of what
# a run of the suite took. numpy 2.4, two cores, 2026-11-30.
_MOST_MULTIPLICATIONS = 2**18


def plain(
    problem: Problem,
) -> tuple[Shaped[np.ndarray, "T num_heads value_dim"], Float[np.ndarray, "T num_heads"]]:
    """Output in the query's dtype, lse in float32."""
    spec = problem.spec
    tokens = problem.metadata.num_tokens
    out = np.zeros((tokens, spec.num_heads, spec.value_dim), storage_dtype(problem.dtype))
    lse = np.full((tokens, spec.num_heads), -np.inf, np.float32)
    start = 0
    for row in problem.rows:
        end = start + len(row.query)
        if end > start and not row.is_nan:
            keys = _as_cached(problem, row.key, problem.cache.k_scale)
            if spec.is_latent:
                values = keys[..., : spec.value_dim]
            else:
                values = _as_cached(problem, row.value, problem.cache.v_scale)
            tile = max(1, _MOST_MULTIPLICATIONS // (len(keys) * spec.head_dim))
            for first in range(start, end, tile):
                tokens = slice(first, min(first + tile, end))
                query = row.query[first - start : tokens.stop - start]
                # The last query of a sequence has the position of its last key.
                position = len(keys) - (end - first)
                out[tokens], lse[tokens] = _dense(problem, query, keys, values, position)
        start = end
    return out, lse


def _as_cached(
    problem: Problem, rows: Shaped[np.ndarray, "seq_len heads dim"], scale: np.ndarray | None
) -> Float[np.ndarray, "seq_len heads dim"]:
    """What the cache gives back for these rows, in float32."""
    cached = [
        quantized(rows[:, head], scale_of(scale, head), problem.cache.dtype).astype(np.float32)
        * np.float32(scale_of(scale, head))
        for head in range(rows.shape[1])
    ]
    return np.stack(cached, axis=1)


def _dense(
    problem: Problem,
    query: Shaped[np.ndarray, "query_len num_heads dim"],
    keys: Float[np.ndarray, "seq_len kv_heads dim"],
    values: Float[np.ndarray, "seq_len kv_heads value_dim"],
    position: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Queries of a sequence, the first of them at this position."""
    spec = problem.spec
    grouped = query.astype(np.float32).reshape(len(query), spec.num_kv_heads, -1, spec.head_dim)
    # Axes: KV head, head of its group, query, key.
    logits = grouped.transpose(1, 2, 0, 3) @ keys.transpose(1, 2, 0)[:, None]
    logits *= np.float32(spec.scale)
    if spec.soft_cap is not None:
        cap = np.float32(spec.soft_cap)
        logits = cap * np.tanh(logits / cap)
    own = np.arange(position, position + len(query))[:, None]
    key = np.arange(len(keys))
    seen = key <= own
    if spec.window is not None:
        seen &= key > own - spec.window
    logits = np.where(seen, logits, np.float32(-np.inf))
    peak = logits.max(axis=-1, keepdims=True)
    sinks = None
    if problem.sinks is not None:
        sinks = problem.sinks.reshape(spec.num_kv_heads, -1, 1, 1)
        peak = np.maximum(peak, sinks)
    weights = np.exp(logits - peak)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks - peak)
    rounded = weights.astype(storage_dtype(problem.dtype)).astype(np.float32)
    out = rounded @ values.transpose(1, 0, 2)[:, None] / total
    lse = (peak + np.log(total))[..., 0]
    heads_last = out.transpose(2, 0, 1, 3).reshape(len(query), spec.num_heads, -1)
    return heads_last.astype(storage_dtype(problem.dtype)), lse.reshape(spec.num_heads, -1).T
