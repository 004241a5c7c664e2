"""The kernels as another processor runs them: NEON, under an emulator. No timing is worth anything.

The same driver for this machine is the control: what fails there is no fault of NEON.
"""

import dataclasses
import re
import shutil
import struct
import subprocess

import numpy as np
import pytest
from cpu_cases import ESSENTIAL, passes
from emulated import PATHS, DriverBackend, built_driver

from paged import AttentionSpec, KVCacheSpec, MetadataBuilder
from paged.backends.cpu.build import BuildError, build, find_compiler
from paged.conformance import select
from paged.layouts import FLASHINFER, KVCache

pytestmark = pytest.mark.full

PREFIX = "aarch64-linux-gnu-"
EMULATOR = ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")
LAYOUTS = ("flashinfer", "packed", "mla")
AARCH64 = 183
"""As a file of an executable names the processor."""
ALONE = r"\t(?:(?:fmadd|fcvt|ldrs[bh]|[su]mov|ins)\t|mov\tv\d+\.[bhs]\[).*"
"""Instructions of NEON for one number at a time."""


def needs(*programs):
    """Skips where what is not everywhere is not here."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"not here: {', '.join(missing)} (Debian: g++-aarch64-linux-gnu, qemu-user)")


def processor(executable):
    """The number by which its header names the processor that it is for."""
    return struct.unpack_from("<H", executable.read_bytes(), 18)[0]


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    """The command of a driver for this machine."""
    try:
        compiler = find_compiler()
    except BuildError as error:
        pytest.skip(str(error))
    driver = built_driver(compiler, tmp_path_factory.mktemp("native"), more=["-O1"])
    return [str(driver)]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    """The command of a driver for aarch64."""
    needs(f"{PREFIX}g++", EMULATOR[0])
    driver = built_driver(f"{PREFIX}g++", tmp_path_factory.mktemp("aarch64"), more=["-Werror"])
    assert processor(driver) == AARCH64
    return [*EMULATOR, str(driver)]


def eight_bits():
    """The widths of heads once more, over caches of each type of 8 bits."""
    return [
        dataclasses.replace(
            case,
            name=f"{case.name}_{dtype}",
            setup=case.setup.but(cache_dtype=dtype, k_scale=0.5, v_scale=2.0),
        )
        for dtype in ("int8", "float8_e4m3fn", "float8_e5m2")
        for case in select("head_dim/*")
    ]


def test_two_keys_by_hand_and_a_refusal(native):
    # One head of width 2, scale 1. The query (1, 0) meets keys (0, 0) and (ln 3, 0): weights
    # 1/4 and 3/4, so that values 4 and 8 give 1 + 6 = 7, and the log-sum-exp is ln 4.
    spec = AttentionSpec(num_heads=1, num_kv_heads=1, head_dim=2, scale=1.0)
    shape = KVCacheSpec.of(spec, block_size=1, dtype="float32")
    cache = KVCache(np.asarray(KVCache.allocate(shape, FLASHINFER, 3).data), FLASHINFER)
    key = np.array([[[0.0, 0.0]], [[np.log(3.0), 0.0]]], np.float32)
    value = np.array([[[4.0, 0.0]], [[8.0, 0.0]]], np.float32)
    table = np.array([[2, 1]], np.int32)
    step = MetadataBuilder(1).build([(0, 1)], block_table=table, num_computed=np.array([1]))
    query = np.zeros((step.metadata.num_tokens, 1, 2), np.float32)
    query[0, 0, 0] = 1.0
    with DriverBackend(native, "baseline") as backend:
        written = backend.write(cache, key, value, np.array([2, 1], np.int32))
        assert not cache.data.any()
        with pytest.raises(ValueError, match=r"slot_mapping\[1\]: got 3, expected -1 <= slot < 3"):
            backend.write(cache, key, value, np.array([2, 3], np.int32))
        out, lse = backend.attend(query, written, step.metadata, spec)
    np.testing.assert_allclose(out[0, 0], [7.0, 0.0], rtol=1e-6)
    np.testing.assert_allclose(lse[0, 0], np.log(4.0), rtol=1e-6)
    assert not out[1:].any()
    assert np.isneginf(lse[1:]).all()


def test_a_path_that_the_driver_lacks_is_an_error(native):
    with pytest.raises(RuntimeError, match="driver: ended with 4"), DriverBackend(native, "mmx"):
        pass


@pytest.mark.parametrize("path", PATHS)
def test_the_driver_on_this_machine(native, path):
    with DriverBackend(native, path, flushes=True) as backend:
        cases = ("batch/mixed", "head_dim/33", "quantised/*_per_head", "lse/split_3072_and_64")
        passes(backend, cases=cases, layouts=LAYOUTS)


@pytest.mark.parametrize("flushes", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_aarch64(emulated, path, flushes):
    with DriverBackend(emulated, path, flushes=flushes) as backend:
        dtypes = ("float32", "bfloat16", "float16")
        cases = (*ESSENTIAL, "head_dim/*", "quantised/*")
        passes(backend, cases=cases, layouts=LAYOUTS, dtypes=dtypes)
        passes(backend, cases=eight_bits(), layouts=LAYOUTS, dtypes=dtypes)


def test_the_whole_library_compiles_for_aarch64(monkeypatch, tmp_path):
    """With XLA's calls, linked, and without a warning."""
    needs(f"{PREFIX}g++")
    monkeypatch.setenv("CXX", f"{PREFIX}g++")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    library = build(tmp_path / "library.so", flags=["-Werror"])
    assert processor(library) == AARCH64
    command = [f"{PREFIX}nm", "--dynamic", "--defined-only", str(library)]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert {"paged_cpu_attend", "paged_cpu_write", "paged_cpu_path"} <= set(names.split())


def test_the_products_on_neon_are_vectors_throughout(emulated):
    """No number is loaded, widened or multiplied by itself."""
    needs(f"{PREFIX}objdump")
    kernels = emulated[-1].removesuffix("driver") + "baseline.o"
    command = [f"{PREFIX}objdump", "-d", "-C", "--no-show-raw-insn", kernels]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    products = 0
    for name, body in re.findall(r"^[0-9a-f]+ <(.*)>:\n((?:.+\n)*)", listing, re.MULTILINE):
        if not re.search(r"::(multiply|dots)<|::tiles\(", name) or "\tfmla\t" not in body:
            continue
        products += 1
        # In `dots` the logits of 4, 2 and 1 queries, four keys each; more elsewhere.
        assert len(re.findall(r"\tfmla\tv\d+\.4s", body)) >= (4 + 2 + 1) * 4, name
        assert not (found := re.search(ALONE, body)), f"{name}: {found[0]}"
    assert products >= 10
