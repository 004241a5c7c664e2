"""What a spec accepts, derives and refuses."""

import dataclasses
import re

import pytest

from paged import AttentionSpec, KVCacheSpec


def attention(**changes):
    return AttentionSpec(
        **{"num_heads": 8, "num_kv_heads": 2, "head_dim": 64, "scale": 0.125, **changes}
    )


def latent(**changes):
    sizes = {"num_kv_heads": 1, "head_dim": 576, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    return {**sizes, **changes}


def test_group_size_and_value_dim():
    spec = attention()
    assert (spec.group_size, spec.value_dim, spec.is_latent) == (4, 64, False)


def test_latent_attention_is_multi_query_with_values_inside_the_keys():
    spec = AttentionSpec(num_heads=128, scale=0.1, **latent())
    assert (spec.group_size, spec.head_dim, spec.value_dim, spec.is_latent) == (128, 576, 512, True)


def test_a_cache_keeps_keys_and_values():
    spec = KVCacheSpec(num_kv_heads=8, head_dim=128, block_size=16, dtype="float16")
    assert (spec.values_per_token, spec.bytes_per_token) == (2 * 8 * 128, 4096)


def test_a_latent_cache_keeps_one_latent():
    spec = KVCacheSpec(block_size=16, dtype="bfloat16", **latent())
    assert (spec.values_per_token, spec.bytes_per_token) == (576, 1152)


@pytest.mark.parametrize("shape", [{}, latent()])
def test_the_cache_of_an_attention_spec(shape):
    asked = attention(**shape)
    cache = KVCacheSpec.of(asked, block_size=32, dtype="int8")
    assert (cache.block_size, cache.dtype) == (32, "int8")
    for name in ("num_kv_heads", "head_dim", "kv_lora_rank", "qk_rope_head_dim", "is_latent"):
        assert getattr(cache, name) == getattr(asked, name)


def test_specs_are_frozen_and_hashable():
    spec = attention()
    assert {spec: 1}[attention()] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.scale = 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 0}, "num_heads: got 0, expected an integer of at least 1"),
        ({"num_heads": True}, "num_heads: got True, expected an integer"),
        ({"num_kv_heads": -2}, "num_kv_heads: got -2, expected an integer of at least 1"),
        ({"head_dim": 64.0}, "head_dim: got 64.0, expected an integer of at least 1"),
        ({"num_heads": 7}, "num_heads: got 7, expected a multiple of num_kv_heads 2"),
        ({"scale": float("nan")}, "scale: got nan, expected a finite number"),
        ({"scale": "a"}, "scale: got 'a', expected a finite number"),
        ({"scale": True}, "scale: got True, expected a finite number"),
        ({"scale": -1e39}, "scale: got -1e+39, expected a finite number of at most 3.402823e+38"),
        ({"window": 2**31}, "window: got 2147483648, expected less than 2147483648"),
        ({"soft_cap": 1e39}, "soft_cap: got 1e+39, expected a positive number or None, from 1.17"),
        ({"soft_cap": 1e-50}, "soft_cap: got 1e-50, expected a positive number or None"),
        ({"soft_cap": "a"}, "soft_cap: got 'a', expected a positive number or None"),
        (latent(qk_rope_head_dim="a"), "qk_rope_head_dim: got 'a', expected an integer"),
        ({"window": 0}, "window: got 0, expected an integer of at least 1"),
        ({"soft_cap": 0.0}, "soft_cap: got 0.0, expected a positive number or None"),
        ({"soft_cap": float("inf")}, "soft_cap: got inf, expected a positive number or None"),
        ({"kv_lora_rank": 32}, "kv_lora_rank: got 32 with qk_rope_head_dim None, expected both"),
        (latent(num_kv_heads=2), "num_kv_heads: got 2, expected 1 for a latent cache"),
        (latent(head_dim=512), "head_dim: got 512, expected kv_lora_rank + qk_rope_head_dim = 576"),
        (latent(qk_rope_head_dim=-1), "qk_rope_head_dim: got -1, expected at least 0"),
    ],
)
def test_a_field_out_of_range_is_named(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        attention(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": 0}, "block_size: got 0, expected an integer of at least 1"),
        ({"dtype": [1]}, "dtype: got [1], expected one of float32, float16"),
        ({"dtype": "float64"}, "dtype: got 'float64', expected one of float32, float16"),
        (latent(head_dim=575), "head_dim: got 575, expected kv_lora_rank + qk_rope_head_dim = 576"),
    ],
)
def test_a_cache_field_out_of_range_is_named(changes, message):
    sizes = {"num_kv_heads": 2, "head_dim": 64, "block_size": 16, **changes}
    with pytest.raises(ValueError, match=re.escape(message)):
        KVCacheSpec(**sizes)
