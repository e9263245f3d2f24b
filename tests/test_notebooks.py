"""Every notebook runs from top to bottom in a fresh kernel, and is stored without outputs."""

import json
import os
from pathlib import Path

import mxkit
import nbclient
import nbformat
import pytest

ROOT = Path(mxkit.__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_without_outputs_and_short(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert len(cells) <= 12


@pytest.mark.filterwarnings("ignore:::jupyter_client", "ignore:::zmq")  # theirs, about event loops and paths
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_and_ends_in_a_picture(path, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(str(path), as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    for cell in notebook.cells:
        kinds = {kind for output in cell.get("outputs", ()) for kind in output.get("data", {})}
        if ".plot(" in cell.source or cell is notebook.cells[-1]:
            assert "image/png" in kinds, cell.source
