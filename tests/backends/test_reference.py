"""The oracle by hand: numbers small enough to check by eye, one feature at a time."""

import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from paged.backends import UnsupportedError
from paged.backends.reference import ReferenceBackend, oracle
from paged.layouts import LAYOUTS, KVCache, convert, get_layout
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec, KVCacheSpec

KV_LAYOUTS = [name for name, layout in LAYOUTS.items() if not layout.is_latent]
TWO = AttentionSpec(num_heads=1, num_kv_heads=1, head_dim=2, scale=1.0)
LOG2 = math.log(2)

# Two tokens in block 1: keys (0, 0) and (log 2, 0), values (4, 0) and (1, 3). The query (1, 7)
# of the second has logits 0 and log 2, hence weights 1/3 and 2/3 and lse log 3.
KEYS = [[[0.0, 0.0]], [[LOG2, 0.0]]]
VALUES = [[[4.0, 0.0]], [[1.0, 3.0]]]
OUT = [2.0, 2.0]


def step(
    table, seq_lens, query_lens, slots, *, distribution=None, tokens=None
) -> AttentionMetadata:
    starts = np.concatenate([[0], np.cumsum(query_lens)])
    decodes = sum(length == 1 for length in query_lens)
    return AttentionMetadata(
        block_table=np.array(table, np.int32),
        slot_mapping=np.array(slots, np.int32),
        seq_lens=np.array(seq_lens, np.int32),
        query_start_loc=starts.astype(np.int32),
        distribution=np.array(distribution or (decodes, decodes, len(seq_lens)), np.int32),
        max_query_len=max(1, *query_lens),
        max_seq_len=max(1, *seq_lens),
    )


def cache_of(rows, *, layout="flashinfer", block_size=2, blocks=3, dtype=np.float32, **scales):
    """A cache of NaN, with block 1 holding these (key, value) rows."""
    keys, values = (np.array(part, np.float32) for part in rows)
    spec = KVCacheSpec(keys.shape[1], keys.shape[2], block_size, np.dtype(dtype).name)
    data = np.full(get_layout(layout).shape(blocks, spec), 0, dtype)
    if data.dtype.kind != "i":
        data[...] = np.nan
    cache = KVCache(data, get_layout(layout), **scales)
    slots = np.arange(block_size, block_size + len(keys), dtype=np.int32)
    return ReferenceBackend().write(cache, keys, values, slots)


def one_query(query, cache, spec, seq_len=2, sinks=None):
    metadata = step([[1]], [seq_len], [1], [cache.block_size + seq_len - 1])
    out, lse = oracle(np.array([query], np.float32), cache, metadata, spec, sinks)
    return out[0], lse[0]


@pytest.mark.parametrize("layout", KV_LAYOUTS)
def test_two_tokens_by_eye(layout):
    out, lse = one_query([[1.0, 7.0]], cache_of((KEYS, VALUES), layout=layout), TWO)
    np.testing.assert_allclose(out[0], OUT, rtol=1e-6)
    np.testing.assert_allclose(lse, [math.log(3)], rtol=1e-6)


def test_scale_multiplies_logits():
    spec = AttentionSpec(1, 1, 2, scale=2.0)  # weights 1/5 and 4/5
    out, lse = one_query([[1.0, 0.0]], cache_of((KEYS, VALUES)), spec)
    np.testing.assert_allclose(out[0], [8 / 5, 12 / 5], rtol=1e-6)
    np.testing.assert_allclose(lse, [math.log(5)], rtol=1e-6)


def test_prefill_is_causal():
    metadata = step([[1]], [2], [2], [2, 3], distribution=(0, 1, 1))
    query = np.array([[[5.0, 5.0]], [[1.0, 0.0]]], np.float32)
    out, lse = oracle(query, cache_of((KEYS, VALUES)), metadata, TWO)
    np.testing.assert_allclose(out[:, 0], [[4, 0], OUT], rtol=1e-6)
    np.testing.assert_allclose(lse[:, 0], [0, math.log(3)], rtol=1e-6, atol=1e-12)


def test_window_counts_the_own_key():
    spec = AttentionSpec(1, 1, 2, scale=1.0, window=1)
    out, lse = one_query([[1.0, 0.0]], cache_of((KEYS, VALUES)), spec)
    np.testing.assert_allclose(out[0], [1, 3])
    np.testing.assert_allclose(lse, [LOG2], rtol=1e-6)
    wide = AttentionSpec(1, 1, 2, scale=1.0, window=2)
    np.testing.assert_allclose(
        one_query([[1, 0]], cache_of((KEYS, VALUES)), wide)[0][0], OUT, rtol=1e-6
    )


