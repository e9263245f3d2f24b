"""A recipe's data, as the batches that training, evaluation and prediction read."""

from typing import Any, Dict, Optional, Sequence, Tuple

from mxkit.data.dataset_loader import DatasetLoader
from mxkit.data.loader import ArrayLoader
from mxkit.data.pairs import PairLoader
from mxkit.data.splits import Split, Splits
from mxkit.errors import MxkitError, RecipeError, unknown_name
from mxkit.recipe.building import augment_of
from mxkit.recipe.problems import located, refuse
from mxkit.recipe.registry import DATASETS, accepted_arguments
from mxkit.recipe.schema import DataComponent, Recipe

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
    _check_parts(recipe, data)
    return data


def is_loader(part: Any) -> bool:
    """Whether a part of the data gives batches by itself."""
    return not isinstance(part, Split) and not hasattr(part, "__getitem__")


def has_samples(part: Any) -> bool:
    """Whether there is anything in a part of the data; of a loader that is taken for granted."""
    if part is None:
        return False
    return is_loader(part) or bool(len(part.x if isinstance(part, Split) else part))


def _check_parts(recipe: Recipe, data: Splits) -> None:
    name = f"recipe {recipe.name}:\n  "
    if not has_samples(getattr(data, recipe.evaluate.split)):
        raise RecipeError(
            f"{name}evaluate.split: this part of the data has no sample; received {recipe.evaluate.split!r}; accepted: "
            + ", ".join(split for split in SPLITS if has_samples(getattr(data, split)))
        )
    _check_classes(recipe, data.classes)
    of_files = not is_loader(data.train) and not isinstance(data.train, Split)
    if of_files and recipe.data.eval_augment is None:
        raise RecipeError(
            f"{name}data.eval_augment: is missing: images of {recipe.data.name} are files of any size; end them with a "
            "size and to_tensor, like [{name: resize, size: 72}, {name: center_crop, size: 64}, to_tensor]"
        )
    if recipe.data.pairs is not None and not isinstance(data.train, Split):
        raise RecipeError(
            f"{name}data.pairs: pairs are made of arrays; {recipe.data.name} gives {type(data.train).__name__}"
        )


def _check_classes(recipe: Recipe, classes: Optional[Sequence[str]]) -> None:
    """Refuse a net that was told of fewer classes than the data has, with the key that says so."""
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


def first_inputs(recipe: Recipe, data: Splits) -> Tuple[Any, ...]:
    """Inputs of one evaluated sample, as the net gets them."""
    inputs = next(iter(batches(recipe, data, recipe.evaluate.split)))[0]
    several = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    return tuple(one[:1] for one in several)
