"""Tests that need eight devices; `test_sharding.py` runs them in a process that has these."""

import re
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from paged import AttentionSpec, KVCache, KVCacheSpec, MetadataBuilder, resolve
from paged.backends import Backend, HeadSharded, KernelBackend, UnsupportedError, load_backend
from paged.backends.pallas_tpu import PallasTpuBackend
from paged.backends.reference import ReferenceBackend
from paged.conformance import Subject, run_conformance
from paged.conformance.subject import quick_options
from paged.layouts import FLASHINFER, LAYOUTS, MLA, PACKED, PALLAS, TPU_PACKED, Layout

XLA = load_backend("xla")
SPEC = AttentionSpec(num_heads=16, num_kv_heads=8, head_dim=8, scale=0.3, has_sinks=True)
LATENT = AttentionSpec(8, 1, 8, scale=0.3, kv_lora_rank=6, qk_rope_head_dim=2)
BLOCK_SIZE, NUM_BLOCKS = 4, 8
KV_LAYOUTS = [layout for layout in LAYOUTS.values() if not layout.is_latent]
COLLECTIVE = re.compile(r"all-gather|all-reduce|all-to-all|reduce-scatter|collective")


def mesh_of(size, kind=AxisType.Auto):
    return jax.make_mesh((size,), ("heads",), axis_types=(kind,), devices=jax.devices()[:size])


def sharded(size, backend=XLA, **kind):
    return HeadSharded(backend, mesh_of(size, **kind), "heads")


def step():
    """A decode of 6 tokens and 3 queries at the end of 5, padded to 8 tokens (slot -1)."""
    table = np.array([[7, 3], [5, 2]], np.int32)
    builder = MetadataBuilder(BLOCK_SIZE)
    built = builder.build([(0, 1), (1, 3)], block_table=table, num_computed=np.array([5, 2]))
    assert (np.asarray(built.metadata.slot_mapping) == -1).any()
    return built.metadata


def rows(spec, dtype="float32"):
    """Query, key and value of each token of the step."""
    rng = np.random.default_rng(0)
    heads = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
    drawn = (rng.normal(size=(step().num_tokens, count, spec.head_dim)) for count in heads)
    query, key, value = (jnp.asarray(array, dtype) for array in drawn)
    return query, key, None if spec.is_latent else value


def filled(spec, layout, dtype="float32", sharding=None, **scales):
    """A cache that holds numbers everywhere, so that a write too many shows."""
    cache_spec = KVCacheSpec.of(spec, block_size=BLOCK_SIZE, dtype=dtype)
    cache = replace(KVCache.allocate(cache_spec, layout, NUM_BLOCKS), **scales)
    rng = np.random.default_rng(1)
    plain = rng.integers(-9, 9, size=cache.data.shape)
    if layout.is_padded:  # which holds zeros
        plain[..., spec.head_dim :] = 0
    return cache.with_data(jax.device_put(jnp.asarray(plain, cache.data.dtype), sharding))


def write_and_attend(backend, cache, spec, dtype="float32"):
    query, key, value = rows(spec, dtype)
    sinks = jnp.linspace(-1, 2, spec.num_heads) if spec.has_sinks else None
    cache = backend.write(cache, key, value, step().slot_mapping)
    return cache, backend.attend(query, cache, step(), spec, sinks=sinks)


def require_same(whole, split, tolerance=1e-5):
    (cache, expected), (split_cache, output) = whole, split
    np.testing.assert_array_equal(np.asarray(split_cache.data), np.asarray(cache.data))
    for got, wanted in zip(output, expected, strict=True):
        np.testing.assert_allclose(
            np.asarray(got, np.float32), np.asarray(wanted, np.float32), tolerance, tolerance
        )


