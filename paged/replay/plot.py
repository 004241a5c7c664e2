"""The comparison as a picture: what became of the pool under each policy, and over time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paged.replay.measure import KINDS, Figures

_COLORS = {
    "used": "#1f6f8b",
    "reserved": "#8fb8c9",
    "internal": "#d1495b",
    "external": "#e8a33d",
    "idle": "#e6e6e6",
}
_WORDS = {
    "used": "holds a token",
    "reserved": "reserved",
    "internal": "internal waste",
    "external": "external waste",
    "idle": "free",
}
_LINES = ("#444444", "#7d4e9e", "#d1495b", "#1f6f8b")
_SHOWN_BLOCK_SIZE = 16
"""Of the block sizes the one whose course is drawn, where it is among them."""


SUFFIXES = (".svg", ".png", ".pdf")
"""What can be drawn."""


def figure_class(path: Path) -> Any:
    """matplotlib's `Figure`: asked for before a long run, it says whether there will be a picture.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: no suffix that can be drawn.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"plot: got {str(path)!r}, expected a name in {', '.join(SUFFIXES)}")
    try:
        from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        raise ImportError("a plot needs matplotlib: pip install matplotlib") from None
    return Figure


def draw(runs: Sequence[Figures], path: Path, *, title: str) -> None:
    """Draw runs of one trace: bars of what the pool held, lines of how much of it held tokens.

    Args:
        runs: at least one.
        path: one of `SUFFIXES`.
        title: above both.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: no suffix that can be drawn.
    """
    Figure = figure_class(path)
    import matplotlib as mpl  # pyright: ignore[reportMissingImports]

    # The same file every time: no date, no random ids. Text stays text, in the reader's font.
    style: Any = {"svg.hashsalt": "paged", "svg.fonttype": "none", "font.size": 9}
    with mpl.rc_context(style):
        figure = Figure(figsize=(10, 0.27 * len(runs) + 1.9), layout="constrained")
        bars, lines = figure.subplots(1, 2, width_ratios=(1.25, 1))
        _draw_bars(bars, runs)
        _draw_lines(lines, runs)
        figure.suptitle(title, fontsize=10)
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw_bars(panel: Any, runs: Sequence[Figures]) -> None:
    places = range(len(runs))
    left = [0.0] * len(runs)
    for kind in KINDS:
        widths = [100 * getattr(run, kind) for run in runs]
        panel.barh(places, widths, left=left, height=0.74, color=_COLORS[kind], label=_WORDS[kind])
        left = [start + width for start, width in zip(left, widths, strict=True)]
    figures = [("of taken", [f"{100 * run.utilisation:.1f} %" for run in runs], 113)]
    figures.append(("batch", [f"{run.mean_batch:.1f}" for run in runs], 124))
    for words, texts, right in figures:
        panel.text(right, -0.85, words, ha="right", va="center", fontsize=7.5, color="#444444")
        for place, text in zip(places, texts, strict=True):
            panel.text(right, place, text, ha="right", va="center", fontsize=8)
    panel.set_yticks(places, [run.label for run in runs])
    panel.set_ylim(len(runs) - 0.4, -0.6)
    panel.set_xlim(0, 100)
    panel.set_xlabel("mean share of the pool, %")
    _plain(panel)
    panel.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=len(KINDS), frameon=False, fontsize=8
    )


def _draw_lines(panel: Any, runs: Sequence[Figures]) -> None:
    shown = [run for run in runs if run.block_size is None]
    paged = [run for run in runs if run.block_size is not None]
    preferred = [run for run in paged if run.block_size == _SHOWN_BLOCK_SIZE]
    shown += (preferred or paged)[:1]
    for run, color in zip(shown, _LINES[-len(shown) :], strict=True):
        used = [100 * share for share in run.series.shares["used"]]
        hours = [seconds / 3600 for seconds in run.series.seconds]
        panel.plot(hours, used, color=color, linewidth=1.1, label=run.label)
    panel.set_ylim(0, 100)
    panel.set_xlim(left=0)
    panel.set_xlabel("hours of the service")
    panel.set_ylabel("share of the pool that holds tokens, %")
    _plain(panel)
    panel.grid(True, color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.2),
        ncols=len(shown),
        frameon=False,
        fontsize=8,
    )


def _plain(panel: Any) -> None:
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