def test_soft_cap_by_eye():
    # Logits 0 and 100 capped at log 2: tanh(100 / log 2) is 1, hence 0 and log 2 again.
    spec = AttentionSpec(1, 1, 2, scale=1.0, soft_cap=LOG2)
    out, lse = one_query([[100 / LOG2, 0.0]], cache_of((KEYS, VALUES)), spec)
    np.testing.assert_allclose(out[0], OUT, rtol=1e-6)
    np.testing.assert_allclose(lse, [math.log(3)], rtol=1e-6)


@pytest.mark.parametrize(
    ("sink", "total"), [(0.0, 4.0), (LOG2, 5.0), (-LOG2, 3.5), (-math.inf, 3.0)]
)
def test_sink_joins_the_denominator_only(sink, total):
    spec = AttentionSpec(1, 1, 2, scale=1.0, has_sinks=True)
    sinks = np.array([sink], np.float32)
    out, lse = one_query([[1.0, 0.0]], cache_of((KEYS, VALUES)), spec, sinks=sinks)
    np.testing.assert_allclose(out[0], np.array([6.0, 6.0]) / total, rtol=1e-6)
    np.testing.assert_allclose(lse, [math.log(total)], rtol=1e-6)


def test_query_heads_share_a_kv_head():
    spec = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=2, scale=1.0)
    keys = [[[0.0, 0.0], [0.0, 0.0]]]
    values = [[[1.0, 2.0], [3.0, 4.0]]]
    out, _ = one_query(np.zeros((4, 2)), cache_of((keys, values)), spec, seq_len=1)
    np.testing.assert_array_equal(out, [[1, 2], [1, 2], [3, 4], [3, 4]])


def test_blocks_follow_the_table_and_never_past_the_end():
    cache = cache_of((KEYS, VALUES), block_size=1, blocks=4)  # tokens in blocks 1 and 2
    table = [[2, 1, 2**30], [1, -7, 99]]
    metadata = step(table, [2, 1], [1, 1], [1, -1])
    out, _ = oracle(np.array([[[1.0, 0]], [[1.0, 0]]], np.float32), cache, metadata, TWO)
    np.testing.assert_allclose(out[:, 0], [OUT, [4, 0]], rtol=1e-6)


@pytest.mark.parametrize("sinks", [None, np.zeros(1, np.float32)])
def test_rows_without_keys(sinks):
    spec = AttentionSpec(1, 1, 2, scale=1.0, has_sinks=sinks is not None)
    metadata = step([[1], [0], [0]], [2, 0, 0], [1, 0, 0], [3, -1], distribution=(1, 1, 1))
    query = np.full((2, 1, 2), np.nan, np.float32)
    query[0] = [[1.0, 0.0]]
    out, lse = ReferenceBackend().attend(
        query, cache_of((KEYS, VALUES)), metadata, spec, sinks=sinks
    )
    assert np.isfinite(out[0]).all()
    np.testing.assert_array_equal(out[1], 0)
    np.testing.assert_array_equal(lse[1], -np.inf)


def test_scales_differ_and_belong_to_their_heads():
    spec = AttentionSpec(num_heads=2, num_kv_heads=2, head_dim=2, scale=LOG2)
    scales = {"k_scale": np.array([0.5, 1], np.float32), "v_scale": np.array([2, 4], np.float32)}
    keys = [[[0.0, 0], [0.0, 0]], [[0.5, 0], [1.0, 0]]]
    values = [[[8.0, 0], [8.0, 0]], [[2.0, 4], [4.0, 8]]]
    cache = cache_of((keys, values), dtype=np.int8, **scales)
    assert cache.data[1, 0, :, :, 0].tolist() == [[0, 0], [1, 1]]
    assert cache.data[1, 1].tolist() == [[[4, 0], [2, 0]], [[1, 2], [1, 2]]]
    out, lse = one_query([[2.0, 0], [1.0, 0]], cache, spec)  # logits 0 and log 2 in both heads
    np.testing.assert_allclose(out, [[4, 8 / 3], [16 / 3, 16 / 3]], rtol=1e-6)
    np.testing.assert_allclose(lse, [math.log(3)] * 2, rtol=1e-6)


