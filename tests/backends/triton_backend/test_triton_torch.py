"""The torch front end, interpreted: by hand, with arrays as they come, and what it refuses."""

# ruff: noqa: E402
# Without triton there is nothing to import.

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from paged.backends.triton.on_torch import TritonBackend
from paged.conformance import run_conformance
from paged.conformance.fuzz import fuzz
from paged.layouts import FLASH_ATTN, LAYOUTS, MLA, KVCache
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec, KVCacheSpec

BACKEND = TritonBackend(interpret=True)
SPEC = AttentionSpec(num_heads=2, num_kv_heads=1, head_dim=16, scale=0.5)


def one_decode(seq_len, width=2):
    return AttentionMetadata(
        block_table=torch.arange(1, width + 1, dtype=torch.int32)[None],
        slot_mapping=torch.tensor([-1], dtype=torch.int32),
        seq_lens=torch.tensor([seq_len], dtype=torch.int32),
        query_start_loc=torch.tensor([0, 1], dtype=torch.int32),
        distribution=torch.tensor([1, 1, 1], dtype=torch.int32),
        max_query_len=1,
        max_seq_len=width * 16,
    )


def two_keys(data):
    """Logits 0 and ln 3 for queries of ones, values 8 and 4."""
    keys, values = FLASH_ATTN.views(data)
    keys[1, 0, 0], keys[1, 1, 0] = 0, float(np.log(3)) / 8
    values[1, 0, 0], values[1, 1, 0] = 8, 4
    return data


def check_two_keys(data):
    result = BACKEND.attend(torch.ones(1, 2, 16), KVCache(data, FLASH_ATTN), one_decode(2), SPEC)
    np.testing.assert_allclose(result.out.numpy(), np.full((1, 2, 16), 5.0), rtol=1e-6)
    np.testing.assert_allclose(result.lse.numpy(), np.full((1, 2), np.log(4)), rtol=1e-6)


def test_two_keys_by_hand():
    """Weights 1/4 and 3/4, lse ln 4. Nothing else is looked at: it is NaN."""
    check_two_keys(two_keys(torch.full(FLASH_ATTN.shape(3, KVCacheSpec(1, 16, 16)), torch.nan)))


def test_a_cache_that_begins_at_an_odd_offset():
    shape = FLASH_ATTN.shape(3, KVCacheSpec(1, 16, 16))
    whole = torch.full((int(np.prod(shape)) + 3,), torch.nan)
    check_two_keys(two_keys(whole[3:].view(shape)))


def test_a_cache_of_every_other_block():
    wide = torch.full((2, 6, 16, 1, 16), torch.nan)
    check_two_keys(two_keys(wide[:, ::2]))


def test_a_write_by_hand():
    data = torch.zeros(FLASH_ATTN.shape(3, KVCacheSpec(1, 16, 4)))
    key, value = torch.ones(3, 1, 16), torch.full((3, 1, 16), 2.0)
    slots = torch.tensor([5, -1, 12], dtype=torch.int32)
    cache = BACKEND.write(KVCache(data, FLASH_ATTN), key, value, slots)
    assert cache.data is data, "in place"
    expected = torch.zeros_like(data)
    expected[0, 1, 1], expected[1, 1, 1] = 1, 2
    # Slot 12 is one past the end: it is left out, as -1 is.
    assert torch.equal(data, expected)


def test_keys_and_values_as_slices_of_one_array_and_slots_of_every_other_entry():
    fused = torch.randn(4, 6, 16)
    slots = torch.tensor([4, 99, 6, 99, 5, 99, 7, 99], dtype=torch.int32)[::2]
    cache = KVCache(torch.zeros(FLASH_ATTN.shape(2, KVCacheSpec(2, 16, 4))), FLASH_ATTN)
    BACKEND.write(cache, fused[:, 2:4], fused[:, 4:6], slots)
    keys, values = FLASH_ATTN.views(cache.data)
    order = [0, 2, 1, 3]
    assert torch.equal(keys[1], fused[order, 2:4])
    assert torch.equal(values[1], fused[order, 4:6])


def test_wide_indices_are_refused():
    metadata = one_decode(2)
    cache = KVCache(torch.zeros(FLASH_ATTN.shape(3, KVCacheSpec(1, 16, 16))), FLASH_ATTN)
    wide = metadata.map(lambda array: array.to(torch.int64))
    with pytest.raises(ValueError, match="block_table: got dtype int64, expected int32"):
        BACKEND.attend(torch.ones(1, 2, 16), cache, wide, SPEC)
    with pytest.raises(ValueError, match=r"slot_mapping: got int64\(1,\), expected int32"):
        BACKEND.write(cache, torch.ones(1, 1, 16), torch.ones(1, 1, 16), wide.slot_mapping)


