"""A donated write is in place: read from the program that XLA:CPU compiles for it."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paged.dtypes import storage_dtype
from paged.layouts import LAYOUTS
from paged.spec import KVCacheSpec

BLOCKS, TOKENS = 1024, 8


def spec_for(layout, dtype):
    if layout.is_latent:
        return KVCacheSpec(
            num_kv_heads=1,
            head_dim=128,
            block_size=16,
            dtype=dtype,
            kv_lora_rank=96,
            qk_rope_head_dim=32,
        )
    return KVCacheSpec(num_kv_heads=4, head_dim=32, block_size=16, dtype=dtype)


def compiled_write(layout, dtype, *, donate=True):
    spec = spec_for(layout, dtype)
    rows = jax.ShapeDtypeStruct((TOKENS, spec.num_kv_heads, spec.head_dim), storage_dtype(dtype))
    shapes = (
        jax.ShapeDtypeStruct(layout.shape(BLOCKS, spec), storage_dtype(dtype)),
        rows,
        None if layout.is_latent else rows,
        jax.ShapeDtypeStruct((TOKENS,), jnp.int32),
    )
    return jax.jit(layout.write, donate_argnums=(0,) if donate else ()).lower(*shapes).compile()


def operations_over_the_pool(hlo, values):
    """(operation, type) of each instruction that makes an array of at least `values` values."""
    found = []
    pattern = re.compile(r"= \(?(\w+)\[([\d,]*)\]\S* ([\w-]+)\(")
    for kind, shape, operation in pattern.findall(hlo):
        if shape and np.prod([int(length) for length in shape.split(",")]) >= values:
            found.append((operation, kind))
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int8"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=lambda layout: layout.name)
def test_no_copy_and_no_conversion_of_the_pool(layout, dtype):
    spec = spec_for(layout, dtype)
    values = BLOCKS * spec.block_size * spec.values_per_token
    compiled = compiled_write(layout, dtype)

    memory = compiled.memory_analysis()
    pool_bytes = BLOCKS * layout.page_bytes(spec)
    assert memory.alias_size_in_bytes == pool_bytes
    assert memory.temp_size_in_bytes < pool_bytes // 16

    operations = operations_over_the_pool(compiled.as_text(), values)
    assert operations, "the reader of HLO text found nothing: has the format changed?"
    copying = {"copy", "convert", "transpose", "pad", "concatenate", "broadcast", "select"}
    assert copying.isdisjoint(operation for operation, _ in operations), operations
    if dtype != "float32":
        assert "f32" not in {kind for _, kind in operations}, operations


def test_the_reader_sees_a_copy():
    """The same program without donation must copy: the check above can fail."""
    layout = LAYOUTS["pallas"]
    spec = spec_for(layout, "float32")
    compiled = compiled_write(layout, "float32", donate=False)
    values = BLOCKS * spec.block_size * spec.values_per_token
    assert compiled.memory_analysis().alias_size_in_bytes == 0
    operations = operations_over_the_pool(compiled.as_text(), values)
    assert "copy" in {operation for operation, _ in operations}


def test_the_reader_sees_a_conversion():
    """What the bits are for: a plain bfloat16 scatter rewrites the pool in float32."""

    def plain(pool, rows, slots):
        return pool.at[slots].set(rows)

    shapes = (
        jax.ShapeDtypeStruct((BLOCKS * 16, 256), jnp.bfloat16),
        jax.ShapeDtypeStruct((TOKENS, 256), jnp.bfloat16),
        jax.ShapeDtypeStruct((TOKENS,), jnp.int32),
    )
    compiled = jax.jit(plain, donate_argnums=0).lower(*shapes).compile()
    kinds = {kind for _, kind in operations_over_the_pool(compiled.as_text(), BLOCKS * 16 * 256)}
    if "f32" not in kinds:
        pytest.skip("this XLA:CPU scatters bfloat16 in place by itself")


def test_a_donated_pool_keeps_its_address():
    layout = LAYOUTS["pallas"]
    spec = spec_for(layout, "bfloat16")
    pool = jnp.zeros(layout.shape(BLOCKS, spec), jnp.bfloat16)
    rows = jnp.ones((TOKENS, spec.num_kv_heads, spec.head_dim), jnp.bfloat16)
    write = jax.jit(layout.write, donate_argnums=0)
    address = pool.unsafe_buffer_pointer()
    written = write(pool, rows, rows, jnp.arange(16, 16 + TOKENS, dtype=jnp.int32))
    assert written.unsafe_buffer_pointer() == address
    assert pool.is_deleted()
