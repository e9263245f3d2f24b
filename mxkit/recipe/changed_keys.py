"""The differences of two recipes."""

from typing import Any, Dict, List, Mapping

from mxkit.recipe.schema import Recipe


def differences(one: Recipe, other: Recipe) -> List[str]:
    """Lines `path: one -> other`, one for each difference of two resolved recipes.

    >>> from mxkit.recipe.reading import load_recipe
    >>> first = load_recipe("digits_lenet")
    >>> differences(first, load_recipe(first, ["epochs=3", "optimizer=sgd"]))
    ['optimizer.name: adam -> sgd', 'optimizer.learning_rate: 0.001 -> (not said)', 'epochs: 20 -> 3']
    """
    return changes(flattened(one.model_dump()), flattened(other.model_dump()), "(not said)")


def changes(left: Mapping[str, Any], right: Mapping[str, Any], missing: str) -> List[str]:
    """Lines `key: one -> other`, one for each difference of two mappings.

    >>> changes({"a": 1, "b": 2}, {"b": 2}, "nothing")
    ['a: 1 -> nothing']
    """
    pairs = ((key, left.get(key, missing), right.get(key, missing)) for key in dict.fromkeys([*left, *right]))
    return [f"{key}: {one} -> {other}" for key, one, other in pairs if one != other]


def flattened(value: Any, path: str = "") -> Dict[str, Any]:
    """Values by dotted path; a list of plain values is one value, and so is an empty mapping.

    >>> flattened({"loss": {"name": "l2"}, "freeze": [], "metrics": [{"name": "mse"}]})
    {'loss.name': 'l2', 'freeze': [], 'metrics.0.name': 'mse'}
    """
    nested = isinstance(value, (list, tuple)) and any(isinstance(one, (dict, list, tuple)) for one in value)
    inner: Any = value.items() if isinstance(value, dict) else enumerate(value) if nested else ()
    values: Dict[str, Any] = {}
    for key, one in inner:
        values.update(flattened(one, f"{path}.{key}" if path else str(key)))
    return values or {path: value}
