"""The tree of errors, as its docstring draws it."""

import re

from mxkit import errors
from mxkit.errors import nearest, unknown_name
import pytest

LINE = re.compile(r"^    (?P<bars>[|+ -]*?)(?P<name>[A-Z]\w+)(?: \((?P<builtin>\w+)\))?(?: {2,}.*)?$", re.M)


def test_the_drawn_tree_is_the_tree():
    drawn = {}
    parents = {}
    for match in LINE.finditer(errors.__doc__):
        depth = len(match["bars"]) // 4
        parents[depth] = match["name"]
        drawn[match["name"]] = (parents.get(depth - 1), match["builtin"])
    found = {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.MxkitError)
    }
    assert set(drawn) == set(found)
    for name, (parent, builtin) in drawn.items():
        bases = [base.__name__ for base in found[name].__bases__]
        assert bases == ([parent] if parent else ["Exception"]) + ([builtin] if builtin else [])


@pytest.mark.parametrize(
    ("name", "known", "words"),
    [
        ("ADAM", ["Adam", "sgd"], "did you mean 'Adam'?"),
        ("CrossEntropyLoss", ["softmax_ce", "l2"], "did you mean 'softmax_ce'?"),
        ("smooth_l1", ["l1", "huber"], "did you mean 'huber'?"),
        ("AdamW", ["adam"], "did you mean 'adam' (its wd is added"),
        ("zzz", ["Adam"], ""),
    ],
)
def test_the_nearest_name_ignores_case_and_knows_other_libraries(name, known, words):
    assert nearest(name, known).startswith(words)
    assert bool(nearest(name, known)) == bool(words)


def test_unknown_names_list_the_known_ones_in_order():
    error = unknown_name("loss", "sotfmax_ce", {"softmax_ce", "l2", "ctc"})
    assert isinstance(error, ValueError)
    assert str(error) == "unknown loss 'sotfmax_ce': did you mean 'softmax_ce'? Known: ctc, l2, softmax_ce"
    assert str(unknown_name("loss", 5, ["l2"])) == "unknown loss 5: Known: l2"


def test_unused_parameters_are_named_and_kept():
    error = errors.UnusedParameterError(["a.weight"], ["the parameter"], "epoch 1, update 2: ")
    assert error.parameters == ["the parameter"]
    assert str(error).startswith(
        "epoch 1, update 2: the loss does not depend on 'a.weight', so the backward pass gave no"
    )