def test_scales_in_attention():
    spec = AttentionSpec(num_heads=1, num_kv_heads=1, head_dim=2, scale=LOG2)
    data = np.zeros((2, 2, 2, 1, 2), np.int8)  # block kv slot head dim
    data[1, 0, :, 0] = [[0, 0], [2, 0]]  # key 2 * 0.5 = 1: logits 0 and log 2
    data[1, 1, :, 0] = [[2, 0], [0, 3]]  # values (4, 0) and (0, 6)
    cache = KVCache(data, get_layout("flashinfer"), np.float32(0.5), np.float32(2.0))
    out, lse = one_query([[1.0, 0.0]], cache, spec)
    np.testing.assert_allclose(out[0], [4 / 3, 12 / 3], rtol=1e-12)
    np.testing.assert_allclose(lse, [math.log(3)], rtol=1e-12)


def test_int8_rounds_to_even_and_clips_symmetrically():
    keys = [[[0.5, 1.5]], [[-1.5, 2.5]], [[1000.0, -1000.0]]]
    cache = cache_of(
        (keys, keys), dtype=np.int8, block_size=4, k_scale=np.float32(1), v_scale=np.float32(0.5)
    )
    assert cache.data[1, 0, :3, 0].tolist() == [[0, 2], [-2, 2], [127, -127]]
    assert cache.data[1, 1, :3, 0].tolist() == [[1, 3], [-3, 5], [127, -127]]


@pytest.mark.parametrize(
    ("dtype", "largest"), [(ml_dtypes.float8_e4m3fn, 448), (ml_dtypes.float8_e5m2, 57344)]
)
def test_float8_clips_to_its_largest_number(dtype, largest):
    keys = [[[1e6, -1e6]], [[1.0, 0.5]]]
    cache = cache_of((keys, keys), dtype=dtype, k_scale=np.float32(0.5))
    stored = cache.data[1].astype(np.float32)
    np.testing.assert_array_equal(stored[0, :, 0], [[largest, -largest], [2, 1]])
    np.testing.assert_array_equal(stored[1, :, 0], [[largest, -largest], [1, 0.5]])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_write_names_its_slots_only_and_keeps_its_input(layout):
    latent = get_layout(layout).is_latent
    spec = KVCacheSpec(1, 3, 2, **({"kv_lora_rank": 2, "qk_rope_head_dim": 1} if latent else {}))
    before = np.full(get_layout(layout).shape(3, spec), np.nan, np.float32)
    cache = KVCache(before, get_layout(layout))
    rows = np.arange(9, dtype=np.float32).reshape(3, 1, 3)
    slots = np.array([5, -1, 2], np.int32)
    after = ReferenceBackend().write(cache, rows, None if latent else rows + 100, slots)
    assert np.isnan(before).all()
    assert after.data is not before
    keys, values = after.layout.views(after.data, head_dim=3)
    assert keys[2, 1, 0].tolist() == [0, 1, 2]
    assert keys[1, 0, 0].tolist() == [6, 7, 8]
    if not latent:
        assert values[1, 0, 0].tolist() == [106, 107, 108]
    assert np.isnan(after.data).sum() == before.size - (2 if latent else 4) * 3


def test_write_refuses_a_slot_past_the_end():
    message = r"slot_mapping\[0\]: got 6, expected less than 6 \(3 blocks of 2 slots\)"
    with pytest.raises(ValueError, match=message):
        ReferenceBackend().write(
            cache_of((KEYS, VALUES)),
            *(np.ones((1, 1, 2), np.float32),) * 2,
            np.array([6], np.int32),
        )


def test_latent_attention_absorbed_equals_explicit():
    """DeepSeek-V2, equations 9 to 19: keys and values made from the latent, or W_UK folded in."""
    heads, rank, rope, nope, v_dim, tokens = 3, 5, 2, 4, 3, 6
    rng = np.random.default_rng(0)
    latent = rng.normal(size=(tokens, rank))
    k_rope = rng.normal(size=(tokens, rope))
    w_uk, w_uv = rng.normal(size=(heads, nope, rank)), rng.normal(size=(heads, v_dim, rank))
    q_nope, q_rope = rng.normal(size=(heads, nope)), rng.normal(size=(heads, rope))
    scale = (nope + rope) ** -0.5
    expected = []
    for head in range(heads):
        keys = np.concatenate([latent @ w_uk[head].T, k_rope], axis=1)
        logits = scale * keys @ np.concatenate([q_nope[head], q_rope[head]])
        weights = np.exp(logits) / np.exp(logits).sum()
        expected.append(weights @ (latent @ w_uv[head].T))

    spec = AttentionSpec(heads, 1, rank + rope, scale, kv_lora_rank=rank, qk_rope_head_dim=rope)
    data = np.full((4, 4, rank + rope), np.nan)
    data[3], data[1, :2] = np.split(np.concatenate([latent, k_rope], axis=1), [4])
    cache = KVCache(data, get_layout("mla"))
    absorbed = np.concatenate([np.einsum("hn,hnr->hr", q_nope, w_uk), q_rope], axis=1)
    out, _ = oracle(absorbed[None], cache, step([[3, 1]], [tokens], [1], [5]), spec)
    np.testing.assert_allclose(np.einsum("hr,hvr->hv", out[0], w_uv), expected, rtol=1e-12)