def test_two_heads_on_two_devices_by_hand():
    """Queries of zero weigh all keys alike: results are the means of each KV head's values."""
    spec = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=2, scale=1.0)
    backend = sharded(2)
    attention = resolve(spec, layout="packed", backend=backend)
    cache = attention.allocate(3, 2)
    builder = MetadataBuilder(2)
    table = np.array([[2, 1]], np.int32)
    metadata = builder.build([(0, 2)], block_table=table, num_computed=np.array([0])).metadata
    value = np.zeros((metadata.num_tokens, 2, 2), np.float32)
    value[0, 0], value[1, 0] = (1, 2), (3, 4)
    value[0, 1], value[1, 1] = (10, 20), (30, 40)
    key = np.ones_like(value) * np.array([[5], [6]], np.float32)

    cache = attention.write(cache, key, value, metadata.slot_mapping)
    query = np.zeros((metadata.num_tokens, 4, 2), np.float32)
    out, lse = attention.attend(query, cache, metadata)

    # block head slot (kv dim): each device has one head of each block.
    first, second = (np.asarray(shard.data) for shard in cache.data.addressable_shards)
    assert first.shape == second.shape == (3, 1, 2, 4)
    np.testing.assert_array_equal(first[2, 0], [[5, 5, 1, 2], [5, 5, 3, 4]])
    np.testing.assert_array_equal(second[2, 0], [[6, 6, 10, 20], [6, 6, 30, 40]])
    np.testing.assert_allclose(out[1], [[2, 3], [2, 3], [20, 30], [20, 30]])
    np.testing.assert_allclose(lse[1], [np.log(2)] * 4, rtol=1e-6)
    assert [shard.data.shape for shard in out.addressable_shards] == [(len(out), 2, 2)] * 2


@pytest.mark.parametrize("layout", KV_LAYOUTS, ids=lambda layout: layout.name)
def test_each_layout_in_place_and_without_a_word_between_devices(layout):
    backend = sharded(4)
    cache = filled(SPEC, layout, sharding=backend.cache_sharding(layout))
    query, key, value = rows(SPEC)
    sinks = jnp.linspace(-1, 2, SPEC.num_heads)

    def call(query, cache, sinks):
        return backend.attend(query, cache, step(), SPEC, sinks=sinks)

    written = (cache, key, value, step().slot_mapping)
    write = jax.jit(backend.write, donate_argnums=0).lower(*written).compile()
    attend = jax.jit(call).lower(query, cache, sinks).compile()
    assert write.memory_analysis().alias_size_in_bytes == cache.data.nbytes / 4
    assert not COLLECTIVE.search(write.as_text())
    assert not COLLECTIVE.search(attend.as_text())
    # What is looked for is there where results have to be brought together.
    together = jax.jit(call, out_shardings=NamedSharding(backend.mesh, P()))
    assert COLLECTIVE.search(together.lower(query, cache, sinks).compile().as_text())

    places = pointers(cache)
    result = jax.jit(backend.write, donate_argnums=0)(*written)
    assert pointers(result) == places
    whole = write_and_attend(XLA, filled(SPEC, layout), SPEC)
    require_same(whole, (result, jax.jit(call)(query, result, sinks)))


def pointers(cache):
    return [shard.data.unsafe_buffer_pointer() for shard in cache.data.addressable_shards]


@pytest.mark.parametrize("layout", KV_LAYOUTS, ids=lambda layout: layout.name)
def test_an_int8_cache_with_scales_per_head_of_each_layout(layout):
    k_scale, v_scale = jnp.linspace(0.01, 0.05, 8), jnp.linspace(0.06, 0.02, 8)
    require_both_alike(2, layout, dtype="int8", k_scale=k_scale, v_scale=v_scale)


def test_an_int8_cache_with_one_scale():
    require_both_alike(4, TPU_PACKED, dtype="int8", k_scale=0.03, v_scale=jnp.float32(0.02))


