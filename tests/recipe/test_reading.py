"""Recipes are read: YAML, overrides, bases, variables, own modules; those that cannot be run say path and way out."""

import sys

import mxkit
from mxkit.errors import RecipeError, UnknownNameError
from mxkit.losses.named_losses import get_loss
from mxkit.recipe import vocabulary
from mxkit.recipe.reading import (
    as_yaml,
    dump_recipe,
    load_recipe,
    parse_yaml,
    read_layers,
    recipe_names,
)
from mxkit.recipe.run import load_run, resume_run, run_recipe
from mxkit.recipe.schema import differences
import numpy as np
import pytest
from recipe_parts import SMALL, refusal
import yaml

SMALL = {**SMALL, "model": "softmax_regression", "metrics": [], "epochs": 1}
SMALL.pop("updates")


@pytest.mark.parametrize("name", recipe_names())
def test_shipped_recipes_are_valid_and_survive_their_own_dump(name, tmp_path):
    recipe = load_recipe(name)
    assert recipe.name == name
    written = tmp_path / "other.yaml"
    written.write_text(dump_recipe(recipe))
    assert load_recipe(written) == recipe


VALUES = [
    ("010", 10), ("0o10", 8), ("0x1F", 31), ("-007", -7), ("+1", 1), ("1e3", 1000.0), (".5", 0.5), ("1.", 1.0),
    ("-.inf", float("-inf")), ("TRUE", True), ("~", None), ("", None),
    *((text, text) for text in (
        "12:30", "1_000", "0b11", "no", "on", "Y", "2024-01-01", "2024-01-01 10:00:00", "1e", "-0x1", "1_0.5", "3:25.5",
    )),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), VALUES, ids=[text or "nothing" for text, _ in VALUES])
def test_values_are_those_of_the_core_schema_of_yaml_1_2_and_are_written_so_that_they_stay(text, value, tmp_path):
    (tmp_path / "a.yaml").write_text(f"variables: {{a: {text}}}")
    layers = read_layers(tmp_path / "a.yaml", [f"variables.b={text}"])[1]
    assert layers.content["variables"] == {"a": value, "b": value}
    assert type(layers.content["variables"]["a"]) is type(value)
    for written in (value, text):  # the second is a text also where it looks like a number
        assert parse_yaml(as_yaml({"a": written})) == yaml.safe_load(as_yaml({"a": written})) == {"a": written}


def test_floats_without_a_point_are_numbers(tmp_path):
    """T26."""
    # PyYAML alone reads 1e-3 as text, which MXNet takes for a learning rate without a word
    assert yaml.safe_load("1e-3") == "1e-3"
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump(SMALL).replace("learning_rate: 0.1", "learning_rate: 1e-3"))
    assert load_recipe(path).optimizer.arguments == {"learning_rate": 0.001}
    assert load_recipe(SMALL, ["optimizer.learning_rate=5E2"]).optimizer.arguments == {"learning_rate": 500.0}


@pytest.mark.parametrize("given", ["[1, 5]", "{'0': 1, '1': 5}"])
def test_weights_of_classes_are_a_list_or_by_number(given):
    spec = load_recipe(SMALL, [f"loss.class_weight={given}"]).loss.spec
    assert get_loss(spec)._class_weight.among(2) == [1, 5]


@pytest.mark.parametrize("given", ["{'3.5': 2}", "{'True': 1}", "{'1': true}", "{'1': 2, '01': 3}"])
def test_weights_of_no_class_are_refused(given):
    with pytest.raises(RecipeError, match=r"\n  loss.*class_weight: (expected a|input should be)"):
        load_recipe(SMALL, [f"loss.class_weight={given}"])


