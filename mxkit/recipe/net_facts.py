"""`net.json` in the folder of a run: facts about the net that otherwise only the data shows."""

import json
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union
import warnings

from mxkit.core.system import write_atomically
from mxkit.data.source import source_of
from mxkit.data.splits import Splits
from mxkit.errors import RecipeError
from mxkit.recipe.building import SPLITS, execute, first_inputs, is_pretrained, model_calls, value_calls
from mxkit.recipe.images import ImageForm, image_form
from mxkit.recipe.run_code import RunCode, code_from, keep_code
from mxkit.recipe.schema import InitializerComponent, ModelComponent, Recipe, under_switches
from mxkit.version import __version__
import mxnet as mx
import numpy as np

FILE = "net.json"
FORMAT = 1


class InputForm(NamedTuple):
    """Shape of one input of the net for one sample, (1, ...), and its dtype."""

    shape: Tuple[int, ...]
    dtype: str


class NetFacts(NamedTuple):
    """Facts about a run's net.

    Attributes:
        inputs: Shapes and dtypes for one sample; empty if the data can be read only once.
        classes: Name of each class; empty if the data has no names.
        images: How image files become inputs; None for a net that was not trained on images.
        code: The recipe's own modules.
        digests: What `Source.digest` says of each part of the data; None for a part that is not held in arrays.
    """

    inputs: List[InputForm]
    classes: List[str]
    images: Optional[ImageForm]
    code: RunCode
    digests: Dict[str, Optional[str]]

    def sample(self) -> Tuple[Any, ...]:
        """Inputs of zeros for one sample.

        Raises:
            RecipeError: The shapes are unknown.
        """
        return tuple(mx.nd.zeros(one.shape, dtype=one.dtype) for one in self.known_inputs())

    def known_inputs(self) -> List[InputForm]:
        """`inputs`, which must not be empty.

        Raises:
            RecipeError: The shapes are unknown.
        """
        if not self.inputs:
            raise RecipeError(
                "the shapes of the net's inputs are not known: the run's data could be read only once. Give the recipe "
                "a dataset or a loader that can be read several times"
            )
        return self.inputs


@under_switches
def facts_of(recipe: Recipe, data: Splits, code: Optional[RunCode] = None) -> NetFacts:
    """Read the facts about a recipe's net from its data.

    Args:
        recipe: A recipe.
        data: Data of the recipe.
        code: The recipe's own modules, or None.
    """
    once = source_of(getattr(data, recipe.evaluate.split)).is_one_shot
    inputs = () if once else first_inputs(recipe, data)
    forms = [InputForm(tuple(map(int, one.shape)), np.dtype(one.dtype).name) for one in inputs]
    digests = {part: source_of(getattr(data, part)).digest for part in SPLITS}
    return NetFacts(forms, list(map(str, data.classes or [])), image_form(data), code or RunCode({}, {}), digests)


def record_facts(folder: Path, recipe: Recipe, data: Splits) -> None:
    """Write `net.json`, and copy the recipe's own modules.

    Args:
        folder: Folder of the run.
        recipe: A recipe with loaded `imports`.
        data: Data of the recipe.
    """
    facts = facts_of(recipe, data, keep_code(folder, recipe.imports))
    content = {
        "format": FORMAT,
        "mxkit": __version__,
        "inputs": [one._asdict() for one in facts.inputs],
        "classes": facts.classes,
        "images": None if facts.images is None else facts.images._asdict(),
        "code": facts.code._asdict(),
        "digests": facts.digests,
    }
    write_atomically(folder / FILE, json.dumps(content, indent=1, ensure_ascii=False).encode("utf-8"))


def read_facts(folder: Union[str, Path]) -> Optional[NetFacts]:
    """Read `net.json` of a run; None if it is missing, as in folders of earlier versions of mxkit.

    Raises:
        RecipeError: The file is damaged, or a newer mxkit wrote it.
    """
    file = Path(folder) / FILE
    if not file.is_file():
        return None
    try:
        content: Dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(
                f"format {content['format']!r}; this mxkit {__version__} reads {FORMAT}. Use a newer mxkit"
            )
        inputs = [InputForm(tuple(map(int, one["shape"])), np.dtype(one["dtype"]).name) for one in content["inputs"]]
        images = None if content["images"] is None else ImageForm.read(content["images"])
        classes, digests = list(map(str, content["classes"])), dict(content.get("digests", {}))
        return NetFacts(inputs, classes, images, code_from(content["code"]), digests)
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise RecipeError(f"{file} cannot be read: {type(error).__name__}: {error}") from error


def warn_of_other_data(folder: Union[str, Path], data: Splits, part: str) -> None:
    """Warn if a part of the data, held in arrays, is not what it was when the run was trained.

    Raises:
        RecipeError: As for `read_facts`.
    """
    facts = read_facts(folder)
    before, now = facts and facts.digests.get(part), source_of(getattr(data, part)).digest
    if before is not None and now is not None and before != now:
        warnings.warn(
            f"{part} holds other samples than when {folder} was trained: a file of its data was changed, or a relative "
            "path of the recipe leads to another file from this folder",
            stacklevel=2,
        )


@under_switches
def empty_net(recipe: Recipe, sample: Optional[Tuple[Any, ...]]) -> Any:
    """The net of a recipe with zeros as values, for a checkpoint to be loaded; no file is read or downloaded.

    Args:
        recipe: A recipe.
        sample: Inputs of one sample, from which `finetune` infers all shapes; otherwise None.

    Raises:
        RecipeError: The net refuses an argument.
    """
    model = recipe.model.model_copy(update={"weights": None})
    if is_pretrained(recipe.model):
        model = ModelComponent.model_validate({**model.model_dump(), "pretrained": False})
    recipe = recipe.model_copy(update={"model": model, "initializer": InitializerComponent.model_validate("zeros")})
    calls = [*model_calls(recipe), *(value_calls(recipe) if model.finetune is not None else [])]
    return execute(calls, {"sample": sample}, recipe.name)["net"]
