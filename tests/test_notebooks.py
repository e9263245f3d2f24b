"""Every notebook runs from top to bottom in a fresh kernel, and is stored without outputs."""

import json
import os
from pathlib import Path
import subprocess
import sys

import mxkit
import pytest

ROOT = Path(mxkit.__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

# In a process of its own: what Jupyter warns of is not ours to mend.
EXECUTE = """
import json, sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
print(json.dumps([[cell.source, sorted({kind for output in cell.get("outputs", ()) for kind in output.get("data", {})})]
                  for cell in notebook.cells]))
"""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_without_outputs_and_short(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert len(cells) <= 12


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_and_shows_its_pictures(path, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, str(path)],
        cwd=str(tmp_path),
        env=environment,
        capture_output=True,
        timeout=300,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    cells = json.loads(done.stdout.splitlines()[-1])
    pictured = [source for source, kinds in cells if "image/png" in kinds]
    assert [source for source, _ in cells if ".plot(" in source and source not in pictured] == []
    assert cells[-1][0] in pictured
