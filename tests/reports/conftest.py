"""Real runs of two epochs, made once, and pages read as a browser reads them."""

import contextlib
from html.parser import HTMLParser
import shutil

import mxkit
import pytest
from sharing import no_curves

SMALL = ["data.size=8", "model={name: mlp, hidden: [16]}", "epochs=2"]


class Page(HTMLParser):
    """Tags with attributes, headings, tables by class as rows of texts, items of lists, values of <data>."""

    VOID = ("meta", "img", "br", "link", "path", "use")

    def __init__(self, text):
        super().__init__()
        self.source = text
        self.tags, self.headings, self.tables, self.values, self.items, self.text = [], [], {}, [], [], ""
        self._rows = []
        self._open = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append((tag, attributes))
        if tag in self.VOID:
            return
        self._open.append((tag, attributes))
        if tag == "table":
            self._rows = self.tables.setdefault(attributes.get("class") or "layers", [])
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
        elif tag in ("h1", "h2", "h3"):
            self.headings.append("")
        elif tag == "li":
            self.items.append("")
        elif tag == "data":
            self.values.append(attributes["value"])

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, text):
        inside = [tag for tag, _ in self._open]
        if "style" in inside:
            return
        self.text += text
        kind = next((tag for tag in reversed(inside) if tag in ("td", "th", "h1", "h2", "h3", "li")), None)
        if kind:
            texts = self._rows[-1] if kind[0] == "t" else self.items if kind == "li" else self.headings
            texts[-1] += text

    def attributes(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="session")
def read_page():
    return lambda path: Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def make_run(tmp_path_factory):
    """A function that runs a recipe and gives its folder, also where the run fails."""

    def make(recipe, *overrides):
        output = tmp_path_factory.mktemp("runs")
        with no_curves(), contextlib.suppress(mxkit.errors.NonFiniteError):
            mxkit.run_recipe(recipe, overrides=overrides, output=output, progress=False)
        (folder,) = output.iterdir()
        return folder

    return make


@pytest.fixture(scope="session")
def own_recipe():
    """A function that writes a module of a user, and gives a recipe that imports it."""

    def write(folder, name, module, **changes):
        (folder / f"{name}.py").write_text(module)
        recipe = {"name": "own", "imports": [name], "import_path": str(folder), "loss": "softmax_ce", "epochs": 2}
        recipe["model"] = {"name": "mlp", "hidden": [16], "classes": 10}
        return {**recipe, "optimizer": "adam", "metrics": ["accuracy"], **changes}

    return write


@pytest.fixture(scope="session")
def adam(make_run):
    return make_run("digits_lenet", *SMALL)


@pytest.fixture(scope="session")
def sgd(make_run):
    changes = ["seed=1", "optimizer={name: sgd, learning_rate: 0.1}", "checkpoints.keep_best=[valid_accuracy, max]"]
    return make_run("digits_lenet", *SMALL, *changes)


@pytest.fixture(scope="session")
def regression(make_run):
    return make_run("linear_regression", "epochs=1", "data.samples=100")


@pytest.fixture(scope="session")
def failed(make_run):
    return make_run("digits_lenet", *SMALL, "optimizer={name: sgd, learning_rate: 1e30}")


@pytest.fixture
def copied(tmp_path):
    """A function that copies a run's folder, so that a test may damage it."""

    def copy(folder, name="copy"):
        return shutil.copytree(str(folder), str(tmp_path / name)) and tmp_path / name

    return copy
