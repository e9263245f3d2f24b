"""docs/recipes.md: its examples load, and its tables are those of the schema."""

import os
from pathlib import Path
import re
import subprocess
import sys

import mxkit
from mxkit.recipe.reading import load_recipe
from mxkit.recipe.registry import DATASETS
import pytest

ROOT = Path(mxkit.__file__).parents[1]
TEXT = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_loads(number, tmp_path, monkeypatch):
    (module,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "my_parts.py").write_text(module)
    (tmp_path / "example.yaml").write_text(EXAMPLES[number])
    try:
        assert load_recipe(tmp_path / "example.yaml").name == "example"
    finally:
        sys.modules.pop("my_parts", None)
        DATASETS.pop("my_log", None)


def test_the_tables_are_up_to_date():
    """If not: python tests/recipe/vocabulary_table.py"""
    # in a process of its own: other tests put names into MXNet's registries
    command = [sys.executable, str(Path(__file__).with_name("vocabulary_table.py")), "--check"]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=300)


def test_what_the_page_calls_is_public():
    for name in set(re.findall(r"`mxkit\.(\w+)", TEXT)):
        assert hasattr(mxkit, name), name
