"""The suite under pytest, from an empty folder, as a user runs it."""

import importlib.metadata
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import paged

ROOT = Path(paged.__file__).parent.parent
FEW = (
    "--paged-layout",
    "flashinfer",
    "--paged-case",
    "window/decode",
    "--paged-case",
    "batch/one*",
)


def pytest_of(folder, *arguments):
    """pytest in a folder of its own, with the plugin as an installed package brings it."""
    installed = importlib.metadata.entry_points(group="pytest11", name="paged")
    plugin = () if installed else ("-p", "pytest_paged")
    paths = [str(ROOT), str(Path(__file__).parent)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, *arguments],
        capture_output=True,
        text=True,
        timeout=900,
        cwd=folder,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(paths)},
    )


def suite(folder, *arguments):
    return pytest_of(folder, "--pyargs", "paged.conformance", *arguments)


def test_the_package_lists_the_plugin():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert listed["pytest11"] == {"paged": "pytest_paged"}


def test_a_sound_backend_from_an_empty_folder(tmp_path):
    cases = ("--paged-case", "lengths/long", "--paged-case", "refuse/query_*")
    done = suite(tmp_path, "--paged-backend", "reference", *FEW, *cases, "-rs", "-v")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed, 2 skipped, 4 refused" in done.stdout
    assert "large: runs with full=True" in done.stdout
    assert "4  wrong asks" in done.stdout
    assert "test_backend[flashinfer-window/decode-float32] PASSED" in done.stdout
    assert "[flashinfer-refuse/query_heads-float32] REFUSED" in done.stdout


def test_a_faulty_backend_with_xdist(tmp_path):
    asked = ("--paged-backend", "failing:WindowOffByOne", "--paged-seed", "2", "-n", "2")
    done = suite(tmp_path, *asked, *FEW, "--paged-case", "sinks/mixed")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 2 passed, 2 refused" in done.stdout
    assert "2  backend faulty" in done.stdout
    assert "rule 9 (a window W shows the last W keys" in done.stdout
    command = "paged conform failing:WindowOffByOne --layout flashinfer --case window/decode"
    assert f"{command} --dtype float32 --seed 2" in done.stdout
    assert "Traceback" not in done.stdout


def test_types_that_a_case_does_not_run_in_are_skipped(tmp_path):
    asked = ("--paged-backend", "reference", "--paged-dtype", "float32", "-rs")
    done = suite(tmp_path, *asked, "--paged-layout", "packed", "--paged-case", "dtype/*")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "runs in float16 only" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "paged.conformance needs --paged-backend, a listed name or package.module:Class"),
        (("--paged-backend", "nope"), "backend: got 'nope', expected one of pallas_tpu"),
        (("--paged-backend", "xla", "--paged-case", "windows"), "no case is named 'windows'"),
    ],
)
def test_bad_usage_says_what_is_wrong(tmp_path, arguments, message):
    done = suite(tmp_path, *arguments)
    assert done.returncode == 2
    assert message in done.stdout
    assert "Traceback" not in done.stdout


def test_projects_that_do_not_ask_pay_nothing(tmp_path):
    (tmp_path / "test_theirs.py").write_text(
        "import sys\n\n\ndef test_theirs():\n"
        "    assert not {'jax', 'numpy', 'paged'} & set(sys.modules)\n"
    )
    done = pytest_of(tmp_path, "-p", "no:jaxtyping", "-p", "no:hypothesispytest", "-q")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full
def test_all_cases_of_the_xla_backend(tmp_path):
    done = suite(tmp_path, "--paged-backend", "paged.backends.xla:XlaBackend", "-q", "-n", "2")
    assert done.returncode == 0, done.stdout[-5000:]