def test_overrides_reach_short_and_missing_sections():
    recipe = load_recipe(SMALL, ["loss.axis=1", "initializer.name=normal", "metrics=[accuracy]", "clip_norm=1"])
    assert (recipe.loss.name, recipe.loss.arguments) == ("softmax_ce", {"axis": 1})
    assert recipe.initializer.name == "normal"
    assert [metric.name for metric in recipe.metrics] == ["accuracy"]
    assert recipe.clip_norm == 1.0


def test_a_mapping_given_is_not_changed():
    before = yaml.safe_dump(SMALL)
    load_recipe(SMALL, ["optimizer.learning_rate=1", "data.size=28", "loss.axis=1"])
    assert yaml.safe_dump(SMALL) == before


def test_missing_sections_are_named():
    text = refusal({"epochs": 1})
    assert all(f"{section}: is missing" in text for section in ("data", "model", "loss", "optimizer"))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("? [a]\n: 1\n", "the key ['a'] is no text"),
        ("1: 2\n", "the key 1 is no text: write it in quotes, '1'"),
        ("epochs: 1\nepochs: 2\n", "the key 'epochs' appears twice"),
        ("- a\n- b\n", "expected keys and values, like `epochs: 20`; received ['a', 'b']"),
        ("epochs: [1", "cannot be read"),
        ("[" * 500, "cannot be read: maximum recursion depth"),
        ("a: {<<: {k: v}}", "cannot be read: could not determine a constructor for the tag 'tag:yaml.org,2002:merge'"),
        ("", "expected keys and values"),
        ("a: !!python/object/apply:os.system [true]\n", "cannot be read"),
    ],
)
def test_files_that_are_no_recipe(content, expected, tmp_path):
    path = tmp_path / "broken.yaml"
    path.write_text(content)
    assert expected in refusal(path)


def test_unknown_recipe_lists_the_known_ones():
    text = refusal("digits_lent")
    assert "'digits_lent' is neither a file nor a recipe of mxkit" in text
    assert "did you mean 'digits_lenet'" in text


BASE = """
data: {name: digits, batch_size: 32}
model: {name: mlp, hidden: [64, 32], dropout: 0.1}
loss: softmax_ce
optimizer: {name: adam, learning_rate: 0.01, beta1: 0.8}
epochs: 3
metrics: [accuracy, f1]
"""


@pytest.fixture
def write(tmp_path):
    """Write a recipe into the test's folder and give its path."""

    def written(name, text):
        path = tmp_path / f"{name}.yaml"
        path.write_text(text)
        return path

    return written


def test_keys_are_merged_lists_replaced_and_a_component_of_another_name_is_new(write):
    write("base", BASE)
    text = "model: {hidden: [8]}\noptimizer: {name: sgd}\nmetrics: [accuracy]\nloss: {axis: 1}"
    child = load_recipe(write("child", f"base: base.yaml\n{text}"))
    assert child.name == "child"
    assert child.model.arguments == {"hidden": [8], "dropout": 0.1}
    assert (child.optimizer.name, child.optimizer.arguments) == ("sgd", {})
    assert [one.name for one in child.metrics] == ["accuracy"]
    assert child.loss.spec == ("softmax_ce", {"axis": 1})
    assert child.data.batch_size == 32
    assert load_recipe(write("dumped", dump_recipe(child))) == child.model_copy(update={"name": "child"})


def test_updates_take_the_place_of_the_bases_epochs(write):
    write("base", BASE)
    child = load_recipe(write("child", "base: base.yaml\nupdates: 2"))
    assert (child.epochs, child.updates) == (None, 2)
    assert load_recipe(child, ["epochs=5"]).updates is None
    assert "epochs: expected either epochs or updates" in refusal(child, "updates=null")
    assert "epochs: expected either epochs or updates" in refusal(write("both", BASE + "updates: 3"))


