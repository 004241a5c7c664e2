"""The index of the largest score, in parts."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paged.engine.sampler import first_largest


def test_by_hand():
    # Nine options are three parts of three; five, a prime number, are one.
    scores = jnp.asarray([[0, 1, 2, 5, 3, 5, 4, 5, 0], [7, 0, 0, 0, 0, 0, 0, 0, 7]], jnp.float32)
    assert first_largest(scores).tolist() == [3, 0]
    assert first_largest(scores[:, 4:]).tolist() == [1, 4]
    assert first_largest(jnp.full((1, 9), -jnp.inf)).tolist() == [0]


def test_nan_gives_an_index_that_there_is():
    scores = jnp.zeros((2, 12)).at[0, 3].set(jnp.nan).at[1].set(jnp.nan)
    assert first_largest(scores).max() <= 11


@given(
    options=st.sampled_from([1, 2, 7, 12, 257]),
    rows=st.sampled_from([1, 3]),
    levels=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
)
def test_as_argmax(options, rows, levels, seed):
    """Few levels make many equals."""
    scores = np.random.default_rng(seed).integers(0, levels, (rows, options)).astype(np.float32)
    found = jax.jit(first_largest)(scores)
    assert found.dtype == jnp.int32
    assert found.tolist() == scores.argmax(axis=-1).tolist()
