"""Plans, tiles and parts: plain values, made from shapes alone."""

# Without triton there is nothing to import.

import pytest

pytest.importorskip("triton")

from hypothesis import given
from hypothesis import strategies as st

from paged.backends.triton.devices import cuda_device
from paged.backends.triton.planning import CacheShape, Step, plan_attend, plan_write
from paged.backends.triton.splitting import FIXED_TOKENS, fixed_split, split_count
from paged.backends.triton.tiles import decode_tiles, power_of_two, prefill_tiles
from paged.layouts import FLASH_ATTN, MLA, kv_strides
from paged.spec import AttentionSpec, KVCacheSpec

H200 = cuda_device((9, 0), num_sms=132)
LLAMA = AttentionSpec(num_heads=32, num_kv_heads=8, head_dim=128, scale=0.1)
LATENT = AttentionSpec(128, 1, 576, 0.1, kv_lora_rank=512, qk_rope_head_dim=64)


def cache_of(spec, layout, dtype="bfloat16", block_size=16, num_blocks=100):
    shape = layout.shape(num_blocks, KVCacheSpec.of(spec, block_size=block_size, dtype=dtype))
    return CacheShape(dtype, block_size, num_blocks, kv_strides(layout, shape))


def step_of(num_seqs, query_len=1, max_seq_len=8192, heads=32, width=128):
    tokens = num_seqs * query_len
    strides = (heads * width, width, 1)
    return Step(num_seqs, tokens, query_len, max_seq_len, "bfloat16", strides, (512, 1))


def plan(spec=LLAMA, layout=FLASH_ATTN, device=H200, invariant=False, dtype="bfloat16", **sizes):
    return plan_attend(
        spec, cache_of(spec, layout, dtype), step_of(**sizes), device, batch_invariant=invariant
    )


def test_a_full_gpu_needs_no_parts():
    found = plan(num_seqs=64)
    assert [launch.kernel for launch in found.launches] == ["decode"]
    (decode,) = found.launches
    # 64 sequences, 8 KV heads: 512 programs for 132 multiprocessors.
    assert decode.grid == (64, 8, 1)
    assert (decode.form.splits, decode.form.tile_heads, decode.form.group) == (1, 16, 4)
    assert decode.updated == decode.outputs == ("out", "lse")
    assert [buffer.name for buffer in found.buffers] == ["out", "lse"]
    assert found.results == ("out", "lse")


def test_one_long_sequence_is_cut_into_parts():
    found = plan(num_seqs=1, max_seq_len=131072)
    decode, reduce = found.launches
    # 8 programs without parts; two for each of 132 multiprocessors.
    assert decode.grid == (1, 8, 33)
    assert decode.outputs == reduce.inputs[:2] == ("part_out", "part_lse")
    assert decode.updated == ()
    assert reduce.grid == (1, 32, 1)
    shapes = {buffer.name: buffer.shape for buffer in found.buffers}
    assert shapes["part_out"] == (33, 1, 32, 128)
    assert shapes["part_lse"] == (33, 1, 32)


def test_a_mixed_step_runs_tiles_and_leaves_decodes_to_their_own_kernel():
    found = plan(num_seqs=64, query_len=32)
    prefill, decode = found.launches
    # 128 rows: 32 queries of the 4 heads of a group.
    assert (prefill.form.tile_queries, prefill.form.tile_heads) == (32, 4)
    assert prefill.grid == (64 + 64, 8, 1)
    assert prefill.form.skips_decodes
    assert not decode.form.skips_decodes
    assert prefill.scalars == (64,)
    assert decode.inputs[-2:] == ("out", "lse"), "what the first kernel wrote is kept"


def test_a_latent_has_its_own_form():
    found = plan(LATENT, MLA, num_seqs=64, heads=128, width=576)
    decode = found.launches[0]
    assert decode.form.to_value == 0
    assert (decode.form.dim_pad, decode.form.rope_pad) == (512, 64)
    assert decode.grid[:2] == (64, 4)
    assert decode.form.head_tiles * decode.form.tile_heads == 128


def test_types_that_differ_are_multiplied_in_float32():
    assert not plan(num_seqs=4).launches[0].form.in_float32
    assert plan(num_seqs=4, dtype="float16").launches[0].form.in_float32
    assert not plan(num_seqs=4, dtype="int8").launches[0].form.in_float32


def test_a_write_takes_tiles_of_heads():
    found = plan_write(
        cache_of(LLAMA, FLASH_ATTN),
        H200,
        num_tokens=7,
        num_heads=8,
        head_dim=128,
        key_strides=(1024, 128, 1),
        value_strides=(1024, 128, 1),
    )
    (write,) = found.launches
    assert write.grid == (7, 1, 1)
    assert write.scalars == (1600,)
    assert write.inputs == ("key", "value", "slot_mapping", "absent", "absent", "cache")
    assert write.updated == ("cache",)


def test_no_tokens_launch_nothing():
    found = plan_write(
        cache_of(LLAMA, FLASH_ATTN),
        H200,
        num_tokens=0,
        num_heads=8,
        head_dim=128,
        key_strides=(1024, 128, 1),
        value_strides=(1024, 128, 1),
    )
    assert found.launches == ()


def test_plans_are_values():
    assert plan(num_seqs=3) == plan(num_seqs=3)
    assert hash(plan(num_seqs=3)) == hash(plan(num_seqs=3))


SIZES = {
    "num_seqs": st.integers(1, 512),
    "head_tiles": st.integers(1, 128),
    "max_seq_len": st.integers(1, 1 << 20),
    "num_sms": st.integers(1, 200),
    "step_tokens": st.sampled_from([16, 32, 64]),
}


@given(**SIZES)
def test_parts_are_at_least_as_long_as_is_worth_it(**sizes):
    parts = split_count(**sizes)
    assert 1 <= parts <= 128
    if parts > 1:
        assert sizes["max_seq_len"] // parts >= 256
        # One part fewer would leave the device without two programs a multiprocessor.
        programs = sizes["num_seqs"] * sizes["head_tiles"]
        assert (parts - 1) * programs < 2 * sizes["num_sms"]


@given(st.integers(1, 1 << 20), st.sampled_from([16, 32, 64]))
def test_fixed_parts_hold_every_sequence_and_are_always_reduced(max_seq_len, step_tokens):
    parts, steps = fixed_split(max_seq_len=max_seq_len, step_tokens=step_tokens)
    assert steps * step_tokens == FIXED_TOKENS
    assert parts * FIXED_TOKENS >= max_seq_len
    assert parts >= 2


@given(
    st.integers(1, 128), st.sampled_from([16, 64, 128, 256, 512]), st.sampled_from([2, 4]),
    st.booleans(),
)  # fmt: skip
def test_tiles_fit_the_matrix_units(group, width, itemsize, is_latent):
    sizes = {"group": group, "width": width, "itemsize": itemsize, "is_latent": is_latent}
    sizes |= {"is_quantized": False, "shared_bytes": 227 << 10}
    for tiles in (decode_tiles(**sizes), prefill_tiles(**sizes)):
        assert tiles.queries * tiles.heads >= 16
        assert tiles.tokens >= 16
        for size in (tiles.queries, tiles.heads, tiles.tokens):
            assert size == power_of_two(size)
    assert decode_tiles(**sizes).queries == 1