def test_a_shipped_recipe_is_a_base_and_bases_have_bases(write):
    write("one", "base: digits_lenet\nepochs: 7")
    two = load_recipe(write("two", "base: one.yaml\noptimizer: {learning_rate: 0.5}"))
    assert (two.epochs, two.model.name, two.optimizer.arguments["learning_rate"]) == (7, "lenet", 0.5)
    expected = ["name: digits_lenet -> two", "optimizer.learning_rate: 0.001 -> 0.5", "epochs: 20 -> 7"]
    assert differences(load_recipe("digits_lenet"), two) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a": "base: a.yaml"}, "base: a recipe cannot be its own base; received a.yaml -> a.yaml"),
        ({"a": "base: b.yaml", "b": "base: a.yaml"}, "received a.yaml -> b.yaml -> a.yaml"),
        ({"a": "base: c.yaml"}, "base: 'c.yaml' is neither a file nor a recipe of mxkit"),
        ({"a": "base: digits_lent"}, "did you mean 'digits_lenet'?"),
        ({"a": "base: [x]"}, "base: expected a file or the name of a recipe; received ['x']"),
        ({"a": "base: b.yaml", "b": "- x"}, "b.yaml: expected keys and values"),
    ],
)
def test_bases_that_are_none(files, expected, write):
    for name, text in files.items():
        path = write(name, text)
    assert expected in refusal(path.with_name("a.yaml"))


def test_mistakes_of_all_layers_are_one_error(write):
    write("base", BASE.replace("dropout", "dropuot"))
    text = refusal(write("child", "base: base.yaml\nmetrics: [acuracy]\nloss: l2"), "loss=l3")
    assert [line.split(":")[0].strip() for line in text.splitlines()[1:]] == [
        "model.dropuot", "loss.name", "metrics.0.name"
    ]  # fmt: skip


def test_variables_keep_their_type_and_stand_inside_of_texts(write):
    text = (
        BASE.replace("[64, 32]", "['${ width }', 32]") + "variables: {width: 16, n: 3}\ndescription: '${n} x ${width}'"
    )
    recipe = load_recipe(write("a", text))
    assert recipe.model.arguments["hidden"] == [16, 32]
    assert recipe.description == "3 x 16"
    assert load_recipe(write("b", "base: a.yaml\nvariables: {width: 8}")).description == "3 x 8"
    assert load_recipe(write("a", text), ["variables.width=4"]).model.arguments["hidden"] == [4, 32]


WRONG_VARIABLES = [
    ("{widht: 3}", "model.hidden.0: unknown variable; received 'width'; accepted: widht; did you mean 'widht'?"),
    ("{width: 3, widht: 3}", "variables.widht: nothing uses it; received 3; accepted: width; did you mean 'width'?"),
    ("3", "variables: expected names and values; received 3"),
    ("{width: {a: 1}}", "variables.width: expected a number, a text or a list; received {'a': 1}"),
    ("{width: '${width}'}", "variables.width: expected a number"),
    ("{width: many}", "model.hidden.0: input should be a valid integer; received 'many'"),
]


@pytest.mark.parametrize(("variables", "expected"), WRONG_VARIABLES)
def test_variables_that_are_wrong(variables, expected, write):
    text = BASE.replace("[64, 32]", "['${width}']") + f"variables: {variables}"
    assert expected in refusal(write("a", text))


