"""Experts: gated MLPs of which each token goes to a few.

The product costs what the chosen experts cost. Pairs of a token and one of its experts are sorted
by expert and cut into tiles of one expert each; every tile is one small MLP:

    pairs        a0 a2 b0 c0 c1 c1 ...   (expert, token)
    tiles of 2   [a0 a2] [b0 __] [c0 c1] [c1 __]

A token's results are then gathered, weighted and summed. Shapes are static and no token is dropped,
however uneven the choice: n pairs over e experts fill at most n / tile + e tiles, and those left
over are not run.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from paged.models.layers import residual_gain

_TILES = (8, 16, 32, 64)
"""Rows of a tile, the first that is not below the mean pairs of an expert.

Measured with 64 experts of 512 to 352, 6 chosen, fp32, two cores with AVX2, November 2026, in ms
for 1, 16, 64, 256 and 1,024 tokens: 1.0, 8.2, 12, 21, 80. Every expert over every token took 8.5,
14, 32, 91 and 323; `jax.lax.ragged_dot`, which XLA:CPU expands to every expert over every pair, 59,
103, 222 and 671 for the first four. With 4 experts and 2 chosen it is never slower by more than
a quarter of a millisecond, so that there is no other way for small numbers.
"""

Gate = Callable[[Float[Array, "rows both"]], Float[Array, "rows wide"]]
"""What turns the product with `gate_up`, twice as wide, into what is multiplied by `down`."""


class Choice(NamedTuple):
    """Which experts each token goes to.

    Attributes:
        experts: `[tokens, chosen]` int32, different ones in each row.
        weights: `[tokens, chosen]` fp32, how much each counts.
    """

    experts: Int[Array, "tokens chosen"]
    weights: Float[Array, "tokens chosen"]


class Tiles(NamedTuple):
    """Where the pairs lie.

    Attributes:
        owner: `[tiles]`, whose tile it is; `num_experts` for a tile that is left over.
        tokens: `[tiles, tile]`, the token of each row; any where there is no pair.
        place: `[tokens, chosen]`, the row of each pair, counted over all tiles.
    """

    owner: Int[Array, " tiles"]
    tokens: Int[Array, "tiles tile"]
    place: Int[Array, "tokens chosen"]


def cut(experts: Int[Array, "tokens chosen"], num_experts: int) -> Tiles:
    """The pairs of tokens and their experts, sorted into tiles."""
    tokens, chosen = experts.shape
    pairs = tokens * chosen
    tile = next((size for size in _TILES if size * num_experts >= pairs), _TILES[-1])
    most = min(pairs, pairs // tile + num_experts)
    flat = experts.reshape(-1)
    order = jnp.argsort(flat)
    counts = jnp.bincount(flat, length=num_experts)
    own_tiles = -(-counts // tile)
    ends = jnp.cumsum(own_tiles)
    # A pair keeps its distance to its expert's first; those of earlier experts end whole tiles.
    shift = (ends - own_tiles) * tile - (jnp.cumsum(counts) - counts)
    rows = jnp.arange(pairs) + shift[flat[order]]
    return Tiles(
        owner=jnp.searchsorted(ends, jnp.arange(most), side="right"),
        tokens=jnp.zeros(most * tile, order.dtype)
        .at[rows]
        .set(order // chosen)
        .reshape(most, tile),
        place=jnp.zeros(pairs, rows.dtype).at[order].set(rows).reshape(tokens, chosen),
    )


def silu_gate(both: Float[Array, "rows both"]) -> Float[Array, "rows wide"]:
    """silu(gate) * up, the two side by side."""
    gate, up = jnp.split(both, 2, axis=-1)
    return jax.nn.silu(gate) * up


class Experts(nnx.Module):
    """Gated MLPs, `gate_up [experts, hidden, 2 * wide]` and `down [experts, wide, hidden]`.

    Args:
        num_experts: how many.
        hidden: width of the residual stream.
        wide: width of one expert.
        num_layers: decoder layers, for the initial weights.
        gate: between the two products.
        use_bias: whether both products add a bias, `[experts, 2 * wide]` and `[experts, hidden]`.
        dtype: type of the parameters.
        rngs: random streams of the initial weights.
    """

    def __init__(
        self,
        num_experts: int,
        hidden: int,
        wide: int,
        *,
        num_layers: int,
        gate: Gate = silu_gate,
        use_bias: bool = False,
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        def init(rows: int, columns: int, gain: float) -> nnx.Param:
            normal = jax.nn.initializers.normal(gain * rows**-0.5)
            return nnx.Param(normal(rngs.params(), (num_experts, rows, columns), dtype))

        def zeros(columns: int) -> nnx.Param | None:
            return nnx.Param(jnp.zeros((num_experts, columns), dtype)) if use_bias else None

        self.gate = gate
        self.gate_up = init(hidden, 2 * wide, 1.0)
        self.down = init(wide, hidden, residual_gain(num_layers))
        self.gate_up_bias, self.down_bias = zeros(2 * wide), zeros(hidden)

    def __call__(
        self, x: Float[Array, "tokens hidden"], choice: Choice
    ) -> Float[Array, "tokens hidden"]:
        """The weighted sum of what the chosen experts give, summed in fp32, in x's dtype."""
        num_experts = self.gate_up.shape[0]
        tiles = cut(choice.experts, num_experts)

        def run(tile: tuple[Array, Array]) -> Array:
            expert, tokens = tile
            both = _product(x[tokens], self.gate_up, self.gate_up_bias, expert)
            return _product(self.gate(both), self.down, self.down_bias, expert)

        def skip(tile: tuple[Array, Array]) -> Array:
            return jnp.zeros((tile[1].shape[0], x.shape[1]), x.dtype)

        def step(_: None, tile: tuple[Array, Array]) -> tuple[None, Array]:
            return None, jax.lax.cond(tile[0] < num_experts, run, skip, tile)

        # A scan, so that training can go back through it; under `vmap` tiles left over run too.
        _, out = jax.lax.scan(step, None, (tiles.owner, tiles.tokens))
        own = out.reshape(-1, x.shape[1])[tiles.place].astype(jnp.float32)
        return (own * choice.weights[..., None]).sum(axis=1).astype(x.dtype)


def _product(x: Array, kernel: nnx.Param, bias: nnx.Param | None, expert: Array) -> Array:
    y = x @ kernel[...][expert]
    return y if bias is None else y + jnp.broadcast_to(bias[...][expert], y.shape)
