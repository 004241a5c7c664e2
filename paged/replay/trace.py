"""Traces of requests: when each came, how long its prompt and its answer were.

Two published forms are read, told apart by their first line:

    {"timestamp": 40, "input_length": 23769, "output_length": 3, "hash_ids": [151, 152, ...]}
    TIMESTAMP,ContextTokens,GeneratedTokens
    2023-11-16 18:15:46.6805900,374,44

The first is Mooncake's (JSON lines, milliseconds; an id stands for 512 tokens of the prompt, the
last one for what is left; equal ids are equal tokens after equal ones), the second that of the
Azure LLM inference traces. Neither says what the tokens were.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64

TOKENS_PER_ID = 512
"""Tokens of the prompt that one of Mooncake's ids stands for."""

OUTPUT_TOKEN = 2**31 - 1
"""Stands for a generated token, of which no trace says what it was; no prompt has it."""

_CSV_HEADER = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
_MAX_IDS = 2**31 // TOKENS_PER_ID - 1
_NS_PER_S = 1_000_000_000
_MOST_MS = 9e12


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in the order of their arrival.

    Attributes:
        name: the file's.
        arrivals: [requests] int64, nanoseconds after the first.
        prompts: [requests] int64, tokens of each prompt, at least 1.
        outputs: [requests] int64, tokens generated, at least 1.
        hash_ids: for each request its ids, numbered anew from 0; None where the form has none, and
            then nothing is shared.
    """

    name: str
    arrivals: Int64[np.ndarray, " requests"]
    prompts: Int64[np.ndarray, " requests"]
    outputs: Int64[np.ndarray, " requests"]
    hash_ids: tuple[Int32[np.ndarray, " ids"], ...] | None = None

    def __len__(self) -> int:
        return self.prompts.size

    @property
    def finals(self) -> Int64[np.ndarray, " requests"]:
        """Slots of each request at its end: the last token's K/V is never computed."""
        return self.prompts + self.outputs - 1

    def token_ids(self, request: int) -> Int32[np.ndarray, " tokens"]:
        """Tokens of a prompt, made up so that equal ids give equal tokens and others none.

        Raises:
            ValueError: the trace has no ids.
        """
        if self.hash_ids is None:
            raise ValueError(f"trace: got {self.name}, which has no hash_ids")
        firsts = self.hash_ids[request] * np.int32(TOKENS_PER_ID)
        tokens = firsts[:, None] + np.arange(TOKENS_PER_ID, dtype=np.int32)
        return tokens.reshape(-1)[: self.prompts[request]]


def read_trace(path: str | Path, limit: int | None = None) -> Trace:
    """Read a trace of either form; `limit` takes its first requests only.

    Raises:
        OSError: the file cannot be read.
        ValueError: neither form, no request, or a value out of range: with file, line and field.
    """
    path = Path(path)
    if limit is not None and limit < 1:
        raise ValueError(f"limit: got {limit}, expected at least 1")
    # Bytes that are no UTF-8 are kept until `_lines` comes to them, and knows where they are.
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        lines = _lines(path, file)
        head = next(lines, "")
        lines, first = chain([head], lines), head.strip()
        if first.startswith("{"):
            return _collect(path, _mooncake(path, lines), limit, with_ids=True)
        if first.split(",") == _CSV_HEADER:
            return _collect(path, _azure(path, lines), limit, with_ids=False)
    raise ValueError(
        f"{path}, line 1: got {first[:60]!r}, expected an object of Mooncake's form or the header "
        f"{','.join(_CSV_HEADER)}"
    )


