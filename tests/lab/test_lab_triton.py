"""`paged lab triton` without a compiler: the grid, what is read, what is compared."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from paged.cli import app
from paged.lab.triton import run as running
from paged.lab.triton.baseline import (
    TritonBaseline,
    check_triton_versions,
    read_triton_baseline,
    updated,
    worse,
    write_triton_baseline,
)
from paged.lab.triton.child import result_file
from paged.lab.triton.grid import Case, chosen_cases, default_cases, full_cases
from paged.lab.triton.launches import launch_of
from paged.lab.triton.read import Counts, read_amdgcn, read_sass
from paged.lab.triton.run import CompiledKernel, compile_cases
from paged.lab.triton.summary import summarised
from paged.lab.triton.targets import GPU_TARGETS, get_gpu_targets

SM_90 = GPU_TARGETS["sm_90"]
COUNTS = Counts(registers=100, spills=0, shared_bytes=1024, mma="HGMMA", load_bytes=16)
DECODE = CompiledKernel(Case("decode"), SM_90, COUNTS)


def invoke(*arguments):
    return CliRunner().invoke(app, ["lab", "triton", *map(str, arguments)])


def test_a_launch_is_the_plans_own():
    typed = launch_of(Case("decode", dtype="float8_e4m3fn"), SM_90)
    launch = typed.launch
    assert (launch.kernel, launch.form.splits, launch.form.native_float8) == ("decode", 1, True)
    assert len(typed.types) == len(launch.inputs) + len(launch.scalars) + len(launch.outputs)
    assert typed.types[:3] == ("*bf16", "*u8", "*i32")
    assert not launch_of(Case("decode"), GPU_TARGETS["gfx942"]).launch.form.native_float8
    prefill = launch_of(Case("prefill"), SM_90)
    # Four sequences are not divisible by 16; memory is.
    scalar = len(prefill.launch.inputs)
    assert prefill.types[scalar] == "i32"
    assert prefill.aligned == tuple(i for i in range(len(prefill.types)) if i != scalar)


@pytest.mark.parametrize("target", GPU_TARGETS.values(), ids=lambda target: target.name)
def test_every_case_has_a_launch(target):
    for case in full_cases():
        launch = launch_of(case, target).launch
        assert launch.kernel == case.kernel
        assert case.kernel != "decode" or (launch.form.splits > 1) == case.split


def test_the_default_cases_are_few_and_of_the_whole_grid():
    assert len(default_cases()) <= 30
    assert set(default_cases()) <= set(full_cases())
    assert len(set(full_cases())) == len(full_cases())
    assert {case.name for case in chosen_cases("mla_decode", full=True)} == {
        "mla_decode",
        "mla_decode+split",
    }
    names = [(c.name, c.layout, c.dtype, c.head_dim, c.group, c.block_size) for c in full_cases()]
    assert len(set(names)) == len(names), "a row names its case"


USAGE = " Function decode:\n  REG:112 STACK:40 SHARED:1024 LOCAL:8 CONSTANT[0]:600 TEXTURE:0\n"
SASS = """
\t//## File "/somewhere/kernels/rows.py", line 97
        /*0600*/  @!P5 LDGSTS.E [R6+0x8800], desc[UR10][R8.64], P0 ;
\t//## File "/somewhere/kernels/span.py", line 58
        /*0890*/       LDGSTS.E.BYPASS.128 [R11], desc[UR10][R24.64], P0 ;
\t//## File "/somewhere/kernels/span.py", line 59
        /*08a0*/       LDGSTS.E.64 [R11], desc[UR10][R24.64], P0 ;
        /*08b0*/       LDGDEPBAR ;
        /*08c0*/       LDS.U8 R4, [R3] ;
        /*08d0*/       STL [R1], R4 ;
\t//## File "/somewhere/kernels/products.py", line 10
        /*0a00*/       HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0a10*/       HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], RZ, !UPT ;
