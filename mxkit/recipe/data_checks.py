"""Checks of a recipe that need its data or its net."""

from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple
import warnings

from mxkit.core.arrays import holds_pixels, to_host
from mxkit.core.blocks import blocks_by_path, own_parameters
from mxkit.core.loss_meanings import ClassNumbers, meaning_of
from mxkit.data.splits import Split, Splits, warn_of_missing_classes
from mxkit.errors import TrapWarning
from mxkit.recipe.building import SPLITS, attempt, data_call, has_samples, is_loader
from mxkit.recipe.schema import DataComponent, Problem, Recipe, refuse, under_switches
from mxkit.recipe.vocabulary import accepted_arguments
from mxnet import gluon
import numpy as np


def load_data(recipe: Recipe, overrides: Sequence[str] = ()) -> Splits:
    """Load the dataset of a recipe and check it.

    Args:
        recipe: The checked recipe.
        overrides: Changes that it was loaded with, like `data.batch_size=8`; one without effect is refused.

    Raises:
        RecipeError: The dataset refuses a value, or returns data that the recipe cannot train on.
        MxkitError: As the dataset says, if files are missing.
    """
    splits, problems = read_data(recipe, overrides)
    if problems:
        refuse(recipe.name, problems)
    data: Splits = splits
    return data


@under_switches
def read_data(recipe: Recipe, overrides: Sequence[str] = ()) -> Tuple[Any, List[Problem]]:
    """The `Splits` of a recipe, and its mistakes; with a mistake the data may be missing or of another type."""
    results: Dict[str, Any] = {}
    problems = attempt([data_call(recipe)], results)
    data: Any = results.get("data")
    if not problems:
        problems = list(_type_problems(recipe.data.name, data))
    if not problems:
        _warn_of_missing_classes(recipe, data)
        problems = [*_part_problems(recipe, data), *_unused_keys(recipe, data, overrides)]
    return data, problems


def _type_problems(name: str, data: Any) -> Iterator[Problem]:
    """Types that a registered data function must not return."""
    way = "mxkit.data.Splits(train=mxkit.data.Split(x, y), valid=None, test=mxkit.data.Split(x, y))"
    if not isinstance(data, Splits):
        yield Problem("data", f"{name} returned a {type(data).__name__}; expected mxkit.data.Splits: return {way}")
        return
    for split in SPLITS:
        part = getattr(data, split)
        if (part is not None or split == "train") and not _is_part(part):
            given = f"{type(part).__name__}{' of ' + ', '.join(map(_named, _arrays(part))) if _arrays(part) else ''}"
            text = "a Split of NumPy arrays with equally many samples along axis 0, a Dataset or a loader"
            yield Problem("data", f"{name} gives {split} as a {given}; expected {text}: return {way}")


def _arrays(part: Any) -> List[Any]:
    groups: List[Any] = [part.x, part.y] if isinstance(part, Split) else []
    return [one for group in groups for one in (group if isinstance(group, tuple) else (group,))]


def _named(array: Any) -> str:
    return f"{type(array).__name__} {getattr(array, 'shape', '')}".strip()


def _is_part(part: Any) -> bool:
    if isinstance(part, Split):
        shapes = [getattr(one, "shape", ()) for one in _arrays(part)]
        return all(shapes) and len({shape[:1] for shape in shapes}) == 1
    reads = any(hasattr(part, name) for name in ("__iter__", "__getitem__", "__next__", "__call__"))
    return reads and type(part) not in (tuple, dict, str) and not hasattr(part, "shape")


def _part_problems(recipe: Recipe, data: Splits) -> Iterator[Problem]:
    """Mistakes in the parts of the data, or keys that do not fit them."""
    name, train = recipe.data.name, data.train
    if not has_samples(getattr(data, recipe.evaluate.split)):
        accepted = tuple(split for split in SPLITS if has_samples(getattr(data, split)))
        text = f"this part of the data has no sample; received {recipe.evaluate.split!r}"
        yield Problem("evaluate.split", text, accepted)
    path, outputs = _outputs(recipe)
    count = len(data.classes or ())
    if outputs is not None and outputs < count:
        yield Problem(
            path,
            f"the data has {count} classes, {_some(data.classes)}; received {outputs}; expected {count}: "
            f"--set {path}={count}, or remove the folders that are not classes",
        )
    yield from _dtype_problems(name, data)
    if recipe.data.eval_augment is None and _holds_image_files(train):
        yield Problem(
            "data.eval_augment",
            f"is missing: images of {name} are files of any size; end them with a size and to_tensor, like "
            "[{name: resize, size: 72}, {name: center_crop, size: 64}, to_tensor]",
        )
    if recipe.data.pairs is not None and not isinstance(train, Split):
        yield Problem("data.pairs", f"pairs are made of arrays; {name} gives {type(train).__name__}")


def _some(classes: Sequence[Any]) -> str:
    return ", ".join(map(str, classes[:5])) + ", ..." * (len(classes) > 5)