def test_arrays_of_another_library_are_refused():
    cache = KVCache(np.zeros(FLASH_ATTN.shape(3, KVCacheSpec(1, 16, 16)), np.float32), FLASH_ATTN)
    with pytest.raises(ValueError, match="cache: got ndarray, expected a torch tensor"):
        BACKEND.attend(torch.ones(1, 2, 16), cache, one_decode(2), SPEC)


def test_a_kernel_for_a_gpu_takes_no_tensor_on_the_host():
    cache = KVCache(torch.zeros(FLASH_ATTN.shape(3, KVCacheSpec(1, 16, 16))), FLASH_ATTN)
    compiled = TritonBackend()
    assert compiled.platform in ("cuda", "rocm")
    with pytest.raises(ValueError, match=r"got a tensor on cpu, expected cuda, or interpreted\(\)"):
        compiled.attend(torch.ones(1, 2, 16), cache, one_decode(2), SPEC)


def test_what_the_constructor_is_given():
    with pytest.raises(ValueError, match="interpret: got 'yes', expected True or False"):
        TritonBackend(interpret="yes")
    assert not TritonBackend().capabilities.batch_invariant
    invariant = TritonBackend(batch_invariant=True).interpreted()
    assert invariant.capabilities.batch_invariant
    assert invariant.platform == "any"


@pytest.mark.parametrize("value_dim", [512, 520])
def test_how_wide_a_latent_may_be(value_dim):
    spec = AttentionSpec(4, 1, value_dim + 64, 0.1, kv_lora_rank=value_dim, qk_rope_head_dim=64)
    reasons = BACKEND.unsupported(spec, MLA, "cpu")
    assert reasons == ([] if value_dim == 512 else ["kv_lora_rank 520, accepted: up to 512"])


@pytest.mark.parametrize("soft_cap", [5.0, 1e3, 1e6, 3e38])
def test_a_cap_far_above_the_logits_changes_nothing(soft_cap):
    """Logits 0 and ln 3, from 1e3 on as if there were no cap."""
    data = two_keys(torch.full(FLASH_ATTN.shape(3, KVCacheSpec(1, 16, 16)), torch.nan))
    spec = replace(SPEC, soft_cap=soft_cap)
    found = BACKEND.attend(torch.ones(1, 2, 16), KVCache(data, FLASH_ATTN), one_decode(2), spec)
    weight = np.exp(soft_cap * np.tanh(np.log(3) / soft_cap))
    expected = np.full((1, 2, 16), (8 + 4 * weight) / (1 + weight))
    np.testing.assert_allclose(found.out.numpy(), expected, rtol=1e-6)
    if soft_cap > 100:
        np.testing.assert_allclose(expected, 5.0, rtol=1e-6)


def test_keys_and_values_that_are_one_in_memory():
    """Stride 0 between them is no latent cache; and nothing can be written there."""
    keys = torch.full((1, 3, 16, 1, 16), torch.nan)
    keys[0, 1, :2] = torch.tensor([1.0, 2.0]).view(2, 1, 1)
    cache = KVCache(keys.expand(2, -1, -1, -1, -1), FLASH_ATTN)
    found = BACKEND.attend(torch.ones(1, 2, 16), cache, one_decode(2), SPEC)
    # Logits 8 and 16.
    weight = np.exp(8)
    np.testing.assert_allclose(found.out.numpy(), (1 + 2 * weight) / (1 + weight), rtol=1e-5)
    with pytest.raises(ValueError, match="several entries are one in memory"):
        BACKEND.write(cache, keys[0, 0, :1], keys[0, 0, :1], torch.tensor([3], dtype=torch.int32))


def test_nan_is_0_among_integers():
    shape = FLASH_ATTN.shape(2, KVCacheSpec(1, 16, 4, "int8"))
    rows = torch.full((1, 1, 16), torch.nan)
    cache = KVCache(torch.full(shape, 7, dtype=torch.int8), FLASH_ATTN, 0.1, 0.1)
    BACKEND.write(cache, rows, rows, torch.tensor([5], dtype=torch.int32))
    assert not cache.data[:, 1, 1].any()
    assert cache.data[:, 1, 2].all()


def test_no_sequences_give_nothing():
    none = AttentionMetadata(
        *(torch.zeros(shape, dtype=torch.int32) for shape in ((0, 4), (0,), (0,), (1,), (3,))),
        max_query_len=1,
        max_seq_len=1,
    )
    cache = KVCache(torch.zeros(FLASH_ATTN.shape(3, KVCacheSpec(1, 16, 16))), FLASH_ATTN)
    found = BACKEND.attend(torch.ones(0, 2, 16), cache, none, SPEC)
    assert tuple(found.out.shape) == (0, 2, 16)