"""


def test_a_cuda_kernel_is_read():
    found = read_sass(USAGE, SASS, 39168)
    assert found == Counts(112, (40 + 8) // 4, 39168, "HGMMA+HMMA", 8)
    assert read_sass(USAGE, SASS.replace("LDGSTS.E.64", "LDG.E.U8.CONSTANT"), 0).load_bytes == 1
    assert read_sass(USAGE, SASS.replace("HGMMA.64x64", "UTCHMMA.2CTA"), 0).mma == "HMMA+UTCHMMA"
    nothing = read_sass(USAGE, "", 0)
    assert (nothing.mma, nothing.load_bytes) == (None, None)
    with pytest.raises(ValueError, match="no usage"):
        read_sass("", SASS, 0)


AMDGCN = """
\t.file\t1 "/somewhere/kernels" "rows.py"
\t.file\t2 "/somewhere/kernels" "latent_span.py"
\t.loc\t1 97 22                         ; rows.py:97:22
\tglobal_load_dword v1, v[2:3], off
\t.loc\t2 18 12                         ; latent_span.py:18:12
\tglobal_load_dwordx4 v[4:7], v[2:3], off
\t.loc\t0 0 12
\tbuffer_load_dwordx2 v[4:7], v1, s[0:3], 0 offen
\tv_mfma_f32_16x16x16_bf16 a[0:3], v[0:1], v[2:3], 0
    .vgpr_count:     202
    .vgpr_spill_count: 3
