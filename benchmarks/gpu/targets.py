"""What the times should reach. Plain values: rows in, lines out."""

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu.shapes import BLOCK_SIZES, LAYOUTS

_DECODE = "decode 64x8k llama-3-8b bf16"
_SHARES = (
    (_DECODE, "flash_attn/16", "of_copy", 0.85, "of copy bandwidth"),
    ("decode 1x128k llama-3-8b bf16", "flash_attn/16", "of_copy", 0.75, "of copy bandwidth"),
    ("decode 64x4k deepseek-v3 bf16", "mla/64", "of_roof", 0.60, "of the lower roof"),
    ("prefill 1x8k llama-3-8b bf16", "flash_attn/16", "of_matmul", 0.55, "of the bf16 matmul"),
)
_SPREAD = 0.03


def target_lines(rows: list[dict[str, Any]], *, dry: bool) -> list[dict[str, Any]]:
    """Each target with what was found and whether it is reached; None where there is no figure.

    A wrong result reaches nothing. In the dry form no figure means anything, and none is given.
    """
    good = {} if dry else {(r["comparison"], r["variant"]): r for r in rows if _counts(r)}
    return [*_share_lines(good), *_spread_lines(good)]


def _share_lines(good: dict[tuple[str, str], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for comparison, variant, figure, least, of in _SHARES:
        found = good.get((comparison, variant), {}).get(figure)
        yield {
            "target": f"{comparison}, {variant}: at least {least:.0%} {of}",
            "found": found,
            "reached": None if found is None else found >= least,
        }


def _spread_lines(good: dict[tuple[str, str], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for size in BLOCK_SIZES:
        rows = [good.get((_DECODE, f"{layout}/{size}")) for layout in LAYOUTS]
        times = [row["ms"] for row in rows if row is not None]
        # All layouts or none: two of five say nothing of the rest.
        found = max(times) / min(times) - 1 if len(times) == len(LAYOUTS) else None
        yield {
            "target": f"{_DECODE}, blocks of {size}: layouts within {_SPREAD:.0%} of each other",
            "found": found,
            "reached": None if found is None else found <= _SPREAD,
        }


def _counts(row: dict[str, Any]) -> bool:
    return row.get("ms") is not None and row.get("is_right", True)