@pytest.mark.parametrize("size", [1, 2, 8])
def test_other_numbers_of_devices(size):
    require_both_alike(size, FLASHINFER)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def test_arrays_that_lie_elsewhere_are_moved(kind):
    whole = write_and_attend(XLA, filled(SPEC, PALLAS), SPEC)
    split = write_and_attend(sharded(4, kind=kind), filled(SPEC, PALLAS), SPEC)
    require_same(whole, split)


def test_under_jit_on_a_mesh_with_explicit_types():
    backend = sharded(2, kind=AxisType.Explicit)
    cache = filled(SPEC, PACKED, sharding=backend.cache_sharding("packed"))
    split = jax.jit(lambda cache: write_and_attend(backend, cache, SPEC))(cache)
    require_same(write_and_attend(XLA, filled(SPEC, PACKED), SPEC), split)


def test_the_other_axes_of_a_mesh_hold_copies():
    mesh = jax.make_mesh((2, 4), ("data", "heads"), axis_types=(AxisType.Auto,) * 2)
    backend = HeadSharded(XLA, mesh, "heads")
    cache = filled(SPEC, PACKED, sharding=backend.cache_sharding(PACKED))
    assert len({str(shard.index) for shard in cache.data.addressable_shards}) == 4
    split = write_and_attend(backend, cache, SPEC)
    require_same(write_and_attend(XLA, filled(SPEC, PACKED), SPEC), split)


def test_a_latent_cache_is_on_every_device_and_query_heads_are_split():
    backend = sharded(4)
    cache = filled(LATENT, MLA, sharding=backend.cache_sharding("mla"))
    split_cache, output = write_and_attend(backend, cache, LATENT)
    require_same(write_and_attend(XLA, filled(LATENT, MLA), LATENT), (split_cache, output))
    for copy in split_cache.data.addressable_shards:
        np.testing.assert_array_equal(copy.data, split_cache.data)
    assert output.out.addressable_shards[0].data.shape == (step().num_tokens, 2, 6)


def test_pallas_kernels():
    spec = AttentionSpec(num_heads=8, num_kv_heads=4, head_dim=64, scale=0.1)
    inner = PallasTpuBackend(interpret=True)
    backend = sharded(2, inner)
    query, key, value = rows(spec, "bfloat16")
    results = []
    for each in (inner, backend):
        attention = resolve(spec, backend=each, target="tpu")
        cache = attention.allocate(4, 16, dtype="bfloat16")
        table = np.array([[3], [2]], np.int32)
        built = MetadataBuilder(16).build(
            [(0, 1), (1, 3)], block_table=table, num_computed=np.array([0, 0])
        )
        cache = attention.write(cache, key, value, built.metadata.slot_mapping)
        results.append((cache, attention.attend(query, cache, built.metadata)))
    assert attention.layout == TPU_PACKED
    require_same(*results, tolerance=1e-2)


def test_a_backend_without_lse():
    class Silent(type(XLA)):
        capabilities = replace(XLA.capabilities, lse=False)

        def _attend(self, *arguments):
            return super()._attend(*arguments)._replace(lse=None)

    backend = sharded(2, Silent())
    _, output = write_and_attend(backend, filled(SPEC, FLASHINFER), SPEC)
    assert output.lse is None
    assert not backend.capabilities.lse


