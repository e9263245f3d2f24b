"""Plug-ins: a real small distribution on the path, found by its entry points, in a process of its own."""

import os
from pathlib import Path
import subprocess
import sys

import mxkit
import pytest

MODULE = """
import mxkit
print("imported")

def tiny(classes: int = 3):
    return mxkit.models.mlp(classes, hidden=[2])

def few(rows: int = 8):
    return mxkit.data.digits(size=8)

def half():
    return lambda image: image / 2
"""
ENTRIES = """[mxkit.models]
tiny = tiny_nets:tiny
lenet = tiny_nets:tiny
torn = tiny_nets:nothing
[mxkit.data]
few = tiny_nets:few
[mxkit.augment]
half = tiny_nets:half
[mxkit.losses]
missing = no_such_module:loss
"""


@pytest.fixture
def installed(tmp_path):
    """A folder with a module and the dist-info that pip writes for it."""
    (tmp_path / "tiny_nets.py").write_text(MODULE, encoding="utf-8")
    info = tmp_path / "tiny_nets-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-nets\nVersion: 1.2\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(ENTRIES, encoding="utf-8")
    return tmp_path


CODE = """
import mxkit
from mxkit.core import arguments
from mxkit.recipe.reading import load_recipe
from mxkit.recipe.schema import recipe_schema
mxkit.models.get_model("lenet"), mxkit.fit
load_recipe("digits_lenet")
print(arguments._entry_points.cache_info().currsize, "groups were searched")
print(sorted({"tiny", "torn"} & {*mxkit.models.model_names()}), "are listed")
print(mxkit.models.get_model("tiny", classes=5)[2])
recipe = {"data": {"name": "few", "augment": ["half"]}, "model": "tiny", "loss": "softmax_ce", "optimizer": "sgd"}
recipe = load_recipe({**recipe, "epochs": 1})
print(recipe.data.name, mxkit.data.Augment(["half"]).steps)
for ask in (lambda: mxkit.models.get_model("torn"), lambda: mxkit.losses.get_loss("missing")):
    try:
        ask()
    except mxkit.errors.UnknownNameError as error:
        print(str(error).replace(':', ';').partition(';')[0])
print("torn" in mxkit.models.model_names())
print("tiny" in recipe_schema()["$defs"]["ModelComponent"]["anyOf"][0]["enum"])
"""


def test_a_plug_in_is_imported_when_its_name_is_asked_for_and_a_broken_one_is_named(installed):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), str(Path(mxkit.__file__).parents[1])])}
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.stdout.splitlines() == [
        "0 groups were searched",
        "['tiny', 'torn'] are listed",
        "imported",
        "Dense(None -> 5, linear)",
        "few [<lambda>]",
        *("unknown model 'torn'", "unknown loss 'missing'"),
        *("False", "True"),
    ]
    assert "plug-in 'torn' of tiny-nets 1.2 (mxkit.models: tiny_nets:nothing) cannot be loaded" in done.stderr
    assert "No module named 'no_such_module'" in done.stderr
    assert done.stderr.count("UserWarning") == 2
