"""What the two forms of latent attention cost, and which is chosen for a sequence.

Of q new tokens, the last of a sequence of s, a query sees c = s - (q - 1) / 2 keys on average.
With H heads, the latent of rank r and rope part p, keys of n + p and values of v entries, in
operations (a multiplication and an addition are two):

    absorbed    2 q H r (n + v)  +  2 q c H ((r + p) + r)
    expanded    2 s H r (n + v)  +  2 q c H ((n + p) + v)

The absorbed form projects each query into the latent space and each output out of it; the expanded
one projects each key and value up, those of earlier tokens again in every step. Its keys are
narrower: for DeepSeek-V3 a pair of query and key costs 640 operations in place of 2,176. So it
pays for many queries, and where there is no history (q = s) from the first. A decode would project
its whole history for one query; it is bound by bytes besides, and those of the absorbed form are
the latents alone.
"""

from dataclasses import dataclass
from typing import Any

from paged.models.deepseek.config import DeepseekConfig


@dataclass(frozen=True, slots=True)
class Cost:
    """What one layer's attention over one sequence costs, projections from the latent included.

    Attributes:
        operations: multiplications and additions.
        num_bytes: read and written at least: latents and projection once, queries and outputs
            once. What is up-projected is counted as written and read once, for no kernel here
            keeps it on the chip.
    """

    operations: float
    num_bytes: float


def absorbed_cost(
    config: DeepseekConfig, query_len: int, seq_len: int, *, itemsize: int = 2
) -> Cost:
    """Cost of the absorbed form.

    Args:
        config: the model.
        query_len: new tokens of the sequence, at least 1.
        seq_len: all of them, the new ones included.
        itemsize: bytes of a number in parameters, activations and cache.
    """
    rank, projected = config.kv_lora_rank, config.qk_nope_head_dim + config.v_head_dim
    heads, pairs = config.num_heads, query_len * (seq_len - (query_len - 1) / 2)
    operations = 2 * heads * (query_len * rank * projected + pairs * (config.latent_dim + rank))
    numbers = (
        seq_len * config.latent_dim
        + heads * rank * projected
        + query_len * heads * (config.qk_head_dim + config.v_head_dim)
        # Queries in the latent space, and outputs there.
        + 2 * query_len * heads * (config.latent_dim + rank)
    )
    return Cost(operations, numbers * itemsize)


def expanded_cost(
    config: DeepseekConfig, query_len: int, seq_len: int, *, itemsize: int = 2
) -> Cost:
    """Cost of the expanded (up-projected) form; the arguments are those of `absorbed_cost`."""
    rank, projected = config.kv_lora_rank, config.qk_nope_head_dim + config.v_head_dim
    heads, pairs = config.num_heads, query_len * (seq_len - (query_len - 1) / 2)
    operations = (
        2 * heads * (seq_len * rank * projected + pairs * (config.qk_head_dim + config.v_head_dim))
    )
    numbers = (
        seq_len * config.latent_dim
        + heads * rank * projected
        + query_len * heads * (config.qk_head_dim + config.v_head_dim)
        + 2 * seq_len * heads * (config.qk_head_dim + config.v_head_dim)
    )
    return Cost(operations, numbers * itemsize)


def prefers_expanded(config: DeepseekConfig, query_len: Any, seq_len: Any) -> Any:
    """Whether the expanded form takes fewer operations, and the sequence is no decode.

    Args:
        config: the model.
        query_len: numbers or arrays, NumPy's or JAX's, also under a trace; 0 prefers nothing.
        seq_len: the same.
    """
    rank, projected = config.kv_lora_rank, config.qk_nope_head_dim + config.v_head_dim
    # In floats: a product of two lengths passes int32.
    queries, keys = query_len * 1.0, seq_len * 1.0
    pairs = queries * (keys - (queries - 1.0) / 2.0)
    saved = pairs * (2.0 * rank - projected)
    return (query_len > 1) & (saved > (keys - queries) * float(rank * projected))
