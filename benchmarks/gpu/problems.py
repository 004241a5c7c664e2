"""Tensors of a comparison."""

from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.gpu.shapes import Comparison, Heads, Ours
from paged.layouts import KVCache, get_layout
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec, KVCacheSpec


@dataclass(frozen=True, slots=True)
class Problem:
    """One step over a cache.

    Attributes:
        spec: of the layer.
        cache: filled with random numbers.
        metadata: of the step.
        query: `[T, num_heads, head_dim]`.
        key: of the new tokens.
        value: of the new tokens, None for latents.
    """

    spec: AttentionSpec
    cache: KVCache
    metadata: AttentionMetadata
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor | None


def block_tables(num_seqs: int, blocks_each: int, *, seed: int = 0) -> np.ndarray:
    """Physical blocks of each sequence, in random order over the whole pool, block 0 left out."""
    order = np.random.default_rng(seed).permutation(num_seqs * blocks_each) + 1
    return order.reshape(num_seqs, blocks_each).astype(np.int32)


def spec_of(heads: Heads) -> AttentionSpec:
    scale = heads.dim**-0.5
    if heads.rank:
        return AttentionSpec(
            heads.query,
            heads.kv,
            heads.dim,
            scale,
            kv_lora_rank=heads.rank,
            qk_rope_head_dim=heads.dim - heads.rank,
        )
    return AttentionSpec(heads.query, heads.kv, heads.dim, scale)


def random_numbers(count: int, dtype: str, device: str) -> torch.Tensor:
    """Normal: on zeros a chip is faster than on data."""
    generator = torch.Generator(device).manual_seed(0)
    numbers = torch.randn(count, generator=generator, device=device, dtype=torch.bfloat16)
    return numbers.to(getattr(torch, dtype))


def pool_of(comparison: Comparison, device: str) -> torch.Tensor:
    """Numbers for the cache of any of the comparison's layouts: all look at the same memory."""
    spec = spec_of(comparison.heads)
    counts = []
    for ours in comparison.ours:
        cache_spec = KVCacheSpec.of(spec, block_size=ours.block_size)
        counts.append(np.prod(get_layout(ours.layout).shape(_blocks(comparison, ours), cache_spec)))
    return random_numbers(int(max(counts)), comparison.dtype, device)


def problem_of(
    comparison: Comparison, ours: Ours, pool: torch.Tensor, *, query_len: int | None = None
) -> Problem:
    """One variant's step: decodes, or whole prompts where the kind says so."""
    device = str(pool.device)
    spec, layout = spec_of(comparison.heads), get_layout(ours.layout)
    cache_spec = KVCacheSpec.of(spec, block_size=ours.block_size, dtype=comparison.dtype)
    blocks = _blocks(comparison, ours)
    shape = layout.shape(blocks, cache_spec)
    data = pool[: int(np.prod(shape))].view(shape)
    scale = None
    if comparison.dtype.startswith("float8"):
        scale = torch.full((), 0.5, device=device)
    length, seqs = comparison.length, comparison.seqs
    if query_len is None:
        query_len = 1 if comparison.kind in ("decode", "flex") else length
    tables = block_tables(seqs, -(-length // ours.block_size))
    at = np.arange(length - query_len, length)
    slots = tables[:, at // ours.block_size] * ours.block_size + at % ours.block_size
    ends = {1: (seqs, seqs, seqs), length: (0, seqs, seqs)}.get(query_len, (0, 0, seqs))
    on_device = {"dtype": torch.int32, "device": device}
    metadata = AttentionMetadata(
        block_table=torch.tensor(tables, **on_device),
        slot_mapping=torch.tensor(slots.reshape(-1), **on_device),
        seq_lens=torch.full((seqs,), length, **on_device),
        query_start_loc=torch.arange(seqs + 1, **on_device) * query_len,
        distribution=torch.tensor(ends, **on_device),
        max_query_len=query_len,
        max_seq_len=length,
    )
    rows = seqs * query_len
    new = (rows, spec.num_kv_heads, spec.head_dim)
    size = int(np.prod(new))
    heads = (rows, spec.num_heads, spec.head_dim)
    query = random_numbers(int(np.prod(heads)), "bfloat16", device).view(heads)
    value = None if spec.is_latent else random_numbers(size, "bfloat16", device).view(new) + 1
    key = random_numbers(size, "bfloat16", device).view(new)
    cache = KVCache(data, layout, scale, None if layout.is_latent else scale)
    return Problem(spec, cache, metadata, query, key, value)


def _blocks(comparison: Comparison, ours: Ours) -> int:
    return 1 + comparison.seqs * -(-comparison.length // ours.block_size)
