"""The grid: what is in it, what of it compiles, and how that is told."""

import json

import pytest
from lab_subjects import SPEC, EndsItsProcess, Tiny, TooMuchVmem
from typer.testing import CliRunner

from paged.cli import app
from paged.cli.lab_grid import show_grid
from paged.lab import TARGETS, Problem, requirements
from paged.lab.asks import Sizes
from paged.lab.grid import BLOCK_SIZES, CACHE_DTYPES, DECODE, PREFILL, check_grid, grid
from paged.lab.requirements import missing
from paged.layouts import FLASHINFER, FLASHINFER_HND, TPU_MLA, TPU_PACKED

needs_libtpu = pytest.mark.skipif(
    bool(missing(TARGETS["v6e"])), reason="libtpu is not installed: pip install libtpu"
)


def test_what_may_depend_on_each_other_is_combined_once():
    problems = grid([TPU_PACKED, TPU_MLA])
    assert problems == grid([TPU_PACKED, TPU_MLA])
    assert len(problems) == len(set(problems))
    for block_size in BLOCK_SIZES:
        for dtype in CACHE_DTYPES:
            sizes = Sizes(cache_dtype=dtype, **DECODE)
            assert sizes.problem(TPU_PACKED, block_size) in problems
    for changes in ({"head_dim": 256}, {"has_sinks": True, "window": 128, "soft_cap": 30.0}):
        assert Sizes(**changes, **PREFILL).problem(TPU_PACKED, 64) in problems
    assert {p.spec.head_dim for p in problems if not p.layout.is_latent} == {64, 128, 256}
    # A latent's width is its own: no axis of the grid.
    assert {p.spec.head_dim for p in problems if p.layout.is_latent} == {576}
    assert any(p.spec.has_sinks and p.spec.window for p in problems)


@needs_libtpu
@pytest.mark.parametrize(
    ("backend", "status", "reason"),
    [
        (Tiny(), "compiled", ""),
        (TooMuchVmem(), "failed", "vmem"),
        (EndsItsProcess(), "failed", "7"),
    ],
    ids=["tiny", "too_much_vmem", "ends_its_process"],
)
def test_a_failure_is_a_reason_and_so_is_a_refusal(capsys, backend, status, reason):
    sizes = {"num_seqs": 2, "kv_tokens": 256}
    problems = [
        Problem(SPEC, FLASHINFER, **sizes),
        Problem(SPEC, FLASHINFER_HND, block_size=128, **sizes),
    ]
    checked = check_grid(TARGETS["v5e"], backend, problems, write=False)
    assert [each.status for each in checked] == ["refused", status]
    assert reason in checked[1].compiled.reason.lower()
    show_grid(checked)
    told = capsys.readouterr().out
    assert f"1 refused, {1 if status == 'failed' else 0} failed" in told
    assert "refused, 1: no layout flashinfer" in told
    if status == "failed":
        assert "failed: decode, target v5e, layout flashinfer_hnd, block_size 128" in told


def test_the_command_takes_no_sizes_beside_the_grid(monkeypatch):
    monkeypatch.setattr(requirements, "_found", lambda module: True)
    command = ["lab", "compile", "xla", "--grid", "--block-size", "16"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert "grid: got --block-size too" in done.stderr


@needs_libtpu
def test_the_exit_code_tells_of_failures(monkeypatch):
    from paged.lab import grid as module

    problem = Problem(SPEC, FLASHINFER_HND, block_size=128, num_seqs=2, kv_tokens=256)
    monkeypatch.setattr(module, "grid", lambda layouts: [problem])
    for backend, code in (("Tiny", 0), ("TooMuchVmem", 1)):
        command = ["lab", "compile", f"lab_subjects:{backend}", "--grid", "--target", "v5e"]
        done = CliRunner().invoke(app, [*command, "--no-write", "--json"])
        assert done.exit_code == code, done.output
        (row,) = json.loads(done.stdout)
        assert row["status"] == ("failed" if code else "compiled")
