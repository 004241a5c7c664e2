"""Logits over paged caches of two sequences, in steps of any shape; greedy tokens without caches.

Not a test module: every family's tests against transformers run it.
"""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from flax import nnx

from paged import MetadataBuilder, resolve
from paged.blocks import BlockTable
from paged.models import Decoder, DenseAttention
from paged.models.paged_attention import PagedAttention

BLOCK_SIZE = 4
# Two sequences side by side; the second is one block and a token shorter.
TOKENS = np.arange(46).reshape(2, 23) * 7 % 99
LENGTHS = (23, 18)

PLANS = {
    "in one go": [LENGTHS],
    "in chunks of 5": [(5, 5)] * 3 + [(5, 3), (3, 0)],
    "token by token": [(1, 1)] * 18 + [(1, 0)] * 5,
    # A decode, a prefill without history and later one with, side by side.
    "mixed": [(9, 0), (1, 10), (1, 8), (12, 0)],
}
"""By name, steps of (tokens of the first sequence, of the second)."""


def paged_logits(model: Decoder, plan: list[tuple[int, int]], **choice: str) -> list[np.ndarray]:
    """Logits of all tokens of both sequences.

    Blocks are handed out in falling order, so that none lies behind the one before it.

    Args:
        model: any; compiled once for each shape of step.
        plan: one of `PLANS`.
        choice: backend and layout, as for `resolve`.
    """
    resolutions = [resolve(spec, **choice) for spec in model.attention_specs]
    caches = [resolution.allocate(14, BLOCK_SIZE) for resolution in resolutions]
    table = BlockTable(2, 6, BLOCK_SIZE, device_put=np.asarray)
    table.add_row(0, range(13, 7, -1))
    table.add_row(1, range(7, 2, -1))
    builder = MetadataBuilder(BLOCK_SIZE)

    @nnx.jit
    def forward(model, tokens, positions, caches, metadata):
        attention = PagedAttention(resolutions, caches, metadata)
        return model.logits(model(tokens, positions, attention)), attention.caches

    logits: list[list[np.ndarray]] = [[], []]
    done = np.zeros(2, np.int64)
    for counts in plan:
        requests = [(row, count) for row, count in enumerate(counts) if count]
        step = builder.build(requests, block_table=table.host, num_computed=done)
        rows, positions = step.token_rows, step.positions
        tokens = np.where(rows < 0, 0, TOKENS[rows, positions])
        metadata = replace(step.metadata, max_seq_len=24).map(jnp.asarray)
        scores, caches = forward(model, tokens, positions, caches, metadata)
        for row, count in requests:
            logits[row].append(np.asarray(scores)[rows == row])
            done[row] += count
    assert tuple(done) == LENGTHS
    return [np.concatenate(parts) for parts in logits]


def dense_greedy(model, prompts, count, size=64):
    """Greedy tokens without a cache: all is computed anew for each token."""
    attention = DenseAttention(model.attention_specs)

    @nnx.jit
    def next_token(model, tokens, last):
        return model.logits(model(tokens, np.arange(size), attention)[last]).argmax()

    found = []
    for prompt in prompts:
        tokens = list(prompt)
        for _ in range(count):
            padded = np.pad(tokens, (0, size - len(tokens)))
            tokens.append(int(next_token(model, padded, len(tokens) - 1)))
        found.append(tokens[len(prompt) :])
    return found
