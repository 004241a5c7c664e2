"""The two forms of latent attention give the same, and what each costs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from paged import MetadataBuilder, resolve
from paged.blocks import BlockTable
from paged.models import DeepseekConfig, DeepseekTransformer, RouterConfig
from paged.models.deepseek import absorbed_cost, expanded_cost, prefers_expanded
from paged.models.deepseek.cost import BALANCE, EXPANDED_COST, ever_prefers_expanded
from paged.models.deepseek.mla import first_expanded
from paged.models.paged_attention import PagedAttention

TOLERANCE = 1e-5
BLOCK_SIZE = 8


def small(**overrides):
    values = {
        "vocab_size": 99,
        "hidden_size": 32,
        "intermediate_size": 48,
        "moe_intermediate_size": 16,
        "num_layers": 1,
        "num_dense_layers": 1,
        "num_heads": 3,
        "q_lora_rank": None,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "v_head_dim": 10,
        "router": RouterConfig("greedy", 4, 2),
    }
    return DeepseekConfig(**values | overrides)


# (tokens in the cache, new ones) of each sequence, in the contract's order.
STEPS = {
    "prefills of more than a tile of queries and of keys": [(0, 1), (0, 150), (100, 70)],
    "decode, prefill, chunk": [(20, 1), (0, 10), (30, 40)],
    "decode, short and long chunk": [(20, 1), (60, 3), (30, 40)],
}


def inputs(sequences):
    """Metadata, tokens and positions of a step; blocks in random order."""
    blocks = [-(-sum(pair) // BLOCK_SIZE) for pair in sequences]
    free = iter(np.random.default_rng(0).permutation(np.arange(1, sum(blocks) + 1)).tolist())
    table = BlockTable(len(sequences), max(blocks), BLOCK_SIZE, device_put=np.asarray)
    for row, count in enumerate(blocks):
        table.add_row(row, [next(free) for _ in range(count)])
    step = MetadataBuilder(BLOCK_SIZE).build(
        [(row, new) for row, (_, new) in enumerate(sequences)],
        block_table=table.host,
        num_computed=np.array([old for old, _ in sequences]),
    )
    tokens = np.where(step.token_rows < 0, 0, np.arange(len(step.positions)) * 7 % 99)
    return step.metadata.map(jnp.asarray), jnp.asarray(tokens), jnp.asarray(step.positions)


def one_step(model, sequences, *, backend="xla", layout="mla", **storage):
    """What one step over a cache of noise gives, `[tokens, hidden]`, padding cut off."""
    metadata, tokens, positions = inputs(sequences)
    spec = model.attention_specs[0]
    resolution = resolve(spec, backend=backend, layout=layout)
    num_blocks = int(metadata.block_table.max()) + 1
    cache = resolution.allocate(num_blocks, BLOCK_SIZE, **storage)
    # Through `write`, so that a layout's padding stays zero.
    slots = np.arange(num_blocks * BLOCK_SIZE, dtype=np.int32)
    noise = np.random.default_rng(1).standard_normal((len(slots), 1, spec.head_dim))
    cache = resolution.write(cache, jnp.asarray(noise, jnp.float32), None, jnp.asarray(slots))

    @nnx.jit
    def forward(model, tokens, positions, cache, metadata):
        return model(tokens, positions, PagedAttention([resolution], [cache], metadata))

    out = forward(model, tokens, positions, cache, metadata)
    return np.asarray(out)[: sum(new for _, new in sequences)]


def first_of(model, sequences):
    return first_expanded(model.config, inputs(sequences)[0], target="cpu", itemsize=4)


@pytest.fixture(scope="module")
def model():
    # Compiled whole: drawing one matrix after another takes longer.
    return nnx.jit(lambda: DeepseekTransformer(small(), rngs=nnx.Rngs(0)))()


@pytest.fixture(scope="module")
def absorbed(model):
    """By step, what the absorbed form gives."""
    model.use_form("absorbed")
    return {name: one_step(model, sequences) for name, sequences in STEPS.items()}


@pytest.mark.parametrize("name", STEPS)
def test_the_expanded_form_gives_what_the_absorbed_gives(model, absorbed, name):
    model.use_form("expanded")
    assert absorbed[name].std() > 0.5
    found = one_step(model, STEPS[name])
    np.testing.assert_allclose(found, absorbed[name], atol=TOLERANCE, rtol=0)


# By the reference on the padded layout: what is expanded is gathered through the layout.
@pytest.mark.parametrize(
    ("name", "first", "backend", "layout"),
    [
        ("decode, prefill, chunk", 1, "reference", "tpu_mla"),
        ("decode, short and long chunk", 2, "xla", "mla"),
    ],
)
def test_one_step_takes_both_forms(model, absorbed, name, first, backend, layout):
    assert first_of(model, STEPS[name]) == first
    model.use_form("auto")
    found = one_step(model, STEPS[name], backend=backend, layout=layout)
    np.testing.assert_allclose(found, absorbed[name], atol=TOLERANCE, rtol=0)


def test_both_forms_read_a_quantised_cache_alike(model):
    found = {}
    for form in ("absorbed", "expanded"):
        model.use_form(form)
        scale = jnp.asarray(0.02, jnp.float32)
        sequences = STEPS["decode, prefill, chunk"]
        found[form] = one_step(model, sequences, dtype="int8", k_scale=scale)
    np.testing.assert_allclose(found["expanded"], found["absorbed"], atol=TOLERANCE, rtol=0)


def test_a_step_of_decodes_expands_none_and_one_of_prefills_all(model):
    assert first_of(model, [(40, 1), (7, 1)]) == 2
    assert first_of(model, [(0, 40), (0, 9)]) == 0


def test_a_form_is_checked(model):
    with pytest.raises(ValueError, match="form: got 'naive', expected 'auto', 'absorbed'"):
        model.use_form("naive")


V3 = small(
    num_heads=128, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
)


def test_costs_by_hand():
    # 128 heads, one decode after 999 tokens: 512 * 256 to project, and 1000 keys.
    absorbed, expanded = (cost(V3, 1, 1000) for cost in (absorbed_cost, expanded_cost))
    assert absorbed.operations == 2 * 128 * (512 * 256 + 1000 * (576 + 512))
    assert expanded.operations == 2 * 128 * (1000 * 512 * 256 + 1000 * (192 + 128))
    latents, weights, own = 1000 * 576, 128 * 512 * 256, 128 * (192 + 128)
    assert absorbed.num_bytes == 2 * (latents + weights + own + 2 * 128 * (576 + 512))
    assert expanded.num_bytes == 2 * (latents + weights + own + 2 * 1000 * 128 * (192 + 128))


@pytest.mark.parametrize("operation_cost", [1.0, 0.55])
@pytest.mark.parametrize("config", [V3, small()], ids=["v3", "small"])
@pytest.mark.parametrize("target", BALANCE)
def test_the_choice_is_the_cheaper_form_and_never_a_decode_expanded(config, target, operation_cost):
    machine = {"target": target, "operation_cost": operation_cost}
    traced = jax.jit(lambda q, s: prefers_expanded(config, q, s, **machine))
    for query_len in (1, 2, 13, 100, 170, 500, 4096):
        for history in (0, 1, 100, 5000, 200_000):
            lengths = query_len, query_len + history
            absorbed, expanded = (cost(config, *lengths) for cost in (absorbed_cost, expanded_cost))
            saved = absorbed.projection - expanded.projection
            saved += operation_cost * absorbed.attention
            saved -= EXPANDED_COST.get(target, 1.0) * expanded.attention
            saved += BALANCE[target] * (absorbed.num_bytes - expanded.num_bytes)
            chosen = prefers_expanded(config, *lengths, **machine)
            assert chosen == (saved > 0 and query_len > 1)
            assert traced(*lengths) == chosen


@pytest.mark.parametrize("operation_cost", [1.0, 0.7, 0.55, 0.1])
@pytest.mark.parametrize("config", [V3, small(), small(kv_lora_rank=8)])
@pytest.mark.parametrize("target", BALANCE)
def test_whether_any_length_prefers_the_expanded_form_is_known_beforehand(
    config, target, operation_cost
):
    machine = {"target": target, "operation_cost": operation_cost}
    for most in (0, 1, 2, 3, 17, 64, 700):
        lengths = ((q, q + history) for q in range(most + 1) for history in (0, 1, 900))
        some = any(prefers_expanded(config, *pair, **machine) for pair in lengths)
        assert ever_prefers_expanded(config, most, **machine) == some


def test_each_sequence_of_an_array_is_weighed_by_itself():
    # Products of these lengths pass int32.
    queries, keys = jnp.array([1, 4096, 0, 30_000]), jnp.array([9, 4096, 0, 200_000])
    chosen = jax.jit(lambda q, s: prefers_expanded(V3, q, s))(queries, keys)
    assert chosen.tolist() == [False, True, False, True]


@pytest.mark.parametrize(("target", "first"), [("cpu", 316), ("cuda", 343)])
def test_v3_expands_later_where_bytes_or_its_attention_are_dearer(target, first):
    # Of operations alone from 171 on: each query saves 768 a key, and a key costs 131,072. Where
    # the expanded form's own count 2.1 times, a query saves 416.
    assert not prefers_expanded(V3, first - 1, 10_000_000, target=target)
    assert prefers_expanded(V3, first, 10_000_000, target=target)


def test_a_latent_no_narrower_than_the_heads_is_never_expanded():
    wide = small(kv_lora_rank=8)
    assert not prefers_expanded(wide, 500, 500)
