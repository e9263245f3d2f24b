"""A recipe's data, as the batches that training, evaluation and prediction read."""

from typing import Any, Dict, Optional, Sequence, Tuple
import warnings

from mxkit.data.dataset_loader import DatasetLoader
from mxkit.data.loader import ArrayLoader
from mxkit.data.pairs import PairLoader
from mxkit.data.splits import Split, Splits, warn_of_missing_classes
from mxkit.errors import MxkitError, RecipeError, TrapWarning, unknown_name
from mxkit.recipe.building import augment_of
from mxkit.recipe.problems import located, refuse
from mxkit.recipe.registry import DATASETS, accepted_arguments
from mxkit.recipe.schema import DataComponent, Recipe
import numpy as np

SPLITS = ("train", "valid", "test")


def data_arguments(data: DataComponent) -> Dict[str, Any]:
    """What a dataset is built with; one that makes its own batches is told their size."""
    accepted = accepted_arguments("data", data.name) or {}
    return {**data.arguments, **({"batch_size": data.batch_size} if "batch_size" in accepted else {})}


def load_data(recipe: Recipe) -> Splits:
    """The recipe's dataset.

    Raises:
        RecipeError: The dataset refuses an argument's value.
        MxkitError: As the dataset says, where files are missing.
    """
    try:
        data: Splits = DATASETS[recipe.data.name](**data_arguments(recipe.data))
    except (TypeError, ValueError, OSError) as error:
        if isinstance(error, MxkitError) and isinstance(error, OSError):
            raise  # a download that failed is no fault of the recipe
        refuse(recipe.name, [located("data", error, recipe.data.arguments)])
        raise
    _check_form(recipe, data)
    _check_parts(recipe, data)
    return data


def _check_form(recipe: Recipe, data: Any) -> None:
    """Refuse what a registered function returns in place of `Splits`."""
    name = f"recipe {recipe.name}:\n  data: {recipe.data.name}"
    way = "return mxkit.data.Splits(train=mxkit.data.Split(x, y), valid=None, test=mxkit.data.Split(x, y))"
    if not isinstance(data, Splits):
        several = f" of {len(data)}" if isinstance(data, (tuple, list)) else ""
        raise RecipeError(f"{name} returned a {type(data).__name__}{several}; expected mxkit.data.Splits: {way}")
    for split in SPLITS:
        part = getattr(data, split)
        if part is None and split != "train":
            continue
        if isinstance(part, Split):
            arrays = [one for group in part for one in (group if isinstance(group, tuple) else (group,))]
            shapes = [getattr(one, "shape", ()) for one in arrays]
            if len({shape[:1] for shape in shapes}) != 1 or not all(shapes):
                told = [f"{type(one).__name__} {shape or ''}".strip() for one, shape in zip(arrays, shapes)]
                raise RecipeError(
                    f"{name} gives {split} as a Split of {', '.join(told)}; expected NumPy arrays with equally many "
                    "samples along axis 0"
                )
        elif type(part) in (tuple, dict, str) or hasattr(part, "shape") or not _can_be_read(part):
            raise RecipeError(
                f"{name} gives {split} as a {type(part).__name__}; expected mxkit.data.Split(x, y), a Dataset or a "
                f"loader: {way}"
            )


def _can_be_read(part: Any) -> bool:
    return callable(part) or any(hasattr(part, name) for name in ("__iter__", "__getitem__", "__next__"))


