"""A profile as a picture: a bar for each kind of step, cut into phases."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paged.replay.plot import figure_class

if TYPE_CHECKING:
    from paged.engine.phases import StepProfile

_COLORS = {
    "schedule": "#d1495b",
    "copies": "#8c2f39",
    "metadata": "#e8a33d",
    "compile": "#b5651d",
    "dispatch": "#7d4e9e",
    "program": "#1f6f8b",
    "program: model": "#1f6f8b",
    "program: attention": "#4f9bb5",
    "program: sampling": "#a9d0de",
    "fetch": "#5a8f5a",
    "bookkeeping": "#a3bf7a",
    "detokenise": "#d9d98c",
    "other": "#e0e0e0",
}


def draw(
    kinds: "Sequence[StepProfile]", parts: dict[str, float] | None, path: Path, *, title: str
) -> None:
    """Draw the steps, and within the program of the decodes its parts where they are known.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: no suffix that can be drawn.
    """
    figure: Any = figure_class(path)(figsize=(9, 1.6 + 0.8 * len(kinds)), layout="constrained")
    axes = figure.subplots()
    named: set[str] = set()
    for row, kind in enumerate(kinds):
        left = 0.0
        for name, share in _segments(kind, parts):
            label = None if name in named else name
            named.add(name)
            axes.barh(row, 100 * share, left=left, color=_COLORS[name], label=label)
            left += 100 * share
    words = [f"{kind.kind}\n{1e3 * kind.seconds / kind.steps:.2f} ms" for kind in kinds]
    axes.set_yticks(range(len(kinds)), words)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of a step, %")
    axes.set_title(title, fontsize=10, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    figure.savefig(path)


def _segments(kind: "StepProfile", parts: dict[str, float] | None) -> list[tuple[str, float]]:
    """Name and share of each phase that took time; the program's in parts where they are known."""
    found: list[tuple[str, float]] = []
    for name, (seconds, _) in kind.phases.items():
        share = seconds / kind.seconds
        if name == "program" and parts is not None and kind.kind == "decode":
            found += [(f"program: {part}", share * own) for part, own in sorted(parts.items())]
        elif share > 0:
            found.append((name, share))
    return found