def test_the_example_in_the_documents():
    text = (Path(__file__).parents[2] / "docs" / "sharding.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names = {}
    exec(example, names)
    shares = [shard.data.shape for shard in names["cache"].data.addressable_shards]
    assert shares == [(128, 2, 16, 128)] * 4
    # Keys are all alike, and so are values: the first 20 tokens see 1 to 20 of them.
    out, lse = np.asarray(names["out"]), np.asarray(names["lse"])
    np.testing.assert_allclose(out[:20], 1, rtol=1e-6)
    expected = 8 + np.log(np.arange(1, 21))
    np.testing.assert_allclose(lse[:20, 0], expected, rtol=1e-6)


def test_cases_of_the_conformance_suite():
    backend = sharded(2)
    subject = Subject(backend, compiler_options=quick_options())
    report = run_conformance(subject, cases="batch/mixed*", layouts=["packed"], dtypes=["float32"])
    assert any(result.status == "passed" for result in report.results)
    assert report.ok, [result.reason for result in report.failures]


def test_it_is_a_backend_with_a_name_of_its_own():
    backend = sharded(4)
    assert isinstance(backend, Backend)
    assert (backend.name, backend.platform) == ("xla[heads=4]", "any")
    assert backend.layouts == XLA.layouts


def reasons(backend, layout=PALLAS, dtype=None, **fields):
    spec = replace(LATENT if layout.is_latent else SPEC, **fields)
    cache_spec = dtype and KVCacheSpec.of(spec, block_size=16, dtype=dtype)
    return backend.unsupported(spec, layout, "cpu", cache_spec=cache_spec)


def test_heads_that_do_not_divide_are_refused():
    backend = sharded(4)
    (reason,) = reasons(backend, num_kv_heads=2)
    assert reason == "num_kv_heads 2, accepted: a multiple of 4, the size of mesh axis heads"
    (reason,) = reasons(backend, MLA, num_heads=6)
    assert reason == "num_heads 6, accepted: a multiple of 4, the size of mesh axis heads"
    assert reasons(backend, num_kv_heads=4) == reasons(backend, MLA) == []


def test_parts_that_would_lack_their_padding_are_refused():
    (reason,) = reasons(sharded(8), TPU_PACKED, "int8")
    assert reason == (
        "num_kv_heads 8, 1 on each of 8 devices, which layout tpu_packed pads in int8, accepted: "
        "a multiple of 16"
    )
    assert reasons(sharded(4), TPU_PACKED, "int8") == []
    assert reasons(sharded(8), TPU_PACKED, "bfloat16") == []
    # The array of all heads has the size of the parts' arrays, and yet heads would be torn apart.
    words = Layout("words", "kv block slot head dim", words=True)
    assert reasons(sharded(2), words, "int8", num_heads=6, num_kv_heads=6)
    lanes = Layout("lanes", "block slot kv dim head", lanes=128)
    assert reasons(sharded(2), lanes, "int8", num_heads=200, num_kv_heads=200)
    assert reasons(sharded(2), lanes, "int8", num_heads=256, num_kv_heads=256) == []
    # One device holds the whole, padding included.
    assert reasons(sharded(1), TPU_PACKED, "int8", num_heads=3, num_kv_heads=3) == []


def test_layouts_whose_heads_lie_apart_are_refused():
    apart = Layout("apart", "block slot (kv head) dim")
    backend = sharded(2)
    (reason,) = reasons(backend, apart)
    assert reason.startswith("layout apart (block slot (kv head) dim) has no dimension")
    with pytest.raises(UnsupportedError, match="layout apart"):
        backend.cache_sharding(apart)
    with pytest.raises(UnsupportedError, match="layout apart"):
        write_and_attend(backend, filled(SPEC, apart), SPEC)


def test_the_inner_backend_is_asked_about_one_share():
    class Picky(type(XLA)):
        def unsupported(self, spec, layout, target, *, cache_spec=None, query_dtype=None):
            return [f"{spec.num_heads}/{spec.num_kv_heads}/{cache_spec.num_kv_heads} {query_dtype}"]

    backend = sharded(4, Picky())
    assert reasons(backend, PALLAS, "float32") == ["4/2/2 None"]
    assert reasons(backend, MLA, "float32") == ["2/1/1 None"]
    with pytest.raises(UnsupportedError, match=re.escape("xla[heads=4]: 4/2/2 float32")):
        backend.attend(rows(SPEC)[0], filled(SPEC, PALLAS), step(), SPEC)


def test_calls_refuse_what_unsupported_refuses():
    spec = replace(SPEC, num_kv_heads=2)
    query, key, value = rows(spec)
    cache = filled(spec, PALLAS)
    with pytest.raises(UnsupportedError, match="num_kv_heads 2, accepted: a multiple of 4"):
        sharded(4).write(cache, key, value, step().slot_mapping)
    with pytest.raises(UnsupportedError, match="num_kv_heads 2, accepted: a multiple of 4"):
        sharded(4).attend(query, cache, step(), spec)

    class Plain(type(XLA)):
        capabilities = replace(XLA.capabilities, per_head_scales=False)

    scaled = filled(SPEC, PALLAS, "int8", k_scale=jnp.ones(8))
    with pytest.raises(UnsupportedError, match="no per-head scales"):
        sharded(4, Plain()).attend(rows(SPEC)[0], scaled, step(), SPEC, sinks=jnp.ones(16))


def test_shapes_in_errors_are_those_of_the_whole():
    backend, cache = sharded(4), filled(SPEC, PALLAS)
    query, key, value = rows(SPEC)
    with pytest.raises(ValueError, match=re.escape("query.shape[1]: got 8, expected num_heads 16")):
        backend.attend(query[:, :8], cache, step(), SPEC)
    with pytest.raises(ValueError, match=re.escape("sinks: got shape (4,), expected shape (16,)")):
        backend.attend(query, cache, step(), SPEC, sinks=jnp.ones(4))
    with pytest.raises(ValueError, match="key: got shape"):
        backend.write(cache, key[:, :4], value, step().slot_mapping)
    scaled = filled(SPEC, PALLAS, "int8", k_scale=jnp.ones(2))
    with pytest.raises(ValueError, match=re.escape("k_scale: got shape (2,), expected () or (8,)")):
        backend.write(scaled, key, value, step().slot_mapping)


def test_what_cannot_be_shared_out_is_refused_at_once():
    mesh = mesh_of(2)
    with pytest.raises(ValueError, match="axis: got 'model', expected one of the mesh's: heads"):
        HeadSharded(XLA, mesh, "model")
    with pytest.raises(TypeError, match="backend: got 'xla', expected an instance"):
        HeadSharded("xla", mesh, "heads")
    with pytest.raises(TypeError, match="backend: got <class"):
        HeadSharded(type(XLA), mesh, "heads")
    with pytest.raises(TypeError, match="mesh: got 2"):
        HeadSharded(XLA, 2, "heads")
    with pytest.raises(ValueError, match="backend: reference takes arrays of numpy"):
        HeadSharded(ReferenceBackend(), mesh, "heads")
    mixed = Mesh(
        np.array(jax.devices()).reshape(2, 4),
        ("data", "heads"),
        axis_types=(AxisType.Auto, AxisType.Explicit),
    )
    with pytest.raises(ValueError, match="mesh: got axis types Auto, Explicit"):
        HeadSharded(XLA, mixed, "heads")

    class Untraceable(KernelBackend):
        name, platform, layouts, traceable = "eager", "any", (PALLAS,), False
        _write = _attend = None

    Untraceable.__abstractmethods__ = frozenset()
    with pytest.raises(ValueError, match="backend: eager cannot be traced"):
        HeadSharded(Untraceable(), mesh, "heads")


def require_both_alike(size, layout, dtype="float32", **scales):
    backend = sharded(size)
    whole = write_and_attend(XLA, filled(SPEC, layout, dtype, **scales), SPEC)
    place = backend.cache_sharding(layout)
    cache = filled(SPEC, layout, dtype, place, **scales)
    split = write_and_attend(backend, cache, SPEC)
    require_same(whole, split)
    assert split[0].data.sharding.is_equivalent_to(place, cache.data.ndim)
    shapes = {shard.data.shape for shard in split[0].data.addressable_shards}
    share = KVCacheSpec(8 // size, 8, BLOCK_SIZE, dtype)
    assert shapes == {layout.shape(NUM_BLOCKS, share)}
