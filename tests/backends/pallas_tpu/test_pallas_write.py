"""Writing by the kernel: against numpy's assignment, by interpreters, and compiled for TPUs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import SingleDeviceSharding

from paged.backends import UnsupportedError
from paged.backends.pallas_tpu import PallasTpuBackend
from paged.backends.pallas_tpu import write as of_cells
from paged.backends.pallas_tpu import write_latents as of_latents
from paged.backends.pallas_tpu.write import write_cells
from paged.backends.pallas_tpu.write_latents import write_latents
from paged.dtypes import storage_dtype
from paged.lab import TARGETS, Problem
from paged.lab.compile import compile_call, target_device
from paged.lab.requirements import missing
from paged.layouts import FLASH_ATTN, PALLAS, TPU_PACKED, KVCache
from paged.spec import AttentionSpec, KVCacheSpec

BLOCKS, BLOCK_SIZE = 5, 16
SLOTS = BLOCKS * BLOCK_SIZE
DTYPES = ("float32", "bfloat16", "int8", "float8_e4m3fn")
TPUS = ("v4", "v5e", "v5p", "v6e", "v7x")
# Cells of layout `pallas`, of `tpu_packed`, and latents.
CELLS = ((8, 128), (4, 2, 128), (256,))

needs_libtpu = pytest.mark.skipif(
    bool(missing(TARGETS["v6e"])), reason="libtpu is not installed: pip install libtpu"
)


def strict():
    """The interpreter that sees races, and reads of what was never written."""
    return pltpu.InterpretParams(
        detect_races=True, out_of_bounds_reads="raise", uninitialized_memory="nan"
    )


@pytest.fixture(params=["plain", "strict"])
def interpret(request):
    yield True if request.param == "plain" else strict()
    if request.param == "strict":
        pltpu.reset_tpu_interpret_mode_state()


def assert_no_races():
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call as state

    assert state.races is None or not state.races.races_found


def random_bits(rng, shape, dtype):
    """Infinities and NaNs among them; of these only one, because XLA:CPU quietens the others."""
    dtype = storage_dtype(dtype)
    width = shape[-1] * dtype.itemsize
    numbers = rng.integers(0, 256, (*shape[:-1], width), np.uint8).view(dtype)
    if dtype.kind != "i":
        numbers[np.isnan(numbers.astype(np.float32))] = np.nan
    return numbers


def bits(array):
    array = np.asarray(array)
    return array.view(f"u{array.dtype.itemsize}")


def mappings():
    rng = np.random.default_rng(0)
    everywhere = rng.permutation(SLOTS)
    few = {
        "first": [0],
        "last": [SLOTS - 1],
        "past the end": [SLOTS, 3, 2**31 - 1, SLOTS - 1, SLOTS + 1],
        "negative": [-1, 7, -2, -(2**31), 8],
    }
    # Of one length, so that each type is compiled once for all of them.
    filled = {name: [*slots, *[-1] * (SLOTS - len(slots))] for name, slots in few.items()}
    return filled | {
        "no tokens": np.zeros(0),
        "nothing": np.full(SLOTS, -1),
        "one group and one more": np.arange(9) + 12,
        "in order": np.arange(SLOTS),
        "in any order": everywhere,
        "half of them": np.where(rng.random(SLOTS) < 0.5, -1, everywhere),
    }


@pytest.mark.parametrize("name", mappings())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_named_slots_are_written_and_no_other_byte(cell, dtype, name, interpret):
    rng = np.random.default_rng(1)
    slots = np.array(mappings()[name], np.int32)
    before = random_bits(rng, (BLOCKS, BLOCK_SIZE, *cell), dtype)
    cells = random_bits(rng, (len(slots), *cell), dtype)
    assert_written(before, cells, slots, interpret)


def assert_written(before, cells, slots, interpret):
    """The kernel's cache is the one before with the cells assigned, bit for bit."""
    write = write_latents if cells.ndim == 2 else write_cells
    after = write(jnp.asarray(before), jnp.asarray(cells), jnp.asarray(slots), interpret=interpret)
    assert (after.shape, after.dtype) == (before.shape, before.dtype)
    expected = bits(before).copy().reshape(SLOTS, *cells.shape[1:])
    kept = (slots >= 0) & (slots < SLOTS)
    expected[slots[kept]] = bits(cells)[kept]
    np.testing.assert_array_equal(bits(after).reshape(expected.shape), expected)
    assert_no_races()


