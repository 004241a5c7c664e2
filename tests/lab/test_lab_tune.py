"""Sizes chosen by counts: by hand, as a file, and as the backend takes them."""

import json
from dataclasses import replace

import jax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType
from lab_subjects import SPEC, Tiny, TinyWithSizes
from typer.testing import CliRunner

from paged.backends.pallas_tpu import PallasTpuBackend, Tiling, Tilings
from paged.backends.pallas_tpu import tuned as pallas_tuned
from paged.backends.tuned import read_tuned
from paged.cli import app
from paged.lab import TARGETS, Problem
from paged.lab import tune as tune_module
from paged.lab.bundles import KernelCounts
from paged.lab.compile import Compiled, find_candidates, trip_rules
from paged.lab.measure import Measurement
from paged.lab.requirements import missing
from paged.lab.roofline import Total, Unknown
from paged.lab.tune import tune, updated, write_tuned
from paged.layouts import FLASHINFER, FLASHINFER_HND, TPU_PACKED
from paged.spec import AttentionSpec

needs_libtpu = pytest.mark.skipif(
    bool(missing(TARGETS["v6e"])), reason="libtpu is not installed: pip install libtpu"
)
PROBLEM = Problem(SPEC, FLASHINFER_HND, block_size=128, num_seqs=4, kv_tokens=1024)
VERSIONS = {"libtpu": "1", "jax": "2"}


class Three(TinyWithSizes):
    choices = (16, 32, 64)


def counting(figures):
    """Stands in for the compiler: (scheduled, issued, VMEM) by rows, or the reason of a failure."""

    def count(target, jobs):
        measured = []
        for backend, problem in jobs:
            told = figures[backend.vmem_rows]
            if isinstance(told, str):
                compiled = Compiled("failed", reason=told)
                measured.append(Measurement("fake", problem, target, "attend", compiled))
                continue
            scheduled, issued, vmem = told
            per_token = Total(scheduled, issued, 0.5)
            if scheduled is None:
                per_token = Unknown("the trip count of loop 1 depends on values")
            kernels = (KernelCounts("fake", {}, (), (), vmem),)
            compiled = Compiled("compiled")
            measured.append(
                Measurement("fake", problem, target, "attend", compiled, kernels, (), per_token)
            )
        return measured

    return count


def chosen(figures):
    (choice,) = tune(TARGETS["v6e"], [(Three(), PROBLEM)], count=counting(figures))
    return choice.chosen and choice.chosen.sizes["rows"]


@pytest.mark.parametrize(
    ("figures", "rows"),
    [
        ({16: (2.0, 1, 8), 32: (1.9, 1, 9), 64: (1.8, 1, 9)}, 64),
        # Equal schedules: fewer issued; those equal too: less VMEM.
        ({16: (2.0, 1, 8), 32: (1.8, 1.2, 9), 64: (1.8, 1.1, 9)}, 64),
        ({16: (2.0, 1, 8), 32: (1.8, 1.1, 7), 64: (1.8, 1.1, 9)}, 32),
        # Less than 2% is no reason to leave what the backend takes by itself.
        ({16: (2.0, 1, 8), 32: (1.97, 1, 8), 64: (1.961, 1, 8)}, 16),
        ({16: (2.0, 1, 8), 32: (1.96, 1, 8), 64: (3, 1, 8)}, 32),
        # What is not counted is not chosen, be it the untuned one.
        ({16: "no room", 32: (3, 1, 8), 64: (None, 1, 8)}, 32),
        ({16: "no room", 32: "no room", 64: "no room"}, None),
    ],
)
def test_the_fewest_scheduled_bundles_are_chosen(figures, rows):
    assert chosen(figures) == rows


