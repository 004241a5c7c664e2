"""The roofline as a picture: what the roof allows, and what each kernel's schedule allows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paged.lab.measure import Measurement
from paged.lab.roofline import Total
from paged.lab.targets import TpuTarget

_MARKERS = "osD^vP*X"
_COLORS = ("#1f6f8b", "#d1495b", "#5b8c5a", "#7d4e9e", "#c98a2b", "#444444")


def plot_roofline(measurements: Sequence[Measurement], path: Path) -> None:
    """Draws one panel for each target; the suffix says whether SVG, PNG or PDF.

    A point stands at its problem's FLOP per HBM byte, and at the FLOP/s of a core that runs the
    schedule without stalls and waits for HBM where that takes longer.

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
    # The same file every time: no date, no random ids.
    with mpl.rc_context({"svg.hashsalt": "paged", "font.size": 9}):
        figure = Figure(figsize=(4.6 * len(targets) + 2.2, 4.4), layout="constrained")
        panels = figure.subplots(1, len(targets), squeeze=False, sharey=True)[0]
        styles = _styles(shown)
        for panel, target in zip(panels, targets, strict=True):
            _draw(panel, target, [m for m in shown if m.target == target], styles)
        panels[0].set_ylabel("TFLOP/s of one core, no stalls")
        handles, labels = panels[0].get_legend_handles_labels()
        for panel in panels[1:]:
            for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
                if label not in labels:
                    handles, labels = [*handles, handle], [*labels, label]
        figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=8)
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _label(measurement: Measurement) -> str:
    problem = measurement.problem
    return f"{measurement.kernel}, {problem.layout.name}, {problem.block_size}"


def _styles(shown: Sequence[Measurement]) -> dict[str, tuple[str, str]]:
    """A colour for each kernel and layout, a marker for each block size."""
    sets = list(dict.fromkeys((m.kernel, m.problem.layout.name) for m in shown))
    sizes = sorted({m.problem.block_size for m in shown})
    return {
        _label(m): (
            _COLORS[sets.index((m.kernel, m.problem.layout.name)) % len(_COLORS)],
            _MARKERS[sizes.index(m.problem.block_size) % len(_MARKERS)],
        )
        for m in shown
    }


def _draw(
    panel: Any,
    target: TpuTarget,
    shown: Sequence[Measurement],
    styles: dict[str, tuple[str, str]],
) -> None:
    ridge = target.bf16_tflops * 1e3 / target.hbm_gbps
    points = [(_intensity(m, target), _tflops(m, target), m) for m in shown]
    low = min([x for x, _, _ in points] + [1.0]) / 2
    high = max([x for x, _, _ in points] + [ridge]) * 4
    panel.plot(
        [low, ridge, high],
        [low * target.hbm_gbps / 1e3, target.bf16_tflops, target.bf16_tflops],
        color="#888888",
        linewidth=1.5,
    )
    for x, y, measurement in points:
        color, marker = styles[_label(measurement)]
        panel.scatter(x, y, color=color, marker=marker, s=36, label=_label(measurement), zorder=3)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_title(f"{target.name}: {target.hbm_gbps:g} GB/s, {target.bf16_tflops:g} TFLOP/s")
    panel.set_xlabel("FLOP per byte of HBM")
    panel.grid(True, which="major", color="#e4e4e4", linewidth=0.6)
    panel.set_axisbelow(True)


def _intensity(measurement: Measurement, target: TpuTarget) -> float:
    problem = measurement.problem
    return problem.flop_per_token() / problem.bytes_per_token(target.platform)


def _tflops(measurement: Measurement, target: TpuTarget) -> float:
    counts, hbm = measurement.per_token, measurement.hbm_cycles
    assert isinstance(counts, Total)
    assert hbm is not None
    cycles = max(counts.scheduled, hbm)
    return measurement.problem.flop_per_token() / cycles * target.clock_ghz / 1e3
