"""Other attention of torch's on the same numbers: what there is besides, on this machine."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu.problems import Problem
from benchmarks.gpu.right import rows_of
from benchmarks.gpu.shapes import Comparison

Peer = Callable[
    [Comparison, Problem, bool], tuple[Callable[[], Any], Callable[[Any], torch.Tensor]]
]
"""Makes a call, and what brings its result into the form of ours."""

FLEX_PAGE = 128
"""FlexAttention's own block, the smallest that its kernels are made for."""


def sdpa(backend: str | None) -> Peer:
    """`scaled_dot_product_attention` over a dense cache, which no paging slows down.

    For decodes the heads of a group are the queries of their KV head, so that keys are read once.
    """

    def make(comparison: Comparison, problem: Problem, dry: bool):
        spec = problem.spec
        # [sequence, head, token, dim], contiguous: the friendliest form.
        shape = (comparison.seqs, spec.num_kv_heads, comparison.length, spec.head_dim)
        key, value = problem.query.new_empty((2, *shape))
        for seq in range(comparison.seqs):
            for dense, rows in zip((key, value), rows_of(problem, seq), strict=True):
                dense[seq] = rows.transpose(0, 1)
        is_prefill = comparison.kind == "prefill"
        if is_prefill:
            query = problem.query.unflatten(0, (comparison.seqs, -1)).transpose(1, 2)
        else:
            query = problem.query.unflatten(1, (spec.num_kv_heads, spec.group_size))

        def call() -> torch.Tensor:
            with _only(backend):
                return F.scaled_dot_product_attention(
                    query,
                    key,
                    value,
                    is_causal=is_prefill,
                    scale=spec.scale,
                    enable_gqa=is_prefill,
                )

        def as_ours(found: torch.Tensor) -> torch.Tensor:
            return found.transpose(1, 2).flatten(0, 1) if is_prefill else found.flatten(1, 2)

        return call, as_ours

    return make


def flex(comparison: Comparison, problem: Problem, dry: bool):
    """FlexAttention over torch's own paged cache, compiled, with pages in random order."""
    from torch.nn.attention.experimental._paged_attention import PagedAttention
    from torch.nn.attention.flex_attention import flex_attention

    spec, device = problem.spec, str(problem.query.device)
    seqs, length = comparison.seqs, comparison.length
    each = -(-length // FLEX_PAGE)
    pages = PagedAttention(seqs * each, FLEX_PAGE, seqs, device=device)
    order = torch.randperm(seqs * each, generator=torch.Generator().manual_seed(0))
    pages.empty_pages = order.tolist()
    for seq in range(seqs):
        pages.reserve(torch.tensor(seq, device=device), torch.tensor(length, device=device))
    shape = (1, spec.num_kv_heads, seqs * each * FLEX_PAGE, spec.head_dim)
    # A page that is not full is multiplied with weights of 0, which NaN would survive.
    key, value = problem.query.new_zeros((2, *shape))
    at = torch.arange(length, device=device)[None]
    for seq in range(seqs):
        k_rows, v_rows = (row.to(key.dtype).transpose(0, 1)[None] for row in rows_of(problem, seq))
        pages.assign(torch.tensor([seq], device=device), at, k_rows, v_rows, key, value)
    lengths = torch.full((seqs,), length, device=device)
    mask = pages.convert_logical_block_mask(_all_blocks(seqs, length, device), kv_len=lengths)
    query = problem.query[:, :, None]
    function = flex_attention if dry else torch.compile(flex_attention, fullgraph=True)

    def call() -> Any:
        return function(
            query, key, value, block_mask=mask, scale=spec.scale, enable_gqa=spec.group_size > 1
        )

    return call, lambda found: found[:, :, 0]


def _all_blocks(seqs: int, length: int, device: str) -> Any:
    """Every query sees every key: full blocks need no mask but the last, if it is not full.

    `create_block_mask` takes a block of one query for one that is not full, and masks each key.
    """
    from torch.nn.attention.flex_attention import BlockMask, noop_mask

    each, full = -(-length // FLEX_PAGE), length // FLEX_PAGE
    counts = torch.ones(seqs, 1, 1, dtype=torch.int32, device=device)
    blocks = torch.arange(each, dtype=torch.int32, device=device).expand(seqs, 1, 1, each)
    rest = blocks.roll(-full, -1) if full < each else blocks
    return BlockMask.from_kv_blocks(
        counts * (each - full),
        rest.contiguous(),
        counts * full,
        blocks.contiguous(),
        BLOCK_SIZE=FLEX_PAGE,
        mask_mod=noop_mask,
        seq_lengths=(1, length),
    )


PEERS: dict[str, Peer] = {
    "sdpa": sdpa(None),
    "sdpa_flash": sdpa("FLASH_ATTENTION"),
    "sdpa_cudnn": sdpa("CUDNN_ATTENTION"),
    "flex": flex,
}


def _only(backend: str | None) -> contextlib.AbstractContextManager[Any]:
    if backend is None:
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(getattr(SDPBackend, backend))
