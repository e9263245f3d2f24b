"""docs/recipes.md: its examples load, and its tables are those of the schema."""

from pathlib import Path
import re
import sys

import mxkit
from mxkit.losses.named_losses import LOSSES
from mxkit.metrics import METRICS
from mxkit.models.registry import MODELS
from mxkit.recipe.reading import load_recipe
from mxkit.recipe.run import run_recipe
from mxkit.recipe.vocabulary import DATASETS
import pytest

ROOT = Path(mxkit.__file__).parents[1]
TEXT = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def my_parts(tmp_path, monkeypatch):
    """The folder of the page's module, whose names are gone afterwards."""
    (module,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "my_parts.py").write_text(module)
    (tmp_path / "a.log").write_text("".join(f"{height / 100} {height / 10}\n" for height in range(40)))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("my_parts", None)
    for table, name in ((DATASETS, "my_log"), (DATASETS, "two_clouds"), (MODELS, "two_layers"), (LOSSES, "sharpened")):
        table.pop(name, None)
    METRICS.pop("sure", None)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_loads(number, my_parts):
    (my_parts / "example.yaml").write_text(EXAMPLES[number])
    recipe = load_recipe(my_parts / "example.yaml")
    assert recipe.name == "example"
    if recipe.imports:
        run = run_recipe(my_parts / "example.yaml", output=my_parts / "runs", progress=False)
        assert (run.folder / "code" / "my_parts.py").read_bytes() == (my_parts / "my_parts.py").read_bytes()
        if recipe.data.name == "two_clouds":
            assert run.scores["accuracy"] > 0.8
            assert 0 < run.scores["sure"] <= 1


def test_the_tables_are_up_to_date(forks):
    """If not: python tests/made_tables.py recipes"""
    # in a process of its own: other tests put names into MXNet's registries
    done = forks.run(Path(__file__).parents[1] / "made_tables.py", "recipes", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_shipped_recipe_is_in_the_table():
    told = {name for row in re.findall(r"^\| (`.*?) \|", TEXT, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    told |= {f"optimizer{name}" for name in told if name[0] == "_"}
    assert {path.stem for path in (ROOT / "recipes").glob("*.yaml")} <= told


def test_what_the_page_calls_is_public():
    assert "`mxkit.recipe.run." not in TEXT  # `import mxkit` does not import it
    for name in set(re.findall(r"`mxkit\.(\w+)", TEXT)):
        assert hasattr(mxkit, name), name
