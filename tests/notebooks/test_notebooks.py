"""Every notebook runs from top to bottom on a host without an accelerator."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_holds_no_output(path):
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    assert all(cell.execution_count for cell in code)
    printed = "".join(output.get("text", "") for cell in code for output in cell.outputs)
    assert "largest error" in printed
