"""Counts of a kernel, from its disassembled text.

Loads of keys and values are told from others, such as those of the block table, by the line
information that the compiler keeps: they are the loads of `KV_FILES`. All of them count, those of
the masked steps and those that a pipeline issues before a loop included.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

KV_FILES = ("span.py", "latent_span.py")
"""Of `paged.backends.triton.kernels`: where keys and values are loaded, and nothing else is."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a kernel takes.

    Attributes:
        registers: of a thread. For AMD the vector registers, accumulators included.
        spills: 32-bit registers of a thread that lie in memory, for want of registers: a quarter
            of NVIDIA's stack and local bytes, which these kernels use for nothing else; for AMD
            the metadata's `.vgpr_spill_count`.
        shared_bytes: shared memory that a launch asks for.
        mma: families of matrix instructions, with "+" between them; None where there is none.
        load_bytes: the fewest bytes that one thread's load of keys or values has; None where the
            kernel loads none.
    """

    registers: int
    spills: int
    shared_bytes: int
    mma: str | None
    load_bytes: int | None


_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")
_SASS_LINE = re.compile(r'## File "([^"]+)"')
_SASS_LOAD = re.compile(r"\s(?:LDG|LDGSTS|LD)((?:\.\w+)*)\s")
_SASS_MATRIX = re.compile(r"\s(UTC\w*MMA|[HQIO]GMMA|[HQIO]MMA)[\s.]")
_SASS_WIDTHS = {"256": 32, "128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}

_GCN_FILE = re.compile(r'\.file\s+(\d+)\s+(?:"[^"]*"\s+)?"([^"]+)"')
_GCN_LINE = re.compile(r"\.loc\s+(\d+)\s")
_GCN_LOAD = re.compile(r"\s(?:global|buffer|flat)_load_([a-z0-9_]+)")
_GCN_MATRIX = re.compile(r"\sv_(s?mfma\w*?)_")
_GCN_WIDTHS = {"dwordx4": 16, "dwordx3": 12, "dwordx2": 8, "dword": 4}
_GCN_WIDTHS |= {"ushort": 2, "sshort": 2, "short": 2, "ubyte": 1, "sbyte": 1}


def read_sass(usage: str, sass: str, shared_bytes: int) -> Counts:
    """Counts of an NVIDIA kernel.

    Args:
        usage: what `cuobjdump -res-usage` prints.
        sass: what `nvdisasm -c -g` prints.
        shared_bytes: of the launch.

    Raises:
        ValueError: the text has no such figures.
    """
    found = _USAGE.search(usage)
    if found is None:
        raise ValueError(f"cuobjdump printed no usage: {usage[-200:]}")
    registers, stack, local = map(int, found.groups())
    families = {match[1] for match in _SASS_MATRIX.finditer(sass)}
    widths = [_sass_width(match[1]) for match in _loads(_sass_lines(sass), _SASS_LOAD)]
    return Counts(registers, (stack + local) // 4, shared_bytes, _joined(families), _least(widths))


def read_amdgcn(text: str, shared_bytes: int) -> Counts:
    """Counts of an AMD kernel, from its assembly with metadata.

    Raises:
        ValueError: the text has no such figures.
    """
    families = {match[1].upper() for match in _GCN_MATRIX.finditer(text)}
    widths = [_gcn_width(match[1]) for match in _loads(_gcn_lines(text), _GCN_LOAD)]
    return Counts(
        _metadata(text, "vgpr_count"),
        _metadata(text, "vgpr_spill_count"),
        shared_bytes,
        _joined(families),
        _least(widths),
    )


def _loads(lines: Iterable[tuple[str, str]], load: re.Pattern[str]) -> Iterator[re.Match[str]]:
    for file, line in lines:
        if file in KV_FILES and (found := load.search(line)):
            yield found


def _sass_lines(sass: str) -> Iterator[tuple[str, str]]:
    """Each instruction with the file that it comes from."""
    file = ""
    for line in sass.splitlines():
        if found := _SASS_LINE.search(line):
            file = found[1].rpartition("/")[2]
        else:
            yield file, line


def _gcn_lines(text: str) -> Iterator[tuple[str, str]]:
    files: dict[str, str] = {}
    file = ""
    for line in text.splitlines():
        if found := _GCN_FILE.search(line):
            files[found[1]] = found[2].rpartition("/")[2]
        elif found := _GCN_LINE.search(line):
            # File 0 is no file: such instructions are of no line, and go with the ones before.
            file = files.get(found[1], file)
        else:
            yield file, line


def _sass_width(modifiers: str) -> int:
    found = [_SASS_WIDTHS[word] for word in modifiers.split(".") if word in _SASS_WIDTHS]
    return found[0] if found else 4


def _gcn_width(kind: str) -> int:
    # A "d16" load has one half of a register: the name before it says how much.
    name = kind.split("_")[0]
    if name not in _GCN_WIDTHS:
        raise ValueError(f"a load of unknown width: {kind}")
    return _GCN_WIDTHS[name]


def _metadata(text: str, name: str) -> int:
    found = re.search(rf"^\s*\.{name}:\s*(\d+)", text, flags=re.MULTILINE)
    if found is None:
        raise ValueError(f"the assembly has no .{name}")
    return int(found[1])


def _joined(families: set[str]) -> str | None:
    return "+".join(sorted(families)) or None


def _least(widths: list[int]) -> int | None:
    return min(widths, default=None)
