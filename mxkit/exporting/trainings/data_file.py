"""`data.py` of a training that leaves, and its arrays: the run's batches, with random steps as functions of the sample.

The code of the steps is that of mxkit's own, taken from their source, so that each step is written once.
"""

import ast
import inspect
from itertools import islice
import json
import re
import sys
from typing import Any, Dict, List, NamedTuple, Set, Tuple

from mxkit.core.arrays import to_host
from mxkit.core.device import unpack
from mxkit.data.augment_labels import BoxCrop
from mxkit.data.augment_steps import Normalize, Step, ToTensor
from mxkit.data.loader import Classes
from mxkit.data.order import rounds
from mxkit.data.pixels import FILE, drawn_by_dataset
from mxkit.data.splits import Split
from mxkit.errors import ExportError
from mxkit.exporting.trainings.texts import LOSSES, filled, template, tidied
from mxkit.recipe.building import SPLITS, batches, has_samples, is_loader
from mxkit.recipe.schema import Recipe, augment_of
import numpy as np

# Arrays are held in memory twice while they are written.
_BYTES = 2 * 10**9


def _joined(signature: Any) -> str:
    line = "".join(signature.groups()) + "\n"
    return line if len(line) <= 121 else str(signature[0])


# What a file of PyTorch's says in place of mxkit's words for Python 3.8; a text that has become short is one line.
_REWRITTEN = (
    (r'"(np\.[\w.]+)"', r"\1"),
    (r"\b(Tuple|List|Dict)\[", lambda found: f"{found[1].lower()}["),
    (r'DataError\((f?)"Augment: ', r'ValueError(\1"'),
    (r" {4}import cv2\n\n", ""),
    (r"  # type: ignore.*", ""),
    (r"Optional\[(\w+)\]", r"\1 | None"),
    (r"= Union\[(\w+), (.+)\]", r"= \1 | \2"),
    (r"(def \w+\()\n +(.*[^,])\n *(\) -> .*:)\n", _joined),
    (r"\n{3,}( +)", r"\n\n\1"),
)
_MODULES = [one.__module__ for one in (Step, BoxCrop, rounds, Classes)]
_OF_IMAGES = ("batched", "boxes", "moved", "still", "x", "y")
_DROPPED = {"__post_init__", "name", "checks", "draws"}


class Data(NamedTuple):
    """What a training takes along of its data.

    Attributes:
        text: `data.py`.
        arrays: Inputs and labels of each part by `PART.x` and `PART.y`, in the order of the data; those of several
            shapes by `PART.x.NUMBER`.
    """

    text: str
    arrays: Dict[str, "np.ndarray"]


def problems_of(recipe: Recipe, data: Any) -> List[str]:
    """What `data_of` has no code for, in words."""
    name, problems = recipe.data.name, []
    parts = [part for part in (data.train, data.valid, data.test) if part is not None]
    read = [part for part in parts if has_samples(part) and not is_loader(part)]
    samples = [part if isinstance(part, Split) else part[0] for part in read]
    several = any(isinstance(array, tuple) for one in samples for array in one)
    if any(len(one) != 2 for one in samples):
        problems.append(f"data {name}, whose samples have no label")
    if several and recipe.data.augment is not None:
        problems.append(f"data.augment of {name}, whose samples have several inputs or labels, like weights")
    alone = [part for part in SPLITS if getattr(data, part) is not None and is_loader(getattr(data, part))]
    if alone:
        problems.append(
            f"data {', '.join(alone)}, which makes its batches itself: arrays leave, a dataset with len() and [number] "
            "and an ArrayLoader with shuffle=True for training, without balance, scale or transform"
        )
    if not isinstance(data.train, Split) and not is_loader(data.train) and _is_random(recipe, data):
        problems.append(f"data {name}, whose samples are random: give its transform's steps to data.augment")
    if recipe.data.pairs is not None and recipe.data.pairs.kind != "pairs":
        problems.append(f"data.pairs of {recipe.data.pairs.kind}")
    for key in ("augment", "eval_augment"):
        augment = augment_of(getattr(recipe.data, key))
        if key == "eval_augment" and augment is not None and any(step.draws for step in augment.steps):
            problems.append("data.eval_augment with random steps")
        if augment is None or recipe.data.augment is None:
            continue
        others = [one for one in augment.steps if type(one).__module__ not in _MODULES]
        if others:
            problems.append(f"data.{key} with {', '.join(map(repr, others))}: take steps that mxkit has by name")
        if not augment.tensor and not isinstance(data.train, Split):
            problems.append(f"data.{key} without to_tensor")
    return problems


