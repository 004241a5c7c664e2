"""Compiled programs kept on disk, by JAX's own cache, for whoever asks for it."""

import os
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

AUTO = "auto"
"""The folder that `default_folder` gives."""

# JAX's own default. A step of a small model compiles in less.
_JAX_LEAST_SECONDS = 1.0


def default_folder() -> Path:
    """`paged/xla` in the user's folder for caches (XDG)."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    # By the XDG specification a path that is not absolute is to be passed over.
    return (Path(root) if Path(root).is_absolute() else Path.home() / ".cache") / "paged" / "xla"


def use_compilation_cache(folder: str | Path = AUTO) -> Path | None:
    """Keep what this process compiles from now on, and find what earlier ones kept.

    JAX has one cache for the whole process. Where a folder is set already
    (`jax_compilation_cache_dir`, JAX_COMPILATION_CACHE_DIR), or caching is switched off, that
    stays as it is. Programs that call back into Python are never kept.

    Args:
        folder: made when something is kept; "auto" is `default_folder()`.

    Returns:
        The folder in use; None for none.

    Raises:
        ValueError: the folder is a file.
    """
    # Any: JAX makes the attributes of its settings at run time.
    config: Any = jax.config
    path = default_folder() if folder == AUTO else Path(folder).expanduser()
    if path.exists() and not path.is_dir():
        raise ValueError(f"compilation cache: got the file {path}, expected a folder or {AUTO!r}")
    if not config.jax_enable_compilation_cache:
        return None
    if config.jax_compilation_cache_dir:
        return Path(config.jax_compilation_cache_dir)
    config.update("jax_compilation_cache_dir", str(path))
    if config.jax_persistent_cache_min_compile_time_secs == _JAX_LEAST_SECONDS:
        config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # It looks for its folder once: at the first program, which may have been compiled before.
    compilation_cache.reset_cache()
    return path