"""


def test_an_amd_kernel_is_read():
    assert read_amdgcn(AMDGCN, 4096) == Counts(202, 3, 4096, "MFMA", 8)
    with pytest.raises(ValueError, match=r"no \.vgpr_count"):
        read_amdgcn("", 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"spills": 1}, "spills was 0, is 1"),
        ({"shared_bytes": 2048}, "shared_bytes was 1024, is 2048"),
        ({"mma": "HMMA"}, "mma was HGMMA, is HMMA"),
        ({"mma": None}, "mma was HGMMA, is None"),
        ({"load_bytes": 8}, "load_bytes was 16, is 8"),
    ],
)
def test_what_is_worse_is_one_line(change, words):
    known = TritonBaseline({"triton": "1"}, "", (DECODE.row(),))
    (line,) = worse(known, [replace(DECODE, counts=replace(COUNTS, **change))])
    assert line == (
        "sm_90: decode, flash_attn, bfloat16, head_dim 128, group 4, blocks of 16: " + words
    )


def test_more_registers_alone_are_not_worse_and_better_is_not_either():
    known = TritonBaseline({"triton": "1"}, "", (DECODE.row(),))
    better = Counts(registers=255, spills=0, shared_bytes=0, mma="UTCHMMA", load_bytes=32)
    new = CompiledKernel(Case("prefill"), SM_90, COUNTS)
    assert worse(known, [replace(DECODE, counts=better), new]) == []
    (line,) = worse(known, [replace(DECODE, counts=None, reason="no such type")])
    assert line.endswith("no such type")


def test_a_baseline_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "b.json"
    first = updated(None, [DECODE], "first", {"triton": "1"})
    write_triton_baseline(path, first)
    assert read_triton_baseline(path) == first
    more = CompiledKernel(Case("prefill"), SM_90, COUNTS)
    both = updated(first, [more], "second", {"triton": "1"})
    assert [row["kernel"] for row in both.rows] == ["decode", "prefill"]
    with pytest.raises(ValueError, match="counted with triton 1, installed is 2"):
        updated(first, [more], "third", {"triton": "2"})
    with pytest.raises(ValueError, match="update the baseline with a reason"):
        check_triton_versions(first, {"triton": "2"})
    path.write_text(json.dumps({"versions": {}}))
    with pytest.raises(ValueError, match="is no baseline"):
        read_triton_baseline(path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--target", "sm_75"), "target: got 'sm_75', expected some of sm_80"),
        (("--kernel", "nope"), "kernel: got 'nope'"),
        (("--update", "why"), "expected a file with --baseline"),
        (("--update", " ", "--baseline", "b.json"), "expected the reason"),
        (("--baseline", "nowhere.json"), "baseline: no file nowhere.json, expected a baseline"),
    ],
)
def test_mistakes_are_one_line(monkeypatch, arguments, words):
    monkeypatch.setattr(running, "require_triton", lambda: None)
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert words in done.stderr


def test_a_missing_triton_is_one_line_with_the_command(monkeypatch):
    monkeypatch.setattr(running.importlib.util, "find_spec", lambda name: None)
    done = invoke("--json")
    assert done.exit_code == 2
    assert done.stderr == "paged: compiling the kernels needs triton: pip install triton\n"


def test_a_failure_is_told_and_the_exit_code_says_so(monkeypatch):
    monkeypatch.setattr(running, "require_triton", lambda: None)
    monkeypatch.setattr(
        running,
        "compile_cases",
        lambda target, cases, workers: [
            CompiledKernel(case, target, COUNTS if case.kernel == "decode" else None, "why not")
            for case in cases
        ],
    )
    assert invoke("--target", "sm_90", "--kernel", "decode").exit_code == 0
    done = invoke("--target", "sm_90", "--kernel", "prefill", "--json")
    assert done.exit_code == 1
    assert "sm_90: prefill, flash_attn, bfloat16, head_dim 128, group 4, " in done.stderr
    assert "blocks of 16: why not" in done.stderr
    assert "sm_90" not in invoke("--target", "sm_90", "--kernel", "write", "--summary").stdout
    row = json.loads(done.stdout)[0]
    assert tuple(row) == (
        *("kernel", "layout", "target", "dtype", "head_dim", "group", "block_size"),
        *("registers", "spills", "shared_bytes", "mma", "load_bytes"),
    )
    assert (row["kernel"], row["registers"]) == ("prefill", None)


def test_a_baseline_is_written_and_compared_by_the_command(monkeypatch, tmp_path):
    counts = [COUNTS]
    monkeypatch.setattr(running, "require_triton", lambda: None)
    monkeypatch.setattr("paged.lab.triton.baseline.triton_versions", lambda: {"triton": "1"})
    monkeypatch.setattr(
        running,
        "compile_cases",
        lambda target, cases, workers: [CompiledKernel(c, target, counts[0]) for c in cases],
    )
    asked = ("--target", "sm_90", "--kernel", "prefill", "--baseline", tmp_path / "b.json")
    done = invoke(*asked, "--update", "first")
    assert done.exit_code == 0, done.stderr
    assert read_triton_baseline(tmp_path / "b.json").reason == "first"
    done = invoke(*asked)
    assert done.exit_code == 0
    assert "none worse" in done.stderr
    counts[0] = replace(COUNTS, spills=7)
    done = invoke(*asked, "--json")
    assert done.exit_code == 1
    assert "spills was 0, is 7" in done.stderr
    assert json.loads(done.stdout), "what is worse does not stand between the rows"


def test_a_process_that_ends_early_takes_only_its_own_case_along(monkeypatch):
    """Of three cases the second ends its process: the third is for the next one."""
    calls = []

    def ends_at_the_second(work, folder, timeout_s):
        calls.append([index for index, _, _ in work])
        for index, _, _ in work:
            if index == 1:
                return "exit code -6: LLVM ERROR"
            result_file(folder, index).write_text(json.dumps({"reason": "a\n  b"}))
        return ""

    monkeypatch.setattr(running, "require_triton", lambda: None)
    monkeypatch.setattr(running, "_run_process", ends_at_the_second)
    found = compile_cases(SM_90, [Case("decode")] * 3, workers=1)
    assert calls == [[0, 1, 2], [2]]
    assert [one.reason for one in found] == ["a b", "exit code -6: LLVM ERROR", "a b"]
    with pytest.raises(ValueError, match="workers: got 3"):
        compile_cases(SM_90, [Case("decode")], workers=3)


def test_a_summary_has_the_range_of_each_figure():
    other = replace(COUNTS, registers=64, spills=3, mma="HMMA")
    found = [DECODE, CompiledKernel(Case("decode", window=True), SM_90, other)]
    found += [CompiledKernel(Case("decode", group=1), SM_90, None, "not this one")]
    assert summarised(found) == [
        ("sm_90", "decode", "2", "64 to 100", "0 to 3", "1", "1,024", "HGMMA, HMMA", "16")
    ]


def test_targets_come_in_the_order_of_the_list():
    assert [t.name for t in get_gpu_targets("gfx942, sm_80")] == ["sm_80", "gfx942"]
    assert [t.name for t in get_gpu_targets("all")] == list(GPU_TARGETS)