def _lines(path: Path, file: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(file, 1):
        try:
            line.encode()
        except UnicodeEncodeError as error:
            byte = ord(line[error.start]) - 0xDC00
            raise ValueError(
                f"{path}, line {number}: got byte 0x{byte:02x}, expected UTF-8"
            ) from None
        yield line


@dataclass(frozen=True, slots=True)
class _Request:
    line: int
    arrival: int
    prompt: int
    output: int
    hash_ids: list[int]


def _collect(
    path: Path, requests: Iterator[_Request], limit: int | None, *, with_ids: bool
) -> Trace:
    kept: list[_Request] = []
    numbers: dict[int, int] = {}
    ids: list[np.ndarray] = []
    for request in requests:
        if kept and request.arrival < kept[-1].arrival:
            field = "timestamp" if with_ids else _CSV_HEADER[0]
            raise ValueError(
                f"{path}, line {request.line}: {field}: got one before that of line "
                f"{kept[-1].line}, expected requests in the order of their arrival"
            )
        kept.append(request)
        if with_ids:
            known = [numbers.setdefault(each, len(numbers)) for each in request.hash_ids]
            ids.append(np.array(known, np.int32))
        if len(kept) == limit:
            break
    if not kept:
        raise ValueError(f"{path}: got no request, expected at least one")
    if len(numbers) > _MAX_IDS:
        raise ValueError(
            f"{path}: hash_ids: got {len(numbers)} different ones, expected at most {_MAX_IDS} so "
            "that token ids fit int32"
        )
    columns = [(each.arrival - kept[0].arrival, each.prompt, each.output) for each in kept]
    arrivals, prompts, outputs = np.array(columns, np.int64).T.copy()
    return Trace(path.name, arrivals, prompts, outputs, tuple(ids) if with_ids else None)


def _mooncake(path: Path, lines: Iterable[str]) -> Iterator[_Request]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{where}: got no JSON: {error}") from None
        except RecursionError:
            raise ValueError(
                f"{where}: got JSON that is too deeply nested, expected an object of numbers and "
                "one list of them"
            ) from None
        if not isinstance(entry, dict):
            raise ValueError(f"{where}: got {type(entry).__name__}, expected an object")
        prompt = _field(where, "input_length", entry, _count)
        ids = _field(where, "hash_ids", entry, _ids)
        expected = -(-prompt // TOKENS_PER_ID)
        if len(ids) != expected:
            raise ValueError(
                f"{where}: hash_ids: got {len(ids)}, expected {expected}, one for each "
                f"{TOKENS_PER_ID} of {prompt} tokens"
            )
        yield _Request(
            number,
            _field(where, "timestamp", entry, _milliseconds),
            prompt,
            _field(where, "output_length", entry, _count),
            ids,
        )


def _azure(path: Path, lines: Iterable[str]) -> Iterator[_Request]:
    rows = csv.reader(lines)
    next(rows)
    for row in _readable(path, rows):
        if not row:
            continue
        where = f"{path}, line {rows.line_num}"
        if len(row) != len(_CSV_HEADER):
            raise ValueError(f"{where}: got {len(row)} fields, expected {len(_CSV_HEADER)}")
        entry = dict(zip(_CSV_HEADER, row, strict=True))
        yield _Request(
            rows.line_num,
            _field(where, "TIMESTAMP", entry, _date),
            _field(where, "ContextTokens", entry, _written_count),
            _field(where, "GeneratedTokens", entry, _written_count),
            [],
        )


def _readable(path: Path, rows: Any) -> Iterator[list[str]]:
    try:
        yield from rows
    except csv.Error as error:
        raise ValueError(f"{path}, line {rows.line_num}: got no CSV: {error}") from None


class _Unreadable(Exception):
    """What would have been accepted."""


def _field(where: str, name: str, entry: dict[str, Any], read: Callable[[Any], Any]) -> Any:
    """One field of a line.

    Raises:
        ValueError: it is missing, or `read` does not take it.
    """
    if name not in entry:
        found = ", ".join(entry) or "no others"
        raise ValueError(f"{where}: {name}: got none, expected one; there are {found}")
    try:
        return read(entry[name])
    except _Unreadable as expected:
        raise ValueError(f"{where}: {name}: got {entry[name]!r}, expected {expected}") from None


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
        raise _Unreadable("an integer of at least 1")
    return value


def _written_count(text: str) -> int:
    # Python itself refuses to read thousands of digits.
    return _count(int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None)


def _milliseconds(value: Any) -> int:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Written so that NaN is refused too; the end leaves nanoseconds room in int64.
    if not is_number or not 0 <= value < _MOST_MS:
        raise _Unreadable(f"milliseconds of at least 0 and less than {_MOST_MS:.0e}")
    return round(value * 1_000_000)


def _ids(value: Any) -> list[int]:
    if not isinstance(value, list) or not all(type(each) is int and each >= 0 for each in value):
        raise _Unreadable("a list of integers of at least 0")
    return value


def _date(text: str) -> int:
    # datetime keeps microseconds; the traces have a digit more.
    whole, _, fraction = text.strip().partition(".")
    try:
        seconds = datetime.fromisoformat(whole + "+00:00").timestamp()
    except ValueError:
        raise _Unreadable("a date as 2023-11-16 18:15:46.6805900") from None
    if not 0 <= seconds < _MOST_MS / 1000:
        raise _Unreadable("a date from 1970 to 2255")
    if len(fraction) > 9 or (fraction and not (fraction.isascii() and fraction.isdigit())):
        raise _Unreadable("a date as 2023-11-16 18:15:46.6805900")
    return int(seconds) * _NS_PER_S + int(fraction.ljust(9, "0"))