def test_problems_of_one_shape_are_chosen_for_together():
    other = replace(PROBLEM, block_size=64)

    def count(target, jobs):
        few = {16: (2, 1, 8), 32: (1.0, 1, 8), 64: (1.5, 1, 8)}
        many = {16: (4, 1, 8), 32: (4.0, 1, 8), 64: (3.0, 1, 9)}
        return counting(few if jobs[0][1] is PROBLEM else many)(target, jobs)

    told = []
    backend = Three()
    asked = [(backend, PROBLEM), (backend, other)]
    (choice,) = tune(TARGETS["v6e"], asked, count=count, tell=told.append)
    assert choice.chosen is choice.tried[2]
    entry = choice.entry()
    assert entry["counts"]["scheduled_per_token"] == 2.25
    assert entry["counts"]["vmem_bytes"] == 9
    assert [problem["block_size"] for problem in entry["problems"]] == [128, 64]
    assert len(told) == 2
    assert "3 candidates" in told[0]


@pytest.mark.parametrize(
    ("target", "backend", "layout", "message"),
    [
        ("v6e", Tiny(), FLASHINFER_HND, "tiny has no lab_candidates"),
        ("v6e", Three(), FLASHINFER, "refuses flashinfer with blocks of 128 on v6e: no layout"),
        ("h100", Three(), FLASHINFER_HND, "target: got 'h100', expected a TPU"),
    ],
)
def test_what_cannot_be_tuned_is_refused(target, backend, layout, message):
    with pytest.raises(ValueError, match=message):
        tune(TARGETS[target], [(backend, replace(PROBLEM, layout=layout))], count=counting({}))


def choices_of(figures, target="v6e"):
    return tune(TARGETS[target], [(Three(), PROBLEM)], count=counting(figures))


def test_the_file_by_hand(tmp_path):
    """Written twice alike; another device is another entry, the same one takes its place."""
    path = tmp_path / "tuned.json"
    v6e = choices_of({16: (2, 1, 8), 32: (1, 0.75, 9), 64: "no room"})
    write_tuned(path, updated(None, v6e, "first", VERSIONS))
    first = path.read_bytes()
    write_tuned(path, updated(read_tuned(path), v6e, "first", VERSIONS))
    assert path.read_bytes() == first

    (entry,) = json.loads(first)["entries"]
    assert entry["device_kind"] == "TPU v6 lite"
    assert entry["shape"] == {"num_heads": 8}
    assert entry["sizes"] == {"rows": 32}
    assert entry["counts"] == {
        "scheduled_per_token": 1,
        "issued_per_token": 0.75,
        "bound_per_token": 0.5,
        "hbm_cycles_per_token": None,
        "spills": 0,
        "vmem_bytes": 9,
    }
    assert entry["untuned"]["sizes"] == {"rows": 16}

    v4 = choices_of({16: (2, 1, 8), 32: (2, 1, 8), 64: (1, 1, 8)}, "v4")
    write_tuned(path, updated(read_tuned(path), v4, "second", VERSIONS))
    again = choices_of({16: (2, 1, 8), 32: (2, 1, 8), 64: (1, 1, 8)})
    write_tuned(path, updated(read_tuned(path), again, "third", VERSIONS))
    known = read_tuned(path)
    assert known.made_by == ("first", "second", "third")
    assert [entry["device_kind"] for entry in known.entries] == ["TPU v4", "TPU v6 lite"]
    assert known.sizes("TPU v6 lite", {"num_heads": 8}) == {"rows": 64}
    assert known.sizes("TPU v6 lite", {"num_heads": 9}) is None
    assert known.sizes("TPU v5", {"num_heads": 8}) is None
    with pytest.raises(ValueError, match=r"out: the file is of .*'1'.*installed is .*'3'"):
        updated(known, again, "fourth", {"libtpu": "3", "jax": "2"})


ENTRY = {"device_kind": "TPU v4", "shape": {}, "sizes": {"rows": 1}, "counts": {}}
DECODE = {"call": "decode"}


def written(path, *entries, **changes):
    form = {"made_by": [], "versions": {}, "what": "", "entries": list(entries), **changes}
    path.write_text(json.dumps(form))
    return path


