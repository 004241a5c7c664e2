"""Finds the backends to test: those that this host can run, or the ones asked for by name."""

import os
import sys
from collections.abc import Iterable
from typing import Any

import jax

from paged.backends import Unavailable, backend_names, import_backend, load_backend
from paged.backends.registry import default_target
from paged.conformance.subject import Subject, quick_options


def find_backend(name: str, *, interpret: bool = False) -> Any:
    """The backend of a listed name, or at "package.module:Class", ready to run on this host.

    Modules of the current folder are found, as `python -m` finds them.

    Args:
        name: which one.
        interpret: run its kernels by its interpreter, see `interpreted`.

    Raises:
        ValueError: no such backend, one that this host cannot run, or one without an interpreter.
    """
    backend = _load(name)
    if isinstance(backend, Unavailable):
        raise ValueError(f"backend: {name} cannot be tested here: {backend.reason}")
    if interpret:
        return interpreted(backend, name)
    if reason := host_reason(backend):
        raise ValueError(f"backend: {name} cannot be tested here: {reason}")
    return backend


def usable_backends(
    *, interpret: bool = False, names: Iterable[str] | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Every listed backend that this host can run, and why not for each of the others."""
    usable: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for name in backend_names() if names is None else names:
        try:
            usable[name] = find_backend(name, interpret=interpret)
        except ValueError as error:
            left_out[name] = str(error).rpartition(" cannot be tested here: ")[2]
    return usable, left_out


def interpreted(backend: Any, name: str) -> Any:
    """The backend with its kernels run by an interpreter, so that any host can test them.

    A backend for hardware offers it as a method `interpreted()`, which gives such a backend. One
    that runs on any device, or on the CPU, has nothing to interpret and is given back.

    Raises:
        ValueError: the backend needs hardware and has no such method.
    """
    if hasattr(backend, "interpreted"):
        return backend.interpreted()
    if has_nothing_to_interpret(backend):
        return backend
    raise ValueError(
        f"interpret: backend {name} runs on {backend.platform} and has no interpreter, expected "
        "one with a method interpreted()"
    )


def subject_of(backend: Any, *, target: str | None = None, full: bool = False) -> Subject:
    """The backend as the command and the pytest plugin test it.

    On a CPU, compiling is nearly all of a run's time, so that code is compiled with few
    optimisations: xla on one layout takes 39 s of CPU time instead of 91 s, with the same errors
    (jax 0.10.2, two cores, 2026-11-30). With `full` it is compiled as users compile it.
    """
    is_quick = not full and jax.default_backend() == "cpu"
    return Subject(backend, target=target, compiler_options=quick_options() if is_quick else None)


def has_nothing_to_interpret(backend: Any) -> bool:
    """Whether it needs no hardware but the host's CPU, and so no interpreter."""
    return not hasattr(backend, "interpreted") and backend.platform in ("any", "cpu")


def host_reason(backend: Any) -> str:
    """Why this host cannot run the backend; empty where it can."""
    platform = backend.platform
    host = _host(getattr(backend, "arrays", "jax"))
    if platform in ("any", host):
        return ""
    hint = ", try --interpret" if hasattr(backend, "interpreted") else ""
    return f"runs on {platform}, this host has {host}{hint}"


def _host(arrays: str) -> str:
    """The platform on which a library's arrays lie by default."""
    if arrays == "numpy":
        return "cpu"
    if arrays == "torch":
        import torch

        if not torch.cuda.is_available():
            return "cpu"
        return "rocm" if torch.version.hip else "cuda"
    return default_target()


def find_in_current_folder() -> None:
    """Lets modules of the current folder be imported, as `python -m` does."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def _load(name: str) -> Any:
    try:
        if ":" not in name:
            return load_backend(name)
        find_in_current_folder()
        return import_backend(name)
    except TypeError as error:
        # What is found under the name is no backend: the caller's mistake.
        raise ValueError(str(error)) from error
