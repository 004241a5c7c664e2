"""Counts that must not get worse: a committed file, and what differs from it.

The counts of one libtpu and jax are the same every time, so that any larger one is a change for
the worse. It passes only where someone writes the new figures into the file, with a reason.
"""

import importlib.metadata
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paged.lab.asks import Sizes
from paged.lab.lookup import find_backend
from paged.lab.measure import Measurement, measure
from paged.lab.targets import TARGETS
from paged.layouts import get_layout

COUNTS = (
    "scheduled_per_token",
    "issued_per_token",
    "bound_per_token",
    "fills",
    "spills",
    "vmem_bytes",
)
"""Figures of a row that are compared; less is better for all of them."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One measurement to repeat.

    Attributes:
        backend: a listed name, or package.module:Class.
        layout: by name.
        target: by name.
        block_size: tokens per block.
        sizes: the rest of the problem.
    """

    backend: str
    layout: str
    target: str
    block_size: int
    sizes: Sizes

    @property
    def label(self) -> str:
        """For messages."""
        return f"{self.backend} on {self.target}, {self.layout}, blocks of {self.block_size}"


@dataclass(frozen=True, slots=True)
class Baseline:
    """The file.

    Attributes:
        versions: of libtpu and jax, whose counts these are.
        reason: why they were last written.
        entries: asks and their counts.
    """

    versions: dict[str, str]
    reason: str
    entries: tuple[tuple[Ask, dict[str, Any]], ...]


def read_baseline(path: Path) -> Baseline:
    """The baseline in a file.

    Raises:
        ValueError: no such file, or it is no baseline.
    """
    if not path.is_file():
        raise ValueError(f"baseline: no file {path}, expected a baseline that was written before")
    try:
        form = json.loads(path.read_text())
        entries = tuple(
            (Ask(**{**entry["ask"], "sizes": Sizes(**entry["ask"]["sizes"])}), entry["counts"])
            for entry in form["entries"]
        )
        return Baseline(form["versions"], form["reason"], entries)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"baseline: {path} is no baseline: {error!r}") from None


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Writes the file, one line a figure, so that a change shows as a difference of lines."""
    entries = [{"ask": asdict(ask), "counts": counts} for ask, counts in baseline.entries]
    form = {"versions": baseline.versions, "reason": baseline.reason, "entries": entries}
    path.write_text(json.dumps(form, indent=2) + "\n")


def installed_versions() -> dict[str, str]:
    """The versions that would count now.

    Raises:
        ImportError: libtpu is not installed.
    """
    try:
        return {name: importlib.metadata.version(name) for name in ("libtpu", "jax")}
    except importlib.metadata.PackageNotFoundError:
        raise ImportError("a baseline is counted with libtpu: pip install libtpu") from None


def measure_again(asks: Sequence[Ask]) -> list[Measurement]:
    """Measures asks, those of one target in one process.

    Raises:
        ImportError: the compiler of a target is not installed.
    """
    found: dict[int, Measurement] = {}
    for name in dict.fromkeys(ask.target for ask in asks):
        indices = [index for index, ask in enumerate(asks) if ask.target == name]
        jobs = [
            (
                find_backend(asks[i].backend),
                asks[i].sizes.problem(get_layout(asks[i].layout), asks[i].block_size),
            )
            for i in indices
        ]
        found |= dict(zip(indices, measure(TARGETS[name], jobs), strict=True))
    return [found[index] for index in range(len(asks))]


def counts_of(measurement: Measurement) -> dict[str, Any]:
    """What of a measurement a baseline keeps."""
    row = measurement.row()
    return {name: row[name] for name in COUNTS}


def check_versions(baseline: Baseline, versions: dict[str, str]) -> None:
    """Refuses to compare with counts of other versions: nothing can be said of the difference.

    Raises:
        ValueError: naming both.
    """
    if versions != baseline.versions:
        raise ValueError(
            f"baseline: counted with {_listed(baseline.versions)}, installed is "
            f"{_listed(versions)}: install those, or update the baseline with a reason"
        )


def worse(baseline: Baseline, measured: Sequence[Measurement]) -> list[str]:
    """What got worse, one line each; [] where nothing did.

    Args:
        baseline: counts to hold to.
        measured: its asks, measured again with the same versions.
    """
    lines: list[str] = []
    for (ask, before), now in zip(baseline.entries, measured, strict=True):
        if now.status != "compiled":
            lines.append(f"{ask.label}: {now.reason}")
            continue
        after = counts_of(now)
        for name in COUNTS:
            old, new = before.get(name), after[name]
            if old is not None and (new is None or new > old):
                lines.append(f"{ask.label}: {name} was {old}, is {new}")
    return lines


def _listed(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
