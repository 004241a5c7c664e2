"""What the two forms of latent attention cost, and which is chosen for a sequence.

Of q new tokens, the last of a sequence of s, a query sees c = s - (q - 1) / 2 keys on average.
With H heads, the latent of rank r and rope part p, keys of n + p and values of v entries, in
operations (a multiplication and an addition are two):

    absorbed    2 q H r (n + v)  +  2 q c H ((r + p) + r)
    expanded    2 s H r (n + v)  +  2 q c H ((n + p) + v)

The absorbed form projects each query into the latent space and each output out of it; the expanded
one projects each key and value up, those of earlier tokens again in every step. Its keys are
narrower: for DeepSeek-V3 a pair of query and key costs 640 operations in place of 2,176. So it
pays for many queries, and where there is no history (q = s) from the first. What it projects goes
through memory besides, written once and read once, and so do the wider queries and outputs of the
absorbed form: both are weighed, bytes as the operations that the machine could do meanwhile. And
an operation of attention costs more or less than one of a plain product, by the kernel that does
it. A decode is never expanded: it would project its whole history for one query.
"""

from dataclasses import dataclass
from typing import Any

from paged.models.deepseek.config import DeepseekConfig

BALANCE = {"cpu": 0.0, "cuda": 206.0, "rocm": 247.0, "tpu": 240.0}
"""By target, the operations that a machine does in the time of a byte.

Vendors' figures in bfloat16: H200 989 TFLOP/s and 4.8 TB/s, MI300X 1,307 and 5.3, TPU v5e 197 and
0.819. A CPU does some 10, but what either form writes and reads again (queries of a short step, a
tile of 128 keys) stays in its caches: with 10 the choice measured worse at short lengths than
with 0 (docs/models.md).
"""

EXPANDED_COST = {"cpu": 2.1}
"""By target, what an operation of the expanded form's attention costs in operations of a plain
matrix product: 8.2 ms against 3.9 for 10^9 in fp32 on two cores with AVX-512, by XLA. It counts as
one where nothing was measured. What one of the absorbed form's costs its backend says
(`Resolution.operation_cost`).
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one layer's attention over one sequence costs, projections from the latent included.

    Attributes:
        projection: multiplications and additions into the latent space or out of it.
        attention: those between queries, keys and values.
        num_bytes: read and written at least: latents and projection once, queries and outputs
            once. What is up-projected is counted as written and read once, for no kernel here
            keeps it on the chip.
    """

    projection: Any
    attention: Any
    num_bytes: Any

    @property
    def operations(self) -> Any:
        """All multiplications and additions."""
        return self.projection + self.attention

    def weight(self, *, balance: float, operation_cost: float) -> Any:
        """In operations of a matrix product; see `BALANCE` and `EXPANDED_COST`."""
        return self.projection + operation_cost * self.attention + balance * self.num_bytes


def absorbed_cost(
    config: DeepseekConfig, query_len: Any, seq_len: Any, *, itemsize: int = 2
) -> Cost:
    """Cost of the absorbed form.

    Args:
        config: the model.
        query_len: new tokens of the sequence; numbers or arrays, NumPy's or JAX's, also under a
            trace.
        seq_len: all of them, the new ones included; the same.
        itemsize: bytes of a number in parameters, activations and cache.
    """
    queries, keys, pairs = _lengths(query_len, seq_len)
    rank, heads = config.kv_lora_rank, config.num_heads
    projected = float(rank * (config.qk_nope_head_dim + config.v_head_dim))
    wide = config.latent_dim + rank
    # Queries in the latent space, and outputs there.
    numbers = _least_numbers(config, queries, keys) + 2.0 * heads * queries * wide
    return Cost(2.0 * heads * queries * projected, 2.0 * heads * pairs * wide, numbers * itemsize)


def expanded_cost(
    config: DeepseekConfig, query_len: Any, seq_len: Any, *, itemsize: int = 2
) -> Cost:
    """Cost of the expanded (up-projected) form; the arguments are those of `absorbed_cost`."""
    queries, keys, pairs = _lengths(query_len, seq_len)
    heads, narrow = config.num_heads, config.qk_head_dim + config.v_head_dim
    projected = float(config.kv_lora_rank * (config.qk_nope_head_dim + config.v_head_dim))
    numbers = _least_numbers(config, queries, keys) + 2.0 * heads * keys * narrow
    return Cost(2.0 * heads * keys * projected, 2.0 * heads * pairs * narrow, numbers * itemsize)


def _lengths(query_len: Any, seq_len: Any) -> tuple[Any, Any, Any]:
    """Both, and the pairs of a query and a key that it sees; as floats, for products pass int32."""
    queries, keys = query_len * 1.0, seq_len * 1.0
    return queries, keys, queries * (keys - (queries - 1.0) / 2.0)


def _least_numbers(config: DeepseekConfig, queries: Any, keys: Any) -> Any:
    """What either form reads and writes: latents, the up-projection, queries and outputs."""
    up = float(config.kv_lora_rank * (config.qk_nope_head_dim + config.v_head_dim))
    own = config.qk_head_dim + config.v_head_dim
    return keys * config.latent_dim + config.num_heads * (up + queries * own)


def prefers_expanded(
    config: DeepseekConfig,
    query_len: Any,
    seq_len: Any,
    *,
    target: str = "cpu",
    itemsize: int = 2,
    operation_cost: float = 1.0,
) -> Any:
    """Whether the expanded form weighs less on a target, and the sequence is no decode.

    Args:
        config: the model.
        query_len: as for `absorbed_cost`; 0 prefers nothing.
        seq_len: the same.
        target: one of `BALANCE`.
        itemsize: as for `absorbed_cost`.
        operation_cost: what an operation of the absorbed form's attention costs, see
            `Resolution.operation_cost`.
    """
    lengths, balance = (query_len, seq_len), BALANCE[target]
    absorbed = absorbed_cost(config, *lengths, itemsize=itemsize).weight(
        balance=balance, operation_cost=operation_cost
    )
    expanded = expanded_cost(config, *lengths, itemsize=itemsize).weight(
        balance=balance, operation_cost=EXPANDED_COST.get(target, 1.0)
    )
    return (query_len > 1) & (expanded < absorbed)


def ever_prefers_expanded(config: DeepseekConfig, max_query_len: int, **machine: Any) -> bool:
    """Whether any sequence of at most that many new tokens prefers the expanded form.

    History speaks against it, so it is weighed without one. The difference of the weights is then
    quadratic in the length and 0 at 0, of one sign or with one change: both ends tell.

    Args:
        config: the model.
        max_query_len: most new tokens of a sequence.
        machine: `target`, `itemsize` and `operation_cost` of `prefers_expanded`.
    """
    ends = (min(2, max_query_len), max_query_len)
    return any(bool(prefers_expanded(config, end, end, **machine)) for end in ends)
