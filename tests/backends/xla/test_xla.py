"""Backend xla: by hand, then what only it promises. Values in general: tests/conformance."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paged import (
    AttentionMetadata,
    AttentionSpec,
    KVCacheSpec,
    Layout,
    MetadataBuilder,
    UnsupportedError,
    resolve,
)
from paged.backends.xla.attend import chunking, ragged_attention
from paged.backends.xla.quantize import to_storage
from paged.layouts import LAYOUTS, KVCache
from tests.backends.two_keys import check_two_keys

MIB = 1 << 20


def _spec(*, latent: bool = False, **features) -> AttentionSpec:
    if latent:
        return AttentionSpec(16, 1, 576, 0.1, kv_lora_rank=512, qk_rope_head_dim=64, **features)
    return AttentionSpec(32, 8, 128, 0.1, **features)


def _decode(spec, layout, *, num_seqs, seq_len, block_size, dtype):
    """A decode step with one new token for each sequence, and a cache just large enough."""
    blocks = -(-seq_len // block_size)
    num_blocks = num_seqs * blocks + 1
    table = np.arange(1, num_blocks, dtype=np.int32).reshape(num_seqs, blocks)
    step = MetadataBuilder(block_size).build(
        [(row, 1) for row in range(num_seqs)],
        block_table=table,
        num_computed=np.full(num_seqs, seq_len - 1),
    )
    cache_spec = KVCacheSpec.of(spec, block_size=block_size, dtype=dtype)
    cache = jax.eval_shape(partial(KVCache.allocate, cache_spec, layout, num_blocks))
    query = jax.ShapeDtypeStruct(
        (step.metadata.num_tokens, spec.num_heads, spec.head_dim), jnp.dtype(dtype)
    )
    return query, cache, step.metadata


def test_two_keys_by_hand():
    check_two_keys("xla")


@pytest.mark.parametrize("soft_cap", [1e6, 1e31, 1e37, 3.4e38])
def test_a_cap_far_above_the_logits_changes_nothing(soft_cap):
    check_two_keys("xla", soft_cap=soft_cap)


def test_a_cap_out_of_all_reach_still_caps():
    # Logits of 0 and 1e35 under a cap of 1e31: those of 0 and of 1e31, of which one is left.
    step = MetadataBuilder(2).build(
        [(0, 1)], block_table=np.array([[1]], np.int32), num_computed=np.array([1])
    )
    attention = resolve(AttentionSpec(1, 1, 2, scale=1.0, soft_cap=1e31), backend="xla")
    cache = attention.allocate(num_blocks=2, block_size=2)
    key = jnp.array([[[0.0, 0.0]], [[1e35, 0.0]]])
    cache = attention.write(cache, key, key, jnp.array([2, 3], jnp.int32))
    query = jnp.zeros((step.metadata.num_tokens, 1, 2)).at[0, 0, 0].set(1.0)
    np.testing.assert_allclose(attention.attend(query, cache, step.metadata).lse[0, 0], 1e31)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_decode_over_64_mib_needs_less_than_32_mib_of_working_memory(layout, dtype):
    latent = LAYOUTS[layout].is_latent
    spec = _spec(latent=latent)
    token_bytes = KVCacheSpec.of(spec, block_size=16, dtype=dtype).bytes_per_token
    seq_len = 64 * MIB // token_bytes // 8
    query, cache, metadata = _decode(
        spec, layout, num_seqs=8, seq_len=seq_len, block_size=16, dtype=dtype
    )
    assert cache.data.size * cache.data.dtype.itemsize >= 63 * MIB
    memory = ragged_attention.lower(query, cache, metadata, spec, None).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 32 * MIB


def test_working_memory_grows_neither_with_length_nor_with_tokens():
    spec = _spec()

    def working(num_seqs, seq_len, query_len):
        num_blocks = num_seqs * (seq_len // 16) + 1
        table = np.arange(1, num_blocks, dtype=np.int32).reshape(num_seqs, -1)
        step = MetadataBuilder(16).build(
            [(row, query_len) for row in range(num_seqs)],
            block_table=table,
            num_computed=np.full(num_seqs, seq_len - query_len),
        )
        cache_spec = KVCacheSpec.of(spec, block_size=16)
        cache = jax.eval_shape(partial(KVCache.allocate, cache_spec, "flash_attn", num_blocks))
        query = jax.ShapeDtypeStruct((step.metadata.num_tokens, 32, 128), jnp.float32)
        compiled = ragged_attention.lower(query, cache, step.metadata, spec, None).compile()
        memory = compiled.memory_analysis()
        tokens_bytes = query.size * 4
        return memory.temp_size_in_bytes, tokens_bytes

    short, _ = working(4, 1024, 1)
    long, _ = working(4, 16384, 1)
    assert long < 1.25 * short
    few, few_bytes = working(2, 2048, 256)
    many, many_bytes = working(2, 2048, 2048)
    # Results exist as tiles and as tokens; beyond such copies of them nothing may grow.
    assert many - few <= 4 * (many_bytes - few_bytes)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "int8"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_narrow_types_are_not_widened_as_a_whole(layout, dtype):
    spec = _spec(latent=LAYOUTS[layout].is_latent)
    _, cache, metadata = _decode(spec, layout, num_seqs=8, seq_len=512, block_size=16, dtype=dtype)
    query = jax.ShapeDtypeStruct((8, spec.num_heads, spec.head_dim), jnp.float32)
    text = ragged_attention.lower(query, cache, metadata, spec, None).compile().as_text()
    sizes = [
        np.prod([int(n) for n in shape.split(",")])
        for shape in re.findall(r"f32\[([\d,]+)\]", text)
    ]
    assert max(sizes) < cache.data.size // 2


@pytest.mark.parametrize("features", [{}, {"window": 300}, {"soft_cap": 20.0, "has_sinks": True}])
@pytest.mark.parametrize("layout", ["flashinfer", "packed", "mla"])
def test_many_chunks_and_groups_agree_with_the_oracle(layout, features):
    """Long enough for several chunks of blocks, and enough tiles for several groups."""
    latent = LAYOUTS[layout].is_latent
    sizes = {"kv_lora_rank": 192, "qk_rope_head_dim": 64} if latent else {}
    spec = AttentionSpec(4, 1 if latent else 2, 256, 0.06, **sizes, **features)
    attention = resolve(spec, layout=layout, backend="xla")
    oracle = resolve(spec, layout=layout, backend="reference")
    rng = np.random.default_rng(7)
    requests = [(1, 700), (1, 33), (150, 150), (90, 600)]
    table = np.full((4, 44), 2**30, np.int32)
    blocks = rng.permutation(np.arange(1, 110)).astype(np.int32)
    taken = 0
    for row, (_, seq_len) in enumerate(requests):
        count = -(-seq_len // 16)
        table[row, :count] = blocks[taken : taken + count]
        taken += count
    step = MetadataBuilder(16).build(
        [(row, query_len) for row, (query_len, _) in enumerate(requests)],
        block_table=table,
        num_computed=np.array([seq - query for query, seq in requests]),
    )
    cache = attention.allocate(num_blocks=110, block_size=16)
    cache = cache.with_data(jnp.asarray(rng.normal(size=cache.data.shape), jnp.float32))
    chunk_blocks, group = chunking(64, cache, spec, step.metadata)
    assert chunk_blocks * 16 < 700
    assert group < 20
    query = rng.normal(size=(step.metadata.num_tokens, 4, 256)).astype(np.float32)
    sinks = rng.normal(size=4).astype(np.float32) if spec.has_sinks else None
    out, lse = attention.attend(jnp.asarray(query), cache, step.metadata, sinks=sinks)
    true_out, true_lse = oracle.attend(query, cache, step.metadata, sinks=sinks)
    np.testing.assert_allclose(out, true_out, atol=2e-6)
    np.testing.assert_allclose(lse, true_lse, atol=1e-5)


def test_write_is_in_place_under_donation():
    spec = _spec()
    attention = resolve(spec, layout="flashinfer", backend="xla")
    cache = attention.allocate(num_blocks=64, block_size=16, dtype="bfloat16")
    rows = jnp.ones((4, 8, 128), jnp.bfloat16)
    slots = jnp.array([16, 17, 400, -1], jnp.int32)
    write = jax.jit(attention.write, donate_argnums=0)
    memory = write.lower(cache, rows, rows, slots).compile().memory_analysis()
    assert memory.alias_size_in_bytes == cache.data.nbytes
    assert memory.temp_size_in_bytes < cache.data.nbytes // 8


def test_a_layout_of_ones_own_needs_no_code():
    spec = AttentionSpec(2, 1, 4, 0.5)
    mine = Layout("mine", "slot block dim (head kv)")
    attention = resolve(spec, layout=mine, backend="xla")
    usual = resolve(spec, layout="flash_attn", backend="xla")
    rng = np.random.default_rng(0)
    key, value = rng.normal(size=(2, 3, 1, 4)).astype(np.float32)
    step = MetadataBuilder(2).build(
        [(0, 3)], block_table=np.array([[2, 1]], np.int32), num_computed=np.array([0])
    )
    padded = [np.concatenate([rows, np.zeros((13, 1, 4), np.float32)]) for rows in (key, value)]
    query = rng.normal(size=(16, 2, 4)).astype(np.float32)
    results = []
    for each in (attention, usual):
        cache = each.allocate(num_blocks=3, block_size=2)
        cache = each.write(cache, *padded, step.metadata.slot_mapping)
        results.append(each.attend(query, cache, step.metadata))
    np.testing.assert_array_equal(results[0].out, results[1].out)
    assert np.abs(results[0].out[:3]).min() > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize(
    ("num_seqs", "num_tokens", "num_blocks"), [(2, 0, 3), (0, 2, 3), (2, 2, 0)]
)
def test_empty_batches(dtype, num_seqs, num_tokens, num_blocks):
    spec = AttentionSpec(2, 1, 4, 0.5)
    attention = resolve(spec, layout="flashinfer", backend="xla")
    cache = attention.allocate(num_blocks=3, block_size=2, dtype=dtype)
    metadata = AttentionMetadata(
        block_table=np.zeros((num_seqs, num_blocks), np.int32),
        slot_mapping=np.full(num_tokens, -1, np.int32),
        seq_lens=np.zeros(num_seqs, np.int32),
        query_start_loc=np.zeros(num_seqs + 1, np.int32),
        distribution=np.zeros(3, np.int32),
        max_query_len=1,
        max_seq_len=1,
    )
    metadata.validate(cache=cache, spec=spec)
    rows = jnp.ones((num_tokens, 1, 4))
    written = attention.write(cache, rows, rows, metadata.slot_mapping)
    assert np.asarray(written.data).tobytes() == np.asarray(cache.data).tobytes()
    out, lse = attention.attend(jnp.ones((num_tokens, 2, 4)), cache, metadata)
    assert out.shape == (num_tokens, 2, 4)
    assert not np.asarray(out).any()
    assert lse.shape == (num_tokens, 2)
    assert np.isneginf(np.asarray(lse)).all()


def test_quantising_rounds_to_even_and_clips():
    rows = jnp.array([0.5, 1.5, 2.5, -3.0, 1000.0, -1000.0]).reshape(6, 1, 1)
    stored = to_storage(rows, 1.0, "int8")
    assert stored.ravel().tolist() == [0, 2, 2, -3, 127, -127]
    assert to_storage(rows, 0.5, "int8").ravel().tolist() == [1, 3, 5, -6, 127, -127]
    wide = to_storage(rows, None, "float8_e4m3fn").astype(jnp.float32).ravel()
    assert wide.tolist() == [0.5, 1.5, 2.5, -3.0, 448.0, -448.0]


def test_refusals_come_before_arrays_are_touched():
    spec = AttentionSpec(2, 1, 4, 0.5)
    with pytest.raises(UnsupportedError, match="layout mla is for a latent"):
        resolve(spec, layout="mla", backend="xla")
    attention = resolve(spec, layout="pallas", backend="xla")
    cache = attention.allocate(num_blocks=3, block_size=2)
    step = MetadataBuilder(2).build(
        [(0, 1)], block_table=np.array([[1]], np.int32), num_computed=np.array([0])
    )
    tokens = step.metadata.num_tokens
    with pytest.raises(ValueError, match=r"query.shape\[1\]: got 3, expected num_heads 2"):
        attention.attend(jnp.zeros((tokens, 3, 4)), cache, step.metadata)
    with pytest.raises(ValueError, match="sinks: got shape"):
        attention.attend(jnp.zeros((tokens, 2, 4)), cache, step.metadata, sinks=jnp.zeros(2))
    with pytest.raises(UnsupportedError, match="query dtype int32"):
        attention.attend(jnp.zeros((tokens, 2, 4), jnp.int32), cache, step.metadata)
