"""Merging states: by hand, at the edges, and against attention in one pass."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged import AttentionOutput, merge_states

XP = pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])


def state(xp, out, lse):
    """One token, one head, values of width len(out)."""
    return AttentionOutput(xp.asarray([[out]], xp.float32), xp.asarray([[lse]], xp.float32))


def attend(xp, logits, values):
    """Plain attention of one query in fp64, as a state."""
    logits, values = np.asarray(logits, np.float64), np.asarray(values, np.float64)
    peak = logits.max()
    weights = np.exp(logits - peak)
    return state(xp, weights @ values / weights.sum(), peak + np.log(weights.sum()))


@XP
def test_two_keys_by_hand(xp):
    # Weights 3 and 1: lse log 3 and log 1, out (3 * 4 + 1 * 8) / 4.
    merged = merge_states(state(xp, [4.0], np.log(3.0)), state(xp, [8.0], 0.0))
    np.testing.assert_allclose(merged.out, [[[5.0]]], rtol=1e-6)
    np.testing.assert_allclose(merged.lse, [[np.log(4.0)]], rtol=1e-6)
    assert isinstance(merged.out, np.ndarray if xp is np else jnp.ndarray)


@XP
@pytest.mark.parametrize("empty_first", [True, False])
def test_an_empty_state_changes_nothing(xp, empty_first):
    empty, full = state(xp, [0.0, 0.0], -np.inf), state(xp, [1.5, -2.0], -3.25)
    merged = merge_states(empty, full) if empty_first else merge_states(full, empty)
    np.testing.assert_array_equal(merged.out, full.out)
    np.testing.assert_array_equal(merged.lse, full.lse)


@XP
def test_two_empty_states_are_empty(xp):
    empty = state(xp, [0.0, 0.0], -np.inf)
    merged = merge_states(empty, empty)
    np.testing.assert_array_equal(merged.out, empty.out)
    np.testing.assert_array_equal(merged.lse, empty.lse)


@XP
def test_rows_are_merged_each_for_itself(xp):
    out = xp.asarray([[[1.0], [2.0]], [[3.0], [0.0]]], xp.float32)
    other = xp.asarray([[[5.0], [0.0]], [[7.0], [9.0]]], xp.float32)
    lse = xp.asarray([[0.0, 1.0], [2.0, -np.inf]], xp.float32)
    other_lse = xp.asarray([[0.0, -np.inf], [2.0, 4.0]], xp.float32)
    merged = merge_states(AttentionOutput(out, lse), AttentionOutput(other, other_lse))
    np.testing.assert_allclose(merged.out[..., 0], [[3.0, 2.0], [5.0, 9.0]], rtol=1e-6)
    expected = [[np.log(2.0), 1.0], [2 + np.log(2.0), 4.0]]
    np.testing.assert_allclose(merged.lse, expected, rtol=1e-6)


@XP
def test_logits_far_from_zero_do_not_overflow(xp):
    merged = merge_states(state(xp, [1.0], 8000.0), state(xp, [3.0], 8000.0))
    np.testing.assert_allclose(merged.out, [[[2.0]]], rtol=1e-6)
    np.testing.assert_allclose(merged.lse, [[8000 + np.log(2.0)]], rtol=1e-6)
    merged = merge_states(state(xp, [1.0], -8000.0), state(xp, [3.0], 8000.0))
    np.testing.assert_array_equal(merged.out, [[[3.0]]])


@XP
def test_a_long_history_in_two_parts_is_one_pass(xp):
    """Case A.14: 3,072 and 64 keys."""
    rng = np.random.default_rng(0)
    logits, values = 3 * rng.normal(size=3136), rng.normal(size=(3136, 8))
    merged = merge_states(
        attend(xp, logits[:3072], values[:3072]), attend(xp, logits[3072:], values[3072:])
    )
    whole = attend(xp, logits, values)
    np.testing.assert_allclose(merged.out, whole.out, atol=1e-6)
    np.testing.assert_allclose(merged.lse, whole.lse, rtol=1e-6)


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=12), st.data())
def test_any_split_is_one_pass_in_either_order(logits, data):
    cut = data.draw(st.integers(1, len(logits) - 1))
    values = np.random.default_rng(len(logits)).normal(size=(len(logits), 3))
    first = attend(np, logits[:cut], values[:cut])
    second = attend(np, logits[cut:], values[cut:])
    whole = attend(np, logits, values)
    for merged in (merge_states(first, second), merge_states(second, first)):
        np.testing.assert_allclose(merged.out, whole.out, atol=1e-5)
        np.testing.assert_allclose(merged.lse, whole.lse, atol=1e-5)


@XP
def test_the_first_states_dtype_is_kept_and_lse_is_float32(xp):
    first = AttentionOutput(xp.ones((1, 1, 2), jnp.bfloat16), xp.zeros((1, 1), xp.float32))
    second = AttentionOutput(xp.ones((1, 1, 2), xp.float32), xp.zeros((1, 1), xp.float32))
    merged = merge_states(first, second)
    assert (merged.out.dtype, merged.lse.dtype) == (jnp.bfloat16, np.float32)


def test_a_state_without_lse_is_refused():
    full = state(np, [1.0], 0.0)
    with pytest.raises(ValueError, match="lse: got None, expected the log-sum-exp of both"):
        merge_states(full, AttentionOutput(full.out, None))


@pytest.mark.parametrize("name", ["out", "lse"])
def test_shapes_that_differ_are_refused(name):
    full = state(np, [1.0], 0.0)
    other = full._replace(**{name: np.zeros((2, *getattr(full, name).shape[1:]), np.float32)})
    with pytest.raises(ValueError, match=rf"{name}: got shapes \(1, .* and \(2, .* the same"):
        merge_states(full, other)


@XP
@pytest.mark.parametrize("shape", [(1,), (1, 2), (1, 1, 1)])
def test_an_lse_that_is_not_one_number_per_token_and_head_is_refused(xp, shape):
    full = AttentionOutput(xp.ones((1, 1, 2), xp.float32), xp.zeros(shape, xp.float32))
    with pytest.raises(ValueError, match=r"lse: got shape \(1.*, expected \(1, 1\) as in out"):
        merge_states(full, full)