def _outputs(recipe: Recipe, net: Any = None) -> Tuple[str, Optional[int]]:
    """The key with the number of classes that the net distinguishes, and the number, or None if it is unknown."""
    head = recipe.model.finetune
    outputs = recipe.model.arguments.get("classes") if head is None else head.classes
    outputs = len(outputs) if isinstance(outputs, list) else outputs
    if outputs is None and net is not None:  # `classes` has its default, or a net of one's own has no such argument
        last = [block for _, block in blocks_by_path(net) if own_parameters(block)][-1:]
        outputs = last[0].weight.shape[0] if last and isinstance(last[0], gluon.nn.Dense) else None
    is_known = isinstance(outputs, int) and isinstance(meaning_of(recipe.loss.made.loss), ClassNumbers)
    path = "model.classes" if head is None else "model.finetune.classes"
    return path, outputs if is_known and recipe.data.pairs is None else None


def _dtype_problems(name: str, data: Splits) -> Iterator[Problem]:
    """Parts of which one has images of uint8: batches divide those by 255, and no other dtype."""
    parts = {split: getattr(data, split) for split in SPLITS if isinstance(getattr(data, split), Split)}
    inputs = {split: part.x if isinstance(part.x, tuple) else (part.x,) for split, part in parts.items()}
    for split, arrays in inputs.items():
        for first, other in zip(inputs.get("train", ()), arrays):
            if holds_pixels(first) != holds_pixels(other):
                yield Problem(
                    "data",
                    f"{name} gives x of train as {first.dtype} and x of {split} as {other.dtype}; batches divide "
                    "images of uint8 by 255 and nothing else. Give all parts the same dtype and unit",
                )


def _class_numbers(recipe: Recipe, data: Splits) -> Dict[str, Any]:
    """Class numbers of the parts that are arrays; a Dataset checks its own."""
    parts = {split: getattr(data, split) for split in SPLITS if isinstance(getattr(data, split), Split)}
    labels = {split: to_host(part.y) for split, part in parts.items() if not isinstance(part.y, tuple)}
    ignored = recipe.loss.arguments.get("ignore_label", -1)
    return {split: y[y != ignored] for split, y in labels.items() if y.ndim == 1 and y.dtype.kind in "iu"}


def warn_of_outputs(recipe: Recipe, net: Any, data: Splits) -> None:
    """Warn of outputs of the net without a class."""
    path, outputs = _outputs(recipe, net)
    count = len(data.classes or ())
    if outputs is not None and 0 < count < outputs:
        known = path != "model.classes" or "classes" in (accepted_arguments("model", recipe.model.name) or {})
        warnings.warn(
            f"recipe {recipe.name}: {path if known else 'model'}: the net has {outputs} outputs, the data {count} "
            f"classes, {_some(data.classes)}; {outputs - count} outputs have no sample to learn from. Expected {count}"
            + (f": --set {path}={count}" if known else ""),
            TrapWarning,
            stacklevel=3,
        )


def _warn_of_missing_classes(recipe: Recipe, data: Splits) -> None:
    """Warn of parts of the data without a class."""
    numbers, count = _class_numbers(recipe, data), len(data.classes or ())
    if count and "train" in numbers and all(part.max(initial=0) < count for part in numbers.values()):
        way = "Cut the parts so that each has samples of every class"
        warn_of_missing_classes(f"data {recipe.data.name}", [numbers.get(split) for split in SPLITS], data.classes, way)


def _holds_image_files(part: Any) -> bool:
    """Whether a Dataset gives decoded image files: any size, uint8, channels last."""
    if isinstance(part, Split) or is_loader(part) or not len(part):
        return False
    if getattr(part, "channels", None) in (1, 3):
        return True
    sample: Any = part[0]
    first: Any = sample[0] if type(sample) in (tuple, list) else sample
    shape: Any = getattr(first, "shape", ())
    return len(shape) == 3 and shape[-1] in (1, 3) and str(np.dtype(first.dtype)) == "uint8"


def _unused_keys(recipe: Recipe, data: Splits, overrides: Sequence[str]) -> List[Problem]:
    """Keys of `data` without effect, because the data function returns loaders.

    A key counts if its value is not the default, or if an override sets it.
    """
    own = {split for split in SPLITS if getattr(data, split) is not None and is_loader(getattr(data, split))}
    accepted = accepted_arguments("data", recipe.data.name) or {}
    evaluated = {split for split in ("valid", "test") if getattr(data, split) is not None}
    of_training, of_evaluation = "train" in own, bool(evaluated) and evaluated <= own
    keys = [
        key
        for key in DataComponent.model_fields
        if key not in ("name", "pairs", *accepted) and (of_evaluation if key.startswith("eval_") else of_training)
    ]
    changed = {setting.partition("=")[0].strip().split(".")[1] for setting in overrides if setting.startswith("data.")}
    return [
        Problem(
            f"data.{key}",
            f"has no effect: {recipe.data.name} returns loaders of its own, which cut their batches themselves; "
            f"received {getattr(recipe.data, key)!r}; let the function take "
            f"{'batch_size' if key == 'batch_size' else 'such an argument'}, or leave it out",
        )
        for key in keys
        if key in changed or getattr(recipe.data, key) != DataComponent.model_fields[key].default
    ]
