"""Every notebook runs from top to bottom in a fresh kernel, and is stored without outputs.

`make notebooks`, in `.ci/run`, executes all of them; `make test` looks at what is stored.
"""

import json
import os
from pathlib import Path
import re
import subprocess
import sys

import mxkit
import pytest
from sharing import needs

ROOT = Path(mxkit.__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CHINESE = re.compile("[\u4e00-\u9fff]")

# In a process of its own: what Jupyter warns of is not ours to mend.
EXECUTE = """
import json, sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
print(json.dumps([sorted({kind for output in cell.get("outputs", ()) for kind in output.get("data", {})})
                  for cell in notebook.cells]))
"""


def cells_of(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def execute(path, folder):
    """The kinds of output of each cell, from a fresh kernel in `folder`."""
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, str(path)],
        cwd=str(folder),
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
        capture_output=True,
        timeout=600,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_there_are_notebooks():
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{number:02d}" for number in range(1, len(NOTEBOOKS) + 1)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_without_outputs_and_short(path):
    cells = cells_of(path)
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert len(cells) <= 12
    assert len({cell["id"] for cell in cells}) == len(cells)
    assert any(re.search(r"^ *assert ", "".join(cell["source"]), re.MULTILINE) for cell in code)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_speaks_english_then_chinese(path):
    cells = cells_of(path)
    assert "".join(cells[0]["source"]).startswith(f"# {int(path.name[:2])}. ")
    for cell in cells:
        if cell["cell_type"] == "markdown":
            paragraphs = "".join(cell["source"]).strip().split("\n\n")
            assert not CHINESE.search(paragraphs[0]), paragraphs[0]
            assert CHINESE.search(paragraphs[-1]), paragraphs[-1]


def executed(path):
    """A row of the test below; what needs torch runs in its environment, with `make torch`."""
    torched = (pytest.mark.torch, needs("torch")) if path.stem == "13-pytorch" else ()
    return pytest.param(path, marks=[pytest.mark.notebooks, *torched], id=path.stem)


@pytest.mark.parametrize("path", list(map(executed, NOTEBOOKS)))
def test_runs_and_ends_in_a_picture(path, tmp_path):
    kinds = execute(path, tmp_path)
    assert "image/png" in kinds[-1]
    sources = ["".join(cell["source"]) for cell in cells_of(path)]
    assert [source for source, found in zip(sources, kinds) if ".plot(" in source and "image/png" not in found] == []
