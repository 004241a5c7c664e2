"""Attention over a paged cache as its definition says, one row at a time, in float64."""

from typing import Any

import numpy as np
from jaxtyping import Float

from paged.backends.reference.addressing import KEYS, VALUES, Addresses, addresses
from paged.backends.reference.arrays import to_numpy
from paged.layouts import KVCache
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec


def oracle(
    query: Any,
    cache: KVCache,
    metadata: AttentionMetadata,
    spec: AttentionSpec,
    sinks: Any = None,
) -> tuple[Float[np.ndarray, "tokens num_heads value_dim"], Float[np.ndarray, "tokens num_heads"]]:
    """Attention, unrounded.

    With x_j = scale * q . (k_scale * k_j), capped to soft_cap * tanh(x_j / soft_cap) where asked,
    over the keys j that the row sees:

        lse = log(sum_j exp(x_j) + exp(sink)),   out = sum_j exp(x_j - lse) * v_scale * v_j

    A row without keys (padding, or a sequence of length 0) has out 0 and lse -inf, whatever its
    sink. Nothing but the keys that a row sees is read, so that other memory may hold anything.
    Each row is computed by itself from the same numbers in the same order: the result is bitwise
    the same whatever else is in the batch and wherever the blocks lie.

    Args:
        query: `[tokens, num_heads, head_dim]`, any library and float type; concrete.
        cache: in any layout.
        metadata: as the contract says.
        spec: the arithmetic.
        sinks: `[num_heads]` where `spec.has_sinks`.

    Returns:
        `out` and `lse`, float64.
    """
    queries = to_numpy(query)
    data = to_numpy(cache.data)
    where = addresses(cache.layout, data.shape)
    numbers = data.reshape(-1)
    k_scale = _per_head(cache.k_scale, spec.num_kv_heads)
    v_scale = k_scale if spec.is_latent else _per_head(cache.v_scale, spec.num_kv_heads)
    table = to_numpy(metadata.block_table)
    seq_lens = to_numpy(metadata.seq_lens).tolist()
    starts = to_numpy(metadata.query_start_loc).tolist()
    num_seqs = int(to_numpy(metadata.distribution)[2])
    sink_logits = None if sinks is None else to_numpy(sinks).astype(np.float64)

    out = np.zeros((len(queries), spec.num_heads, spec.value_dim))
    lse = np.full((len(queries), spec.num_heads), -np.inf)
    for sequence in range(num_seqs):
        start, end, seq_len = starts[sequence], starts[sequence + 1], seq_lens[sequence]
        first_position = seq_len - (end - start)
        spans = []
        for token in range(start, end):
            last = first_position + token - start
            first = 0 if spec.window is None else max(0, last + 1 - spec.window)
            if last >= 0:
                spans.append((token, first, last))
        if not spans:
            continue
        # All that some row of the sequence sees, and no more.
        oldest, newest = min(first for _, first, _ in spans), max(last for _, _, last in spans)
        for kv_head in range(spec.num_kv_heads):
            keys = _rows(numbers, where, table[sequence], oldest, newest, kv_head, KEYS)
            values = _rows(numbers, where, table[sequence], oldest, newest, kv_head, VALUES)
            keys = keys[:, : spec.head_dim] * k_scale[kv_head]
            values = values[:, : spec.value_dim] * v_scale[kv_head]
            for token, first, last in spans:
                seen = slice(first - oldest, last + 1 - oldest)
                for head in range(kv_head * spec.group_size, (kv_head + 1) * spec.group_size):
                    sink = None if sink_logits is None else sink_logits[head]
                    out[token, head], lse[token, head] = _one_row(
                        queries[token, head].astype(np.float64),
                        keys[seen],
                        values[seen],
                        spec,
                        sink,
                    )
    return out, lse


def _rows(
    numbers: np.ndarray,
    where: Addresses,
    blocks: np.ndarray,
    first: int,
    last: int,
    head: int,
    kind: int,
) -> Float[np.ndarray, "keys width"]:
    """Key or value rows at positions first..last of one sequence, as stored."""
    # Only the table entries that hold these positions are looked at.
    logical, slots = np.divmod(np.arange(first, last + 1), where.size["slot"])
    physical = blocks[logical]
    outside = physical[(physical < 0) | (physical >= where.size["block"])]
    if outside.size:
        raise ValueError(
            f"block_table: got block {outside[0]} for positions that are read, expected "
            f"0 <= block < {where.size['block']}"
        )
    return numbers[where.rows(physical, slots, head, kind)].astype(np.float64)


def _one_row(
    query: Float[np.ndarray, " width"],
    keys: Float[np.ndarray, "keys width"],
    values: Float[np.ndarray, "keys value_dim"],
    spec: AttentionSpec,
    sink: float | None,
) -> tuple[Float[np.ndarray, " value_dim"], float]:
    # Sums, not matrix products: BLAS may add in another order for another shape or address.
    logits = spec.scale * (keys * query).sum(axis=-1)
    if spec.soft_cap is not None:
        logits = spec.soft_cap * np.tanh(logits / spec.soft_cap)
    largest = logits.max() if sink is None else max(logits.max(), sink)
    weights = np.exp(logits - largest)
    total = weights.sum() + (0.0 if sink is None else np.exp(sink - largest))
    out = (weights[:, None] * values).sum(axis=0) / total
    return out, float(largest + np.log(total))


def _per_head(scale: Any, num_kv_heads: int) -> Float[np.ndarray, " num_kv_heads"]:
    """Scales as a cache keeps them (float32), one for each head."""
    value = np.float32(1) if scale is None else to_numpy(scale).astype(np.float32)
    return np.broadcast_to(value.astype(np.float64), (num_kv_heads,))
