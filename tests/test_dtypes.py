"""One name for a type in three libraries."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from paged.dtypes import (
    COMPUTE_DTYPES,
    STORAGE_DTYPES,
    dtype_name,
    is_quantized,
    largest_finite,
    storage_dtype,
)


@pytest.mark.parametrize("name", STORAGE_DTYPES)
def test_numpy_and_jax_use_the_name(name):
    assert dtype_name(storage_dtype(name)) == name
    assert dtype_name(jnp.zeros(1, storage_dtype(name)).dtype) == name


@pytest.mark.parametrize("name", STORAGE_DTYPES)
def test_torch_uses_the_name(name):
    torch = pytest.importorskip("torch", reason="torch is not installed in this lane")
    assert dtype_name(getattr(torch, name)) == name


def test_a_scalar_type_has_the_name_of_its_dtype():
    assert dtype_name(np.float16) == "float16"
    assert dtype_name(jnp.bfloat16) == "bfloat16"
    assert dtype_name(ml_dtypes.float8_e4m3fn) == "float8_e4m3fn"


def test_one_byte_types_are_quantised():
    quantised = {name for name in STORAGE_DTYPES if is_quantized(name)}
    assert quantised == {"float8_e4m3fn", "float8_e5m2", "int8"}
    assert quantised.isdisjoint(COMPUTE_DTYPES)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("int8", 127.0), ("float8_e4m3fn", 448.0), ("float8_e5m2", 57344.0), ("float16", 65504.0)],
)
def test_largest_finite(name, expected):
    assert largest_finite(name) == expected


def test_an_unknown_type_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"dtype: got 'float4', expected one of float32, .*int8"):
        storage_dtype("float4")
