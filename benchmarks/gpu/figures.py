"""Bytes, operations and roofs. Plain numbers."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.shapes import Comparison

_ITEMSIZE = {"bfloat16": 2, "float8_e4m3fn": 1}


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the device was measured to do.

    Attributes:
        copy: bytes per second of a large copy, read and written.
        matmul: operations per second of a large bf16 product.
    """

    copy: float
    matmul: float


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median, third quartile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def moved_bytes(comparison: Comparison) -> int:
    """Fewest bytes of device memory: keys and values (or latents) once each.

    For a write the new rows are read, and written to the cache. Queries and results are not
    counted: beside a long cache they are nothing.
    """
    heads, size = comparison.heads, _ITEMSIZE[comparison.dtype]
    entries = heads.dim if heads.rank else 2 * heads.kv * heads.dim
    tokens = comparison.seqs * comparison.length
    if comparison.kind == "write":
        return tokens * entries * (2 + size)
    return tokens * entries * size


def operations(comparison: Comparison) -> int:
    """Of the two products; what a causal mask hides is not counted."""
    if comparison.kind == "write":
        return 0
    heads, length = comparison.heads, comparison.length
    pairs = length * (length + 1) // 2 if comparison.kind == "prefill" else length
    return 2 * comparison.seqs * heads.query * pairs * (heads.dim + heads.value_dim)


def shares(
    row: dict[str, Any], ceilings: Ceilings | None, *, dry: bool = False
) -> dict[str, float | None]:
    """Rates of a timed row, and which part they are of what was measured; None where unknown."""
    found: dict[str, float | None] = dict.fromkeys(
        ("gb_s", "tflop_s", "of_copy", "of_matmul", "of_roof")
    )
    if dry or not row.get("ms"):
        return found
    rate, speed = 1e3 * row["bytes"] / row["ms"], 1e3 * row["operations"] / row["ms"]
    found |= {"gb_s": rate / 1e9, "tflop_s": speed / 1e12}
    if ceilings is not None:
        of_copy, of_matmul = rate / ceilings.copy, speed / ceilings.matmul
        # The lower roof is the one that a kernel comes nearer to.
        roof = max(of_copy, of_matmul)
        found |= {"of_copy": of_copy, "of_matmul": of_matmul, "of_roof": roof}
    return found