@pytest.mark.parametrize(
    ("entries", "changes", "message"),
    [
        ([], {"made_by": "one"}, "has an object of made_by, versions, what, entries, expected"),
        ([{"sizes": {}}], {}, "entry 0: got an object of sizes, expected device_kind"),
        (["x"], {}, "entry 0: got a str"),
        ([ENTRY, ENTRY], {}, "entry 1: TPU v4 {} is there already"),
        ([ENTRY | {"sizes": {"rows": 1.5}}], {}, "rows: got 1.5, expected a whole number"),
        ([ENTRY | {"sizes": {"rows": True}}], {}, "rows: got True, expected a whole number"),
    ],
)
def test_a_file_that_is_none(tmp_path, entries, changes, message):
    with pytest.raises(ValueError, match=message):
        read_tuned(written(tmp_path / "tuned.json", *entries, **changes))


def test_no_file_and_no_json(tmp_path):
    with pytest.raises(ValueError, match="no file"):
        read_tuned(tmp_path / "none.json")
    (tmp_path / "none.json").write_text("{")
    with pytest.raises(ValueError, match="is no JSON"):
        read_tuned(tmp_path / "none.json")


# The ragged kernels.

EIGHT = AttentionSpec(num_heads=32, num_kv_heads=8, head_dim=128, scale=128**-0.5)
STEP = Problem(EIGHT, TPU_PACKED, block_size=64)


def on(device_kind):
    """Compiling for a device that is not here."""
    device = AbstractDevice(device_kind=device_kind, num_cores=1, platform="tpu")
    mesh = AbstractMesh((1,), ("x",), axis_types=(AxisType.Auto,), abstract_device=device)
    return jax.sharding.use_abstract_mesh(mesh)


def taken(problem=STEP, backend=None):
    """The sizes that the backend takes for a problem."""
    query, cache, metadata, _ = problem.attend_arguments()
    return (backend or PallasTpuBackend())._tilings(query, cache, metadata, problem.spec)


@pytest.fixture
def tuned_to(tmp_path, monkeypatch):
    """Replaces the committed file by one with these sizes."""

    def put(sizes, *, call="decode", kind="TPU v6 lite", **shape):
        described = {
            "call": call,
            "lanes": 128,
            "num_kv_heads": 8,
            "group_size": 4,
            "cache_dtype": "bfloat16",
            **shape,
        }
        entry = {"device_kind": kind, "shape": described, "sizes": sizes, "counts": {}}
        path = written(tmp_path / f"{len(list(tmp_path.iterdir()))}.json", entry)
        monkeypatch.setattr(pallas_tuned, "FILE", path)

    return put


def test_the_committed_file_is_used_and_fits_its_devices():
    known = read_tuned(pallas_tuned.FILE)
    kinds = {target.device_kind for target in TARGETS.values() if target.platform == "tpu"}
    assert {entry["device_kind"] for entry in known.entries} == kinds
    for entry in known.entries:
        shape = entry["shape"]
        heads = shape["num_kv_heads"]
        spec = AttentionSpec(heads * shape["group_size"], heads, shape["lanes"], scale=1.0)
        for made in entry["problems"]:
            problem = Problem(
                spec,
                TPU_PACKED,
                block_size=made["block_size"],
                num_seqs=made["num_seqs"],
                kv_tokens=made["kv_tokens"],
                query_len=made["query_len"],
                cache_dtype=shape["cache_dtype"],
            )
            with on(entry["device_kind"]):
                tilings = taken(problem)
            assert pallas_tuned.sizes_of(tilings, shape["call"]) == entry["sizes"]
        assert (
            entry["counts"]["scheduled_per_token"]
            <= (entry["untuned"]["counts"]["scheduled_per_token"])
        )


