"""Real compilations for hardware that is not here; each takes seconds."""

import json
from pathlib import Path

import pytest
from lab_subjects import SPEC, EndsItsProcess, Tiny, TinyWithTrips, TooMuchVmem
from typer.testing import CliRunner

from paged.cli import app
from paged.lab import TARGETS, Problem
from paged.lab.asks import Sizes
from paged.lab.baseline import (
    Ask,
    Baseline,
    check_versions,
    counts_of,
    installed_versions,
    measure_again,
    read_baseline,
    worse,
)
from paged.lab.compile import compile_call
from paged.lab.measure import measure
from paged.lab.requirements import missing
from paged.lab.roofline import Total, Unknown
from paged.layouts import FLASHINFER, FLASHINFER_HND

needs_libtpu = pytest.mark.skipif(
    bool(missing(TARGETS["v6e"])), reason="libtpu is not installed: pip install libtpu"
)
PROBLEM = Problem(SPEC, FLASHINFER_HND, block_size=128, num_seqs=4, kv_tokens=1024)
ROW = (
    "kernel",
    "layout",
    "target",
    "block_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "kv_tokens",
    "scheduled_per_token",
    "issued_per_token",
    "bound_per_token",
    "hbm_cycles_per_token",
    "fills",
    "spills",
    "vmem_bytes",
)


@needs_libtpu
@pytest.mark.parametrize("name", ["v5e", "v6e"])
def test_a_pallas_kernel_is_compiled_and_counted(name):
    silent, telling, again = measure(
        TARGETS[name],
        [(Tiny(), PROBLEM), (TinyWithTrips(), PROBLEM), (TinyWithTrips(), PROBLEM)],
    )
    assert tuple(telling.row()) == ROW
    assert telling.row() == again.row(), "the counts are the same every time"

    (kernel,) = telling.kernels
    assert kernel.name.startswith("tiny_decode")
    outside, grid, blocks = kernel.loops
    assert (outside.depth, grid.depth, blocks.depth) == (0, 1, 2)
    assert blocks.has_matmul
    assert blocks.copies == 1
    # The grid is static: 4 steps, and 2 more in which its pipeline fills and empties.
    assert kernel.trips == (1, 6, None)
    assert telling.runs == ((1.0, 6.0, 32),)
    assert isinstance(telling.per_token, Total)
    expected = outside.scheduled + 6 * grid.scheduled + 32 * blocks.scheduled
    assert telling.per_token.scheduled == pytest.approx(expected / 4096)
    assert telling.per_token.bound <= telling.per_token.issued <= telling.per_token.scheduled
    # A block, two windows each of queries and results.
    assert kernel.vmem_bytes >= 2 * 128 * 128 * 2 + 4 * 8 * 128 * 2

    assert isinstance(silent.per_token, Unknown)
    assert "depth 2" in silent.reason
    assert silent.row()["scheduled_per_token"] is None
    assert silent.row()["vmem_bytes"] == kernel.vmem_bytes


@needs_libtpu
def test_what_does_not_compile_is_a_reason_and_the_rest_goes_on():
    found = measure(
        TARGETS["v5e"],
        [
            (TooMuchVmem(), PROBLEM),
            (EndsItsProcess(), PROBLEM),
            (Tiny(), Problem(SPEC, FLASHINFER)),
            (Tiny(), PROBLEM),
        ],
    )
    assert [m.status for m in found] == ["failed", "failed", "refused", "compiled"]
    assert "vmem" in found[0].reason.lower()
    assert "exit code 7" in found[1].reason
    assert "no layout flashinfer" in found[2].reason
    assert found[0].row()["vmem_bytes"] is None


@needs_libtpu
def test_a_baseline_lets_nothing_get_worse():
    sizes = Sizes(num_heads=8, num_kv_heads=1, num_seqs=4, kv_tokens=1024)
    ask = Ask("lab_subjects:TinyWithTrips", "flashinfer_hnd", "v5e", 128, sizes)
    measured = measure_again([ask])
    same = Baseline({"libtpu": "1"}, "", ((ask, counts_of(measured[0])),))
    assert worse(same, measured) == []
    fewer = counts_of(measured[0])
    fewer["vmem_bytes"] -= 1
    now_worse = Baseline({"libtpu": "1"}, "", ((ask, fewer),))
    (line,) = worse(now_worse, measured)
    assert "vmem_bytes was" in line
    with pytest.raises(ValueError, match="counted with libtpu 1, installed is libtpu 2"):
        check_versions(same, {"libtpu": "2"})


@needs_libtpu
def test_the_committed_baseline_holds():
    known = read_baseline(Path(__file__).parents[2] / "benchmarks" / "lab_baseline.json")
    if known.versions != installed_versions():
        pytest.skip(f"the baseline is of {known.versions}, installed is {installed_versions()}")
    measured = measure_again([ask for ask, _ in known.entries])
    assert worse(known, measured) == []


@needs_libtpu
def test_xla_on_a_tpu_is_counted_without_any_kernel_of_its_own(tmp_path):
    arguments = ["lab", "compile", "xla", "--target", "v5e", "--layout", "flashinfer"]
    arguments += ["--num-heads", "8", "--num-kv-heads", "1", "--num-seqs", "2"]
    arguments += ["--kv-tokens", "256", "--json", "--report", str(tmp_path / "report.json")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)
    assert tuple(row) == ROW
    assert row["scheduled_per_token"] > row["hbm_cycles_per_token"] > 0
    reports = json.loads((tmp_path / "report.json").read_text())
    assert [report["call"] for report in reports] == ["attend", "write"]
    # The cache is written in place: the argument's memory is the result's.
    assert reports[1]["compiled"]["alias_bytes"] > 0


@pytest.mark.skipif(bool(missing(TARGETS["h100"])), reason="jax's CUDA plugin is not installed")
def test_a_cuda_target_is_compiled_for():
    from paged.lab.lookup import find_backend

    problem = Problem(SPEC, FLASHINFER, num_seqs=2, kv_tokens=64)
    (found,) = measure(TARGETS["h100"], [(find_backend("xla"), problem)])
    assert found.status == "compiled", found.reason
    assert found.compiled.temp_bytes is not None
    assert found.row()["scheduled_per_token"] is None


def test_a_refusal_needs_no_compiler():
    refused = compile_call(Tiny(), Problem(SPEC, FLASHINFER), TARGETS["v6e"], "attend")
    assert refused.status == "refused"
    assert "no layout flashinfer" in refused.reason
