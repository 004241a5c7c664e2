"""Compiles the kernels: `python -m paged.backends.cpu.build`.

`pip install` does the same, where there is a compiler. The sources are compiled once for each kind
of processor and linked into one library, which chooses when it is loaded. It knows neither Python
nor numpy, so that one library serves every Python of a source tree; XLA calls it through the
headers that jaxlib brings. A jaxlib takes what was compiled with its own headers or older ones.

Only the standard library is used here: `setup.py` loads this file before anything is installed.
"""

import argparse
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCES = FOLDER / "src"
LIBRARY = FOLDER / "libpaged_cpu.so"

HOW = "python -m paged.backends.cpu.build, with a C++17 compiler such as g++ 12 or newer"
"""How to get the library, for messages."""

_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-ffp-contract=fast",
)
_WARNINGS = ("-Wall", "-Wextra", "-Wno-psabi", "-Wno-maybe-uninitialized")
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")

Paths = Mapping[str, tuple[int, tuple[str, ...]]]
"""By name: floats in a vector, and the compiler's flags."""

_EVERYWHERE: Paths = {"baseline": (4, ()), "scalar": (1, ())}
"""What every processor of a family has: SSE2, or NEON. One number at a time proves the rest."""

_ON_X86: Paths = {
    "avx512_bf16": (16, (*_AVX512, "-mavx512bf16")),
    "avx512": (16, _AVX512),
    "avx2": (8, _AVX2),
}


class BuildError(RuntimeError):
    """There is no library, and the message says why."""


def paths_here() -> Paths:
    """What is compiled on this machine, the fastest first."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return {**_ON_X86, **_EVERYWHERE} if is_x86 else _EVERYWHERE


def digest(sources: Path = SOURCES) -> str:
    """Tells libraries of other sources from one of these."""
    found = hashlib.sha256()
    for path in sorted(sources.iterdir()):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def build(
    output: Path = LIBRARY,
    *,
    sources: Path = SOURCES,
    paths: Iterable[str] | None = None,
    flags: Iterable[str] = (),
) -> Path:
    """Compiles and links the library.

    Args:
        output: where it goes; replaced only by one that is complete.
        sources: folder of the sources.
        paths: which kinds of processors; all of `paths_here` by default, "scalar" always.
        flags: for every compilation, after the usual ones.

    Raises:
        BuildError: no compiler, no headers, or what the compiler says.
    """
    compiler, include = find_compiler(), _include()
    here = paths_here()
    chosen = list(here) if paths is None else list(dict.fromkeys([*paths, "scalar"]))
    if unknown := [name for name in chosen if name not in here]:
        raise BuildError(f"paths: got {unknown[0]!r}, expected some of {', '.join(here)}")
    common = [compiler, *_FLAGS, *_WARNINGS, "-isystem", str(include), *flags, "-pthread"]
    known = [f"-DPAGED_HAS_{name}" for name in chosen]
    known.append(f'-DPAGED_DIGEST="{digest(sources)}"')
    with tempfile.TemporaryDirectory(prefix="paged-cpu-") as folder:
        commands = {
            Path(folder, f"{name}.o"): [
                *(*common, *own, f"-DPAGED_PATH={name}", f"-DPAGED_LANES={lanes}"),
                *("-c", str(sources / "kernels.cc")),
            ]
            for name, (lanes, own) in here.items()
            if name in chosen
        }
        for name in ("handlers", "schedule", "paths"):
            source = str(sources / f"{name}.cc")
            commands[Path(folder, f"{name}.o")] = [*common, *known, "-c", source]
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            for done in [
                pool.submit(_run, [*command, "-o", str(target)])
                for target, command in commands.items()
            ]:
                done.result()
        linked = Path(folder, "linked.so")
        _run([*common, "-shared", *map(str, commands), "-o", str(linked)])
        output.parent.mkdir(parents=True, exist_ok=True)
        # Beside the target, so that replacing it is one step: another process may load it.
        beside = output.with_name(f".{output.name}.{os.getpid()}")
        shutil.copyfile(linked, beside)
        os.replace(beside, output)
    return output


def find_compiler() -> str:
    """The C++ compiler: what CXX names, or the first that is here.

    Raises:
        BuildError: there is none.
    """
    asked = os.environ.get("CXX")
    for name in (asked,) if asked else _COMPILERS:
        if found := shutil.which(name):
            return found
    wanted = f"CXX names {asked!r}" if asked else f"none of {', '.join(_COMPILERS)} is here"
    raise BuildError(f"compiler: {wanted}, expected a C++17 compiler such as g++ 12 or newer")


def _include() -> Path:
    """The folder of XLA's headers, without importing jaxlib."""
    spec = importlib.util.find_spec("jaxlib")
    for place in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(place, "include")
        if (folder / "xla" / "ffi" / "api" / "ffi.h").exists():
            return folder
    raise BuildError("headers: jaxlib is not installed, expected it for xla/ffi/api/ffi.h")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stderr.strip()}")


def main() -> None:
    """Builds the library into the package."""
    argparse.ArgumentParser(prog="python -m paged.backends.cpu.build", description=HOW).parse_args()
    try:
        where = build()
    except BuildError as error:
        sys.exit(f"paged.backends.cpu: {error}")
    print(f"built {where} for {', '.join(paths_here())}")


if __name__ == "__main__":
    main()
