"""Matrix products of queries with the keys and values of a buffer, for each step of KV heads."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float

from paged.backends.pallas_tpu.cells import KEY, VALUE
from paged.backends.pallas_tpu.plan import Plan

LOG2_E = math.log2(math.e)


def logits(
    plan: Plan,
    query: Float[jax.Array, "M columns"],
    factor: Float[jax.Array, "M 1"],
    buffer: Any,
    step: int,
) -> Float[jax.Array, "M tokens"]:
    """Logits to base 2, soft cap included.

    Args:
        plan: static sizes.
        query: one step's matrix.
        factor: of the products; to base 2, unless a soft cap comes in between.
        buffer: a piece; see `Cells.take`.
        step: which KV heads.
    """
    products = lax.dot_general(
        query,
        _side_by_side(plan, buffer, step, KEY, None),
        (((1,), (1,)), ((), ())),
        precision=plan.precision,
        preferred_element_type=jnp.float32,
    )
    scaled = products * factor
    if plan.spec.soft_cap is None:
        return scaled
    return jnp.tanh(scaled) * jnp.float32(plan.spec.soft_cap * LOG2_E)


def mixture(
    plan: Plan,
    weights: Float[jax.Array, "M tokens"],
    buffer: Any,
    step: int,
    seen: Bool[jax.Array, "tokens lanes"] | None = None,
) -> Float[jax.Array, "M columns"]:
    """Sum of the values by weight; those that are not seen count as 0, whatever they hold."""
    return lax.dot_general(
        weights.astype(plan.compute_dtype),
        _side_by_side(plan, buffer, step, VALUE, seen),
        (((1,), (0,)), ((), ())),
        precision=plan.precision,
        preferred_element_type=jnp.float32,
    )


def own_columns(plan: Plan, products: Float[jax.Array, "M columns"]) -> Float[jax.Array, "M lanes"]:
    """Of products with the values of several heads, those with each row's own head."""
    lanes = plan.cells.value_lanes
    mixed = products[:, :lanes]
    row = lax.broadcasted_iota(jnp.int32, mixed.shape, 0)
    for head in range(1, plan.cells.heads_per_step):
        columns = products[:, head * lanes : (head + 1) * lanes]
        mixed = jnp.where(row >= head * plan.head_height, columns, mixed)
    return mixed


def _side_by_side(
    plan: Plan, buffer: Any, step: int, kind: int, seen: Any
) -> Float[jax.Array, "tokens columns"]:
    """Keys or values of the heads of one step."""
    together = plan.cells.heads_per_step
    heads = range(step * together, (step + 1) * together)
    parts = [plan.cells.take(buffer, head, kind, plan.compute_dtype, seen) for head in heads]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)
