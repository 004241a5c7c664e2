"""Chooses a backend's sizes by their counts, and writes them into the file that it reads."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paged.backends import Backend
from paged.backends.tuned import Candidates, TunedFile, entry_key, read_tuned
from paged.lab.compile import find_candidates, refusals
from paged.lab.measure import Measurement, measure
from paged.lab.problem import Problem
from paged.lab.targets import Target, TpuTarget

LEAST_GAIN = 0.02
"""Fewer bundles by this part, or the sizes stay those that the backend takes by itself.

A count of one step with full sequences says nothing of shorter ones, which larger tiles serve
worse, nor of memory: a smaller difference is no reason.
"""

WHAT = (
    "Tile sizes chosen by static counts of compiled kernels, not by time: for each device and "
    "shape those with the fewest scheduled bundles per KV token in full steps of these problems, "
    f"and the untuned ones unless that saves at least {LEAST_GAIN:.0%}."
)

_PROBLEM = ("block_size", "num_seqs", "kv_tokens", "query_len", "query_dtype")
_MEANS = ("scheduled_per_token", "issued_per_token", "bound_per_token", "hbm_cycles_per_token")
_MOST = ("spills", "vmem_bytes")


@dataclass(frozen=True, slots=True)
class Tried:
    """A candidate and its counts.

    Attributes:
        name: what differs.
        sizes: as they are written.
        measurements: one for each problem.
    """

    name: str
    sizes: Mapping[str, int]
    measurements: tuple[Measurement, ...]

    @property
    def reason(self) -> str:
        """Why it has no figures; "" where it has."""
        return "; ".join(dict.fromkeys(m.reason for m in self.measurements if m.reason))

    def counts(self) -> dict[str, Any]:
        """Means over the problems, and the most of spills and VMEM; None where unknown."""
        rows = [m.row() for m in self.measurements]
        found: dict[str, Any] = {}
        for name in (*_MEANS, *_MOST):
            values = [row[name] for row in rows]
            if not values or any(value is None for value in values):
                found[name] = None
            else:
                is_mean = name in _MEANS
                found[name] = round(sum(values) / len(values), 4) if is_mean else max(values)
        return found


@dataclass(frozen=True, slots=True)
class Choice:
    """What was tried for one target and shape.

    Attributes:
        target: the hardware.
        shape: what the choice is for.
        problems: the steps that were counted.
        tried: the candidates; the first is what the backend takes without a file.
        chosen: None where no candidate could be counted.
    """

    target: Target
    shape: Mapping[str, str | int]
    problems: tuple[Problem, ...]
    tried: tuple[Tried, ...]
    chosen: Tried | None

    def entry(self) -> dict[str, Any] | None:
        """As it is written into the file; None where there is no choice."""
        if self.chosen is None:
            return None
        problems = [
            {
                "layout": problem.layout.name,
                **{name: getattr(problem, name) for name in _PROBLEM},
            }
            for problem in self.problems
        ]
        return {
            "device_kind": self.target.device_kind,
            "shape": dict(self.shape),
            "sizes": dict(self.chosen.sizes),
            "counts": self.chosen.counts(),
            "untuned": {"sizes": dict(self.tried[0].sizes), "counts": self.tried[0].counts()},
            "problems": problems,
        }

    def rows(self) -> list[dict[str, Any]]:
        """One for each candidate, in the order of the backend."""
        return [
            {
                "candidate": each.name,
                "target": self.target.name,
                "shape": dict(self.shape),
                "sizes": dict(each.sizes),
                **each.counts(),
                "chosen": each is self.chosen,
                "untuned": each is self.tried[0],
                "reason": each.reason,
            }
            for each in self.tried
        ]


def tune(
    target: Target,
    asks: Sequence[tuple[Backend, Problem]],
    *,
    tell: Callable[[str], None] = lambda line: None,
    count: Callable[..., list[Measurement]] = measure,
) -> list[Choice]:
    """Counts every candidate on one target, and chooses one for each shape.

    Args:
        target: the hardware.
        asks: backends and problems; problems of one shape are chosen for together.
        tell: gets lines of progress.
        count: counts jobs, as `measure` does.

    Raises:
        ImportError: the target's compiler is not installed.
        ValueError: a target without counts, or a backend that has no sizes to choose among or
            refuses a problem.
    """
    if not isinstance(target, TpuTarget):
        raise ValueError(f"target: got {target.name!r}, expected a TPU: only these have counts")
    found: dict[str, list[tuple[Problem, Candidates]]] = {}
    for backend, problem in asks:
        if reasons := refusals(backend, problem, target):
            raise ValueError(
                f"backend: {backend.name} refuses {problem.layout.name} with blocks of "
                f"{problem.block_size} on {target.name}: {'; '.join(dict.fromkeys(reasons))}"
            )
        offered = find_candidates(backend, problem, target)
        if not offered.options:
            raise ValueError(f"backend: {backend.name} offers no candidates, expected at least one")
        found.setdefault(json.dumps(dict(offered.shape), sort_keys=True), []).append(
            (problem, offered)
        )
    return [_choose(target, group, tell, count) for group in found.values()]


def rank(tried: Sequence[Tried]) -> list[Tried]:
    """Those with counts, best first: scheduled bundles, then issued ones, then VMEM."""

    def cost(each: Tried) -> tuple[float, float, int]:
        counts = each.counts()
        return counts["scheduled_per_token"], counts["issued_per_token"], counts["vmem_bytes"] or 0

    return sorted((each for each in tried if not each.reason), key=cost)


def updated(
    known: TunedFile | None, choices: Sequence[Choice], command: str, versions: Mapping[str, str]
) -> TunedFile:
    """The file with these choices, each in place of an older one for its device and shape.

    Raises:
        ValueError: the file's counts are of other versions.
    """
    if known is not None and known.versions != versions:
        raise ValueError(
            f"out: the file is of {dict(known.versions)}, installed is {dict(versions)}, expected "
            "the same, or a new file"
        )
    entries = {entry_key(entry): entry for entry in (known.entries if known else ())}
    entries |= {entry_key(entry): entry for choice in choices if (entry := choice.entry())}
    before = tuple(line for line in (known.made_by if known else ()) if line != command)
    in_order = tuple(entries[key] for key in sorted(entries))
    return TunedFile((*before, command), dict(versions), WHAT, in_order)


def write_tuned(path: Path, file: TunedFile) -> None:
    """Writes the file, one line a figure, and reads it again."""
    form = {
        "made_by": list(file.made_by),
        "versions": dict(file.versions),
        "what": file.what,
        "entries": list(file.entries),
    }
    path.write_text(json.dumps(form, indent=2) + "\n")
    read_tuned(path)


def _choose(
    target: Target,
    group: Sequence[tuple[Problem, Candidates]],
    tell: Callable[[str], None],
    count: Callable[..., list[Measurement]],
) -> Choice:
    first = group[0][1]
    untuned = {next(iter(offered.options)) for _, offered in group}
    if len(untuned) > 1:
        raise ValueError(
            f"problems: got some that take {' and some that take '.join(sorted(untuned))} by "
            f"themselves for {dict(first.shape)}, expected one choice: tune them one by one"
        )
    counted: dict[str, list[Measurement]] = {}
    for problem, offered in group:
        tell(
            f"{target.name}, {problem.layout.name}, blocks of {problem.block_size}, "
            f"{problem.label}: {len(offered.options)} candidates"
        )
        jobs = [(candidate.backend, problem) for candidate in offered.options.values()]
        for name, measured in zip(offered.options, count(target, jobs), strict=True):
            counted.setdefault(name, []).append(measured)
    # One that some problem has no room for is none for the shape.
    tried = tuple(
        Tried(name, candidate.sizes, tuple(counted[name]))
        for name, candidate in first.options.items()
        if len(counted[name]) == len(group)
    )
    return Choice(target, first.shape, tuple(problem for problem, _ in group), tried, _best(tried))


def _best(tried: Sequence[Tried]) -> Tried | None:
    ranked = rank(tried)
    if not ranked:
        return None
    best, untuned = ranked[0], tried[0]
    if untuned.reason:
        return best
    cost, before = (each.counts()["scheduled_per_token"] for each in (best, untuned))
    return best if cost <= (1 - LEAST_GAIN) * before else untuned
