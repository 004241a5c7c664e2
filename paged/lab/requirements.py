"""What a target's compiler needs, and the command that brings it."""

from importlib.util import find_spec

from paged.lab.targets import Target

_NEEDS = {
    "tpu": (("libtpu", "libtpu"),),
    "cuda": (
        ("jax_cuda13_plugin", "jax-cuda13-plugin"),
        ("jax_plugins.xla_cuda13", "jax-cuda13-pjrt"),
    ),
}


def missing(target: Target) -> tuple[str, ...]:
    """Distributions that must be installed before this target can be compiled for."""
    return tuple(
        distribution for module, distribution in _NEEDS[target.platform] if not _found(module)
    )


def require(target: Target) -> None:
    """Refuses a target whose compiler is not installed.

    Raises:
        ImportError: naming what is missing and the command that installs it.
    """
    if lacking := missing(target):
        raise ImportError(
            f"target {target.name} needs {' and '.join(lacking)}: pip install {' '.join(lacking)}"
        )


def _found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a parent package
        return False