def test_a_tuned_size_is_for_its_device_and_shape_alone(tuned_to):
    with on("TPU v6 lite"):
        untuned = {
            "v6e": taken(backend=PallasTpuBackend()),
        }
    tuned_to({"piece": 128, "chunk": 4096})
    with on("TPU v6 lite"):
        assert taken().decode == Tiling(1, 4096, 128, 128, 32)
        assert taken().prefill == untuned["v6e"].prefill
        others = [
            replace(STEP, cache_dtype="int8"),
            replace(STEP, spec=replace(EIGHT, num_heads=8)),
        ]
        assert [taken(other).decode.chunk for other in others] == [2048, 2048]
    with on("TPU v6e"):
        assert taken().decode.chunk == 4096, "the same chip by another name"
    with on("TPU v5"):
        assert taken().decode.chunk == 2048
    assert taken().decode.piece == 256, "this host is none of them"


def test_a_tuned_size_is_cut_down_to_the_call(tuned_to):
    with on("TPU v6 lite"):
        tuned_to({"piece": 512, "chunk": 4096})
        assert taken(replace(STEP, block_size=256)).decode == Tiling(1, 4096, 512, 512, 32)
        short = replace(STEP, kv_tokens=256, num_seqs=2)
        assert taken(short).decode == Tiling(1, 512, 256, 256, 2), "no piece is ever full"
        assert taken(replace(STEP, kv_tokens=256)).decode.chunk == 2048, "and untuned all along"
        assert taken(replace(STEP, kv_tokens=320)).decode == Tiling(1, 4096, 512, 512, 32)
        tuned_to({"piece": 128, "chunk": 1024})
        wide = taken(replace(STEP, block_size=256)).decode
        assert wide == Tiling(1, 2048, 256, 256, 32), "a block does not fit into a piece"
        tuned_to({"piece": 128, "chunk": 1 << 20})
        # 4,608 bytes of VMEM a token and buffer: 8,192 of them are 72 of 128 MiB.
        assert taken(replace(STEP, kv_tokens=1 << 20)).decode.chunk == 8192
        tuned_to({"rows": 64, "chunk": 2048, "step": 512}, call="prefill")
        prefill = taken(replace(STEP, query_len=256)).prefill
        assert prefill == Tiling(64, 2048, 2048, 512, 1)
        few = taken(replace(STEP, query_len=16, kv_tokens=256)).prefill
        # 128 columns are the least: 32 queries of 4 heads.
        assert few == Tiling(32, 256, 256, 256, 1)


def test_trips_follow_the_tuned_sizes(tuned_to):
    def chunks():
        rules = trip_rules(PallasTpuBackend(), STEP)
        return next(rule.runs for rule in rules if rule.holds == "matmul")

    with on("TPU v6 lite"):
        tuned_to({"piece": 256, "chunk": 2048})
        assert chunks() == 64
        tuned_to({"piece": 256, "chunk": 4096})
        assert chunks() == 32


def test_given_sizes_win_and_interpreters_read_no_file(monkeypatch):
    monkeypatch.setattr(pallas_tuned, "FILE", pallas_tuned.FILE.with_name("nowhere.json"))
    given = Tilings(Tiling(1, 64, 64, 64, 1), Tiling(8, 64, 64, 64, 1))
    assert taken(backend=PallasTpuBackend(tilings=given)) == given
    assert taken(backend=PallasTpuBackend(interpret=True)).decode.piece == 64
    with pytest.raises(ValueError, match=r"no file .*nowhere.json"):
        taken()


@pytest.mark.parametrize(
    ("sizes", "shape", "message"),
    [
        ({"piece": 128}, DECODE, "got call 'decode' with sizes piece, expected decode: piece, ch"),
        ({"piece": 128, "chunk": 1024}, {"call": "x"}, "got call 'x'"),
        ({"piece": 96, "chunk": 1024}, DECODE, "piece: got 96, expected a power of two"),
        ({"piece": 256, "chunk": 128}, DECODE, "piece: got 256, expected at most the chunk 128"),
        (
            {"rows": 1, "chunk": 1024, "step": 128},
            {"call": "prefill"},
            "rows: got 1, expected at least 2",
        ),
    ],
)
def test_sizes_that_no_kernel_could_take(tuned_to, sizes, shape, message):
    tuned_to(sizes, **shape)
    with pytest.raises(ValueError, match=message):
        taken()


