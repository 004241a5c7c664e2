"""The JAX front end: the same plans, under jit, by callbacks to the interpreter."""

# Without triton there is nothing to import.

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("triton")

from paged.backends.triton.on_jax import TritonJaxBackend
from paged.conformance import run_conformance
from paged.layouts import FLASHINFER, KVCache
from paged.spec import AttentionSpec

BACKEND = TritonJaxBackend(interpret=True)
SPEC = AttentionSpec(num_heads=2, num_kv_heads=1, head_dim=16, scale=0.5)

CHOSEN = {
    "flashinfer": ("batch/mixed", "batch/decode_only", "sinks/mixed", "quantised/float8_e4m3fn"),
    "mla": ("batch/mixed", "quantised/int8"),
}


@pytest.mark.parametrize("layout", CHOSEN)
def test_chosen_cases(layout):
    report = run_conformance(BACKEND, cases=CHOSEN[layout], layouts=[layout])
    assert [str(failure) for failure in report.failures] == []
    assert report.summary["passed"] >= len(CHOSEN[layout])


def test_a_write_leaves_its_argument_alone_where_nothing_is_donated():
    data = jnp.zeros((2, 2, 4, 1, 16))
    rows = jnp.ones((1, 1, 16))
    written = jax.jit(BACKEND.write)(KVCache(data, FLASHINFER), rows, rows, jnp.array([5]))
    assert not data.any()
    np.testing.assert_array_equal(np.asarray(written.data[1, :, 1]), 1.0)
    assert float(written.data.sum()) == 32


def test_without_jax_triton_the_reason_is_told(monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "jax_triton" else real(name)
    )
    reasons = TritonJaxBackend().unsupported(SPEC, FLASHINFER, "cuda")
    assert reasons == ["needs jax-triton, which is not installed (pip install jax-triton)"]
    assert TritonJaxBackend(interpret=True).unsupported(SPEC, FLASHINFER, "cpu") == []


@pytest.mark.full
@pytest.mark.parametrize("layout", [layout.name for layout in BACKEND.layouts])
def test_the_whole_suite(layout):
    report = run_conformance(BACKEND, layouts=[layout])
    assert [str(failure) for failure in report.failures] == []
    assert report.summary["passed"] > 150
