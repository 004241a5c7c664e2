"""The online softmax of one tile, over keys as they come.

Milakov and Gimelshein, arXiv:1805.02867; in float32 and to base 2, from (out 0, maximum -inf,
sum 0). What is kept of a row: its maximum and sum in all lanes of a register, and its unnormalised
output, one column group for each KV head of a step, of which the row's own is the one that counts.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float

from paged.backends.pallas_tpu.cells import KEY, VALUE
from paged.backends.pallas_tpu.plan import LANES, Plan

LOG2_E = math.log2(math.e)


class Rows(NamedTuple):
    """Numbers of each row of a tile's matrices, refs.

    Attributes:
        factor: `[steps, M, 1]`, of the products; to base 2, unless a soft cap comes in between.
        out_factor: `[steps, M, 1]`, of the output.
        sink: `[steps, M, 1]`, to base 2.
        query: `[M, 1]` int32, which query of the tile.
    """

    factor: Any
    out_factor: Any
    sink: Any
    query: Any


class Positions(NamedTuple):
    """Where masked keys and queries stand.

    Attributes:
        origin: of the first key.
        first: of the tile's first query.
        last: of its last.
    """

    origin: Any
    first: Any
    last: Any


class Softmax:
    """State of one tile, in VMEM.

    Args:
        plan: static sizes.
        query: ref `[1, steps, M, columns]`.
        rows: numbers of each row.
        accumulator: ref `[steps, M, columns]` float32.
        peak: ref `[steps, M, LANES]` float32.
        total: ref `[steps, M, LANES]` float32.
    """

    def __init__(
        self, plan: Plan, query: Any, rows: Rows, accumulator: Any, peak: Any, total: Any
    ) -> None:
        self.plan, self.query, self.rows = plan, query, rows
        self.accumulator, self.peak, self.total = accumulator, peak, total

    def open(self) -> None:
        """No key seen yet."""
        self.accumulator[...] = jnp.zeros_like(self.accumulator)
        self.peak[...] = jnp.full_like(self.peak, -jnp.inf)
        self.total[...] = jnp.zeros_like(self.total)

    def take_in(self, buffer: Any, tokens: int, positions: Positions | None = None) -> None:
        """Takes in the keys and values of some tokens.

        Args:
            buffer: ref `[tokens, pitch, packing, lanes]`.
            tokens: how many.
            positions: None where every query sees every token.
        """
        mask, seen = (None, None) if positions is None else self._masks(tokens, positions)
        import os
        ahead = int(os.environ.get("LOOK", "2"))
        logits: list[Any] = []
        for step in range(self.plan.steps + ahead):
            if step < self.plan.steps:
                logits.append(self._logits(buffer, step, tokens, mask))
            if step >= ahead:
                done = step - ahead
                self._accumulate(buffer, done, logits[done], tokens, seen)

    def close(self, out: Any, lse: Any) -> None:
        """Divides; sinks join the denominator.

        Args:
            out: ref `[1, steps, M, lanes]`.
            lse: ref `[1, M, LANES]`, lane i for step i.
        """
        plan, lanes = self.plan, self.plan.cells.lanes
        height_of_head = plan.height // plan.cells.heads_per_step
        row = lax.broadcasted_iota(jnp.int32, (plan.height, lanes), 0)
        lane = lax.broadcasted_iota(jnp.int32, (plan.height, LANES), 1)
        sums = jnp.zeros((plan.height, LANES), jnp.float32)
        for step in range(plan.steps):
            top, denominator = self.peak[step], self.total[step]
            share = self.rows.out_factor[step]
            if plan.spec.has_sinks:
                sink = self.rows.sink[step]
                top = jnp.maximum(self.peak[step], sink)
                kept = jnp.exp2(self.peak[step] - top)
                denominator = denominator * kept + jnp.exp2(sink - top)
                share = share * kept[:, :1]
            mixed = self.accumulator[step, :, :lanes]
            for head in range(1, plan.cells.heads_per_step):
                columns = self.accumulator[step, :, head * lanes : (head + 1) * lanes]
                mixed = jnp.where(row >= head * height_of_head, columns, mixed)
            out[0, step] = (mixed * (share / denominator[:, :1])).astype(out.dtype)
            natural = top * jnp.float32(1 / LOG2_E) + jnp.log(denominator)
            sums = jnp.where(lane == step, natural, sums)
        lse[0] = sums

    def _masks(self, tokens: int, positions: Positions) -> tuple[jax.Array, jax.Array]:
        """Which row sees which key, and which key any row sees."""
        window = self.plan.spec.window
        key = positions.origin + lax.broadcasted_iota(jnp.int32, (self.plan.height, tokens), 1)
        row = jnp.minimum(positions.first + self.rows.query[...], positions.last)
        mask = key <= row
        shape = (tokens, self.plan.cells.lanes)
        token = positions.origin + lax.broadcasted_iota(jnp.int32, shape, 0)
        seen = token <= positions.last
        if window is not None:
            mask = jnp.logical_and(mask, key > row - window)
            seen = jnp.logical_and(seen, token > positions.first - window)
        return mask, seen

    def _side_by_side(
        self, buffer: Any, step: int, kind: int, tokens: int, seen: Any
    ) -> Float[jax.Array, "tokens columns"]:
        """Keys or values of the heads of one step."""
        cells = self.plan.cells
        heads = range(step * cells.heads_per_step, (step + 1) * cells.heads_per_step)
        parts = [
            cells.take(buffer, head, kind, self.plan.compute_dtype, seen) for head in heads
        ]
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)

    def _logits(
        self, buffer: Any, step: int, tokens: int, mask: Any
    ) -> Float[jax.Array, "M tokens"]:
        """Logits to base 2."""
        products = lax.dot_general(
            self.query[0, step],
            self._side_by_side(buffer, step, KEY, tokens, None),
            (((1,), (1,)), ((), ())),
            precision=self.plan.precision,
            preferred_element_type=jnp.float32,
        )
        logits = products * self.rows.factor[step]
        cap = self.plan.spec.soft_cap
        if cap is not None:
            logits = jnp.tanh(logits) * jnp.float32(cap * LOG2_E)
        return logits if mask is None else jnp.where(mask, logits, -jnp.inf)

    def _accumulate(
        self, buffer: Any, step: int, logits: Float[jax.Array, "M tokens"], tokens: int, seen: Any
    ) -> None:
        before = self.peak[step]
        peak = jnp.maximum(before, jnp.max(logits, axis=1, keepdims=True))
        origin = peak
        if seen is not None:
            # A row that has seen no key yet measures from 0: -inf - -inf is NaN.
            origin = jnp.where(peak == -jnp.inf, 0.0, peak)
        kept = jnp.exp2(before - origin)
        weights = jnp.exp2(logits - origin[:, :1])
        self.peak[step] = peak
        self.total[step] = self.total[step] * kept + jnp.sum(weights, axis=1, keepdims=True)
        products = lax.dot_general(
            weights.astype(self.plan.compute_dtype),
            self._side_by_side(buffer, step, VALUE, tokens, seen),
            (((1,), (0,)), ((), ())),
            precision=self.plan.precision,
            preferred_element_type=jnp.float32,
        )
        self.accumulator[step] = self.accumulator[step] * kept[:, :1] + products
