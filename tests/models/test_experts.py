"""The routed product: by hand, however uneven the choice, and what it costs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from paged.models.experts import Choice, Experts, cut, silu_gate
from paged.models.gpt_oss import ClampedGate


def first_half(both):
    return both[:, : both.shape[1] // 2]


def small(num_experts=4, *, use_bias=True, **options):
    experts = Experts(
        num_experts, 6, 5, num_layers=1, use_bias=use_bias, dtype=jnp.float32, rngs=nnx.Rngs(0),
        **options,
    )  # fmt: skip
    if use_bias:
        # Biases are 0 at first, and would not show.
        experts.gate_up_bias[...] = jax.random.normal(jax.random.key(1), (num_experts, 10))
        experts.down_bias[...] = jax.random.normal(jax.random.key(2), (num_experts, 6))
    return experts


def one_by_one(experts, x, choice):
    """Each pair by itself."""
    stored = (experts.gate_up, experts.gate_up_bias, experts.down, experts.down_bias)
    up, up_bias, down, down_bias = (np.asarray(parameter[...]) for parameter in stored)
    out = np.zeros(x.shape, np.float64)
    for token, (chosen, weights) in enumerate(zip(*map(np.asarray, choice), strict=True)):
        for expert, weight in zip(chosen, weights, strict=True):
            both = x[token] @ up[expert] + up_bias[expert]
            wide = np.asarray(experts.gate(jnp.asarray(both)[None]))[0]
            out[token] += weight * (wide @ down[expert] + down_bias[expert])
    return out


@nnx.jit
def run(experts, x, choice):
    return experts(x, choice)


def random_choice(rng, tokens, num_experts, chosen):
    order = rng.random((tokens, num_experts)).argsort(axis=1)[:, :chosen]
    return Choice(
        jnp.asarray(order, jnp.int32), jnp.asarray(rng.random((tokens, chosen)), jnp.float32)
    )


def test_two_experts_worked_by_hand():
    # The first doubles, the second trebles; tokens 1 and 10 go to one each, and 100 to both.
    experts = Experts(2, 1, 1, num_layers=1, gate=first_half, dtype=jnp.float32, rngs=nnx.Rngs(0))
    experts.gate_up[...] = jnp.array([[[2.0, 0.0]], [[3.0, 0.0]]])
    experts.down[...] = jnp.ones((2, 1, 1))
    choice = Choice(
        jnp.array([[1, 0], [0, 1], [1, 0]]), jnp.array([[0.5, 0.0], [0.5, 0.0], [0.5, 0.25]])
    )
    out = run(experts, jnp.array([[1.0], [10.0], [100.0]]), choice)
    np.testing.assert_allclose(out, [[1.5], [10.0], [200.0]])


def test_silu_gate_worked_by_hand():
    # silu(0) is 0, and that of ln 3 is 3/4 of it.
    both = jnp.array([[0.0, np.log(3.0), 5.0, 4.0]])
    np.testing.assert_allclose(silu_gate(both), [[0.0, 3.0 * np.log(3.0)]], rtol=1e-6)


def test_clamped_gate_worked_by_hand():
    # Even entries gate, clamped from above only; odd ones go up, clamped on both sides.
    gate = ClampedGate(alpha=1.0, limit=2.0)
    both = jnp.array([[0.0, 9.0, 50.0, -3.0, -np.log(3.0), 1.0]])
    half = 2.0 / (1.0 + np.exp(-2.0))
    np.testing.assert_allclose(gate(both), [[0.0, -half, -np.log(3.0) / 2]], rtol=1e-6)


@pytest.mark.parametrize(("tokens", "chosen"), [(1, 1), (9, 4)])
def test_all_tokens_to_the_same_experts(tokens, chosen):
    experts = small()
    x = jax.random.normal(jax.random.key(3), (tokens, 6))
    same = jnp.broadcast_to(jnp.arange(4, dtype=jnp.int32)[None, 4 - chosen :], (tokens, chosen))
    choice = Choice(same, jnp.full((tokens, chosen), 0.5))
    np.testing.assert_allclose(run(experts, x, choice), one_by_one(experts, x, choice), atol=1e-5)


@settings(max_examples=12)
@given(
    # Few sizes: each compiles.
    st.sampled_from([(1, 4, 2), (7, 4, 3), (40, 4, 2), (200, 4, 1)]),
    st.integers(0, 2**32 - 1),
)
def test_any_choice_is_what_the_pairs_give_one_by_one(sizes, seed):
    tokens, num_experts, chosen = sizes
    rng = np.random.default_rng(seed)
    x = jnp.asarray(rng.standard_normal((tokens, 6)), jnp.float32)
    choice = random_choice(rng, tokens, num_experts, chosen)
    experts = small(num_experts)
    found = run(experts, x, choice)
    np.testing.assert_allclose(found, one_by_one(experts, x, choice), atol=1e-4)


def test_a_token_that_is_not_finite_spoils_no_other():
    experts = small()
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((20, 6)), jnp.float32)
    choice = random_choice(rng, 20, 4, 2)
    clean = np.asarray(run(experts, x, choice))
    # The first too: rows of tiles that hold no pair read that one.
    for bad in (0, 7):
        found = np.asarray(run(experts, x.at[bad].set(jnp.nan), choice))
        assert np.isnan(found[bad]).all()
        np.testing.assert_array_equal(np.delete(found, bad, 0), np.delete(clean, bad, 0))


@pytest.mark.parametrize("tokens", [1, 30, 400])
def test_the_tiles_that_run_are_those_of_the_pairs(tokens):
    # 2 of 64 experts: what runs must not grow with the 64.
    choice = random_choice(np.random.default_rng(0), tokens, 64, 2)
    tiles = cut(choice.experts, 64)
    rows = tiles.tokens.shape[1]
    counts = np.bincount(np.asarray(choice.experts).ravel(), minlength=64)
    assert (np.asarray(tiles.owner) < 64).sum() == (-(-counts // rows)).sum()
    assert tiles.owner.shape[0] <= min(2 * tokens, 2 * tokens // rows + 64)
    # Each pair has a row of its own, which is its token's, in a tile of its expert.
    place = np.asarray(tiles.place)
    assert len(np.unique(place)) == place.size
    own = np.asarray(tiles.tokens).reshape(-1)[place]
    np.testing.assert_array_equal(own, np.arange(tokens)[:, None].repeat(2, 1))
    np.testing.assert_array_equal(np.asarray(tiles.owner)[place // rows], choice.experts)


def test_training_goes_back_through_it_one_sequence_or_many():
    experts = small(use_bias=False)
    x = jax.random.normal(jax.random.key(4), (2, 12, 6))
    indices = random_choice(np.random.default_rng(1), 24, 4, 2).experts.reshape(2, 12, 2)
    weights = jnp.full((2, 12, 2), 0.5)
    graph, state = nnx.split(experts)

    def routed(state, x, indices, weights):
        return nnx.merge(graph, state)(x, Choice(indices, weights))

    def every(state, x, indices, weights):
        own = nnx.merge(graph, state)
        both = jnp.einsum("th,ehw->tew", x, own.gate_up[...])
        out = jnp.einsum("tew,ewh->teh", silu_gate(both), own.down[...])
        counts = jax.nn.one_hot(indices, 4).sum(axis=1) * 0.5
        return (out * counts[..., None]).sum(axis=1)

    def loss(of, state):
        return (jax.vmap(of, (None, 0, 0, 0))(state, x, indices, weights) ** 2).sum()

    found, expected = (jax.jit(jax.grad(lambda s, f=f: loss(f, s)))(state) for f in (routed, every))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)