OWN = """
import mxkit
import mxnet as mx
import numpy as np


@mxkit.register("data")
def lines_of_a_log(path: str, batch_size: int = 4, stream: bool = False):
    def parse(line):
        height, age = map(float, line.split())
        return np.array([height], "float32"), np.float32(age)

    if stream:
        return mxkit.data.Splits(*(mxkit.data.from_lines(path, parse, batch_size) for _ in range(3)), [])
    return mxkit.data.lines(path, parse)


@mxkit.register("callback")
class Counted(mxkit.Callback):
    def __init__(self, limit: int):
        self.limit = limit

    def on_update(self, state, update):
        if update.step == self.limit:
            state.stop("counted")
"""
LOG = """
imports: [own_parts_NUMBER]
data: {name: lines_of_a_log, path: LOG, batch_size: 8}
model: {name: mlp, classes: 1}
loss: l2
optimizer: {name: sgd, learning_rate: 0.01}
epochs: 4
callbacks: [{name: Counted, limit: 15}]
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A recipe with a module of its own, whose names are forgotten afterwards."""
    number = len(list(tmp_path.parent.iterdir()))
    (tmp_path / f"own_parts_{number}.py").write_text(OWN)
    rng = np.random.RandomState(0)
    rows = [f"{one} {20 * one + 3}" for one in rng.rand(60).tolist()]
    (tmp_path / "a.log").write_text("\n".join(rows))
    (tmp_path / "log.yaml").write_text(LOG.replace("NUMBER", str(number)).replace("LOG", str(tmp_path / "a.log")))
    before = {kind: dict(one.own) for kind, one in vocabulary.KINDS.items() if one.own is not None}
    yield tmp_path / "log.yaml"
    for kind, names in before.items():
        vocabulary.KINDS[kind].own.clear()
        vocabulary.KINDS[kind].own.update(names)
    sys.modules.pop(f"own_parts_{number}", None)


def test_a_loader_of_ones_own_is_read_as_it_is(own, tmp_path):
    overrides = ["data.stream=true", "callbacks.0.limit=100", "epochs=2"]
    run = run_recipe(own, overrides=overrides, output=tmp_path / "runs", progress=False)
    assert [row["updates"] for row in run.history] == [8, 16]  # 60 lines, 8 a batch
    again = resume_run(run.folder, overrides=["epochs=3", "callbacks.0.limit=20"], progress=False)
    assert (again.history[-1]["updates"], again.history.stopped) == (20, "counted")
    assert load_run(run.folder)[0].import_path == str(tmp_path)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("imports=[own_part]", "imports.0: there is no module 'own_part' in "),
        ("imports=[os.system]", "imports.0: there is no module 'os.system'"),
        ("data.path=3", "data.path: input should be a valid string; received 3"),
        ("callbacks.0.limit=x", "callbacks.0.limit: input should be a valid integer; received 'x'"),
    ],
)
def test_own_parts_are_checked_as_mxkits_are(own, override, expected):
    assert expected in refusal(own, override)


def test_register_refuses_names_and_kinds_that_are_taken(own):
    load_recipe(own)
    with pytest.raises(ValueError, match="loss 'l2' is .*L2Loss already; choose another name"):
        mxkit.register("loss", "l2")(lambda: None)
    with pytest.raises(ValueError, match="model 'siamese' is a name of mxkit"):
        mxkit.register("model", "siamese")(lambda: None)
    with pytest.raises(UnknownNameError, match="unknown kind of component 'los': did you mean 'loss'"):
        mxkit.register("los")

    def same():
        return None

    assert mxkit.register("data")(same) is mxkit.register("data")(same)


def test_two_modules_of_one_name_are_told_apart(own, tmp_path):
    load_recipe(own)
    (module,) = tmp_path.glob("own_parts_*.py")
    other = tmp_path / "other"
    other.mkdir()
    (other / module.name).write_text("")
    (other / "log.yaml").write_text(own.read_text())
    assert f"was imported before from {module}" in refusal(other / "log.yaml")


def test_own_steps_of_augmentation(own, tmp_path):
    def darker(share: float = 0.5):
        return lambda image, rng: image * share

    mxkit.register("augment")(darker)
    changed = mxkit.data.Augment([("darker", {"share": 0.25})])(np.ones((2, 2, 1), "float32"))
    np.testing.assert_array_equal(changed, np.full((2, 2, 1), 0.25, "float32"))
    assert load_recipe("digits_lenet", ["data.augment=[darker]"]).data.augment[0].spec == ("darker", {})
    assert "data.augment.0.shar: darker takes no" in refusal("digits_lenet", "data.augment=[{name: darker, shar: 1}]")
