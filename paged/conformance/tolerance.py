"""How far from the oracle a result may lie: never a fixed distance.

A token's error may be twice that of the plain computation of the same token, plus a floor for
tokens that the plain computation happens to hit exactly. Fixed absolute tolerances wide enough
for every case (0.15 in public suites) let "window ignored" and "scale * 0.9" pass.
"""

import numpy as np
from jaxtyping import Float

from paged.dtypes import is_quantized

_FACTOR = 2.0
_FLOOR = {"float32": 1e-5, "bfloat16": 1e-3, "float16": 1e-3}
_QUANTIZED = 4.0


def floor(dtype: str, cache_dtype: str) -> float:
    """What is allowed beyond the plain computation's error, for results of magnitude 1."""
    return _FLOOR[dtype] * (_QUANTIZED if is_quantized(cache_dtype) else 1.0)


def allowed(
    plain: Float[np.ndarray, "T ..."],
    exact: Float[np.ndarray, "T ..."],
    *,
    dtype: str,
    cache_dtype: str,
) -> Float[np.ndarray, " T"]:
    """The largest absolute error of each token.

    Args:
        plain: result of the plain computation.
        exact: result of the oracle.
        dtype: of the queries.
        cache_dtype: storage type.
    """
    exact, plain = (_finite(array).reshape(len(array), -1) for array in (exact, plain))
    error = np.abs(plain - exact)
    # Results beyond 1 have errors in proportion (a v_scale of 4, an lse of 46,000).
    magnitude = np.maximum(1.0, np.abs(exact).max(axis=1, initial=0))
    return _FACTOR * error.max(axis=1, initial=0) + floor(dtype, cache_dtype) * magnitude


def _finite(array: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Rows without keys have lse -inf on both sides: no error there."""
    array = array.astype(np.float64)
    return np.where(np.isfinite(array), array, 0)
