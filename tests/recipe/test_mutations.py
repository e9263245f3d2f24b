"""Whatever is changed in a recipe, it is refused at the right place or says what was written: never a default."""

import copy
from pathlib import Path
import re
import string

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from mxkit.errors import RecipeError
from mxkit.recipe.reading import find_recipe, lay_over_bases, load_recipe, read_file
import pytest
from recipe_parts import RICH
from sharing import examples
from vocabulary_table import SECTIONS

RICH = {
    **RICH,
    "variables": {"width": 64},
    "model": {
        "name": "mlp",
        "classes": 10,
        "hidden": ["${width}", 16],
        "dropout": 0.2,
        "weights": "other.params",
        "finetune": {"classes": 10, "freeze": "1.*", "head": "3", "head_multiplier": 5, "initializer": "normal"},
    },
    "optimizer": {**RICH["optimizer"], "multipliers": {"2.*": {"lr": 0.5, "wd": 0.5}}},
    "checkpoints": {**RICH["checkpoints"], "keep_last": 2, "keep_every": "2 epochs"},
    "initializer": {"name": "xavier", "rnd_type": "gaussian", "magnitude": 2},
    "format": 1,
    "hybridize": True,
    "kvstore": "dist_sync",
    "accumulate": 2,
    "amp": "bfloat16",
    "clip_value": 2.0,
    "limit_batches": 3,
    "check_finite": True,
    "callbacks": [*RICH["callbacks"], {"name": "freeze", "patterns": "3.*", "until": "1 epoch"}],
}
PAIRS = {"kind": "pairs", "same": 0.4, "balanced": True, "length": 64}
SIAMESE = {
    **{key: value for key, value in RICH.items() if key != "accumulate"},
    "accumulate_samples": 4,
    "data": {"name": "digits", "eval_batch_size": 8, "workers": 0, "pairs": PAIRS},
    "model": {"name": "siamese", "branch": {"name": "mlp", "hidden": ["${width}"]}},
}
# with a base, with variables and imports, with lists of steps
SHIPPED = {name: find_recipe(name, Path()) for name in ("accumulation", "finetune_image_folder", "nin")}
CONTENTS = {"rich": RICH, "siamese": SIAMESE, **{name: read_file(path) for name, path in SHIPPED.items()}}
NOT_TRIED = {"import_path"}  # the loader sets it
slow = settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))


def places(content, path=()):
    """Every place of a recipe: its keys, and what stands there."""
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in inner:
        yield (*path, key), value
        yield from places(value, (*path, key))


def at(content, path):
    for key in path:
        content = content[key]
    return content


def dotted(path):
    return ".".join(map(str, path))


def loaded(name, content):
    """The changed recipe as a file beside the true one would be read."""
    folder = SHIPPED[name].parent if name in SHIPPED else Path()
    merged = lay_over_bases(copy.deepcopy(content), folder, name).content
    if merged.get("imports"):
        merged["import_path"] = str(folder)
    return load_recipe(merged)


def attempt(load, *arguments):
    """A recipe and "", or None and the text that refuses it."""
    try:
        return load(*arguments), ""
    except RecipeError as error:
        return None, str(error)


@st.composite
def misspelt(draw, word):
    """A word with one edit: a letter lost, doubled, changed or swapped with its neighbour."""
    i = draw(st.integers(0, len(word) - 1))
    letter = draw(st.sampled_from(string.ascii_lowercase))
    kind = draw(st.sampled_from(["lost", "more", "other", "swapped"]))
    if kind == "lost":
        return word[:i] + word[i + 1 :]
    if kind == "more":
        return word[:i] + letter + word[i:]
    if kind == "other":
        return word[:i] + letter + word[i + 1 :]
    return word[:i] + word[i : i + 2][::-1] + word[i + 2 :]


def test_every_key_of_every_section_is_changed():
    """Keys of `pairs`, `finetune`, `checkpoints` and the like too; a key of a new section is missing here."""
    paths = {dotted(path) for content in CONTENTS.values() for path, _ in places(content)}
    tried = {re.sub(r"multipliers\.[^a-z]+", "multipliers.GLOB.", path) for path in paths}
    keys = {f"{prefix}{key}" for prefix, section in SECTIONS for key in section.model_fields}
    assert keys - tried == NOT_TRIED


@pytest.mark.parametrize("name", CONTENTS)
def test_the_recipes_are_right_as_they_are(name):
    loaded(name, CONTENTS[name])


@pytest.mark.parametrize("name", CONTENTS)
@slow
@given(data=st.data())
def test_a_misspelt_key_is_refused_by_its_path_with_the_right_one(name, data):
    content = copy.deepcopy(CONTENTS[name])
    paths = [path for path, _ in places(content) if isinstance(path[-1], str) and path[-2:-1] != ("multipliers",)]
    path = data.draw(st.sampled_from(paths))
    key = path[-1]
    wrong = data.draw(misspelt(key))
    section = at(content, path[:-1])
    assume(wrong and wrong not in section)
    section[wrong] = section.pop(key)
    recipe, text = attempt(loaded, name, content)
    if recipe:  # the misspelt key is another one's right spelling, as mse is of mae
        assert find(recipe.model_dump(), (*path[:-1], wrong))
        return
    assert dotted((*path[:-1], wrong)) in text
    if len(key) >= 4:
        # a misspelling can be as near to another key: bame to base and to name
        assert ("did you mean" in text and key in text) or "variables" in path, text


def find(content, path):
    for key in path:
        if isinstance(content, dict) and key in content or isinstance(content, (list, tuple)) and key < len(content):
            content = content[key]
        else:
            return False
    return True


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(allow_nan=True),
    st.text(string.printable, max_size=8),
    st.sampled_from(["1", "0.5", "${width}", "${with}", "1e400", "null"]),
    st.lists(st.one_of(st.integers(-1, 2), st.text(max_size=3)), max_size=2),
    st.dictionaries(st.text(string.ascii_letters, max_size=4), st.integers(), max_size=2),
)


@pytest.mark.parametrize("name", CONTENTS)
@slow
@given(data=st.data())
def test_another_value_is_refused_by_its_path_or_kept(name, data):
    content = copy.deepcopy(CONTENTS[name])
    path = data.draw(st.sampled_from([path for path, _ in places(content) if path[0] not in ("base", "name")]))
    value = data.draw(VALUES)
    at(content, path[:-1])[path[-1]] = value
    recipe, text = attempt(loaded, name, content)
    if text:
        told = any(dotted(path[:depth]) in text for depth in range(1, len(path) + 1))
        # used elsewhere (a metric's column is what keep_best looks at), or no more
        assert told or path[0] in ("variables", "metrics") or "\n  variables." in text, text
        return
    if path[0] == "variables" or (isinstance(value, str) and "${" in value):
        return
    kept = at(recipe.model_dump(), path)
    kept = kept["name"] if isinstance(kept, dict) and isinstance(value, str) else kept
    kept = [one["name"] if isinstance(one, dict) else one for one in kept] if isinstance(value, list) else kept
    if isinstance(value, dict) and isinstance(kept, dict):
        kept = {key: kept[key] for key in value}
    assert kept == value, (path, value, kept)
    assert isinstance(kept, bool) == isinstance(value, bool)