def test_tensors_and_scales_of_another_kind():
    data = two_keys(torch.full(FLASH_ATTN.shape(3, KVCacheSpec(1, 16, 16)), torch.nan))
    cache, query = KVCache(data, FLASH_ATTN), torch.ones(1, 2, 16)
    with pytest.raises(ValueError, match="query: got a tensor that requires a gradient"):
        BACKEND.attend(query.clone().requires_grad_(), cache, one_decode(2), SPEC)
    with torch.no_grad():
        BACKEND.attend(query.clone().requires_grad_(), cache, one_decode(2), SPEC)
    with pytest.raises(ValueError, match="query: got a tensor that is sparse or a negative view"):
        BACKEND.attend(torch._neg_view(query), cache, one_decode(2), SPEC)
    with pytest.raises(ValueError, match="k_scale: got list, expected a number, an array or None"):
        BACKEND.attend(query, replace(cache, k_scale=[1.0]), one_decode(2), SPEC)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device: this host has no GPU"):
            TritonBackend().allocate(KVCacheSpec(1, 16, 16), FLASH_ATTN, 3)


@pytest.mark.parametrize("layout", ["flash_attn", "flashinfer_hnd", "mla"])
def test_offsets_past_2_to_the_31(layout):
    """The last block of a pool of more than 2^31 elements; pages that nobody touches are free."""
    layout = LAYOUTS[layout]
    spec = AttentionSpec(2, 2, 128, 0.1)
    if layout.is_latent:
        spec = AttentionSpec(2, 1, 576, 0.1, kv_lora_rank=512, qk_rope_head_dim=64)
    cache_spec = KVCacheSpec.of(spec, block_size=128, dtype="int8")
    few, many = 3, 2**31 // (cache_spec.values_per_token * 128) + 4
    rng = np.random.default_rng(0)
    rows = torch.tensor(rng.standard_normal((100, spec.num_kv_heads, spec.head_dim)) * 40)
    query = torch.tensor(rng.standard_normal((1, 2, spec.head_dim)), dtype=torch.float32)
    outputs = []
    for num_blocks in (few, many):
        hollow = torch.from_numpy(np.zeros(layout.shape(num_blocks, cache_spec), np.int8))
        slots = torch.arange(100, dtype=torch.int32) + (num_blocks - 1) * 128
        value = None if layout.is_latent else rows.float().flip(0)
        cache = BACKEND.write(KVCache(hollow, layout), rows.float(), value, slots)
        table = torch.tensor([[num_blocks - 1]], dtype=torch.int32)
        metadata = replace(one_decode(100), block_table=table, max_seq_len=128)
        outputs.append(BACKEND.attend(query, cache, metadata, spec).out)
    assert hollow.numel() > 2**31
    assert outputs[0].abs().sum() > 0
    assert torch.equal(*outputs)


# What each feature needs, on a layout each, so that all layouts are met.
CHOSEN = {
    "flash_attn": ("batch/mixed", "batch/strided*", "memory/nan", "slots/*"),
    "flashinfer": ("batch/decode_only", "window/8", "window/decode", "lse/split_3072_and_64"),
    "flashinfer_hnd": ("batch/three_of_eight", "soft_cap/window", "sinks/mixed", "heads/group_7"),
    "packed": ("quantised/int8_per_head", "quantised/float8_e4m3fn", "head_dim/80", "logits/same"),
    "pallas": ("quantised/float8_e5m2", "block_size/5", "dtype/*", "batch/empty_sequences"),
    "mla": ("batch/mixed", "mla/5_heads_odd", "quantised/int8", "window/8"),
    # Not listed, but read by strides like any other.
    "tpu_packed": ("batch/mixed", "slots/half_minus_one"),
}


@pytest.mark.parametrize("layout", CHOSEN)
def test_chosen_cases(layout):
    report = run_conformance(BACKEND, cases=CHOSEN[layout], layouts=[LAYOUTS[layout]])
    assert [str(failure) for failure in report.failures] == []
    assert report.summary["passed"] >= len(CHOSEN[layout])


def test_a_sequence_alone_and_in_a_batch_to_the_bit():
    backend = TritonBackend(interpret=True, batch_invariant=True)
    report = run_conformance(backend, cases="batch/invariance", layouts=["flashinfer"])
    assert [str(failure) for failure in report.failures] == []
    assert report.summary["passed"] == len(report.results)


def test_random_problems():
    found = fuzz(BACKEND, examples=20)
    assert found.failure is None, found.failure


@pytest.mark.full
def test_many_random_problems():
    found = fuzz(BACKEND, examples=400, seed=1)
    assert found.failure is None, found.failure


@pytest.mark.full
@pytest.mark.parametrize("layout", [layout.name for layout in BACKEND.layouts])
def test_the_whole_suite(layout):
    report = run_conformance(BACKEND, layouts=[layout])
    assert [str(failure) for failure in report.failures] == []
    assert report.summary["passed"] > 150
