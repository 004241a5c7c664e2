"""Backend cpu: by hand, then what only it promises. Values in general: conformance, below."""

import dataclasses
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cpu_cases import ESSENTIAL, passes

from paged import AttentionSpec, KVCacheSpec, Layout, MetadataBuilder, UnsupportedError, resolve
from paged.backends.cpu.backend import PATH_VARIABLE, CpuBackend
from paged.backends.cpu.build import SOURCES, BuildError, build, digest, find_compiler, paths_here
from paged.backends.cpu.library import Library, load_library
from paged.backends.reference import ReferenceBackend
from paged.conformance.fuzz import FEW, fuzz
from paged.conformance.subject import quick_options
from paged.layouts import FLASHINFER, LAYOUTS, KVCache
from tests.backends.two_keys import check_two_keys

LIBRARY = load_library()
if isinstance(LIBRARY, str):
    pytest.skip(f"the cpu backend: {LIBRARY}", allow_module_level=True)
PATHS = LIBRARY.paths
HERE = Path(__file__).parent


def a_step(requests, block_size, *, num_blocks, rng):
    """A step of (query length, sequence length), over permuted blocks."""
    width = max(-(-length // block_size) for _, length in requests)
    blocks = rng.permutation(np.arange(1, num_blocks))[: width * len(requests)]
    return MetadataBuilder(block_size).build(
        [(row, query_len) for row, (query_len, _) in enumerate(requests)],
        block_table=blocks.reshape(len(requests), width).astype(np.int32),
        num_computed=np.array([length - query_len for query_len, length in requests]),
    )


def filled(spec, layout, *, num_blocks, block_size, rng, dtype="float32"):
    cache = KVCache.allocate(
        KVCacheSpec.of(spec, block_size=block_size, dtype=dtype), layout, num_blocks
    )
    data = rng.normal(size=cache.data.shape).astype(np.float32)
    return cache.with_data(jnp.asarray(data, cache.data.dtype))


def test_two_keys_by_hand():
    check_two_keys("cpu")


def test_auto_takes_it_on_a_cpu_and_on_nothing_else():
    spec = AttentionSpec(4, 2, 64, scale=0.125)
    assert resolve(spec, target="cpu").backend.name == "cpu"
    assert resolve(spec, target="tpu", layout="pallas").backend.name != "cpu"
    with pytest.raises(UnsupportedError, match="cpu: runs on cpu, not on cuda"):
        resolve(spec, target="cuda", backend="cpu")


@pytest.mark.parametrize("layout", ["flashinfer", "mla"])
def test_essential_cases(layout):
    passes(CpuBackend(), cases=ESSENTIAL, layouts=[layout])


@pytest.mark.parametrize("path", PATHS[1:])
def test_other_paths(path):
    cases = ("batch/mixed", "dtype/float16", "quantised/float8_*_saturating", "head_dim/33")
    passes(CpuBackend(path=path), cases=cases, layouts=["packed"], dtypes=["float32", "float16"])


@pytest.mark.parametrize("layout", sorted(set(LAYOUTS) - {"flashinfer", "mla"}))
def test_every_layout(layout):
    passes(CpuBackend(), cases=("batch/mixed", "quantised/int8_per_head"), layouts=[layout])


def test_random_problems():
    report = fuzz(CpuBackend(), 15, seed=4, shapes=FEW, compiler_options=quick_options())
    assert report.failure is None, report.failure


@pytest.mark.full
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_whole_suite(layout):
    passes(CpuBackend(), layouts=[layout], full=True)


@pytest.mark.full
@pytest.mark.parametrize("path", PATHS[1:])
@pytest.mark.parametrize("layout", ["flashinfer_hnd", "mla"])
def test_the_whole_suite_on_other_paths(layout, path):
    passes(CpuBackend(path=path), layouts=[layout])


@pytest.mark.parametrize("latent", [False, True])
def test_neither_threads_nor_neighbours_change_a_bit(latent):
    """Keys in several parts, several items of queries, and heads that are shared out."""
    if latent:
        spec = AttentionSpec(16, 1, 48, 0.2, kv_lora_rank=32, qk_rope_head_dim=16)
    else:
        spec = AttentionSpec(8, 2, 32, 0.2)
    rng = np.random.default_rng(0)
    requests = [(1, 1300), (1, 513), (1, 40), (70, 70), (5, 1100)]
    step = a_step(requests, 16, num_blocks=500, rng=rng)
    layout = "mla" if latent else "packed"
    cache = filled(spec, layout, num_blocks=500, block_size=16, rng=rng)
    shape = (step.metadata.num_tokens, spec.num_heads, spec.head_dim)
    query = rng.normal(size=shape).astype(np.float32)

    def bits(backend, metadata, query):
        out, lse = backend.attend(query, cache, metadata, spec)
        return np.asarray(out), np.asarray(lse)

    out, lse = bits(CpuBackend(), step.metadata, query)
    for backend in (CpuBackend(threads=1), CpuBackend(threads=2), CpuBackend()):
        again = bits(backend, step.metadata, query)
        assert again[0].tobytes() == out.tobytes()
        assert again[1].tobytes() == lse.tobytes()
    starts = step.metadata.query_start_loc
    for row, (query_len, length) in enumerate(requests):
        alone = MetadataBuilder(16).build(
            [(0, query_len)],
            block_table=step.metadata.block_table[row : row + 1],
            num_computed=np.array([length - query_len]),
        )
        mine = slice(starts[row], starts[row + 1])
        padded = np.zeros((alone.metadata.num_tokens, *shape[1:]), np.float32)
        padded[:query_len] = query[mine]
        own_out, own_lse = bits(CpuBackend(), alone.metadata, padded)
        assert own_out[:query_len].tobytes() == out[mine].tobytes()
        assert own_lse[:query_len].tobytes() == lse[mine].tobytes()
    true_out, true_lse = ReferenceBackend().attend(
        query, cache.with_data(np.asarray(cache.data)), step.metadata, spec
    )
    np.testing.assert_allclose(out, true_out, atol=3e-6)
    np.testing.assert_allclose(lse, true_lse, atol=1e-5)


def test_a_layout_of_ones_own_with_entries_apart():
    spec = AttentionSpec(8, 2, 24, 0.2)
    rng = np.random.default_rng(1)
    step = a_step([(1, 40), (1, 7), (12, 30)], 4, num_blocks=60, rng=rng)
    mine = Layout("mine", "block dim slot (head kv)")
    cache = filled(spec, mine, num_blocks=60, block_size=4, rng=rng)
    query = rng.normal(size=(step.metadata.num_tokens, 8, 24)).astype(np.float32)
    key, value = rng.normal(size=(2, step.metadata.num_tokens, 2, 24)).astype(np.float32)
    results = []
    for backend in (CpuBackend(), ReferenceBackend()):
        data = np.asarray(cache.data) if backend.arrays == "numpy" else cache.data
        written = backend.write(cache.with_data(data), key, value, step.metadata.slot_mapping)
        results.append((written.data, *backend.attend(query, written, step.metadata, spec)))
    (data, out, lse), (true_data, true_out, true_lse) = results
    np.testing.assert_array_equal(data, true_data)
    np.testing.assert_allclose(out, true_out, atol=2e-6)
    np.testing.assert_allclose(lse, true_lse, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_write_is_in_place_under_donation(dtype):
    spec = AttentionSpec(4, 2, 64, 0.125)
    attention = resolve(spec, layout="flashinfer", backend="cpu")
    cache = attention.allocate(num_blocks=64, block_size=16, dtype=dtype)
    rows = jnp.ones((4, 2, 64))
    slots = jnp.array([16, 17, 400, -1], jnp.int32)
    write = jax.jit(attention.write, donate_argnums=0)
    memory = write.lower(cache, rows, rows, slots).compile().memory_analysis()
    assert memory.alias_size_in_bytes == cache.data.nbytes
    assert memory.temp_size_in_bytes < 4096
    before = cache.data.unsafe_buffer_pointer()
    written = write(cache, rows, rows, slots)
    assert written.data.unsafe_buffer_pointer() == before
    assert float(np.asarray(written.data, np.float32).sum()) == 3 * 2 * 2 * 64


SPEC = AttentionSpec(num_heads=2, num_kv_heads=1, head_dim=4, scale=0.5)


def small_step():
    return (
        MetadataBuilder(2)
        .build(
            [(0, 1), (1, 3)],
            block_table=np.array([[1, 7], [2, 3]], np.int32),
            num_computed=np.array([2, 0]),
        )
        .metadata
    )


def changed(metadata, name, index, value):
    array = np.array(getattr(metadata, name))
    array[index] = value
    return dataclasses.replace(metadata, **{name: array})


@pytest.mark.parametrize(
    ("name", "index", "value", "message"),
    [
        ("block_table", (1, 1), 9, r"block_table\[1, 1\]: got block 9, expected 0 <= block < 9"),
        ("block_table", (0, 0), -3, r"block_table\[0, 0\]: got block -3, expected 0 <= block"),
        ("seq_lens", 1, 99, r"seq_lens\[1\]: got 99, expected 3 .* to 32 "),
        ("seq_lens", 1, 2, r"seq_lens\[1\]: got 2, expected 3 \(its query length\)"),
        ("query_start_loc", 2, 99, r"query_start_loc\[2\]: got 99, expected 1 to 16"),
        ("query_start_loc", 2, 0, r"query_start_loc\[2\]: got 0, expected 1 to 16"),
        ("query_start_loc", 0, 1, r"query_start_loc\[0\]: got 1, expected 0"),
    ],
)
def test_values_that_break_the_contract_are_refused(name, index, value, message):
    cache = KVCache(jnp.zeros((9, 2, 2, 1, 4)), FLASHINFER)
    wrong = changed(small_step(), name, index, value)
    query = jnp.ones((wrong.num_tokens, 2, 4))
    with pytest.raises(ValueError, match=message):
        CpuBackend().attend(query, cache, wrong, SPEC)
    compiled = jax.jit(lambda *args: CpuBackend().attend(*args, SPEC))
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(compiled(query, cache, wrong.map(jnp.asarray)))


# Sizes that no other test has: JAX has not cached such a call before.
@pytest.mark.parametrize(("num_blocks", "goes_well_before"), [(7, False), (11, True)])
def test_a_refusal_has_the_same_words_after_a_call_that_went_well(num_blocks, goes_well_before):
    cache = KVCache(jnp.zeros((num_blocks, 2, 2, 1, 4)), FLASHINFER)
    good = changed(small_step(), "block_table", (0, 1), 1)
    query, rows = jnp.ones((good.num_tokens, 2, 4)), jnp.ones((3, 1, 4))
    backend = CpuBackend()
    if goes_well_before:
        backend.attend(query, cache, good, SPEC)
        backend.write(cache, rows, rows, np.array([0, 1, 2], np.int32))
    with pytest.raises(ValueError, match=r"^block_table\[0, 1\]: got block -2, expected 0 <= "):
        backend.attend(query, cache, changed(good, "block_table", (0, 1), -2), SPEC)
    with pytest.raises(ValueError, match=r"^slot_mapping\[1\]: got -2, expected -1 <= slot < "):
        backend.write(cache, rows, rows, np.array([0, -2, 2], np.int32))


@pytest.mark.parametrize("slot", [18, -2, 2**31 - 1])
def test_a_slot_out_of_range_is_refused_before_anything_is_written(slot):
    cache = KVCache(jnp.zeros((9, 2, 2, 1, 4)), FLASHINFER)
    rows = jnp.ones((2, 1, 4))
    with pytest.raises(
        ValueError,
        match=rf"slot_mapping\[1\]: got {slot}, expected -1 <= slot < 18 \(9 blocks of 2 slots\)",
    ):
        CpuBackend().write(cache, rows, rows, np.array([4, slot], np.int32))
    assert not cache.data.any()


def test_an_entry_before_the_window_may_be_no_block():
    spec = AttentionSpec(2, 1, 4, 0.5, window=2)
    metadata = changed(small_step(), "block_table", (0, 0), -7)
    cache = KVCache(jnp.ones((9, 2, 2, 1, 4)), FLASHINFER)
    # Three tokens: the last two are position 1, in the first block, and 2.
    with pytest.raises(ValueError, match=r"block_table\[0, 0\]: got block -7"):
        CpuBackend().attend(jnp.ones((16, 2, 4)), cache, metadata, spec)
    narrow = AttentionSpec(2, 1, 4, 0.5, window=1)
    out, _ = CpuBackend().attend(jnp.ones((16, 2, 4)), cache, metadata, narrow)
    np.testing.assert_array_equal(out[:4], 1.0)


def test_a_path_by_argument_and_by_environment(monkeypatch):
    monkeypatch.delenv(PATH_VARIABLE, raising=False)
    assert CpuBackend().path == PATHS[0]
    assert CpuBackend(path="scalar").path == "scalar"
    monkeypatch.setenv(PATH_VARIABLE, "scalar")
    assert CpuBackend().path == "scalar"
    assert CpuBackend(path=PATHS[0]).path == PATHS[0]
    with pytest.raises(ValueError, match=r"path: got 'mmx', expected one of .*scalar"):
        CpuBackend(path="mmx")
    monkeypatch.setenv(PATH_VARIABLE, "mmx")
    with pytest.raises(ValueError, match="PAGED_CPU_PATH: got 'mmx'"):
        CpuBackend()


@pytest.mark.parametrize("threads", [0, -1, True, 1.5, 2**31, 2**63])
def test_threads_are_a_positive_number(threads):
    with pytest.raises(ValueError, match=f"threads: got {threads}, expected an integer"):
        CpuBackend(threads=threads)


def test_without_a_library_the_reason_is_told(tmp_path):
    backend = CpuBackend(library=tmp_path / "none.so")
    (reason,) = backend.unsupported(SPEC, FLASHINFER, "cpu")
    assert "its library is not built (python -m paged.backends.cpu.build, with a C++17" in reason
    assert backend.path is None
    cache = KVCache(jnp.zeros((9, 2, 2, 1, 4)), FLASHINFER)
    rows = jnp.ones((1, 1, 4))
    with pytest.raises(UnsupportedError, match="backend cpu: its library is not built"):
        backend.write(cache, rows, rows, jnp.array([3], jnp.int32))
    (tmp_path / "text.so").write_text("no library")
    (reason,) = CpuBackend(library=tmp_path / "text.so").unsupported(SPEC, FLASHINFER, "cpu")
    assert "its library cannot be loaded" in reason


def test_a_library_of_other_sources_or_for_a_newer_jaxlib_is_told(monkeypatch):
    from paged.backends.cpu import library

    afresh = load_library.__wrapped__
    monkeypatch.setattr(library, "digest", lambda: "other")
    assert "its library was built from other sources" in afresh()
    monkeypatch.setattr(library, "digest", digest)
    monkeypatch.setattr(library, "_api_version", lambda: 1)
    assert "this jaxlib has 0.1" in afresh()


def test_a_build_without_a_compiler_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError, match="compiler: CXX names 'no-such-compiler', expected a C"):
        build(tmp_path / "x.so")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"compiler: none of c\+\+, g\+\+, clang\+\+ is here"):
        build(tmp_path / "x.so")
    monkeypatch.undo()
    with pytest.raises(BuildError, match="paths: got 'mmx'"):
        build(tmp_path / "x.so", paths=["mmx"])


@pytest.mark.full
def test_the_build_by_its_command_is_imported_once():
    """Else runpy warns of two copies of one module."""
    command = [sys.executable, "-W", "error", "-m", "paged.backends.cpu.build", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: python -m paged.backends.cpu.build" in done.stdout


def test_offsets_past_two_to_the_31():
    """Pages that nobody touches take no memory."""
    spec = AttentionSpec(2, 1, 64, 0.125)
    num_blocks, block_size = 2**31 // (2 * 16 * 64) + 8, 16
    size = num_blocks * 2 * block_size * 64
    hollow = np.zeros(size + 64, np.int8)
    start = -hollow.ctypes.data % 64
    data = hollow[start : start + size].reshape(num_blocks, 2, block_size, 1, 64)
    rng = np.random.default_rng(2)
    data[-4:] = rng.integers(-127, 128, data[-4:].shape)
    cache = KVCache(jax.dlpack.from_dlpack(data), FLASHINFER, 0.5, 2.0)
    step = MetadataBuilder(block_size).build(
        [(0, 1)],
        block_table=np.array([[num_blocks - 1, num_blocks - 3]], np.int32),
        num_computed=np.array([20]),
    )
    query = rng.normal(size=(step.metadata.num_tokens, 2, 64)).astype(np.float32)
    out, lse = CpuBackend().attend(query, cache, step.metadata, spec)
    true_out, true_lse = ReferenceBackend().attend(
        query, cache.with_data(data), step.metadata, spec
    )
    np.testing.assert_allclose(out, true_out, atol=1e-4)
    np.testing.assert_allclose(lse, true_lse, atol=1e-4)
    rows = jnp.ones((1, 1, 64))
    slot = (num_blocks - 2) * block_size + 3
    written = jax.jit(CpuBackend().write, donate_argnums=0)(
        cache, rows, rows, jnp.array([slot], jnp.int32)
    )
    assert np.asarray(written.data[num_blocks - 2, :, 3, 0]).tolist() == [[2] * 64, [0] * 64]


def runtime(name):
    """A library that comes with the compiler."""
    command = ["g++", f"-print-file-name={name}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return found if Path(found).is_absolute() else pytest.skip(f"no {name}")


@pytest.mark.full
@pytest.mark.parametrize("path", [PATHS[0], "scalar"])
def test_no_access_out_of_bounds(path):
    """AddressSanitizer and UBSan watch the kernels run conformance cases."""
    # Python has no C++ in it: what watches exceptions must find them at the start.
    environment = {
        "LD_PRELOAD": f"{runtime('libasan.so')} {runtime('libstdc++.so')}",
        "ASAN_OPTIONS": "detect_leaks=0",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(HERE.parents[2]),
    }
    done = subprocess.run(
        [sys.executable, str(HERE / "sanitized.py"), path, *ESSENTIAL, "head_dim/*"],
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def test_checking_a_step_takes_no_memory(tmp_path):
    """A message made for each block, in case, was once 5 % of a decode of 16 x 1024."""
    driver, sources = tmp_path / "driver", [SOURCES / "schedule.cc", HERE / "allocations_driver.cc"]
    command = [find_compiler(), "-std=c++17", "-O0", "-pthread", f"-I{SOURCES}"]
    command += [*map(str, sources), "-o", str(driver)]
    subprocess.run(command, check=True, capture_output=True)
    done = subprocess.run([str(driver)], capture_output=True, text=True, check=True)
    assert done.stdout == "0 0"


@pytest.mark.full
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_no_race_between_threads(sanitizer, tmp_path):
    """Several callers on one pool, whose results are those of a single thread."""
    driver, path = tmp_path / "driver", "scalar"
    command = [
        *("g++", "-std=c++17", "-O1", "-g", f"-fsanitize={sanitizer}", "-pthread", f"-I{SOURCES}"),
        *(f"-DPAGED_PATH={path}", "-DPAGED_LANES=1", '-DPAGED_DIGEST=""', "-Wno-psabi"),
        *(str(SOURCES / name) for name in ("kernels.cc", "schedule.cc", "paths.cc")),
        *(str(HERE / "threads_driver.cc"), "-o", str(driver)),
    ]
    subprocess.run(command, check=True, capture_output=True)
    done = subprocess.run([str(driver)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert "same bits" in done.stdout


@pytest.mark.full
def test_the_kernels_share_no_function(tmp_path):
    """The linker keeps one of those that objects share, maybe with instructions unknown here."""
    for lanes, flags in paths_here().values():
        target = tmp_path / f"{lanes}.o"
        command = ["g++", "-std=c++17", "-O3", "-fPIC", "-Wno-psabi", *flags, "-DPAGED_PATH=x"]
        command += [f"-DPAGED_LANES={lanes}", "-c", str(SOURCES / "kernels.cc")]
        subprocess.run([*command, "-o", str(target)], check=True, capture_output=True)
        names = subprocess.run(
            ["nm", "--defined-only", "--extern-only", str(target)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert [line.split()[-1] for line in names.splitlines()] == ["_ZN5paged9kernels_xE"]


def test_the_library_is_told_by_its_paths():
    assert isinstance(LIBRARY, Library)
    assert PATHS[-1] == "scalar"


def test_jit_and_donation_over_steps():
    """Writes and attention in one program: a token sees its own key."""
    spec = AttentionSpec(4, 2, 16, 0.25)
    backend = CpuBackend()
    rng = np.random.default_rng(3)
    step = a_step([(1, 5), (3, 3)], 4, num_blocks=9, rng=rng)
    cache = filled(spec, "pallas", num_blocks=9, block_size=4, rng=rng)
    tokens = step.metadata.num_tokens
    query = rng.normal(size=(tokens, 4, 16)).astype(np.float32)
    key, value = rng.normal(size=(2, tokens, 2, 16)).astype(np.float32)
    oracle = ReferenceBackend()
    expected = oracle.attend(
        query,
        oracle.write(
            cache.with_data(np.asarray(cache.data)), key, value, step.metadata.slot_mapping
        ),
        step.metadata,
        spec,
    )

    @partial(jax.jit, donate_argnums=0)
    def both(cache, query, key, value, metadata):
        cache = backend.write(cache, key, value, metadata.slot_mapping)
        return cache, backend.attend(query, cache, metadata, spec)

    _, (out, lse) = both(cache, query, key, value, step.metadata.map(jnp.asarray))
    np.testing.assert_allclose(out, expected.out, atol=2e-6)
    np.testing.assert_allclose(lse, expected.lse, atol=1e-5)


@pytest.mark.parametrize(("size", "scale"), [(2e19, 4e-38), (3e-20, 1e38)])
def test_a_scale_that_brings_products_back_into_range(size, scale):
    """Numbers in bfloat16 whose products overflow float32, or vanish in it, before the scale."""
    spec, rng = AttentionSpec(1, 1, 64, scale), np.random.default_rng(1)
    key, value, query = (
        jnp.asarray(rng.standard_normal((n, 1, 64)) * factor, "bfloat16")
        for n, factor in ((16, size), (16, 1), (8, size))  # queries padded to 8
    )
    cache = KVCache.allocate(KVCacheSpec.of(spec, block_size=16, dtype="bfloat16"), FLASHINFER, 2)
    cache = CpuBackend().write(cache, key, value, jnp.arange(16, 32, dtype=jnp.int32))
    step = MetadataBuilder(16).build(
        [(0, 1)], block_table=np.array([[1]], np.int32), num_computed=np.array([15])
    )
    found = CpuBackend().attend(query, cache, step.metadata.map(jnp.asarray), spec).lse[0, 0]
    logits = np.asarray(key, np.float64)[:, 0] @ np.asarray(query, np.float64)[0, 0] * scale
    expected = logits.max() + np.log(np.exp(logits - logits.max()).sum())
    np.testing.assert_allclose(found, expected, rtol=1e-5)
