"""The roofline as a picture: each kernel's cycles against those that HBM needs for the same bytes.

A decode has the same FLOP per byte whatever kernel serves it, so that a plot over intensity would
have all its points on one vertical. Here the roof is upright: what stands left of HBM's line waits
for memory, what stands right of it keeps memory waiting.
"""

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, Literal

from paged.lab.measure import Measurement
from paged.lab.roofline import Total
from paged.lab.targets import TpuTarget

_MARKERS = "osD^vP*X"
_COLORS = ("#1f6f8b", "#d1495b", "#5b8c5a", "#7d4e9e", "#c98a2b", "#444444")
_GREY = "#8a8a8a"
_SPREAD = 0.66
"""Of a line's height, what the points of its block sizes take."""
_WAITS = "#e8f1f4"
"""Behind the points that wait for HBM."""


def plot_roofline(measurements: Sequence[Measurement], path: Path) -> None:
    """Draws one panel for each target; the suffix says whether SVG, PNG or PDF.

    A point stands at its scheduled cycles over those of HBM, on a line of its kernel and layout.
    A thin line goes from it to what its busiest kind of slot needs alone, and a thick tick is what
    the matrix units need at their peak, where that is of the same order.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: no measurement has figures per token.
    """
    try:
        import matplotlib as mpl  # pyright: ignore[reportMissingImports]
        from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        raise ImportError("a plot needs matplotlib: pip install matplotlib") from None

    shown = [m for m in measurements if isinstance(m.per_token, Total) and m.hbm_cycles]
    if not shown:
        raise ValueError("plot: no kernel has figures per token to draw")
    targets = list(dict.fromkeys(m.target for m in shown if isinstance(m.target, TpuTarget)))
    names = _names(shown)
    sizes = sorted({m.problem.block_size for m in shown})
    # The same file every time: no date, no random ids. Text stays text, in the reader's font.
    style: Any = {"svg.hashsalt": "paged", "svg.fonttype": "none", "font.size": 9}
    with mpl.rc_context(style):
        figure = Figure(
            figsize=(2.9 * len(targets) + 1.7, 0.42 * len(names) + 1.9), layout="constrained"
        )
        panels = figure.subplots(1, len(targets), squeeze=False, sharex=True, sharey=True)[0]
        for panel, target in zip(panels, targets, strict=True):
            _draw(panel, target, [m for m in shown if m.target == target], names, sizes)
        low = _label(panels[0], names, shown)
        problems = " and ".join(dict.fromkeys(m.problem.label for m in shown))
        figure.suptitle(f"{problems}: a schedule's cycles against those of HBM", fontsize=10)
        has_peak = any(_peak(m) > low for m in shown)
        _legend(figure, sizes, has_peak)
        # Dates are the only thing that differs between two runs.
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _row(measurement: Measurement) -> Hashable:
    return measurement.kernel, measurement.problem.layout.name


def _names(shown: Sequence[Measurement]) -> list[Hashable]:
    """Lines from top to bottom: the cheapest kernel and layout first."""
    least: dict[Hashable, float] = {}
    for m in shown:
        cost = _part(m, "scheduled")
        least[_row(m)] = min(cost, least.get(_row(m), cost))
    return sorted(least, key=lambda name: (least[name], str(name)))


def _part(measurement: Measurement, count: Literal["scheduled", "bound"]) -> float:
    """Some cycles of a point over those of HBM."""
    counts, hbm = measurement.per_token, measurement.hbm_cycles
    assert isinstance(counts, Total)
    assert hbm is not None
    return getattr(counts, count) / hbm


def _peak(measurement: Measurement) -> float:
    """Cycles of the matrix units at their peak over those of HBM."""
    assert measurement.hbm_cycles is not None
    return (measurement.matmul_cycles or 0.0) / measurement.hbm_cycles


def _draw(
    panel: Any,
    target: TpuTarget,
    shown: Sequence[Measurement],
    names: Sequence[Hashable],
    sizes: Sequence[int],
) -> None:
    panel.set_xscale("log")
    for m in shown:
        place = sizes.index(m.problem.block_size)
        line = names.index(_row(m))
        color = _COLORS[line % len(_COLORS)]
        # Sizes side by side in the line: their points would cover each other.
        at = line + (place - (len(sizes) - 1) / 2) * _SPREAD / len(sizes)
        panel.plot([_part(m, "bound"), _part(m, "scheduled")], [at, at], color=color, linewidth=0.8)
        panel.plot(_part(m, "bound"), at, "|", color=color, markersize=5)
        marker = _MARKERS[place % len(_MARKERS)]
        panel.plot(_part(m, "scheduled"), at, marker, color=color, markersize=4.5)
        peak = _peak(m)
        panel.plot([peak, peak], [line - 0.4, line + 0.4], color=_GREY, linewidth=2)
    panel.axvline(1, color="black", linewidth=1.2)
    panel.axvspan(1e-9, 1, color=_WAITS, zorder=0)
    for x, side, words in ((0.93, "right", "waits for HBM"), (1.07, "left", "HBM waits")):
        panel.text(x, -0.72, words, ha=side, va="center", fontsize=7.5, color="#444444")
    panel.set_title(f"{target.name}, {target.hbm_gbps:g} GB/s a core", fontsize=9)
    panel.set_xlabel("cycles / HBM cycles")
    panel.grid(True, axis="y", color="#dddddd", linewidth=0.6)
    panel.grid(True, axis="x", which="major", color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)


def _label(panel: Any, names: Sequence[Hashable], shown: Sequence[Measurement]) -> float:
    """Names of the lines, the range and ticks of the shared axes; returns their lower end."""
    panel.set_yticks(range(len(names)), [", ".join(map(str, name)) for name in names])  # pyright: ignore
    panel.set_ylim(len(names) - 0.45, -1)
    points = [_part(m, name) for m in shown for name in ("scheduled", "bound")]
    low, high = min(*points, 0.5) / 1.4, max(*points, 2) * 1.4
    ticks = [10.0**power * step for power in range(-4, 5) for step in (1, 2, 5)]
    # Powers of ten alone where there would be many.
    is_wide = high / low > 300
    kept = [t for t in ticks if low <= t <= high and (not is_wide or f"{t:e}"[0] == "1")]
    panel.set_xlim(low, high)
    panel.set_xticks(kept, [f"{tick:g}x" for tick in kept])
    panel.minorticks_off()
    return low


def _legend(figure: Any, sizes: Sequence[int], has_peak: bool) -> None:
    from matplotlib.lines import Line2D  # pyright: ignore[reportMissingImports]

    def mark(marker: str, label: str, **style: Any) -> Any:
        return Line2D([], [], linestyle="", marker=marker, label=label, color=_GREY, **style)

    handles = [
        mark(_MARKERS[index % len(_MARKERS)], f"scheduled, blocks of {size}", markersize=4.5)
        for index, size in enumerate(sizes)
    ]
    handles.append(mark("|", "the busiest kind of slot alone", markersize=5))
    if has_peak:
        handles.append(Line2D([], [], color=_GREY, linewidth=2, label="matrix units at peak"))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8
    )
