"""The parts by hand, then what the whole must do for its caller."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from paged.models import DenseAttention, ModelConfig, RopeConfig, Transformer
from paged.models.layers import RMSNorm
from paged.spec import AttentionSpec


def small_config(**overrides):
    fields = {
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
    }
    return ModelConfig(**{**fields, **overrides})


def small_model(**overrides):
    return Transformer(small_config(**overrides), rngs=nnx.Rngs(0))


def test_rms_norm_worked_by_hand():
    # Mean square of (3, 4, 0, 0) is 25/4, its root 2.5: (1.2, 1.6, 0, 0), then the weights.
    norm = RMSNorm(4, 0.0, dtype=jnp.float32)
    norm.weight[...] = jnp.array([1.0, 10.0, 1.0, 1.0])
    np.testing.assert_allclose(norm(jnp.array([[3.0, 4.0, 0.0, 0.0]])), [[1.2, 16.0, 0.0, 0.0]])


def test_rms_norm_with_an_offset_worked_by_hand():
    # As above, but the weights are what the factors differ from 1.
    norm = RMSNorm(4, 0.0, offset=1.0, dtype=jnp.float32)
    np.testing.assert_allclose(norm(jnp.array([[3.0, 4.0, 0.0, 0.0]])), [[1.2, 1.6, 0.0, 0.0]])
    norm.weight[...] = jnp.array([0.0, 9.0, 0.0, 0.0])
    np.testing.assert_allclose(norm(jnp.array([[3.0, 4.0, 0.0, 0.0]])), [[1.2, 16.0, 0.0, 0.0]])


def test_a_layer_with_a_window_turns_by_its_own_rope():
    # Frequencies of a base of 1 are all 1: two positions on, each pair has turned by 2.
    config = small_config(windows=(4, None), window_rope=RopeConfig(1.0))
    model, keys = Transformer(config, rngs=nnx.Rngs(0)), []

    def attention(layer, query, key, value, *, sinks=None):
        keys.append(np.asarray(key))
        return jnp.zeros_like(query)

    model(jnp.array([3, 3]), jnp.array([0, 2]), attention)
    first, second = (half.reshape(2, 2, 2, 4) for half in (keys[0], keys[1]))
    for turned, frequencies in ((first, np.ones(4)), (second, 1e4 ** -(np.arange(4) / 4))):
        (real, imaginary), (cos, sin) = turned[0].swapaxes(0, 1), (np.cos, np.sin)
        expected = np.stack(
            [
                real * cos(2 * frequencies) - imaginary * sin(2 * frequencies),
                imaginary * cos(2 * frequencies) + real * sin(2 * frequencies),
            ],
            axis=1,
        )
        np.testing.assert_allclose(turned[1], expected, atol=1e-5)


def test_rms_norm_of_zeros_is_zero_not_nan():
    norm = RMSNorm(3, 1e-6, dtype=jnp.bfloat16)
    np.testing.assert_array_equal(norm(jnp.zeros((1, 3), jnp.bfloat16)), jnp.zeros((1, 3)))


def test_dense_attention_worked_by_hand():
    # One head of width 1, scale 1, keys 0 and ln 3: the second token weighs them 1/4 and 3/4.
    attention = DenseAttention([AttentionSpec(1, 1, 1, scale=1.0)])
    key = jnp.array([0.0, np.log(3.0)])[:, None, None]
    out = attention(0, jnp.ones((2, 1, 1)), key, jnp.array([4.0, 8.0])[:, None, None])
    np.testing.assert_allclose(np.asarray(out)[:, 0, 0], [4.0, 7.0], rtol=1e-6)


def test_dense_attention_sink_joins_the_denominator_only():
    # A sink of ln 1 = 0 beside one key of logit 0: half of the value is left.
    attention = DenseAttention([AttentionSpec(1, 1, 1, scale=1.0, has_sinks=True)])
    zero = jnp.zeros((1, 1, 1))
    out = attention(0, zero, zero, zero + 6.0, sinks=jnp.zeros(1))
    np.testing.assert_allclose(np.asarray(out), [[[3.0]]])
    with pytest.raises(ValueError, match="sinks: none, but layer 0 has has_sinks=True"):
        attention(0, zero, zero, zero)


def test_dense_attention_window_counts_the_token_itself():
    attention = DenseAttention([AttentionSpec(1, 1, 1, scale=1.0, window=2)])
    zeros = jnp.zeros((4, 1, 1))
    out = attention(0, zeros, zeros, jnp.array([1.0, 3.0, 5.0, 7.0])[:, None, None])
    np.testing.assert_allclose(np.asarray(out)[:, 0, 0], [1.0, 2.0, 4.0, 6.0])


def test_dense_attention_soft_cap_bounds_the_logits():
    # Logits 0 and 1e6 capped at ln 3 weigh 1/4 and 3/4.
    attention = DenseAttention([AttentionSpec(1, 1, 1, scale=1.0, soft_cap=float(np.log(3.0)))])
    key = jnp.array([0.0, 1e6])[:, None, None]
    out = attention(0, jnp.ones((2, 1, 1)), key, jnp.array([4.0, 8.0])[:, None, None])
    np.testing.assert_allclose(np.asarray(out)[1, 0, 0], 7.0, rtol=1e-6)


def test_query_heads_read_their_groups_key_head():
    # 4 query heads over 2 KV heads and one token: heads 0, 1 return value 0, heads 2, 3 value 1.
    attention = DenseAttention([AttentionSpec(4, 2, 1, scale=1.0)])
    value = jnp.array([[[10.0], [20.0]]])
    out = attention(0, jnp.ones((1, 4, 1)), jnp.ones((1, 2, 1)), value)
    np.testing.assert_array_equal(np.asarray(out)[0, :, 0], [10.0, 10.0, 20.0, 20.0])


def test_attention_is_called_once_per_layer_with_the_specs_shapes():
    model, calls = small_model(windows=(None, 3)), []

    def attention(layer, query, key, value, *, sinks=None):
        calls.append((layer, query.shape, key.shape, value.shape, sinks))
        return jnp.zeros_like(query)

    hidden = model(jnp.arange(5), jnp.arange(5), attention)
    shapes = ((5, 4, 8), (5, 2, 8), (5, 2, 8), None)
    assert calls == [(0, *shapes), (1, *shapes)]
    assert hidden.shape == (5, 32)
    assert [spec.window for spec in model.attention_specs] == [None, 3]
    assert model.attention_specs[0].scale == pytest.approx(8**-0.5)


def test_later_tokens_do_not_reach_earlier_ones():
    model = small_model()
    attention = DenseAttention(model.attention_specs)
    one = model(jnp.array([1, 2, 3, 4]), jnp.arange(4), attention)
    other = model(jnp.array([1, 2, 3, 9]), jnp.arange(4), attention)
    np.testing.assert_array_equal(one[:3], other[:3])
    assert not np.array_equal(one[3], other[3])


def test_positions_come_from_the_caller():
    # Rotation sees distances only, so a shifted sequence gives the same hidden states.
    model = small_model()
    attention = DenseAttention(model.attention_specs)
    tokens = jnp.array([1, 2, 3, 4])
    start, later = (model(tokens, jnp.arange(4) + shift, attention) for shift in (0, 40))
    np.testing.assert_allclose(start, later, atol=1e-4)


@pytest.mark.parametrize("tied", [True, False])
def test_bfloat16_parameters_keep_fp32_logits(tied):
    config = small_config(tie_word_embeddings=tied)
    model = Transformer(config, rngs=nnx.Rngs(0), dtype=jnp.bfloat16)
    hidden = model(jnp.arange(3), jnp.arange(3), DenseAttention(model.attention_specs))
    assert model.dtype == hidden.dtype == jnp.bfloat16
    assert model.logits(hidden).dtype == jnp.float32
    assert model.logits(hidden).shape == (3, 50)
    assert (model.head is None) == tied


def test_vmap_makes_a_batch():
    model = small_model()
    attention = DenseAttention(model.attention_specs)
    batch = jnp.array([[1, 2, 3], [7, 8, 9]])
    together = jax.vmap(lambda t: model(t, jnp.arange(3), attention))(batch)
    alone = model(batch[1], jnp.arange(3), attention)
    np.testing.assert_allclose(together[1], alone, atol=1e-5)


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_kv_heads", 3), ("head_dim", 7), ("vocab_size", 0), ("windows", (None,))],
)
def test_config_fields_out_of_range_are_named(field, value):
    match = "num_heads: got 4" if field == "num_kv_heads" else f"{field}: got"
    with pytest.raises(ValueError, match=match):
        small_config(**{field: value})
