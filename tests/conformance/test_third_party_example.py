"""The example of docs/third_party_backend.md, installed as a package of its own and tested."""

import json
import os
import re
import shutil
import subprocess
import sys
from difflib import ndiff
from pathlib import Path

import pytest

import paged

ROOT = Path(paged.__file__).parent.parent
EXAMPLE = ROOT / "examples" / "third_party_backend"
DOCUMENT = (ROOT / "docs" / "third_party_backend.md").read_text()
FAULTY, MENDED = (
    (EXAMPLE / "example_backend" / f"{name}.py").read_text() for name in ("faulty", "mended")
)
FEW = ("--case", "batch/mixed", "--case", "window/8", "--case", "logits/same", "--case", "sinks/*")
HALF = ("--dtype", "float16")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder into which pip has installed the example, built from a copy of its sources."""
    folder = tmp_path_factory.mktemp("example")
    shutil.copytree(EXAMPLE, folder / "sources", ignore=shutil.ignore_patterns("__pycache__"))
    # The build tools of this environment, and no index: nothing is fetched.
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--no-compile")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            *options,
            "--target",
            folder / "site",
            "./sources",
        ],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return folder / "site"


def command(site, *arguments):
    paths = os.pathsep.join([str(site), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-P", "-c", "from paged.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        timeout=900,
        cwd=site.parent,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths},
    )


def test_the_example_as_a_package_of_its_own(site):
    """One test, so that it is installed once whatever worker runs it."""
    listed = {row["name"]: row for row in json.loads(command(site, "backends", "--json").stdout)}
    assert listed["example"]["usable"]
    assert listed["example-faulty"]["layouts"] == ["flashinfer"]

    faulty = command(site, "conform", "example-faulty", *FEW, *HALF, "--json", "-")
    assert faulty.returncode == 1, faulty.stderr
    cases = json.loads(faulty.stdout)["cases"]
    reasons = {case["name"]: case["reason"] for case in cases if case["status"] == "failed"}
    assert set(reasons) == {"window/8", "logits/same"}
    assert reasons["window/8"].startswith("rule 9 (a window W shows the last W keys")
    assert reasons["logits/same"].startswith("rule 14 (products, maxima, sums")

    mended = command(site, "conform", "example", *FEW, *HALF)
    assert mended.returncode == 0, mended.stdout
    assert "0 failed" in mended.stdout
    assert "backend example: no sinks" in mended.stdout


@pytest.mark.full
def test_the_mended_example_passes_everything(site):
    done = command(site, "conform", "example", "--full")
    assert done.returncode == 0, done.stdout
    assert "not run" in done.stdout


@pytest.mark.full
@pytest.mark.parametrize("name", ["example-faulty", "example"])
def test_the_document_shows_the_verdict(site, name):
    listing = re.search(rf"    \$ paged conform {name}\n(.*?)\n\n", DOCUMENT, re.DOTALL).group(1)
    said = uniform(command(site, "conform", name).stdout)
    # What stands between two omissions, which are a line each.
    for part in filter(None, map(uniform, re.split(r"\n[^\n]*\.\.\.[^\n]*", "\n" + listing))):
        _, found, said = said.partition(part)
        assert found, part


def uniform(text):
    """Without line breaks, seconds, and the numbers and places that differ between processors."""
    text = " ".join(text.split())
    text = re.sub(r"token \d+, head \d+, dim \d+, block \d+, slot \d+", "PLACE", text)
    return re.sub(r"-?\d+\.\d+(e-?\d+)?|\d+e-\d+", "NUMBER", text)


def test_it_stays_short():
    assert len(FAULTY.splitlines()) < 60
    assert len(MENDED.splitlines()) < 60


def test_two_lines_mend_it():
    changes = [line for line in ndiff(code(FAULTY), code(MENDED)) if line[0] in "+-"]
    assert len([line for line in changes if line[0] == "-"]) == 2
    shown = re.search(r"```diff\n(.*?)```", DOCUMENT, re.DOTALL).group(1)
    for line in changes:
        assert f"{line[0]}{line[2:]}" in [row.rstrip() for row in shown.splitlines()]


def code(text):
    """Its lines without the docstring at the top and the name."""
    return [line for line in text.splitlines()[1:] if not line.strip().startswith("name =")]


def test_the_document_shows_the_file_and_its_listing():
    assert f"```python\n{FAULTY}```" in DOCUMENT
    listing = (EXAMPLE / "pyproject.toml").read_text()
    shown = re.search(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL).group(1)
    assert shown in listing
