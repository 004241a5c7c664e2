"""The compiled kernels: found, loaded, made known to XLA."""

import ctypes
import functools
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from paged.backends.cpu.build import HOW, LIBRARY, SOURCES, digest


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded library.

    Attributes:
        attend: the name under which XLA knows the attention.
        write: the name of the write.
        paths: the kinds of kernels that this machine runs, the fastest first.
    """

    attend: str
    write: str
    paths: tuple[str, ...]


@functools.cache
def load_library(where: Path = LIBRARY) -> Library | str:
    """The library, or why there is none."""
    if not where.exists():
        return f"its library is not built ({HOW})"
    try:
        loaded = ctypes.CDLL(str(where))
    except OSError as error:
        return f"its library cannot be loaded: {error} (build it here: {HOW})"
    built_from = _text(loaded.paged_cpu_digest)()
    # An installed package may have come without its sources.
    if where == LIBRARY and SOURCES.exists() and built_from != digest():
        return f"its library was built from other sources ({HOW})"
    loaded.paged_cpu_api.restype = ctypes.c_int64
    built_for, here = loaded.paged_cpu_api(), _api_version()
    # JAX only notes a handler until it starts its CPU, which then fails as a whole.
    if built_for // 1000 != here // 1000 or built_for > here:
        return (
            f"its library was built for XLA's calls {_version(built_for)}, this jaxlib has "
            f"{_version(here)} ({HOW})"
        )
    # A second library in this process has names of its own.
    mark = "" if where == LIBRARY else "_" + hashlib.sha256(str(where).encode()).hexdigest()[:12]
    names = {call: f"paged_cpu_{call}{mark}" for call in ("attend", "write")}
    for call, name in names.items():
        handler = jax.ffi.pycapsule(getattr(loaded, f"paged_cpu_{call}"))
        jax.ffi.register_ffi_target(name, handler, platform="cpu")
    path = _text(loaded.paged_cpu_path)
    paths: list[str] = []
    while name := path(ctypes.c_int64(len(paths))):
        paths.append(name)
    return Library(names["attend"], names["write"], tuple(paths))


def _text(function: Any) -> Callable[..., str | None]:
    """A function of the library that returns text, or None."""
    function.restype = ctypes.c_char_p
    return lambda *arguments: None if (text := function(*arguments)) is None else text.decode()


def _api_version() -> int:
    """The version of XLA's calls that this jaxlib has, as `paged_cpu_api` says it."""
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_text()
    major, minor = (
        int(re.search(rf"#define XLA_FFI_API_{part} (\d+)", header)[1])  # pyright: ignore[reportOptionalSubscript]
        for part in ("MAJOR", "MINOR")
    )
    return major * 1000 + minor


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000}"
