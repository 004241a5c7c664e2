"""Sizes that a backend leaves open, tried out by the lab and kept in a file.

A backend with tile sizes to choose offers one method beside those of `Backend`:

    def lab_candidates(self, query, cache, metadata, spec) -> Candidates

The arguments are those of `attend`, as shapes, and it is called under the target's abstract mesh,
so that `pltpu.get_tpu_info()` tells the target's hardware. Each candidate is the same backend with
other sizes; it is pickled to the process that compiles it. None of them may depend on a tuned file:
what is chosen would then depend on what was chosen before.

`paged lab tune` counts them, and writes the best into a file that the backend reads.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paged.backends.api import Backend


@dataclass(frozen=True, slots=True)
class Candidate:
    """A backend with the sizes that are tried.

    Attributes:
        backend: it takes these sizes whatever a tuned file says.
        sizes: as they are written into the file.
    """

    backend: Backend
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Candidates:
    """What there is to choose from for one step.

    Attributes:
        shape: what of the step the choice is for. Steps of one shape share a choice.
        options: by name of what differs; the first is what the backend takes without a file.
    """

    shape: Mapping[str, str | int]
    options: Mapping[str, Candidate]


@dataclass(frozen=True, slots=True)
class TunedFile:
    """A file of chosen sizes.

    Attributes:
        made_by: commands that make it, run in this order.
        versions: of libtpu and jax, whose counts chose.
        what: how it was made and what it means, in one sentence.
        entries: for each device kind and shape the sizes, and the counts that chose them.
    """

    made_by: tuple[str, ...]
    versions: Mapping[str, str]
    what: str
    entries: tuple[Mapping[str, Any], ...]

    def sizes(self, device_kind: str, shape: Mapping[str, str | int]) -> dict[str, int] | None:
        """What was chosen for a device and a shape; None where nothing was."""
        for entry in self.entries:
            if entry["device_kind"] == device_kind and entry["shape"] == shape:
                return dict(entry["sizes"])
        return None


def read_tuned(path: Path) -> TunedFile:
    """The file's content.

    Raises:
        ValueError: no such file, or it is no tuned file: naming the entry and what is expected.
    """
    if not path.is_file():
        raise ValueError(f"tuned file: no file {path}")
    try:
        form = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"tuned file: {path} is no JSON: {error}") from None
    kinds = {"made_by": list, "versions": dict, "what": str, "entries": list}
    if not isinstance(form, dict) or any(
        not isinstance(form.get(name), kind) for name, kind in kinds.items()
    ):
        raise ValueError(
            f"tuned file: {path} has {_listed(form)}, expected made_by (a list), versions (an "
            "object), what (a text) and entries (a list)"
        )
    seen: set[str] = set()
    for index, entry in enumerate(form["entries"]):
        where = f"tuned file: {path}, entry {index}"
        _check_entry(entry, where)
        key = entry_key(entry)
        if key in seen:
            raise ValueError(f"{where}: {key} is there already, expected once")
        seen.add(key)
    return TunedFile(tuple(form["made_by"]), form["versions"], form["what"], tuple(form["entries"]))


def entry_key(entry: Mapping[str, Any]) -> str:
    """What an entry is for; entries are sorted by it, and there is one for each."""
    return f"{entry['device_kind']} {json.dumps(entry['shape'], sort_keys=True)}"


def _check_entry(entry: Any, where: str) -> None:
    kinds = {"device_kind": str, "shape": dict, "sizes": dict, "counts": dict}
    for name, kind in kinds.items():
        if not isinstance(entry, dict) or not isinstance(entry.get(name), kind):
            raise ValueError(
                f"{where}: got {_listed(entry)}, expected device_kind (a text), and shape, sizes "
                "and counts (objects)"
            )
    for name, size in entry["sizes"].items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{where}: {name}: got {size!r}, expected a whole number from 1 on")


def _listed(form: Any) -> str:
    if isinstance(form, dict):
        return "an object of " + (", ".join(form) or "nothing")
    return f"a {type(form).__name__}"