def refuse_unused(recipe: Recipe, data: Splits, overrides: Sequence[str] = ()) -> None:
    """Refuse keys of `data` that loaders of the recipe's own make no use of.

    Args:
        recipe: A recipe.
        data: Its data.
        overrides: Those that were set on purpose: a key among them counts also with its default value.

    Raises:
        RecipeError: There is such a key.
    """
    own = [split for split in SPLITS if getattr(data, split) is not None and is_loader(getattr(data, split))]
    accepted = accepted_arguments("data", recipe.data.name) or {}
    keys = ["drop_last", "augment"] if "train" in own else []
    keys += ["batch_size"] if "train" in own and "batch_size" not in accepted else []
    evaluated = [split for split in ("valid", "test") if getattr(data, split) is not None]
    keys += ["eval_batch_size", "eval_augment"] if evaluated and set(evaluated) <= set(own) else []
    defaults = {name: field.default for name, field in DataComponent.model_fields.items()}
    asked = {setting.partition("=")[0].strip().split(".")[1] for setting in overrides if setting.startswith("data.")}
    for key in keys:
        if key in asked or getattr(recipe.data, key) != defaults[key]:
            way = f"let the function take {'batch_size' if key == 'batch_size' else 'such an argument'}"
            raise RecipeError(
                f"recipe {recipe.name}:\n  data.{key}: has no effect: {recipe.data.name} returns loaders of its own, "
                f"which cut their batches themselves; received {getattr(recipe.data, key)!r}; {way}, or leave it out"
            )


def is_loader(part: Any) -> bool:
    """Whether a part of the data gives batches by itself."""
    return not isinstance(part, Split) and not hasattr(part, "__getitem__")


def has_samples(part: Any) -> bool:
    """Whether there is anything in a part of the data; of a loader that is taken for granted."""
    if part is None:
        return False
    return is_loader(part) or bool(count_samples(part))


def count_samples(part: Any) -> Optional[int]:
    """Samples of a part of the data; None where a loader makes the batches, which does not say."""
    if isinstance(part, Split):
        return len(part.x[0] if isinstance(part.x, tuple) else part.x)
    return None if is_loader(part) else len(part)


def _check_parts(recipe: Recipe, data: Splits) -> None:
    name = f"recipe {recipe.name}:\n  "
    if not has_samples(getattr(data, recipe.evaluate.split)):
        raise RecipeError(
            f"{name}evaluate.split: this part of the data has no sample; received {recipe.evaluate.split!r}; accepted: "
            + ", ".join(split for split in SPLITS if has_samples(getattr(data, split)))
        )
    _check_classes(recipe, data.classes)
    _check_dtypes(recipe, data)
    _check_labels(recipe, data)
    if recipe.data.eval_augment is None and _holds_image_files(data.train):
        raise RecipeError(
            f"{name}data.eval_augment: is missing: images of {recipe.data.name} are files of any size; end them with a "
            "size and to_tensor, like [{name: resize, size: 72}, {name: center_crop, size: 64}, to_tensor]"
        )
    if recipe.data.pairs is not None and not isinstance(data.train, Split):
        raise RecipeError(
            f"{name}data.pairs: pairs are made of arrays; {recipe.data.name} gives {type(data.train).__name__}"
        )


def _check_dtypes(recipe: Recipe, data: Splits) -> None:
    """Refuse uint8, which batches divide by 255, beside another dtype, which they leave as it is."""
    train = data.train
    for split in ("valid", "test"):
        part = getattr(data, split)
        if not isinstance(train, Split) or not isinstance(part, Split):
            continue
        pairs = zip(*(part.x if isinstance(part.x, tuple) else (part.x,) for part in (train, part)))
        for first, other in pairs:
            if (first.dtype == np.uint8) != (other.dtype == np.uint8):
                raise RecipeError(
                    f"recipe {recipe.name}:\n  data: {recipe.data.name} gives x of train as {first.dtype} and x of "
                    f"{split} as {other.dtype}; batches divide uint8 by 255 and nothing else. Give all parts the same "
                    "dtype and unit"
                )


def _check_labels(recipe: Recipe, data: Splits) -> None:
    """Refuse class numbers that no name stands for; warn of a part without a class that is trained.

    Parts that are no arrays were checked by their dataset.
    """
    numbers: Dict[str, Any] = {}
    for split in SPLITS:
        part = getattr(data, split)
        y: Any = part.y if isinstance(part, Split) else None
        if getattr(y, "ndim", 0) == 1 and y.dtype.kind in "iu":
            numbers[split] = y[y != recipe.loss.arguments.get("ignore_label", -1)]
    if not data.classes or "train" not in numbers:
        return
    last, named = len(data.classes) - 1, ", ".join(map(str, data.classes[:5])) + ", ..." * (len(data.classes) > 5)
    for split, found in numbers.items():
        if len(found) and found.max() > last:
            raise RecipeError(
                f"recipe {recipe.name}:\n  data: {recipe.data.name} names {last + 1} classes, {named}; the labels of "
                f"{split} go up to {found.max()}; expected labels from 0 to {last}: name every class in "
                "Splits(classes=[...]), or none"
            )
    labels = [numbers.get(split) for split in SPLITS]
    way = "Cut the parts so that each has samples of every class"
    warn_of_missing_classes(f"data {recipe.data.name}", labels, data.classes, way)


