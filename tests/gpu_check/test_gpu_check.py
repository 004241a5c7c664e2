"""The check for GPUs: its pieces, and the whole of it in the dry form."""

import json
import os
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu import needs, suite
from benchmarks.gpu.figures import Ceilings, moved_bytes, operations, quartiles, shares
from benchmarks.gpu.pool import Pool, Task
from benchmarks.gpu.sanitizer import verdict
from benchmarks.gpu.shapes import COMPARISONS, DEEPSEEK, LAYOUTS, LLAMA_8B, Comparison
from benchmarks.gpu.targets import target_lines

ROOT = Path(__file__).parents[2]


def test_quartiles():
    assert quartiles([3.0]) == (3.0, 3.0, 3.0)
    assert quartiles([5.0, 1.0, 2.0, 4.0, 3.0]) == (2.0, 3.0, 4.0)


def test_bytes_and_operations_by_hand():
    decode = Comparison("decode", 2, 10, LLAMA_8B)
    # Keys and values of 8 heads of 128 in two bytes; 32 heads' dot products with each, twice.
    assert moved_bytes(decode) == 2 * 10 * 2 * 8 * 128 * 2
    assert operations(decode) == 2 * 10 * 32 * 2 * (128 + 128)
    latent = Comparison("decode", 1, 10, DEEPSEEK, "float8_e4m3fn")
    assert moved_bytes(latent) == 10 * 576
    assert operations(latent) == 10 * 128 * 2 * (576 + 512)
    # A causal mask leaves 1 + 2 + 3 keys.
    assert operations(Comparison("prefill", 1, 3, LLAMA_8B)) == 6 * 32 * 2 * 256
    write = Comparison("write", 1, 3, LLAMA_8B)
    assert (moved_bytes(write), operations(write)) == (3 * 2 * 8 * 128 * (2 + 2), 0)


def test_shares_of_the_roofs():
    row = {"ms": 2.0, "bytes": 4_000_000, "operations": 3_000_000}
    found = shares(row, Ceilings(copy=4e9, matmul=2e9))
    assert (found["gb_s"], found["of_copy"], found["of_matmul"], found["of_roof"]) == (
        *(2.0, 0.5, 0.75, 0.75),
    )
    assert shares(row, None)["gb_s"] == 2.0
    assert set(shares({}, None).values()) == set(shares(row, None, dry=True).values()) == {None}


def test_every_comparison_has_a_name_of_its_own():
    names = [comparison.name for comparison in COMPARISONS]
    assert len(set(names)) == len(names)
    targets = [line["target"] for line in target_lines([], dry=False)]
    assert all(any(line.startswith(name) for name in names) for line in targets)


def test_targets():
    slow = dict.fromkeys(LAYOUTS, 1.0) | {LAYOUTS[-1]: 1.04}
    rows = [
        {
            "comparison": "decode 64x8k llama-3-8b bf16",
            "variant": f"{layout}/16",
            "ms": ms,
            "of_copy": 0.86,
        }
        for layout, ms in slow.items()
    ]

    def reached(rows, dry=False):
        lines = target_lines(rows, dry=dry)
        return [line["reached"] for line in (lines[0], lines[-2], lines[-1])]

    assert reached(rows) == [True, False, None]
    assert reached(rows[:-1]) == [True, None, None]
    assert reached(rows, dry=True) == [None] * 3
    rows[0]["is_right"] = False
    assert reached(rows) == [None] * 3


def test_telling_groups_come_first():
    items = [(layout, case, "float32") for layout in ("a", "b") for case in ("x/1", "batch/1")]
    items.append(("a", "x/2", "float32"))
    tasks = suite.by_group(suite.tasks_of("torch", items, dry=True))
    assert [task.name for task in tasks] == [
        *("torch a batch", "torch b batch", "torch a x", "torch b x")
    ]
    assert [item[3] for item in tasks[2].items] == ["x/1", "x/2"]


def test_missing_modules_are_one_message(monkeypatch):
    monkeypatch.setattr(needs, "OF_SITE", ("einops", "no_such_module"))
    assert set(needs.missing()) & {"einops", "no_such_module"} == {"no_such_module"}
    assert "make gpu-site" in needs.message(["no_such_module"])


@pytest.mark.parametrize(
    ("log", "code", "status"),
    [
        ("small: right\n==== ERROR SUMMARY: 0 errors", 0, "passed"),
        ("small: right\n==== ERROR SUMMARY: 3 errors", 99, "failed"),
        ("small: wrong\n==== ERROR SUMMARY: 0 errors", 1, "failed"),
        ("==== Error: Device not supported\n==== ERROR SUMMARY: 1 error", 99, "not_run"),
        ("", 127, "not_run"),
    ],
)
def test_verdicts_of_the_memory_checker(log, code, status):
    assert verdict(log, code, dry=False)["status"] == status


