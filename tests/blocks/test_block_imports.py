"""What the interpreter sees: which modules are loaded, and that -O disables no check."""

import ast
import subprocess
import sys
from pathlib import Path

import paged.blocks

FOLDER = Path(paged.blocks.__file__).parent


def run_python(*args):
    done = subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        check=True,
        cwd=FOLDER.parent.parent,
        timeout=60,
    )
    return done.stdout


def test_integrity_is_checked_under_python_o():
    code = (
        "from paged.blocks import BlockPool, IntegrityError\n"
        "pool = BlockPool(3)\n"
        "pool._ref_counts[1] = 7\n"
        "try:\n"
        "    pool.check_integrity()\n"
        "except IntegrityError as error:\n"
        "    print(error)\n"
    )
    done = run_python("-O", "-c", code)
    assert "exactly one of free, waiting and in use: found [1], expected none" in done


def test_neither_jax_nor_torch_is_imported():
    # The parent is replaced by an empty one: what `paged` itself imports is not at issue here.
    code = (
        "import sys, types\n"
        "parent = types.ModuleType('paged')\n"
        f"parent.__path__ = [{str(FOLDER.parent)!r}]\n"
        "sys.modules['paged'] = parent\n"
        "import paged.blocks\n"
        "assert 'paged.blocks.table' in sys.modules\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'jax', 'jaxlib', 'torch'}))\n"
    )
    assert run_python("-c", code).strip() == "[]"


def test_imports_are_numpy_and_the_standard_library():
    allowed = {*sys.stdlib_module_names, "numpy", "jaxtyping"}
    seen = set()
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path.name}: a relative import"
                names = [node.module]
            seen.update(names)
            for name in names:
                if name == "xxhash":
                    assert node.col_offset > 0, "only who asks for it needs it"
                    continue
                ours = name == "paged.blocks" or name.startswith("paged.blocks.")
                assert ours or name.split(".")[0] in allowed, f"{path.name} imports {name}"
    assert {"numpy", "paged.blocks.pool"} <= seen
