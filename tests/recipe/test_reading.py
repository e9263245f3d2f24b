"""Recipes that cannot be run are answered with path, received, accepted and nearest."""

from pathlib import Path
import re

from mxkit.errors import RecipeError
from mxkit.losses.named_losses import get_loss
from mxkit.recipe.reading import (
    RECIPE_FOLDERS,
    as_yaml,
    dump_recipe,
    load_recipe,
    parse_yaml,
    read_layers,
    recipe_names,
)
import pytest
from recipe_parts import SMALL, prepared, refusal
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


def test_every_recipe_of_the_checkout_is_shipped():
    assert "digits_lenet" in recipe_names()
    assert any(Path(folder).is_dir() for folder in RECIPE_FOLDERS)


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
    with pytest.raises(RecipeError, match=r"\n  loss.*class_weight: expected a"):
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


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("epoch=3", "epoch: unknown key; received 3; accepted: format, name,.*did you mean 'epochs'"),
        ("epochs=0", "epochs: expected a length like '2 epochs' or '500 updates', or a number of epochs; received 0"),
        ("format=2", "format: input should be 1; received 2"),
        ("name=../escape", r"name: string should match pattern.*; received '../escape'"),
        ("loss=sotfmax_ce", "loss.name: unknown; received 'sotfmax_ce'; accepted: .*; did you mean 'softmax_ce'"),
        ("loss=bce", "loss.name: unknown; received 'bce'; accepted: .*; did you mean 'sigmoid_bce'"),
        ("schedule.name=multifactor", "schedule.name: unknown; received 'multifactor'; .*did you mean 'multi_step'"),
        ("loss=3", "loss: expected a name, or keys and values; received 3"),
        (
            "optimizer.learning_rat=1",
            "optimizer.learning_rat: sgd takes no .*; received 1; .*did you mean 'learning_rate'",
        ),
        ("optimizer.learning_rate=fast", "optimizer.learning_rate: expected a number, .*; received 'fast'"),
        ("optimizer.lr_scheduler=poly", "optimizer.lr_scheduler: sgd takes no such argument; received 'poly'"),
        ("data.batchsize=3", "data.batchsize: digits takes no .*accepted: batch_size, .*did you mean 'batch_size'"),
        ("nonsense", "--set 'nonsense': expected a.b=value"),
        ("a..b=1", "--set 'a..b=1': expected a.b=value"),
        ("epochs.x=1", "--set 'epochs.x=1': epochs is 1, which has no keys"),
        ("epochs=[", "--set 'epochs=\\[': the value is not YAML"),
    ],
)
def test_wrong_overrides(override, expected):
    text = refusal(SMALL, override)
    assert re.search(expected, text, re.DOTALL), text


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


def test_values_that_only_building_can_judge():
    text = refusal(SMALL, "data.size=9", "model.name=mlp", "model.dropout=2", check=prepared)  # both at once
    assert re.search("data: size: expected 8, or .* received 9", text)
    assert "model: mlp: dropout must be at least 0 and below 1; received 2" in text
    assert "metrics.0: TopK: k: expected a whole number, at least 1" in refusal(SMALL, "metrics=[{name: top_k, k: 0}]")
    assert "\n  metrics: names must differ" in refusal(SMALL, "metrics=[accuracy, accuracy]")
