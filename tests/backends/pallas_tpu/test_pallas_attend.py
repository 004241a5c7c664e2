"""The ragged kernels: by hand, with the sizes that a TPU gets, and how sizes and trips are told."""

import itertools
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from paged.backends import UnsupportedError, load_backend
from paged.backends.pallas_tpu import PallasTpuBackend, Tiling, Tilings
from paged.backends.pallas_tpu.cells import Cells
from paged.backends.pallas_tpu.stream import count_chunks
from paged.backends.pallas_tpu.tiling import choose_tilings
from paged.backends.pallas_tpu.trips import loop_trips, stream_of
from paged.conformance import run_conformance
from paged.conformance.case import Case
from paged.conformance.setup import Setup
from paged.layouts import PALLAS, TPU_PACKED, KVCache
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec, KVCacheSpec

SPEC = AttentionSpec(num_heads=2, num_kv_heads=1, head_dim=128, scale=0.5)


def one_decode(seq_len, width=2):
    return AttentionMetadata(
        block_table=np.arange(1, width + 1, dtype=np.int32)[None],
        slot_mapping=np.array([-1], np.int32),
        seq_lens=np.array([seq_len], np.int32),
        query_start_loc=np.array([0, 1], np.int32),
        distribution=np.array([1, 1, 1], np.int32),
        max_query_len=1,
        max_seq_len=width * 16,
    )


@pytest.mark.parametrize("backend", [PallasTpuBackend(interpret=True), None])
def test_two_keys_by_hand(backend):
    """Logits 0 and ln 3: weights 1/4 and 3/4, lse ln 4. Nothing else is looked at."""
    backend = backend or PallasTpuBackend().interpreted()
    data = np.full(PALLAS.shape(3, KVCacheSpec(1, 128, 16)), np.nan, np.float32)
    keys, values = PALLAS.views(data)
    keys[1, 0, 0], keys[1, 1, 0] = 0, np.log(3) / 64
    values[1, 0, 0], values[1, 1, 0] = 8, 4
    query = np.ones((1, 2, 128), np.float32)
    with backend.watching() as seen:
        out, lse = backend.attend(query, KVCache(data, PALLAS), one_decode(2), SPEC)
        out, lse = np.asarray(out), np.asarray(lse)
    assert seen == []
    np.testing.assert_allclose(out, np.full((1, 2, 128), 5.0), rtol=1e-6)
    np.testing.assert_allclose(lse, np.full((1, 2), np.log(4)), rtol=1e-6)


@pytest.mark.parametrize("query_len", [1, 2])
@pytest.mark.parametrize("soft_cap", [1e6, 1e31, 3.4e38])
def test_a_cap_far_above_the_logits_changes_nothing(soft_cap, query_len):
    """The last query's logits are 0 and ln 3."""
    data = np.zeros(PALLAS.shape(3, KVCacheSpec(1, 128, 16)), np.float32)
    keys, values = PALLAS.views(data)
    keys[1, 1, 0] = np.log(3) / 64
    values[1, 0, 0], values[1, 1, 0] = 8, 4
    step = replace(
        one_decode(2),
        slot_mapping=np.full(query_len, -1, np.int32),
        query_start_loc=np.array([0, query_len], np.int32),
        distribution=np.array([query_len == 1, 1, 1], np.int32),
        max_query_len=query_len,
    )
    spec = replace(SPEC, soft_cap=soft_cap)
    query = np.ones((query_len, 2, 128), np.float32)
    out, lse = PallasTpuBackend(interpret=True).attend(query, KVCache(data, PALLAS), step, spec)
    np.testing.assert_allclose(out[-1], np.full((2, 128), 5.0), rtol=1e-6)
    np.testing.assert_allclose(lse[-1], np.full(2, np.log(4)), rtol=1e-6)


# Eight pieces of a chunk, groups of three, several chunks a sequence; tiles of 8 queries.
LARGE = Tilings(
    decode=Tiling(rows=1, chunk=512, piece=64, step=64, group=3),
    prefill=Tiling(rows=8, chunk=256, piece=256, step=64, group=1),
)


