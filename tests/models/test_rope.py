"""Rotary embedding: by hand, then what must hold for any rotation, then the stretched forms."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from paged.models.rope import RopeConfig, inverse_frequencies, rotate, rotation


def turned(x, position, frequencies):
    cos, sin = rotation(jnp.array([position]), np.asarray(frequencies, np.float32))
    return np.asarray(rotate(jnp.asarray(x, jnp.float32)[None, None], cos, sin))[0, 0]


def test_a_rotation_worked_by_hand():
    # head_dim 4 has pairs (0, 2) and (1, 3). At position 1 with frequencies pi/2 and pi the first
    # pair makes a quarter turn, (1, 3) -> (-3, 1), the second half a turn, (2, 4) -> (-2, -4).
    out = turned([1, 2, 3, 4], 1, [math.pi / 2, math.pi])
    np.testing.assert_allclose(out, [-3, -2, 1, -4], atol=1e-6)


def test_frequencies_worked_by_hand():
    # theta 100, head_dim 4: 100^0 and 100^(-2/4).
    frequencies = inverse_frequencies(RopeConfig(theta=100.0), 4)
    np.testing.assert_allclose(frequencies, [1.0, 0.1], rtol=1e-6)
    assert frequencies.dtype == np.float32


def test_position_zero_changes_nothing():
    np.testing.assert_array_equal(turned([1, 2, 3, 4], 0, [1.0, 0.1]), [1, 2, 3, 4])


def test_scores_depend_on_the_distance_only():
    frequencies = inverse_frequencies(RopeConfig(), 8)
    query, key = np.arange(8) - 3.0, np.arange(8)[::-1] / 4
    near = turned(query, 9, frequencies) @ turned(key, 4, frequencies)
    far = turned(query, 109, frequencies) @ turned(key, 104, frequencies)
    assert near == pytest.approx(far, abs=1e-3)


def test_linear_scaling_divides_every_frequency():
    plain = inverse_frequencies(RopeConfig(), 16)
    stretched = inverse_frequencies(RopeConfig(rope_type="linear", factor=4.0), 16)
    np.testing.assert_allclose(stretched, plain / 4, rtol=1e-6)


def test_llama3_scaling_worked_by_hand():
    # Original context 100 with theta 10^4, head_dim 4: frequencies 1 and 0.01, that is 100/(2 pi)
    # = 15.9 and 0.159 turns in the original context. 15.9 is above high 4: kept. 0.159 is below
    # low 1: divided by 8.
    rope = RopeConfig(rope_type="llama3", factor=8.0, original_max_position_embeddings=100)
    np.testing.assert_allclose(inverse_frequencies(rope, 4), [1.0, 0.01 / 8], rtol=1e-6)
    # theta 1 makes every frequency 1, which is 2.5 turns in a context of 5 pi: half way up the ramp
    # from 1 to 4, so the mean of kept and divided, (1 + 1/8) / 2. The context is a whole number:
    # 16 instead of 15.7 gives (16 / 2 pi - 1) / 3 = 0.5155 kept.
    rope = RopeConfig(
        theta=1.0, rope_type="llama3", factor=8.0, original_max_position_embeddings=16
    )
    ramp = 0.5155 + (1 - 0.5155) / 8
    np.testing.assert_allclose(inverse_frequencies(rope, 4), [ramp, ramp], rtol=1e-4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rope_type", "longrope"),
        ("theta", 0.0),
        ("factor", -1.0),
        ("high_freq_factor", 1.0),
        ("original_max_position_embeddings", 0),
    ],
)
def test_fields_out_of_range_are_named(field, value):
    with pytest.raises(ValueError, match=rf"{field}: got {value!r}"):
        RopeConfig(**{field: value})