def _is_random(recipe: Recipe, data: Any) -> bool:
    """Whether samples of the training part differ from epoch to epoch before `data.augment` changes them."""
    if not drawn_by_dataset(data.train) - {FILE}:
        return False
    loader = batches(_unchanged(recipe), data, "train")
    epochs = islice(zip(loader, loader), 16)
    groups = (group for pair in epochs for group in zip(*map(unpack, pair)))
    return any(to_host(one).tobytes() != to_host(other).tobytes() for group in groups for one, other in zip(*group))


def _unchanged(recipe: Recipe) -> Recipe:
    """A recipe whose data is read sample by sample, without its steps."""
    plain = {"augment": None, "eval_augment": None, "eval_batch_size": 1, "pairs": None}
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=plain)})


def data_of(recipe: Recipe, data: Any) -> Data:
    """`data.py` and its arrays.

    Raises:
        ExportError: The arrays are too large, or no code reads them.
    """
    names = [name for name in SPLITS if has_samples(getattr(data, name))]
    changed, drawn = recipe.data.augment is not None, recipe.data.pairs
    arrays = _arrays(_unchanged(recipe) if changed or drawn else recipe, data, names, changed)
    weights = arrays.get("train.y1")
    if weights is not None and weights[0].size != 1 and str(recipe.loss.name) in LOSSES:
        raise ExportError(f"export: weights of samples {weights.shape} have no code: one number for each sample leaves")
    texts = {"lists": "", "images": changed, "pairs": "", "whole": not (changed or drawn), "code": ""}
    texts.update(batch_size=recipe.data.batch_size, eval_batch_size=recipe.data.eval_batch_size)
    texts.update(seed=recipe.seed % 2**32, drop_last=bool(recipe.data.drop_last))
    if changed:
        texts["lists"], texts["parts"] = _lists(recipe, data, names)
    elif drawn:
        texts["pairs"] = f"same={drawn.same}, balanced={drawn.balanced}"
        sizes = {name: len(arrays[f"{name}.y"]) for name in names}
        sizes["train"] = drawn.length or sizes["train"]
        texts["parts"] = f"    parts = {{name: Pairs(name, size) for name, size in {json.dumps(sizes)}.items()}}"
    else:
        columns = ", ".join(f'arrays[f"{{name}}.{key[6:]}"]' for key in arrays if key.startswith("train."))
        texts["parts"] = f"""    arrays, parts = load_file(DATA), {{}}
    for name in {json.dumps(names)}:
        parts[name] = TensorDataset({columns})"""
    texts.update(_image_texts(data.train, arrays) if changed else dict.fromkeys(_OF_IMAGES, ""))
    texts["code"] = _code_of(filled(template("data.py"), **texts))
    return Data(tidied(filled(template("data.py"), **texts)), arrays)


def _arrays(recipe: Recipe, data: Any, names: List[str], changed: bool) -> Dict[str, "np.ndarray"]:
    """Inputs and labels of each part, as the net gets them, or as they are stored if steps change them."""
    columns: Dict[str, List[Any]] = {}
    size = 0
    for name in names:
        loader: Any = batches(recipe, data, name)
        whole = changed and isinstance(getattr(data, name), Split)
        for sample in [(loader.x, loader.y)] if whole else loader:
            for kind, group in zip("xy", unpack(sample)):
                for number, one in enumerate(map(to_host, group)):
                    key = f"{name}.{kind}{number if len(group) > 1 else ''}"
                    as_read = changed or kind == "y"
                    columns.setdefault(key, []).append(one if as_read else one.astype(np.float32))
                    size += one.nbytes
            if size > _BYTES:
                raise ExportError(
                    f"export: the samples of {recipe.data.name} come to more than {_BYTES / 1e9:.0f} GB. Train on a "
                    "part of them or on smaller images (reduce_to=), or leave without training="
                )
    for name in names:  # a part without weights of samples has 1 of each
        if "train.y1" in columns and f"{name}.y" in columns:
            columns[f"{name}.y0"] = columns.pop(f"{name}.y")
            columns[f"{name}.y1"] = [np.ones(len(one), np.float32) for one in columns[f"{name}.y0"]]
        kinds = [
            sorted(key.partition(".")[2] for key in columns if key.startswith(f"{part}.")) for part in (name, "train")
        ]
        if kinds[0] != kinds[1]:
            raise ExportError(
                f"export: samples of {name} hold {', '.join(kinds[0])}, those of train {', '.join(kinds[1])}"
            )
    found: Dict[str, Any] = {}
    for key in sorted({name.rpartition(".")[2] for name in columns}):
        own = {name: column for name, column in columns.items() if name.endswith(f".{key}")}
        if not changed or len({one.shape[1:] for column in own.values() for one in column}) == 1:
            found.update({name: np.concatenate(column) for name, column in own.items()})
        else:
            found.update({f"{name}.{row}": one[0] for name, column in own.items() for row, one in enumerate(column)})
    return found


