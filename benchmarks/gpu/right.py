"""Is a result right: against plain float32 arithmetic, for the first and the last sequence."""

import torch

from benchmarks.gpu.problems import Problem

LIMIT = 6e-3
"""Of |out - expected| / |expected|. Rounding to bf16 gives 2e-3 to 3e-3. One key missed of 8k, or a
block of 16 of 128k, gives some 2e-2: weights of normal numbers are as good as N / e equal ones."""

_QUERIES = 16


def attend_error(problem: Problem, out: torch.Tensor) -> float:
    """The largest error of a sequence; inf where a result is not finite."""
    worst = 0.0
    starts = problem.metadata.query_start_loc.tolist()
    for seq in {0, len(starts) - 2}:
        first, end = starts[seq], starts[seq + 1]
        # The last queries see all keys, the first sees one.
        chosen = sorted({first, *range(max(first, end - _QUERIES), end)})
        expected = attended(problem, seq, [row - end for row in chosen])
        worst = max(worst, error_of(out[chosen], expected))
    return worst


def write_error(problem: Problem) -> float:
    """Of what stands in the cache after a write."""
    key, value = rows_of(problem, 0)
    new = problem.key.shape[0] // problem.metadata.num_seqs
    worst = error_of(key[-new:], problem.key[:new].float())
    if problem.value is not None:
        worst = max(worst, error_of(value[-new:], problem.value[:new].float()))
    return worst


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference, relative; inf where anything is not finite."""
    error = ((found.float() - expected).norm() / expected.norm()).item()
    return error if error == error else float("inf")


def rows_of(problem: Problem, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of a sequence in float32, `[token, head, dim]`."""
    cache, metadata = problem.cache, problem.metadata
    # Not all operations know float8: blocks are taken as bits.
    is_float8 = cache.dtype.startswith("float8")
    data = cache.data.view(torch.uint8) if is_float8 else cache.data
    views = cache.layout.views(data, value_dim=problem.spec.value_dim)
    length = int(metadata.seq_lens[seq])
    blocks = metadata.block_table[seq].long()
    rows = []
    # Values that are part of their keys have their scale.
    v_scale = cache.k_scale if problem.spec.is_latent else cache.v_scale
    for view, scale in zip(views, (cache.k_scale, v_scale), strict=True):
        taken = view[blocks].flatten(0, 1)[:length].contiguous()
        taken = taken.view(cache.data.dtype) if is_float8 else taken
        rows.append(taken.float() if scale is None else taken.float() * scale)
    return rows[0], rows[1]


def attended(problem: Problem, seq: int, queries: list[int]) -> torch.Tensor:
    """Expected rows of some queries of a sequence, counted from its end (-1 is the last)."""
    spec = problem.spec
    key, value = rows_of(problem, seq)
    length = key.shape[0]
    end = int(problem.metadata.query_start_loc[seq + 1])
    query = problem.query[[end + at for at in queries]].float()
    query = query.unflatten(1, (spec.num_kv_heads, spec.group_size))
    logits = torch.einsum("qhgd,khd->hgqk", query, key) * spec.scale
    last = torch.tensor([length + at for at in queries], device=key.device)
    hidden = torch.arange(length, device=key.device) > last[:, None]
    weights = logits.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hgqk,khd->qhgd", weights, value).flatten(1, 2)
