"""Backends to compile: by name, or at package.module:Class, whatever this host can run."""

import sys
from typing import Any

from paged.backends import Backend, Unavailable, backend_names, import_backend, load_backend
from paged.lab.targets import Target


def find_backend(name: str) -> Backend:
    """The backend of a listed name, or at "package.module:Class".

    Raises:
        ValueError: no such backend, or what it needs is not installed.
    """
    if ":" in name:
        # Modules of the current folder are found, as `python -m` finds them.
        if "" not in sys.path:
            sys.path.insert(0, "")
        found: Any = import_backend(name)
    else:
        found = load_backend(name)
    if isinstance(found, Unavailable):
        raise ValueError(f"backend: {name} {found.reason}")
    return found


def backends_for(target: Target) -> list[Backend]:
    """Every listed backend of the target's platform, and those of any platform that JAX has."""
    loaded = [load_backend(name) for name in backend_names()]
    return [
        backend
        for backend in loaded
        if not isinstance(backend, Unavailable)
        and backend.platform in ("any", target.platform)
        # The oracle is numpy: nothing of it can be compiled.
        and backend.name != "reference"
    ]