def random_step(rng, layout, dtype=np.float32):
    """Two decodes and a chunk with history, padded; block size 4, two KV heads."""
    spec = AttentionSpec(4, 2, 8, 0.3, window=6, has_sinks=True)
    data = rng.normal(size=get_layout("flashinfer").shape(8, KVCacheSpec(2, 8, 4))).astype(dtype)
    cache = KVCache(convert(data, "flashinfer", layout), get_layout(layout))
    metadata = step(
        [[3, 1], [5, 99], [2, 7], [0, 0]],
        [7, 2, 8, 0],
        [1, 1, 3, 0],
        [6, 21, 29, 30, 31, -1, -1],
        distribution=(2, 2, 3),
    )
    query = rng.normal(size=(7, 4, 8)).astype(dtype)
    return query, cache, metadata, spec, rng.normal(size=4).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("layout", ["pallas", "packed"])
def test_numpy_jax_jit_and_torch_agree(layout, dtype):
    torch = pytest.importorskip("torch")
    backend = ReferenceBackend()
    query, cache, metadata, spec, sinks = random_step(np.random.default_rng(1), layout, dtype)
    key = np.ones((7, 2, 8), dtype)
    new = backend.write(cache, key, key, metadata.slot_mapping)
    expected = backend.attend(query, new, metadata, spec, sinks=sinks)

    def run(query, cache, metadata, sinks, key):
        new = backend.write(cache, key, key, metadata.slot_mapping)
        return new.data, backend.attend(query, new, metadata, spec, sinks=sinks)

    def to_torch(array):
        if array.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    def numbers(array):
        if isinstance(array, torch.Tensor):
            return array.float().numpy()
        return np.asarray(array, np.float32)

    for convert_to, function in ((jnp.asarray, run), (jnp.asarray, jax.jit(run)), (to_torch, run)):
        data, found = function(
            convert_to(query),
            cache.with_data(convert_to(cache.data)),
            metadata.map(convert_to),
            convert_to(sinks),
            convert_to(key),
        )
        assert type(data) is type(convert_to(key)), "the caller's library comes back"
        np.testing.assert_array_equal(numbers(data), numbers(new.data))
        np.testing.assert_array_equal(numbers(found.out), numbers(expected.out))
        np.testing.assert_array_equal(numbers(found.lse), expected.lse)


def test_layouts_agree_bitwise():
    found = []
    for layout in KV_LAYOUTS:
        query, cache, metadata, spec, sinks = random_step(np.random.default_rng(2), layout)
        found.append(oracle(query, cache, metadata, spec, sinks))
    for out, lse in found[1:]:
        np.testing.assert_array_equal(out, found[0][0])
        np.testing.assert_array_equal(lse, found[0][1])


def test_a_row_alone_is_bitwise_the_row_in_a_batch():
    query, cache, metadata, spec, sinks = random_step(np.random.default_rng(3), "packed")
    together, _ = oracle(query, cache, metadata, spec, sinks)
    alone, _ = oracle(query[1:2], cache, step([[5]], [2], [1], [21]), spec, sinks)
    np.testing.assert_array_equal(alone[0], together[1])


def test_jit_over_a_large_cache_does_not_hang():
    cache = KVCache(jnp.zeros((2048, 2, 16, 2, 64)), get_layout("flashinfer"))
    spec = AttentionSpec(2, 2, 64, 0.1)
    attend = jax.jit(ReferenceBackend().attend, static_argnums=3)
    metadata = step([[1]], [1], [1], [16]).map(jnp.asarray)
    for _ in range(3):
        out = attend(jnp.ones((1, 2, 64)), cache, metadata, spec)
    assert out.out.shape == (1, 2, 64)


def test_is_for_the_cpu_and_refuses_other_targets():
    assert ReferenceBackend().unsupported(TWO, get_layout("packed"), "tpu") == [
        "runs on cpu, not on tpu"
    ]
    cache = KVCache(np.zeros((2, 2, 2), np.float32), get_layout("mla"))
    query, metadata = np.ones((1, 1, 2), np.float32), step([[1]], [1], [1], [2])
    with pytest.raises(UnsupportedError, match="is for a latent"):
        ReferenceBackend().attend(query, cache, metadata, TWO)
