"""Latents on TPUs: by hand, then tiles and refusals, then real compilations."""

import jax.numpy as jnp
import numpy as np
import pytest

from paged import AttentionSpec, KVCacheSpec, MetadataBuilder
from paged.backends.pallas_tpu import PallasTpuBackend
from paged.backends.pallas_tpu.latent import LatentCells
from paged.backends.pallas_tpu.tiling import choose_tilings
from paged.backends.xla import XlaBackend
from paged.lab import TARGETS
from paged.lab.asks import Sizes
from paged.lab.compile import compile_call
from paged.lab.requirements import missing
from paged.layouts import MLA, PALLAS, TPU_MLA, KVCache

BLOCK_SIZE = 16
DEEPSEEK = Sizes().spec(TPU_MLA)

needs_libtpu = pytest.mark.skipif(
    bool(missing(TARGETS["v6e"])), reason="libtpu is not installed: pip install libtpu"
)


def _step(lengths, *, num_blocks):
    """Sequences of (query_len, seq_len), and blocks one after the other from block 1."""
    table = np.arange(1, num_blocks, dtype=np.int32).reshape(len(lengths), -1)
    return (
        MetadataBuilder(BLOCK_SIZE)
        .build(
            [(row, query_len) for row, (query_len, _) in enumerate(lengths)],
            block_table=table,
            num_computed=np.array([seq_len - query_len for query_len, seq_len in lengths]),
        )
        .metadata
    )


def test_two_latents_by_hand():
    # Two query heads, scale 1; a latent is (value; rotary part), both of width 1. The latents are
    # (4; 0) and (8; ln 3). The query (0; 1) has logits 0 and ln 3: weights 1/4 and 3/4, so that 4
    # and 8 give 7, and the log-sum-exp is ln 4. The query (ln 2; 0) has logits 4 ln 2 and 8 ln 2:
    # weights 1/17 and 16/17, so that 4 and 8 give 132/17, and the log-sum-exp is ln(16 * 17).
    spec = AttentionSpec(2, 1, 2, 1.0, kv_lora_rank=1, qk_rope_head_dim=1)
    backend = PallasTpuBackend(interpret=True)
    cache = KVCache.allocate(KVCacheSpec.of(spec, block_size=BLOCK_SIZE), TPU_MLA, 2)
    latents = jnp.array([[[4.0, 0.0]], [[8.0, np.log(3.0)]]])
    cache = backend.write(cache, latents, None, jnp.array([16, 17], jnp.int32))
    # What nobody owns.
    cache = cache.with_data(cache.data.at[0].set(jnp.nan).at[1, 2:].set(jnp.nan))
    metadata = _step([(1, 2)], num_blocks=2)
    query = jnp.zeros((metadata.num_tokens, 2, 2)).at[0].set([[0.0, 1.0], [np.log(2.0), 0.0]])
    out, lse = backend.attend(query, cache, metadata, spec)
    np.testing.assert_allclose(out[0], [[7.0], [132 / 17]], rtol=1e-5)
    assert lse is not None
    np.testing.assert_allclose(lse[0], [np.log(4.0), np.log(16 * 17)], rtol=1e-5)
    assert not np.any(out[1:])
    assert np.all(lse[1:] == -np.inf)


@pytest.mark.parametrize("window", [None, 50])
def test_several_queries_and_many_pieces_agree_with_xla(window):
    spec = AttentionSpec(
        *(4, 1, 40, 0.2), kv_lora_rank=32, qk_rope_head_dim=8, window=window, has_sinks=True
    )
    metadata = _step([(1, 300), (1, 129), (3, 200), (17, 17)], num_blocks=4 * 19 + 1)
    rng = np.random.default_rng(0)
    data = rng.normal(size=(4 * 19 + 1, BLOCK_SIZE, 40)).astype(np.float32)
    query = rng.normal(size=(metadata.num_tokens, 4, 40)).astype(np.float32)
    sinks = rng.normal(size=4).astype(np.float32)
    padded = KVCache(jnp.asarray(TPU_MLA.padded(data)), TPU_MLA)
    found = PallasTpuBackend(interpret=True).attend(query, padded, metadata, spec, sinks=sinks)
    expected = XlaBackend().attend(
        jnp.asarray(query), KVCache(jnp.asarray(data), MLA), metadata, spec, sinks=sinks
    )
    np.testing.assert_allclose(found.out, expected.out, atol=2e-5)
    np.testing.assert_allclose(found.lse, expected.lse, atol=2e-5)


def test_what_is_refused():
    backend = PallasTpuBackend()
    assert backend.unsupported(DEEPSEEK, TPU_MLA, "tpu") == []
    (reason,) = backend.unsupported(DEEPSEEK, MLA, "tpu")
    assert "no layout mla" in reason
    assert "tpu_mla" in reason
    (reason,) = backend.unsupported(Sizes().spec(PALLAS), TPU_MLA, "tpu")
    assert reason == "layout tpu_mla is for a latent (MLA) spec"
    cache_spec = KVCacheSpec.of(DEEPSEEK, block_size=24, dtype="bfloat16")
    (reason,) = backend.unsupported(DEEPSEEK, TPU_MLA, "tpu", cache_spec=cache_spec)
    assert reason.startswith("block_size 24, accepted: 16")


@pytest.mark.parametrize(
    ("num_heads", "is_wide", "rows", "group"),
    [(128, False, 4, 4), (128, True, 2, 2), (16, False, 32, 32), (5, False, 104, 64)],
)
def test_tiles_keep_to_the_smallest_vmem(num_heads, is_wide, rows, group):
    dtype = "float32" if is_wide else "bfloat16"
    spec = Sizes(num_heads=num_heads, num_kv_heads=1).spec(TPU_MLA)
    cells = LatentCells(1, 1, 640, dtype, value_dim=512, is_wide=is_wide)
    lengths = [(200, 4096)] * 64
    metadata = _step(lengths, num_blocks=64 * 256 + 1)
    decode, prefill = choose_tilings(spec, cells, BLOCK_SIZE, metadata)
    assert (prefill.rows, decode.group) == (rows, group)
    assert 2 * decode.chunk * cells.vmem_bytes_per_token <= 8 << 20
    assert (decode.chunk, decode.piece) == ((1024 if is_wide else 2048), 1024)


@needs_libtpu
@pytest.mark.parametrize("name", ["v4", "v6e", "v7x"])
@pytest.mark.parametrize("cache_dtype", ["bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("query_len", [1, 16])
def test_it_compiles_and_the_cache_is_not_copied(name, cache_dtype, query_len):
    sizes = Sizes(num_seqs=4, kv_tokens=4096, query_len=query_len, cache_dtype=cache_dtype)
    problem = sizes.problem(TPU_MLA, BLOCK_SIZE)
    compiled = compile_call(PallasTpuBackend(), problem, TARGETS[name], "attend")
    assert compiled.status == "compiled", compiled.reason
    assert compiled.temp_bytes is not None
    assert compiled.argument_bytes is not None
    assert compiled.temp_bytes < compiled.argument_bytes // 2
