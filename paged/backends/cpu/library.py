"""The compiled kernels: found, loaded, made known to XLA."""

import ctypes
import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

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
    # A second library in this process has names of its own.
    mark = "" if where == LIBRARY else "_" + hashlib.sha256(str(where).encode()).hexdigest()[:12]
    names = {call: f"paged_cpu_{call}{mark}" for call in ("attend", "write")}
    for call, name in names.items():
        handler = jax.ffi.pycapsule(getattr(loaded, f"paged_cpu_{call}"))
        try:
            jax.ffi.register_ffi_target(name, handler, platform="cpu")
        except Exception as error:  # noqa: BLE001 - jaxlib's kinds of errors differ by version
            return f"its library is not for this jaxlib: {error} (build it here: {HOW})"
    path = _text(loaded.paged_cpu_path)
    paths: list[str] = []
    while name := path(ctypes.c_int64(len(paths))):
        paths.append(name)
    return Library(names["attend"], names["write"], tuple(paths))


def _text(function):
    """A function of the library that returns text, or None."""
    function.restype = ctypes.c_char_p
    return lambda *arguments: None if (text := function(*arguments)) is None else text.decode()