@pytest.mark.parametrize(
    ("layout", "head_dim"),
    [(TPU_PACKED, 128), (PALLAS, 128), (TPU_PACKED, 256)],
    ids=["tpu_packed", "pallas", "wide"],
)
def test_many_pieces_groups_and_chunks(layout, head_dim):
    """Lengths at every edge of block, piece and chunk; one sequence is alone in its chunks."""
    decodes = [(1, n) for n in (1, 63, 64, 65, 500, 512, 513, 1100, 3)]
    setup = Setup(
        sequences=(*decodes, (30, 30), (9, 700)),
        head_dim=head_dim,
        num_blocks=260,
        num_seqs=12,
        num_tokens=64,
        table_width=70,
    )
    case = Case("by_size/pieces", "", (6,), ("2",), setup)
    for interpret in (True, PallasTpuBackend().interpreted().interpret):
        backend = PallasTpuBackend(interpret=interpret, tilings=LARGE)
        report = run_conformance(backend, cases=case, layouts=[layout], dtypes=["float32"])
        assert report.ok, report.results


def test_the_race_of_a_missing_wait_is_seen(monkeypatch):
    """What the results need not show: memory that is read while a copy is under way."""
    from paged.backends.pallas_tpu.stream import Stream

    monkeypatch.setattr(Stream, "wait", lambda self, slot: None)
    report = run_conformance(
        PallasTpuBackend(interpret=PallasTpuBackend().interpreted().interpret, tilings=LARGE),
        cases="batch/decode_only",
        layouts=[TPU_PACKED],
        dtypes=["float32"],
    )
    (result,) = report.results
    assert result.status == "failed"