def test_block_tables_and_what_is_expected():
    """Blocks each once, in no order; and the arithmetic of a decode by hand."""
    torch = pytest.importorskip("torch")
    from benchmarks.gpu.problems import block_tables, pool_of, problem_of
    from benchmarks.gpu.right import attend_error, attended, error_of

    tables = block_tables(3, 5)
    assert sorted(tables.reshape(-1)) == list(range(1, 16))
    assert (np.diff(tables) != 1).any()

    comparison = Comparison("decode", 2, 20, LLAMA_8B).shrunk()
    problem = problem_of(comparison, comparison.ours[0], pool_of(comparison, "cpu"))
    problem.metadata.validate(cache=problem.cache, query=problem.query, spec=problem.spec)
    query, spec = problem.query[0, 3].float(), problem.spec
    keys, values = problem.cache.layout.views(problem.cache.data)
    slots = [(problem.metadata.block_table[0, at // 16], at % 16) for at in range(24)]
    logits = torch.stack([keys[block, slot, 1].float() @ query for block, slot in slots])
    weights = (logits * spec.scale).softmax(0)
    rows = torch.stack([values[block, slot, 1].float() for block, slot in slots])
    torch.testing.assert_close(attended(problem, 0, [-1])[0, 3], weights @ rows)
    assert attend_error(problem, torch.full((2, 4, 32), torch.nan)) == float("inf")
    assert error_of(torch.ones(2), torch.tensor([1.0, 1.0])) == 0


class TestPool:
    """Processes that end, hang or run out of time."""

    def run(self, folder, tasks, workers=1, seconds=60.0):
        rows = []
        pool = Pool(folder)
        try:
            cut = pool.run(
                tasks,
                workers=workers,
                deadline=time.monotonic() + seconds,
                on_row=lambda task, item, row: rows.append((task.name, item, row)),
            )
        finally:
            pool.close()
        return rows, [item for _, item in cut]

    def task(self, function, items, word="", patience=60.0):
        return Task(
            function,
            f"gpu_check_subjects:{function}",
            deque(items),
            {"GPU_CHECK_WORD": word},
            patience,
        )

    def test_one_process_for_a_task_and_another_for_another_environment(self, tmp_path):
        tasks = [self.task("double", [(1,), (2,)], "a"), self.task("double", [(3,)], "b")]
        rows, cut = self.run(tmp_path, tasks)
        assert [(row["found"], row["word"]) for _, _, row in rows] == [(2, "a"), (4, "a"), (6, "b")]
        assert rows[0][2]["process"] == rows[1][2]["process"] != rows[2][2]["process"]
        assert cut == []

    def test_an_error_is_a_row_and_a_dead_process_is_replaced(self, tmp_path):
        tasks = [self.task("fail", [(1,)]), self.task("end_at", [(1, 1), (2, 1)])]
        rows, cut = self.run(tmp_path, tasks)
        assert rows[0][2]["error"] == "ValueError: no 1"
        assert rows[1][2]["error"] == "its process ended with 7: these were its last words"
        assert (rows[2][2]["found"], cut) == (4, [])

    def test_what_hangs_is_ended_and_the_rest_goes_on(self, tmp_path):
        tasks = [self.task("sleep", [(60,), (0,)], patience=3.0)]
        rows, cut = self.run(tmp_path, tasks)
        assert rows[0][2]["error"] == "no end after 3 s, its process was ended"
        assert (rows[1][1:], cut) == (((0,), {}), [])

    def test_what_the_budget_cuts_off_is_told(self, tmp_path):
        tasks = [self.task("sleep", [(3,), (4,)]), self.task("double", [(1,)])]
        rows, cut = self.run(tmp_path, tasks, seconds=2.0)
        assert [item for _, item, _ in rows] == [(3,)]
        assert cut == [(4,), (1,)]


def test_the_dry_form(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    out = tmp_path / "folder" / "gpu.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--dry", "--out", str(out)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(out.read_text())
    assert (report["dry"], report["ok"]) == (True, True)
    assert {name: step["status"] for name, step in report["steps"].items()} == dict.fromkeys(
        ("facts", "suite", "sanitizer", "timings"), "passed"
    )
    for part in report["steps"]["suite"]["front_ends"].values():
        assert part["counts"] == {"passed": 6}
    assert report["steps"]["suite"]["not_run"] == report["steps"]["timings"]["not_run"] == []
    assert {row["comparison"] for row in report["rows"]} == {c.name for c in COMPARISONS}
    assert all(row["ms"] > 0 and row["is_right"] for row in report["rows"] if row["is_ours"])
    assert len(report["targets"]) == 6
    assert all(line["found"] is line["reached"] is None for line in report["targets"])
    assert "dry: no figures mean anything" in done.stdout
