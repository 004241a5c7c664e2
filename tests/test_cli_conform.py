"""`paged conform`: exit codes, the fixed JSON, what a person reads, and one-line errors."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from paged.cli import app
from paged.cli.conform_text import show_run
from paged.conformance import CASES, lookup, mutants
from paged.conformance.run import Run, Shown
from paged.layouts import LAYOUTS

FOLDER = Path(__file__).parent / "conformance"
FAULTY = "failing:WindowOffByOne"
FEW = ("--layout", "flashinfer", "--case", "window/decode", "--case", "batch/decode_only")


@pytest.fixture(autouse=True)
def _with_a_faulty_backend(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)


def run(*arguments, code=0):
    result = CliRunner().invoke(app, ["conform", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def words(text):
    return " ".join(text.split())


def test_a_sound_backend():
    shown = run("reference", *FEW, "--case", "lengths/long", "--case", "refuse/*").stdout
    assert "│ window  │ pass 1" in shown
    assert "│ batch   │ pass 2" in shown
    assert "2  large: runs with full=True (--full): lengths/long" in shown
    wrong = sum(case.check == "refusal" for case in CASES)
    assert f"Wrong asks refused: {wrong} (refuse/*)" in shown
    assert f"reference: 3 passed, 0 failed, {wrong} refused, 2 not run" in shown


@pytest.mark.parametrize(("width", "tables"), [(40, 3), (60, 2), (80, 1)])
def test_the_matrix_keeps_to_the_terminals_width(monkeypatch, capsys, width, tables):
    monkeypatch.setenv("COLUMNS", str(width))
    layouts = tuple(LAYOUTS)
    name = "quantised/k"
    results = [Shown(name, layout, "float32", "passed", "", "", "") for layout in layouts]
    show_run(Run("mine", "mine", layouts, tuple(results), {}))
    lines = [line for line in capsys.readouterr().out.splitlines() if line[:1] in "┏┃┡│└"]
    assert max(map(len, lines)) <= width
    assert sum(line.startswith("┏") for line in lines) == tables
    cells = [line for line in lines if line.startswith("│")]
    assert sum(line.count("pass") for line in cells) == len(layouts)
    # Whole where there is room for it.
    assert tables == 1 or sum("quantised" in line for line in cells) == tables


def test_a_faulty_backend_fails_with_the_rule_and_the_command():
    shown = run(FAULTY, *FEW, "--seed", "3", code=1).stdout
    assert "│ window  │ fail 1" in shown
    assert "window/decode on flashinfer, float32, largest error 0." in shown
    assert "rule 9 (a window W shows the last W keys, the token's own included): out is" in shown
    assert " at token " in shown
    command = (
        f"paged conform {FAULTY} --layout flashinfer --case window/decode --dtype float32 --seed 3"
    )
    assert command in shown
    again = run(*command.split()[2:], code=1).stdout
    (line,) = [line for line in shown.splitlines() if "rule 9" in line and "at token" in line]
    assert line in again, "the command gives the same numbers"


def test_json_has_the_fixed_form_and_stands_alone(tmp_path):
    result = run(FAULTY, *FEW, "--json", "-", code=1)
    found = json.loads(result.stdout)
    assert (found["layout"], len(found["cases"])) == ("flashinfer", 3)
    assert found["summary"] == {"passed": 2, "failed": 1, "refused": 0, "not_run": 0}
    keys = ("name", "layout", "dtype", "status", "reason", "max_error", "seed")
    assert all(tuple(case) == keys for case in found["cases"])
    assert result.stderr == ""
    file = tmp_path / "found.json"
    assert "window" in run(FAULTY, *FEW, "--json", file, code=1).stdout
    assert json.loads(file.read_text()) == found


def test_the_block_manager(tmp_path):
    html = tmp_path / "blocks.html"
    shown = run("blocks", "--html", html).stdout
    assert "KVCacheManager: " in shown
    assert ", 0 failed, 0 refused, " in shown
    assert "KVCacheManager" in html.read_text()
    faulty = run("blocks=failing:LosesABlock", "--case", "blocks/*", "--seed", "4", code=1).stdout
    assert "rule B1 (block 0 is reserved" in faulty
    command = "paged conform blocks=failing:LosesABlock --case blocks/free_count --seed 4"
    assert command in faulty
    found = json.loads(run("blocks", "--case", "blocks/free_count", "--json", "-").stdout)
    assert found["layout"] is None
    assert found["summary"] == {"passed": 1, "failed": 0, "refused": 0, "not_run": 0}


def test_several_backends_give_a_list():
    asked = ("reference", FAULTY, "--case", "window/decode", "--layout", "packed", "--json", "-")
    first, second = json.loads(run(*asked, code=1).stdout)
    assert (first["backend"], first["summary"]["failed"]) == ("reference", 0)
    assert second["summary"]["failed"] == 1


def test_html_and_junit_are_written(tmp_path):
    html, junit = tmp_path / "r.html", tmp_path / "r.xml"
    run(FAULTY, *FEW, "--html", html, "--junit", junit, code=1)
    assert "fail 1" in html.read_text()
    assert ElementTree.parse(junit).getroot().get("failures") == "1"


def test_by_default_all_usable_backends(monkeypatch):
    listed = ("reference", "nothing", "elsewhere")
    monkeypatch.setattr(lookup, "backend_names", lambda: listed)
    monkeypatch.setattr(lookup, "_load", listing(elsewhere=on("cuda")))
    result = run(*FEW, "--dtype", "float32")
    assert "reference: 2 passed" in result.stdout
    told = "no backend is named, so all that this host can run: reference\n"
    assert result.stderr.startswith(told), "no time is promised for a part of the suite"
    assert "nothing left out: needs no_such_package" in words(result.stderr)
    assert "elsewhere: not run, runs on cuda, this host has cpu" in result.stdout


def test_by_default_the_time_of_a_whole_run_is_told_first(monkeypatch):
    monkeypatch.setattr(lookup, "backend_names", lambda: ("nothing",))
    monkeypatch.setattr(lookup, "_load", listing())
    # Nothing runs, so that nothing is shown.
    first = run(code=1).stderr.splitlines()[0]
    assert first.startswith("no backend is named, so all that this host can run: none; on a CPU")
    assert "xla 4 minutes of CPU time" in first
    assert "xla 4 minutes of CPU time" in words(run("--help").stdout)


def listing(**backends):
    from paged.backends import Unavailable, load_backend

    absent = Unavailable("nothing", "needs no_such_package, which is not installed")
    return lambda name: load_backend(name) if name == "reference" else backends.get(name) or absent


def on(where, **methods):
    """The reference as a backend for other hardware."""
    from paged.backends.reference import ReferenceBackend

    return type("Elsewhere", (ReferenceBackend,), {"platform": where, **methods})()


def test_interpret(monkeypatch):
    result = run("reference", *FEW, "--dtype", "float32", "--interpret")
    assert "reference has nothing to interpret" in result.stderr
    simulated = on("cuda", interpreted=lambda self: self)
    monkeypatch.setattr(lookup, "_load", lambda name: {"a": on("tpu"), "b": simulated}[name])
    assert "try --interpret" in run("b", code=2).stderr
    assert "interpret: backend a runs on tpu and has no" in run("a", "--interpret", code=2).stderr
    shown = run("b", *FEW, "--dtype", "float32", "--interpret").stdout
    assert "2 passed" in shown


def test_a_target_that_the_backend_does_not_run_on():
    asked = ("reference", *FEW, "--dtype", "float32", "--target", "cpu", "--json", "-")
    assert json.loads(run(*asked).stdout)["summary"]["passed"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nope",), "backend: got 'nope', expected one of pallas_tpu"),
        (("no_pkg.mod:Cls",), "backend: no_pkg.mod:Cls cannot be tested here: needs no_pkg"),
        (("failing:Missing",), "backend: failing has no 'Missing'"),
        (("failing:failing_run",), "backend: failing:failing_run is no backend"),
        (
            ("failing:NamesItsLayouts",),
            "backend: failing:NamesItsLayouts has layouts ('flashinfer',), expected a tuple of",
        ),
        (
            ("failing:NeedsADevice",),
            "backend: failing:NeedsADevice cannot be made without arguments: TypeError: ",
        ),
        (("blocks=failing:failing_run",), "backend: blocks=failing:failing_run makes no manager"),
        (("blocks=failing:Missing",), "factory: failing has no 'Missing'"),
        (("blocks", "--case", "windows"), "cases: no case is named 'windows'"),
        (("xla", "--layout", "nhd"), "layout: got 'nhd', expected one of flash_attn"),
        (
            ("pallas_tpu", "--interpret", "--layout", "flash_attn"),
            "layout: got 'flash_attn', which backend pallas_tpu does not claim",
        ),
        (("xla", "--case", "windows"), "cases: no case is named 'windows'"),
        (("xla", "--dtype", "f32"), "dtype: got 'f32', expected one of float32"),
        (("xla", "--target", "gpu"), "target: got 'gpu', expected one of cpu"),
        (("xla", "--seed", "-1"), "Invalid value for '--seed'"),
        (("xla", "--html", "no/such/folder.html"), "html: cannot write no/such/folder.html"),
        (("xla", "--junit", "/"), "junit: cannot write /: a folder"),
        (("xla", "--json", "/proc/x.json"), "json: cannot write /proc/x.json: No such file"),
        (
            ("--mutants", "xla", "--json", "/proc/x.json"),
            "json: cannot write /proc/x.json: No such",
        ),
        (("--mutants", "xla", "--case", "x"), "mutants: got --case too, expected besi"),
        (("--mutants", FAULTY), "backend: no mutants are listed for"),
    ],
)
def test_bad_usage_is_one_line_and_code_2(arguments, message):
    result = run(*arguments, code=2)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"paged: {message}")


@pytest.mark.parametrize("before", [None, "kept"])
def test_the_check_for_writing_leaves_files_as_they_were(before, tmp_path):
    file = tmp_path / "report.json"
    if before is not None:
        file.write_text(before)
    run("nope", "--json", file, code=2)
    assert (file.read_text() if file.exists() else None) == before


def test_mutants(monkeypatch):
    two = [mutant.name for mutant in mutants.mutants_of("xla")][:2]
    monkeypatch.setattr(mutants, "run_mutants", partial(mutants.run_mutants, mutants=two))
    shown = run("--mutants", "xla").stdout
    assert "xla: 2 of 2 (100 %) mutants killed" in shown
    assert "stand-in: " in shown
    assert all(name.split("_")[0] in shown for name in two)


def test_a_survivor_is_a_failure(monkeypatch):
    one = mutants.mutants_of("xla")[0]
    report = mutants.MutationReport("xla", (mutants.MutantResult(one, False),))
    monkeypatch.setattr(mutants, "run_mutants", lambda *_, **__: report)
    shown = run("--mutants", code=1).stdout
    assert f"Survivors: {one.name}" in shown
    assert "xla: 0 of 1 (0 %) mutants killed" in shown
    found = json.loads(run("--mutants", "xla", "--json", "-", code=1).stdout)
    assert (found["total"], found["killed"], found["survivors"]) == (1, 0, [one.name])
    assert found["stand_in"] == {"killed": None}


def test_a_real_process_is_quiet_where_nobody_watches(tmp_path):
    """A module of the current folder is found, and no progress bar is drawn."""
    (tmp_path / "mine.py").write_text((FOLDER / "failing.py").read_text())
    command = "from paged.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", command, "conform", "mine:WindowOffByOne", *FEW],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(FOLDER.parent.parent)},
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    assert "fail 1" in done.stdout


def test_a_run_of_no_case_is_no_success():
    done = run("reference", "--layout", "flashinfer", "--case", "mla/*", code=1)
    assert "reference: no case was run" in done.stderr