@pytest.fixture
def small_sizes(monkeypatch):
    """Sizes so small that few tokens pass through every state of the loops."""
    monkeypatch.setattr(of_cells, "_CHUNK", 16)
    monkeypatch.setattr(of_cells, "_IN_FLIGHT", 16)
    monkeypatch.setattr(of_latents, "_TOKENS", 32)
    monkeypatch.setattr(of_latents, "_BUFFERS", 2)
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.mark.parametrize("cell", [(2, 128), (128,)], ids=str)
@pytest.mark.usefixtures("small_sizes")
def test_more_tokens_than_a_chunk_and_than_may_be_in_flight(cell, interpret):
    rng = np.random.default_rng(2)
    slots = np.where(rng.random(SLOTS) < 0.3, -1, rng.permutation(SLOTS)).astype(np.int32)
    slots = slots[: SLOTS - 3]
    before = random_bits(rng, (BLOCKS, BLOCK_SIZE, *cell), "bfloat16")
    cells = random_bits(rng, (len(slots), *cell), "bfloat16")
    assert_written(before, cells, slots, interpret)


def test_a_cache_smaller_than_a_group():
    before = jnp.zeros((2, 1, 2, 128), jnp.float32)
    cells = jnp.ones((3, 2, 128), jnp.float32)
    after = write_cells(before, cells, jnp.array([1, -1, 2], jnp.int32), interpret=strict())
    np.testing.assert_array_equal(after, np.stack([np.zeros((1, 2, 128)), np.ones((1, 2, 128))]))
    pltpu.reset_tpu_interpret_mode_state()


def test_what_does_not_fit_is_named():
    cache, slots = jnp.zeros((2, 16, 2, 128)), jnp.zeros(3, jnp.int32)
    with pytest.raises(ValueError, match=r"data: got shape \(2, 16, 128\)"):
        write_cells(cache[:, :, 0], jnp.zeros((3, 128)), slots)
    with pytest.raises(ValueError, match=r"cells: got float32\(2, 2, 128\).*\(3, 2, 128\)"):
        write_cells(cache, jnp.zeros((2, 2, 128)), slots)
    with pytest.raises(ValueError, match=r"cells: got bfloat16"):
        write_cells(cache, jnp.zeros((3, 2, 128), jnp.bfloat16), slots)
    for shape in ((2, 12, 128), (2, 16, 64), (2, 16, 2, 128)):
        with pytest.raises(ValueError, match=r"data: got shape .* multiple of 8 .* one of 128"):
            write_latents(jnp.zeros(shape), jnp.zeros((3, shape[-1])), slots)
    with pytest.raises(ValueError, match=r"latents: got float32\(2, 128\), .*\(3, 128\)"):
        write_latents(cache[:, :, 0], jnp.zeros((2, 128)), slots)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("layout", "heads", "dim"),
    [(PALLAS, 4, 128), (TPU_PACKED, 3, 64), (TPU_PACKED, 1, 256)],
    ids=lambda value: str(getattr(value, "name", value)),
)
def test_the_backend_writes_what_the_layout_writes(layout, heads, dim, dtype):
    rng = np.random.default_rng(3)
    spec = KVCacheSpec(num_kv_heads=heads, head_dim=dim, block_size=BLOCK_SIZE, dtype=dtype)
    before = random_bits(rng, layout.shape(BLOCKS, spec), dtype)
    key, value = rng.integers(-8, 8, (2, 21, heads, dim)).astype(np.float32)
    slots = np.where(rng.random(21) < 0.3, -1, rng.permutation(SLOTS)[:21]).astype(np.int32)
    stored = [jnp.asarray(rows.astype(storage_dtype(dtype))) for rows in (key, value)]
    expected = layout.write(jnp.asarray(before), *stored, jnp.asarray(slots))

    cache = KVCache(jnp.asarray(before), layout)
    after = PallasTpuBackend().interpreted().write(cache, key, value, slots)
    np.testing.assert_array_equal(bits(after.data), bits(expected))
    np.testing.assert_array_equal(bits(cache.data), bits(before))


