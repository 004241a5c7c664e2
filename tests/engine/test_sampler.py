"""The sampler, by hand and by counting."""

import jax.numpy as jnp
import numpy as np
import pytest

from paged.engine.sampler import RowSampling, likeliest, logprobs_of, sample


def rows(count, *, temperature=1.0, top_p=1.0, top_k=0, seed=0, output_index=None):
    index = np.arange(count) if output_index is None else np.full(count, output_index)
    return RowSampling(
        temperature=jnp.full(count, temperature, jnp.float32),
        top_p=jnp.full(count, top_p, jnp.float32),
        top_k=jnp.full(count, top_k, jnp.int32),
        seed=jnp.asarray(np.tile([[0, seed]], (count, 1)), jnp.uint32),
        output_index=jnp.asarray(index, jnp.int32),
    )


def logits_of(probabilities, count):
    return jnp.tile(jnp.log(jnp.asarray(probabilities, jnp.float32)), (count, 1))


def test_greedy_takes_the_largest_and_the_first_of_equals():
    logits = jnp.asarray([[0.0, 3.0, 1.0], [2.0, 2.0, -1.0]])
    assert sample(logits, None).tolist() == [1, 0]


@pytest.mark.parametrize("is_filtered", [True, False])
def test_temperature_zero_is_greedy_beside_rows_that_are_not(is_filtered):
    logits = logits_of([0.1, 0.2, 0.7], 64)
    mixed = rows(64)._replace(temperature=jnp.asarray([0.0, 5.0] * 32))
    tokens = np.asarray(sample(logits, mixed, is_filtered=is_filtered))
    assert (tokens[0::2] == 2).all()
    assert set(tokens[1::2]) == {0, 1, 2}


@pytest.mark.parametrize("is_filtered", [True, False])
def test_frequencies_follow_the_softmax(is_filtered):
    count, probabilities = 4000, [0.1, 0.2, 0.7]
    tokens = sample(logits_of(probabilities, count), rows(count), is_filtered=is_filtered)
    frequencies = np.bincount(tokens, minlength=3) / count
    # Four standard deviations.
    assert np.abs(frequencies - probabilities).max() < 4 * np.sqrt(0.25 / count)


def test_a_low_temperature_sharpens():
    # 0.4 and 0.6 at temperature 1/8: (0.6 / 0.4) ** 8 = 25.6 to one.
    tokens = sample(logits_of([0.4, 0.6], 1000), rows(1000, temperature=0.125))
    assert 0.92 < np.mean(np.asarray(tokens)) < 0.99


def test_top_k_keeps_exactly_k_even_of_equals():
    tokens = sample(jnp.zeros((500, 5)), rows(500, top_k=2))
    assert set(np.asarray(tokens)) == {0, 1}


def test_top_k_beyond_the_vocabulary_keeps_all():
    tokens = sample(jnp.zeros((500, 3)), rows(500, top_k=50))
    assert set(np.asarray(tokens)) == {0, 1, 2}


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.45, {2}), (0.55, {2, 0}), (0.85, {2, 0, 3}), (1.0, {0, 1, 2, 3})]
)
def test_top_p_keeps_the_fewest_that_reach_it(top_p, kept):
    tokens = sample(logits_of([0.3, 0.05, 0.5, 0.15], 2000), rows(2000, top_p=top_p))
    assert set(np.asarray(tokens)) == kept


def test_top_p_counts_what_top_k_left():
    # Of 0.5 and 0.3 the first is 0.625: enough for 0.6, though not of the whole.
    tokens = sample(logits_of([0.3, 0.05, 0.5, 0.15], 500), rows(500, top_p=0.6, top_k=2))
    assert set(np.asarray(tokens)) == {2}


def test_a_row_without_filters_draws_the_same_in_either_form():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(200, 40)), jnp.float32)
    plain = sample(logits, rows(200), is_filtered=False)
    assert plain.tolist() == sample(logits, rows(200), is_filtered=True).tolist()


def test_a_token_depends_on_its_seed_and_index_and_not_on_its_row():
    logits = jnp.tile(jnp.asarray(np.random.default_rng(1).normal(size=50), jnp.float32), (30, 1))
    forward = sample(logits, rows(30, seed=7)).tolist()
    turned = rows(30, seed=7)._replace(output_index=jnp.arange(29, -1, -1))
    assert sample(logits, turned).tolist() == forward[::-1]
    assert sample(logits, rows(30, seed=8)).tolist() != forward
    high = rows(30)._replace(seed=jnp.asarray([[1, 7]] * 30, jnp.uint32))
    assert sample(logits, high).tolist() != forward


def test_the_likeliest_tokens_in_order_of_equals_the_smaller_first():
    logits = jnp.log(jnp.asarray([[0.1, 0.4, 0.1, 0.4], [0.7, 0.1, 0.1, 0.1]]))
    logprobs, tokens = likeliest(logits + 3.0, 3)
    assert tokens.tolist() == [[1, 3, 0], [0, 1, 2]]
    assert np.allclose(np.exp(logprobs), [[0.4, 0.4, 0.1], [0.7, 0.1, 0.1]])
    # No more than there are.
    assert likeliest(logits, 8)[1].shape == (2, 4)


def test_a_tokens_log_probability_by_hand():
    """Logits ln 1, ln 2, ln 5 and a shift: probabilities 1/8, 2/8 and 5/8."""
    logits = np.log(np.float32([[1, 2, 5], [1, 2, 5]])) + np.float32([[0], [700]])
    np.testing.assert_allclose(
        logprobs_of(logits, np.int32([2, 0])), np.log([5 / 8, 1 / 8]), rtol=1e-4
    )