@pytest.mark.parametrize("target", ["v4", "v5e", "v5p", "v6e", "v7x"])
def test_candidates_differ_and_start_with_the_untuned_sizes(target, tuned_to):
    backend, step = PallasTpuBackend(), replace(STEP, num_seqs=4, query_len=128)
    with on(TARGETS[target].device_kind):
        tuned_to({"piece": 64, "chunk": 64}, kind=TARGETS[target].device_kind)
        assert taken().decode.piece == 64, "the file is read"
    for problem, call in ((STEP, "decode"), (step, "prefill")):
        offered = find_candidates(backend, problem, TARGETS[target])
        first, *others = offered.options.values()
        assert offered.shape["call"] == call
        assert others
        assert len({str(option.sizes) for option in offered.options.values()}) == len(others) + 1
        # Whatever a file says: a second run must not start from the first one's choice.
        assert first.backend.tilings.decode.piece == 256
        room = 0.6 * TARGETS[target].vmem_bytes
        for option in offered.options.values():
            sizes = pallas_tuned.sizes_of(option.backend.tilings, call)
            assert sizes == option.sizes
            assert 2 * sizes["chunk"] * 4608 <= room


# The command.


def run(*arguments):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["lab", "tune", *map(str, arguments)])


def test_the_command_names_what_was_asked(monkeypatch, tmp_path):
    pytest.importorskip("libtpu")
    counts = counting({512: (2, 1, 8), 8: (1, 1, 8)})
    monkeypatch.setattr(tune_module.tune, "__kwdefaults__", {"tell": print, "count": counts})
    out = tmp_path / "tuned.json"
    asked = ["lab_subjects:TinyWithSizes", "--target", "v4,v6e", "--num-heads", 8]
    asked += ["--num-kv-heads", 1, "--block-size", 128, "--sinks"]
    done = run(*asked[:-1], "--out", out, "--json")
    assert done.exit_code == 0, done.output
    first = out.read_bytes()
    assert run(*asked[:-1], "--out", out).exit_code == 0
    assert out.read_bytes() == first
    (made_by,) = read_tuned(out).made_by
    assert made_by == (
        "paged lab tune lab_subjects:TinyWithSizes --target v4,v6e --block-size 128 "
        "--num-heads 8 --num-kv-heads 1"
    )
    rows = json.loads(done.stdout)
    assert [(row["target"], row["candidate"], row["chosen"]) for row in rows] == [
        ("v4", "rows 512", False),
        ("v4", "rows 8", True),
        ("v6e", "rows 512", False),
        ("v6e", "rows 8", True),
    ]


@needs_libtpu
def test_a_real_choice_between_two(tmp_path):
    """504 rows of 128 floats less: that much VMEM, and fewer bundles."""
    out = tmp_path / "tuned.json"
    asked = ["lab_subjects:TinyWithSizes", "--target", "v5e", "--num-heads", 8]
    asked += ["--num-kv-heads", 1, "--num-seqs", 4, "--kv-tokens", 1024, "--block-size", 128]
    done = run(*asked, "--out", out)
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[-1] for line in lines if line[:1] == ["rows"]][1] == "yes"
    (entry,) = read_tuned(out).entries
    assert entry["sizes"] == {"rows": 8}
    few, many = entry["counts"], entry["untuned"]["counts"]
    assert few["scheduled_per_token"] < 0.98 * many["scheduled_per_token"]
    assert many["vmem_bytes"] - few["vmem_bytes"] == 504 * 128 * 4
