"""The kernels by name. They are imported when one is first launched, and triton with them."""

from typing import Any


def load_kernels() -> dict[str, Any]:
    """All kernels, by the names that a `Launch` gives them."""
    from paged.backends.triton.kernels.decode import decode
    from paged.backends.triton.kernels.prefill import prefill
    from paged.backends.triton.kernels.reduce import reduce
    from paged.backends.triton.kernels.write import write

    return {"decode": decode, "prefill": prefill, "reduce": reduce, "write": write}


def kernel_of(name: str) -> Any:
    """The kernel that a `Launch` names."""
    return load_kernels()[name]