def test_what_is_refused_says_why():
    backend = PallasTpuBackend()

    def reasons(layout, *, heads=8, dim=128, dtype="bfloat16", block_size=16):
        spec = AttentionSpec(num_heads=heads, num_kv_heads=heads, head_dim=dim, scale=1.0)
        cache_spec = KVCacheSpec(heads, dim, block_size, dtype)
        return backend.unsupported(spec, layout, "tpu", cache_spec=cache_spec)

    for heads, dim in itertools.product((1, 3, 8), (16, 64, 80, 128, 192, 256)):
        assert reasons(TPU_PACKED, heads=heads, dim=dim) == []
    assert "head_dim 512, accepted: up to 256" in reasons(TPU_PACKED, dim=512)[0]
    assert "block_size 8" in reasons(TPU_PACKED, block_size=8)[0]
    assert reasons(PALLAS) == []
    # 6 rows of bfloat16 are padded to 8, rows of 64 to 128 lanes; rows of 256 lie apart.
    for heads, dim in ((3, 128), (8, 64), (8, 256)):
        assert "accepted: tpu_packed" in reasons(PALLAS, heads=heads, dim=dim)[0]
    cache = KVCache(jnp.zeros((3, 16, 6, 128), jnp.bfloat16), PALLAS)
    rows = jnp.zeros((1, 3, 128), jnp.bfloat16)
    with pytest.raises(UnsupportedError, match="6 rows of 128"):
        backend.write(cache, rows, rows, jnp.zeros(1, jnp.int32))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 64, 64, 64, 1), "rows: got 0"),
        ((1, 96, 64, 64, 1), "chunk: got 96 with pieces of 64"),
        ((1, 64, 64, 24, 1), "steps of 24"),
        ((1, 64, 64, 32, 1), "piece: got 64 with rows 1"),
        ((8, 128, 64, 64, 1), "piece: got 64 with rows 8"),
        ((8, 64, 64, 64, 2), "group of 1 with several"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        Tiling(*sizes)


def test_chosen_sizes_fit_every_shape():
    """Blocks divide pieces, and two buffers fit into the VMEM of v4."""
    shapes = itertools.product((1, 8, 64), (64, 256), (16, 256), ("bfloat16", "float32"), (1, 300))
    for heads, lanes, block_size, dtype, query_len in shapes:
        spec = AttentionSpec(num_heads=4 * heads, num_kv_heads=heads, head_dim=lanes, scale=1.0)
        lanes = max(lanes, 128)
        cells = Cells(num_kv_heads=heads, rows=2 * heads, lanes=lanes, dtype=dtype)
        metadata = AttentionMetadata(
            *(np.zeros(s, np.int32) for s in ((9, 400), 400, 9, 10, 3)),
            max_query_len=query_len,
            max_seq_len=6400,
        )
        for tiling in choose_tilings(spec, cells, block_size, metadata):
            assert tiling.piece % block_size == 0
            is_least = tiling.chunk == tiling.piece
            assert is_least or 2 * tiling.chunk * cells.vmem_bytes_per_token <= 20 << 20


@pytest.mark.parametrize("blocks", [[1], [4] * 5, [9, 0, 0], [1, 17, 3, 8, 2, 16, 5]])
def test_chunks_are_counted_as_the_stream_makes_them(blocks):
    """The kernel's loops run by the count, the stream by itself: they must agree."""
    tiling = Tiling(rows=1, chunk=64, piece=32, step=32, group=3)
    padded = blocks + [0] * (-len(blocks) % 3)
    counted = count_chunks(jnp.asarray(padded), 3, 2, 2)
    made = stream_of(padded, 16, tiling)
    assert int(counted.sum()) == made.full + made.mixed


def test_trips_by_hand():
    """Two sequences of 4,096 tokens: two whole chunks of 2,048 each, nothing piece by piece."""
    metadata = AttentionMetadata(
        *(np.zeros(s, np.int32) for s in ((2, 256), 2, 2, 3, 3)), max_query_len=1, max_seq_len=4096
    )
    tilings = Tilings(decode=Tiling(1, 2048, 256, 256, 2), prefill=LARGE.prefill)
    rules = loop_trips(metadata, SPEC, 16, tilings)
    assert [rule.runs for rule in rules if rule.holds == "matmul"] == [4]
    assert sum(rule.runs for rule in rules) == 4


def test_trips_of_several_groups_by_hand():
    """Five sequences of 32 tokens in groups of two: three groups of one chunk each."""
    metadata = AttentionMetadata(
        *(np.zeros(s, np.int32) for s in ((5, 2), 5, 5, 6, 3)), max_query_len=1, max_seq_len=32
    )
    tilings = Tilings(decode=Tiling(1, 128, 64, 64, 2), prefill=LARGE.prefill)
    rules = loop_trips(metadata, SPEC, 16, tilings)
    assert [rule.runs for rule in rules if rule.depth == 1] == [3]
    assert [rule.runs for rule in rules if rule.holds == "matmul"] == [3]


def test_trips_of_a_prefill_by_hand():
    """Tiles of 128, 128 and 64 queries see 2, 4 and 5 blocks: chunks of 2, 4, 4 and 1."""
    metadata = AttentionMetadata(
        *(np.zeros(s, np.int32) for s in ((1, 5), 320, 1, 2, 3)), max_query_len=320, max_seq_len=320
    )
    tilings = Tilings(LARGE.decode, Tiling(128, 256, 256, 256, 1))
    rules = [
        rule for rule in loop_trips(metadata, SPEC, 64, tilings) if rule.kernel == "paged_prefill"
    ]

    def runs(depth, **named):
        (found,) = (
            rule.runs
            for rule in rules
            if (rule.depth, rule.nth, rule.holds) == (depth, named.get("nth"), named.get("holds"))
        )
        return found

    assert runs(1) == 3
    # Two chunks that the first tile starts: one of single blocks, one full.
    assert (runs(2, nth=0), runs(3, nth=0)) == (2, 2)
    assert runs(3, holds="copy") == 1
    # Chunks, and both parts of each.
    assert (runs(2, nth=3), runs(3, nth=1)) == (4, 8)
    # One step that all queries see; of the others two end in its first half.
    steps = [runs(4, nth=nth, holds="matmul") for nth in (2, 3, 4)]
    assert steps == [1, 1, 2]


def test_the_registry_offers_it_for_tpus_only():
    backend = load_backend("pallas_tpu")
    assert backend.unsupported(SPEC, TPU_PACKED, "cpu") == ["runs on tpu, not on cpu"]
    assert backend.interpreted().unsupported(SPEC, TPU_PACKED, "cpu") == []