def _holds_image_files(part: Any) -> bool:
    """Whether a Dataset gives images as files hold them: of any size, bytes, channels last."""
    if isinstance(part, Split) or is_loader(part) or not len(part):
        return False
    if getattr(part, "channels", None) in (1, 3):
        return True
    sample: Any = part[0]
    first: Any = sample[0] if type(sample) in (tuple, list) else sample
    shape: Any = getattr(first, "shape", ())
    return len(shape) == 3 and shape[-1] in (1, 3) and str(np.dtype(first.dtype)) == "uint8"


def _check_classes(recipe: Recipe, classes: Optional[Sequence[str]]) -> None:
    """Refuse a net with fewer outputs than the data has classes, and warn of one with more."""
    if not classes or recipe.data.pairs is not None or recipe.loss.name != "softmax_ce":
        return
    head = recipe.model.finetune
    path = "model.finetune.classes" if head is not None else "model.classes"
    told = head.classes if head is not None else recipe.model.arguments.get("classes")
    if isinstance(told, int) and told < len(classes):
        raise RecipeError(
            f"recipe {recipe.name}:\n  {path}: the data has {len(classes)} classes, {', '.join(classes[:5])}"
            f"{', ...' if len(classes) > 5 else ''}; received {told}; expected {len(classes)}: "
            f"--set {path}={len(classes)}, or remove the folders that are no class"
        )
    if isinstance(told, int) and told > len(classes):
        warnings.warn(
            f"recipe {recipe.name}: {path}: the net has {told} outputs, the data {len(classes)} classes, "
            f"{', '.join(classes[:5])}{', ...' if len(classes) > 5 else ''}; {told - len(classes)} outputs have no "
            f"sample to learn from. Expected {len(classes)}: --set {path}={len(classes)}",
            TrapWarning,
            stacklevel=4,
        )


def loader_arguments(recipe: Recipe, part: Any, training: bool) -> Tuple[Any, Dict[str, Any]]:
    """The class that makes batches of a part, and its arguments but for data and augmentation.

    The training part is shuffled by the recipe's seed.
    """
    data = recipe.data
    arguments: Dict[str, Any] = {"batch_size": data.batch_size if training else data.eval_batch_size}
    if training and data.drop_last:
        arguments["drop_last"] = True
    if data.pairs is not None:
        pairs = data.pairs.model_dump(exclude_defaults=True)
        if not training:
            pairs.pop("length", None)
        arguments.update(pairs, seed=recipe.seed, shuffle=training)
        return PairLoader, arguments
    if training:
        arguments.update(shuffle=True, seed=recipe.seed)
    if isinstance(part, Split):
        return ArrayLoader, arguments
    if data.workers:
        arguments["workers"] = data.workers
    return DatasetLoader, arguments


def batches(recipe: Recipe, data: Splits, split: str, *, training: bool = False) -> Any:
    """Batches of one part of the data; for training shuffled and augmented as such.

    Raises:
        UnknownNameError: `split` is no part of the data.
    """
    if split not in SPLITS:
        raise unknown_name("part of the data", split, SPLITS)
    part = getattr(data, split)
    if is_loader(part):
        return part
    loader, arguments = loader_arguments(recipe, part, training)
    augment = augment_of(augmentation(recipe, training))
    if augment is not None:
        arguments["transform"] = augment.batch if loader is ArrayLoader else augment
    return loader(part.x, part.y, **arguments) if isinstance(part, Split) else loader(part, **arguments)


def augmentation(recipe: Recipe, training: bool) -> Any:
    """The steps for training images, or for those that are evaluated; without steps of its own training takes these."""
    own = recipe.data.augment
    return own if training and own is not None else recipe.data.eval_augment