def _lists(recipe: Recipe, data: Any, names: List[str]) -> Tuple[str, str]:
    """The lists of steps, and the parts of the data that they change."""
    texts, parts = [], ["    parts = {"]
    normalize = augment_of(recipe.data.augment).normalize  # type: ignore[union-attr]
    texts.append(f"NORMALIZE = {_written(normalize)}\n" if normalize else "")
    for name, key in (("TRAIN", "augment"), ("EVALUATION", "eval_augment")):
        augment = augment_of(getattr(recipe.data, key))
        steps = [] if augment is None else [one for one in augment.steps if not isinstance(one, (ToTensor, Normalize))]
        lines = "".join(f"    {_written(one)},\n" for one in steps)
        texts.append(f"{name}: list[Step] = [\n{lines}]\n" if steps else f"{name}: list[Step] = []\n")
        own = "NORMALIZE" if augment is not None and augment.normalize else None
        for part in names:
            if (part == "train") == (name == "TRAIN"):
                size = len(getattr(data, part).x if isinstance(getattr(data, part), Split) else getattr(data, part))
                parts.append(f'        "{part}": Images("{part}", {size}, {name}, {own}),')
    return "".join(texts), "\n".join([*parts, "    }"])


def _written(step: Step) -> str:
    """The call that makes a step."""
    return repr(step).translate(str.maketrans("'[]", '"()'))


def _image_texts(part: Any, arrays: Dict[str, "np.ndarray"]) -> Dict[str, Any]:
    """How the class `Images` takes a sample; images in arrays share the generator of their batch."""
    batched, moves = isinstance(part, Split), getattr(part, "moves", None)
    texts: Dict[str, Any] = {"batched": batched, "boxes": moves == "boxes", "still": moves is None, "moved": ""}
    texts.update(white="1.0" if batched else "255", of="batch" if batched else "sample")
    for key, name in (("x", "image"), ("y", "label")):
        texts[key] = f"train.{key}" in arrays
        texts[name] = f"self.{key}[row]" if texts[key] else f'opened().get_tensor(f"{{self.part}}.{key}.{{row}}")'
    if batched:
        if arrays["train.x"].dtype == np.uint8:
            texts["image"] = "np.multiply(self.x[row], np.float32(1 / 255), dtype=np.float32)"
        texts["image"] += ".transpose(1, 2, 0)"
    if moves in ("mask", "points"):
        further = f", {list(map(tuple, part.pairs))}" if moves == "points" else ""
        texts["moved"] = f"{moves}(label, scale, shift, image.shape[:2]{further})"
    return texts


def _code_of(text: str) -> str:
    """The source of those of mxkit's steps and functions that a text uses, and of all that they use."""
    # labels that move with images need the last two
    dropped = {*_DROPPED, *(one for one in ("place", "draw_for") if f".{one}(" not in text)}
    known: Dict[str, str] = {}
    for module in _MODULES:
        lines = inspect.getsource(sys.modules[module]).split("\n")
        for node in ast.parse("\n".join(lines)).body:
            names = [getattr(one, "id", "") for one in getattr(node, "targets", ())] or [getattr(node, "name", "")]
            known.update(dict.fromkeys(filter(None, names), _trimmed(lines, node, dropped)))
    wanted, used = _names(text), set()  # type: List[str], Set[str]
    while wanted:
        name = wanted.pop()
        if name in known and name not in used:
            used.add(name)
            wanted += _names(known[name])
    return "\n\n".join(own for name, own in known.items() if name in used)


def _names(text: str) -> List[str]:
    return [one.id for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Name)]


def _trimmed(lines: List[str], node: Any, dropped: Set[str]) -> str:
    """The text of a statement with the comment above it, a class without some of its members."""

    def first_of(one: Any) -> int:
        return int(min(part.lineno for part in (one, *getattr(one, "decorator_list", ())))) - 1

    members: List[Any] = node.body if isinstance(node, ast.ClassDef) else []
    for one in members:
        if getattr(one, "name", getattr(getattr(one, "target", None), "id", "")) in dropped:
            lines[first_of(one) : one.end_lineno] = [""] * (one.end_lineno - first_of(one))
    first = first_of(node)
    while lines[first - 1].startswith("#"):
        first -= 1
    text = "\n".join(lines[first : node.end_lineno]) + "\n"
    for pattern, by in _REWRITTEN:
        text = re.sub(pattern, by, text)
    return text.rstrip("\n") + "\n"
