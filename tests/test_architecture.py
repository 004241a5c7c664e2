"""Imports run one way, and `import paged` stays light."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import paged

PACKAGE = Path(paged.__file__).parent
ROOT = PACKAGE.parent

# What each part may import of `paged`, itself aside. A part that is not here is a failure: say
# where it stands when you add one.
_CONTRACT = {"spec", "dtypes", "metadata", "validation"}
_KERNELS = _CONTRACT | {"names", "layouts", "backends"}
ALLOWED = {
    "dtypes": set(),
    "names": set(),
    "spec": {"dtypes"},
    "metadata": {"spec", "dtypes"},
    "validation": {"spec", "dtypes", "metadata"},
    "layouts": _CONTRACT | {"names"},
    "backends": _CONTRACT | {"names", "layouts"},
    "blocks": {"spec", "dtypes"},
    "capacity": _KERNELS,
    "models": _KERNELS,
    "engine": _KERNELS | {"blocks", "models", "capacity"},
    "conformance": _KERNELS,
    "lab": _KERNELS | {"capacity", "models", "conformance"},
    "replay": {"blocks"},
    "cli": {"*"},
    "__main__": {"cli"},
    "__init__": _KERNELS,
}
# `validate` calls the checks, which need the class that they check: imported in the call.
LAZY = {("metadata", "validation")}


def sources():
    return sorted(
        path
        for path in PACKAGE.rglob("*.py")
        if not any(part == "__pycache__" for part in path.parts)
    )


def part_of(path):
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports_of(path):
    """(module, whether it stands inside a function) of each import."""
    tree = ast.parse(path.read_text())
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in inside
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield node.module, id(node) in inside
            # `from paged import spec` names a module too.
            if node.module == "paged":
                for alias in node.names:
                    if (PACKAGE / f"{alias.name}.py").exists() or (PACKAGE / alias.name).is_dir():
                        yield f"paged.{alias.name}", id(node) in inside


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_one_way(path):
    part = part_of(path)
    assert part in ALLOWED, f"where does paged/{part} stand? Add it to ALLOWED"
    allowed = ALLOWED[part]
    for module, is_lazy in imports_of(path):
        if not module.startswith("paged."):
            # The root package imports all of the contract: only what stands above may use it.
            if module == "paged" and part not in ("cli", "conformance", "lab"):
                raise AssertionError(f"{path.name} imports the root package")
            continue
        other = module.split(".")[1]
        if other == part or "*" in allowed or other in allowed:
            continue
        assert is_lazy, f"paged/{part} imports {module}"
        assert (part, other) in LAZY, f"paged/{part} imports {module} inside a function"


def test_the_rule_itself_has_no_cycle():
    done, waiting = set(), {part: needs - {"*"} for part, needs in ALLOWED.items()}
    while waiting:
        ready = {part for part, needs in waiting.items() if needs <= done}
        assert ready, f"a cycle among {sorted(waiting)}"
        done |= ready
        waiting = {part: needs for part, needs in waiting.items() if part not in ready}


@pytest.mark.parametrize("path", sorted((PACKAGE / "blocks").glob("*.py")), ids=lambda p: p.name)
def test_the_block_manager_knows_no_array_library_but_numpy(path):
    roots = {module.split(".")[0] for module, _ in imports_of(path)}
    assert roots.isdisjoint({"jax", "jaxlib", "torch", "flax", "triton"})


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_optional_packages_are_imported_in_calls_only(path):
    """Files of a backend that needs such a package are imported when it is asked for."""
    if part_of(path) == "backends" and path.relative_to(PACKAGE).parts[1] not in (
        *(
            "__init__.py",
            "api.py",
            "base.py",
            "registry.py",
            "merge.py",
            "sharding.py",
            "xla",
            "reference",
        ),
    ):
        return
    optional = {"torch", "triton", "transformers", "matplotlib", "libtpu", "optax", "hypothesis"}
    for module, is_lazy in imports_of(path):
        assert is_lazy or module.split(".")[0] not in optional, f"{path.name} imports {module}"


def loaded_by(statement):
    code = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_import_paged_brings_the_contract_and_no_more():
    loaded = loaded_by("import paged")
    assert loaded.isdisjoint({"torch", "triton", "transformers", "libtpu", "matplotlib", "optax"})
    assert loaded.isdisjoint({"flax", "tokenizers", "typer", "rich.console"})
    ours = {name.split(".")[1] for name in loaded if name.startswith("paged.")}
    assert ours.isdisjoint({"blocks", "models", "engine", "cli", "conformance", "capacity"})
    assert "paged.backends.xla" not in loaded, "a backend is imported when it is asked for"


def test_the_command_line_starts_without_the_engine():
    loaded = loaded_by("import paged.cli")
    assert loaded.isdisjoint({"torch", "transformers", "flax", "paged.engine", "paged.models"})


def test_the_readme_lists_every_document():
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("installed without its repository")
    listed = (ROOT / "README.md").read_text().partition("\n## Documents\n")[2]
    for document in (ROOT / "docs").glob("*.md"):
        assert f"[{document.stem}](docs/{document.name})" in listed


@pytest.mark.parametrize("name", ["backends", "layouts", "models"])
def test_the_top_level_shows_three_links(name):
    link = ROOT / name
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("installed without its repository")
    assert link.is_symlink()
    assert os.readlink(link) == f"paged/{name}"
    assert link.resolve() == PACKAGE / name


def test_nothing_imports_through_the_links():
    folders = [ROOT / name for name in ("paged", "tests", "benchmarks", "scripts")]
    for path in (path for folder in folders for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            for name in names:
                assert name.split(".")[0] not in ("backends", "layouts", "models"), path