@pytest.mark.parametrize(
    ("heads", "dim", "dtype"),
    [(3, 128, "bfloat16"), (1, 128, "int8"), (3, 128, "float32"), (8, 64, "bfloat16")],
)
def test_a_cache_that_a_tpu_would_pad_is_refused(heads, dim, dtype):
    backend = PallasTpuBackend().interpreted()
    cache = KVCache(jnp.zeros((2, 16, 2 * heads, dim), dtype), PALLAS)
    rows, slots = jnp.zeros((1, heads, dim)), jnp.zeros(1, jnp.int32)
    rows_of = f"{2 * heads} rows of {dim} {dtype} a token"
    reason = f"{rows_of}, not whole words of 128 lanes, accepted: tpu_packed"
    with pytest.raises(UnsupportedError, match=reason):
        backend.write(cache, rows, rows, slots)
    spec = KVCacheSpec(num_kv_heads=heads, head_dim=dim, block_size=16, dtype=dtype)
    assert reason in backend.unsupported(attention(heads, dim), PALLAS, "tpu", cache_spec=spec)[0]
    packed = KVCache.allocate(spec, TPU_PACKED, 2)
    assert backend.write(packed, rows, rows, slots).layout == TPU_PACKED


def test_another_layout_is_refused():
    rows, cache = jnp.zeros((1, 1, 128)), KVCache(jnp.zeros((2, 2, 16, 1, 128)), FLASH_ATTN)
    with pytest.raises(UnsupportedError, match="no layout flash_attn"):
        PallasTpuBackend().write(cache, rows, rows, jnp.zeros(1, jnp.int32))


def attention(heads, dim):
    return AttentionSpec(num_heads=8 * heads, num_kv_heads=heads, head_dim=dim, scale=1.0)


@needs_libtpu
@pytest.mark.parametrize("target", TPUS)
def test_a_tpu_writes_in_place(target):
    """Nothing of the cache's size beside the cache."""
    shapes = [(PALLAS, 8, 128), (TPU_PACKED, 8, 256), (TPU_PACKED, 8, 128), (TPU_PACKED, 1, 64)]
    for layout, heads, dim in shapes:
        for dtype in DTYPES:
            problem = Problem(
                attention(heads, dim), layout, num_seqs=64, kv_tokens=2048, cache_dtype=dtype
            )
            done = compile_call(PallasTpuBackend(), problem, TARGETS[target], "write")
            what = (layout.name, heads, dim, dtype, done.reason)
            assert done.status == "compiled", what
            pages = problem.attend_arguments()[1].data.size * storage_dtype(dtype).itemsize
            assert pages <= done.alias_bytes < pages + 4096, what
            assert done.temp_bytes < pages // 100, what


@needs_libtpu
@pytest.mark.parametrize("target", TPUS)
def test_a_tpu_neither_copies_nor_moves_the_cache(target):
    """Read in the compiled program, for so many tokens that their slots come in chunks."""
    sharding = SingleDeviceSharding(target_device(TARGETS[target]))
    for dtype in DTYPES:
        packing = 4 // storage_dtype(dtype).itemsize
        for cell in ((16, 128), (16 // packing, packing, 256), (640,)):
            data, cells, slots = (
                jax.ShapeDtypeStruct(shape, of, sharding=sharding)
                for shape, of in (
                    # Too large for the fast memories, into which XLA would move it for a while.
                    ((16384, 16, *cell), dtype),
                    ((20_000, *cell), dtype),
                    ((20_000,), jnp.int32),
                )
            )
            write = write_latents if len(cell) == 1 else write_cells
            done = jax.jit(write, donate_argnums=0).lower(data, cells, slots).compile()
            head, *lines = done.as_text().splitlines()
            assert "input_output_alias={ {}: (0, {}, may-alias) }" in head
            copies = [line for line in lines if " copy(" in line or " copy-start(" in line]
            sizes = f"[{','.join(map(str, data.shape))}]", f"[262144,{','.join(map(str, cell))}]"
            assert not [line for line in copies if any(size in line for size in sizes)], cell
            memory = done.memory_analysis()
            assert memory.alias_size_in_bytes == np.prod(data.shape) * data.dtype.itemsize
            # Slots, and a word for each number of the new latents; nothing of the cache's size.
            words = 20_000 * cell[0] * 4 if len(cell) == 1 else 0
            assert memory.temp_size_in_bytes < words + (1 << 20)
