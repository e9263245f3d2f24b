"""The JSON schema for editors takes every shipped recipe, and refuses what the loader refuses."""

import json

import jsonschema
from mxkit.recipe.reading import RECIPE_FOLDERS, load_recipe, read_file, recipe_names
from mxkit.recipe.schema import FILE_KEYS, Recipe, recipe_schema
import pytest
from recipe_parts import SMALL
from sharing import command


@pytest.fixture(scope="module")
def validator():
    schema = recipe_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", recipe_names())
def test_shipped_recipes_are_taken_as_they_are_and_resolved(validator, name):
    (path,) = [folder / f"{name}.yaml" for folder in RECIPE_FOLDERS if (folder / f"{name}.yaml").is_file()]
    validator.validate(read_file(path))
    validator.validate(json.loads(json.dumps(load_recipe(name).model_dump())))


@pytest.mark.parametrize(
    "wrong",
    [
        {"epoch": 1},
        {"epochs": "many"},
        {"data": "digit"},
        {"data": {"name": "digits", "siz": 8}},
        {"data": {"siz": 8}},
        {"data": {"name": "digits", "size": "big"}},
        {"data": {"name": "digits", "augment": ["flop"]}},
        {"data": {"name": "digits", "pairs": {"kind": "twins"}}},
        {"model": {"name": "mlp", "hiden": [3]}},
        {"model": {"name": "mlp", "hidden": 3}},
        {"optimizer": {"name": "sgd", "learning_rate": "fast"}},
        {"optimizer": {"name": "sgd", "multipliers": {"*": {"l": 1}}}},
        {"loss": None},
        {"metrics": ["acuracy"]},
        {"schedule": {"name": "cosine", "evry": "1 epoch"}},
        {"callbacks": [{"name": "early_stopping", "mode": "least"}]},
        {"evaluate": {"metrics": ["acuracy"]}},
        {"checkpoints": {"keep_best": ["valid_loss", "least"]}},
    ],
)
def test_it_refuses_what_the_loader_refuses(validator, wrong):
    validator.validate(SMALL)
    assert not validator.is_valid({**SMALL, **wrong})
    with pytest.raises(ValueError, match="recipe "):
        load_recipe({**SMALL, **wrong})


@pytest.mark.parametrize(
    "right",
    [
        {"base": "digits_lenet", "data": {"batch_size": 3}, "optimizer": {"learning_rate": 1}},
        {"epochs": "${n}", "variables": {"n": 3}},
        {"epochs": "500 updates", "accumulate": "256 samples"},
        {"epochs": "1 epoch", "accumulate": "1 batch"},
        {"optimizer": "SGD"},
        {"model": {"name": "siamese", "branch": {"name": "mlp", "hidden": [3]}}},
        {"model": "gluoncv:cifar_resnet20_v1"},
        {"data": {"name": "digits", "augment": "cifar_train"}},
        {"imports": ["mine"], "loss": {"name": "my_loss", "power": 3}},
    ],
)
def test_it_takes_what_files_may_say(validator, right):
    validator.validate({**SMALL, **right})


def test_every_key_of_the_vocabulary_is_in_it():
    assert set(json.loads(command("schema")[1])["properties"]) == {*Recipe.model_fields, *FILE_KEYS}
