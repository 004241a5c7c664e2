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


def use_compilation_cache(folder: str | Path = AUTO) -> str | None:
    """Keep what this process compiles from now on, and find what earlier ones kept.

    JAX has one cache for the whole process. Where a folder is set already
    (`jax_compilation_cache_dir`, JAX_COMPILATION_CACHE_DIR), or caching is switched off, that
    stays as it is. Programs that call back into Python are never kept.

    Args:
        folder: made where it is not there; "auto" is `default_folder()`. A URL ("gs://bucket/xla",
            as a string) is JAX's to open: by etils, and what that asks for, gcsfs for example.

    Returns:
        The folder in use; None for none.

    Raises:
        ValueError: no path, or none at which there is or can be a folder, or a URL whose packages
            are not installed.
    """
    # Any: JAX makes the attributes of its settings at run time.
    config: Any = jax.config
    path = _remote(folder) if "://" in str(folder) else _absolute(folder)
    if not config.jax_enable_compilation_cache:
        return None
    if config.jax_compilation_cache_dir:
        return config.jax_compilation_cache_dir
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (ImportError, OSError, ValueError) as error:
        raise _refused(folder, error) from None
    config.update("jax_compilation_cache_dir", str(path))
    if config.jax_persistent_cache_min_compile_time_secs == _JAX_LEAST_SECONDS:
        config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # It looks for its folder once: at the first program, which may have been compiled before.
    compilation_cache.reset_cache()
    return str(path)


def _remote(url: str | Path) -> Any:
    # As JAX does it; etils comes with flax.
    try:
        from etils import epath

        return epath.Path(url)
    except ImportError as error:
        raise _refused(url, error) from None
    except KeyError:
        raise _refused(url, "no kind of URL that etils opens") from None


def _absolute(folder: str | Path) -> Path:
    # The process may go elsewhere before JAX looks.
    if not isinstance(folder, str | Path) or not str(folder):
        raise _refused(folder, "no path")
    try:
        path = default_folder() if folder == AUTO else Path(folder).expanduser().absolute()
        is_file = path.exists() and not path.is_dir()
    except (OSError, RuntimeError, ValueError) as error:
        raise _refused(folder, error) from None
    if is_file:
        raise _refused(folder, "a file")
    return path


def _refused(folder: Any, why: object) -> ValueError:
    return ValueError(
        f"compilation cache: got {str(folder)!r}, expected a folder or URL that can be made, or "
        f"{AUTO!r}: {why}"
    )
