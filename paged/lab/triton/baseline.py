"""Rows that must not get worse: a committed file, and what differs from it.

The counts of one triton are the same every time. Worse is: more spills, more shared memory, matrix
instructions that are gone or of an earlier generation, narrower loads of keys and values, and a
kernel that compiles no more. More registers alone are not: they cost nothing until they spill or
leave room for fewer programs, and a change may well spend them on purpose.
"""

import importlib.metadata
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paged.lab.triton.run import CompiledKernel

Row = dict[str, Any]

_ASKED = ("kernel", "layout", "target", "dtype", "head_dim", "group", "block_size")


@dataclass(frozen=True, slots=True)
class TritonBaseline:
    """The file.

    Attributes:
        versions: of triton, whose counts these are.
        reason: why they were last written.
        rows: of `CompiledKernel.row`.
    """

    versions: dict[str, str]
    reason: str
    rows: tuple[Row, ...]


def read_triton_baseline(path: Path) -> TritonBaseline:
    """The baseline in a file.

    Raises:
        ValueError: no such file, or it is no baseline.
    """
    if not path.is_file():
        raise ValueError(f"baseline: no file {path}, expected a baseline that was written before")
    try:
        form = json.loads(path.read_text())
        rows = tuple(form["rows"])
        if any(missing := [name for row in rows for name in (*_ASKED, *_RULES) if name not in row]):
            raise KeyError(missing[0])
        return TritonBaseline(form["versions"], form["reason"], rows)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"baseline: {path} is no baseline: {error!r}") from None


def write_triton_baseline(path: Path, baseline: TritonBaseline) -> None:
    """Writes the file, one line a row, so that a change shows as a difference of lines."""
    rows = ",\n".join(f"    {json.dumps(row)}" for row in baseline.rows)
    path.write_text(
        f'{{\n  "versions": {json.dumps(baseline.versions)},\n'
        f'  "reason": {json.dumps(baseline.reason)},\n  "rows": [\n{rows}\n  ]\n}}\n'
    )


def triton_versions() -> dict[str, str]:
    """The version that would count now.

    Raises:
        ImportError: triton is not installed.
    """
    try:
        return {"triton": importlib.metadata.version("triton")}
    except importlib.metadata.PackageNotFoundError:
        raise ImportError("a baseline is counted with triton: pip install triton") from None


def check_triton_versions(baseline: TritonBaseline, versions: dict[str, str]) -> None:
    """Refuses to compare with counts of another triton: nothing can be said of the difference.

    Raises:
        ValueError: naming both.
    """
    if versions != baseline.versions:
        raise ValueError(
            f"baseline: counted with triton {baseline.versions.get('triton')}, installed is "
            f"{versions.get('triton')}: install that, or update the baseline with a reason"
        )


def updated(
    known: TritonBaseline | None,
    found: Sequence[CompiledKernel],
    reason: str,
    versions: dict[str, str],
) -> TritonBaseline:
    """A baseline with the rows that were found; the known ones that were not found stay.

    Raises:
        ValueError: rows of another triton would stay beside these.
    """
    rows = {_key(row): row for row in (known.rows if known else ())}
    new = {_key(row): row for row in (one.row() for one in found)}
    if known and rows.keys() - new.keys():
        check_triton_versions(known, versions)
    return TritonBaseline(versions, reason, tuple({**rows, **new}.values()))


def worse(baseline: TritonBaseline, found: Iterable[CompiledKernel]) -> list[str]:
    """What got worse, one line each; what the baseline does not have is not compared."""
    known = {_key(row): row for row in baseline.rows}
    lines: list[str] = []
    for one in found:
        row = one.row()
        before = known.get(_key(row))
        if before is None:
            continue
        label = f"{one.target.name}: {one.case.label}"
        if one.counts is None:
            lines.append(f"{label}: {one.reason}")
            continue
        lines += [
            f"{label}: {name} was {before[name]}, is {row[name]}"
            for name, is_worse in _RULES.items()
            if before[name] is not None and (row[name] is None or is_worse(before[name], row[name]))
        ]
    return lines


def compared(baseline: TritonBaseline, found: Iterable[CompiledKernel]) -> int:
    """How many of what was found the baseline has."""
    known = {_key(row) for row in baseline.rows}
    return sum(_key(one.row()) in known for one in found)


def _more(before: int, now: int) -> bool:
    return now > before


def _fewer(before: int, now: int) -> bool:
    return now < before


def _lost(before: str, now: str) -> bool:
    """Whether a family is gone for which none of a later generation has come."""
    return _generation(now) < _generation(before)


def _generation(families: str) -> int:
    """The latest generation of matrix instructions: a warp's, a warp group's, tensor memory's."""
    return max(
        2 if name.startswith("UTC") else 1 if name.endswith("GMMA") else 0
        for name in families.split("+")
    )


_RULES = {"spills": _more, "shared_bytes": _more, "mma": _lost, "load_bytes": _fewer}


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in _ASKED)
