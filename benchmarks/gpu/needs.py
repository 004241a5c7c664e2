"""Which modules there must be, so that a bare machine gets one plain line and no traceback.

What `paged.conformance` and both front ends import of third parties, traced 2026-11-30: jax (with
jaxlib and opt_einsum), numpy, ml_dtypes, torch (with filelock, typing_extensions and others),
triton, einops, and jaxtyping (with wadler_lindig). jax_triton (with absl) is for the JAX front end
alone. Nothing else: not flax, rich, typer, safetensors or tokenizers.
"""

import importlib.util
import sys

OF_MACHINE = ("jax", "numpy", "ml_dtypes", "torch", "triton")
OF_SITE = ("einops", "jaxtyping", "wadler_lindig")
"""What `make gpu-site` brings, beside jax_triton."""


def missing() -> list[str]:
    """Names of the modules that cannot be found."""
    return [name for name in OF_MACHINE + OF_SITE if importlib.util.find_spec(name) is None]


def message(names: list[str]) -> str:
    """What to say and do about missing modules."""
    said = []
    if of_site := [name for name in names if name in OF_SITE]:
        said.append(
            f"missing: {', '.join(of_site)}; run `make gpu-site` where there is a network and "
            "bring its folder .gpu-site along, in PYTHONPATH"
        )
    if others := [name for name in names if name not in OF_SITE]:
        said.append(
            f"missing in {sys.executable}: {', '.join(others)}; set PYTHON to one with them"
        )
    return "\n".join(said)
