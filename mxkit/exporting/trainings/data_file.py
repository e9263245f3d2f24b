"""`data.py` of a training that leaves, and its arrays: the run's batches, with random steps as functions of the sample.

The code of the steps is that of mxkit's own, taken from their source, so that each step is written once.
"""

import ast
import inspect
from itertools import islice
import json
import re
from string import Template
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
from mxkit.exporting.trainings.texts import LOSSES, filled, tidied
from mxkit.recipe.building import SPLITS, batches, has_samples, is_loader
from mxkit.recipe.schema import Recipe, augment_of
import numpy as np

# Arrays are held in memory twice while they are written.
_BYTES = 2 * 10**9

_HEAD = Template('''"""The run's data: the arrays of data.safetensors, in the order of the MXNet run$changed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

SEED = $seed
WORKERS = 0  # processes that read ahead; the batches are the same with any number of them
DATA = Path(__file__).parent / "data.safetensors"
''')

_ORDER = '''class Order(Sampler):
    """Batches of sample numbers, in an order that depends on the seed and the epoch; a resumed epoch begins later."""

    def __init__(self, part: Any, batch_size: int, *, shuffle: bool = False, drop_last: bool = False) -> None:
        self.size, self.batch_size, self.shuffle, self.epoch, self.first = len(part), batch_size, shuffle, 1, 0
        self.batches = self.size // batch_size if drop_last else -(-self.size // batch_size)
?pairs         self.classes = Classes(part.y.numpy())

    @property
    def samples(self) -> int:
        """Samples of a whole epoch."""
        return min(self.size, self.batches * self.batch_size)

    def begin(self, epoch: int, batches: int) -> None:
        """Say which epoch is read next, from 1, and how many of its batches are left out."""
        self.epoch, self.first = epoch, min(batches, self.batches)

    def __len__(self) -> int:
        return self.batches - self.first

    def __iter__(self) -> Iterator[$keys]:
        generator = np.random.Generator(np.random.PCG64([SEED, (self.epoch - 1) * self.shuffle]))
?pairs         order = self.classes.pairs(generator, self.size, $pairs)
?!pairs         order = (generator.permutation(self.size) if self.shuffle else np.arange(self.size)).tolist()
        for batch in range(self.first, self.batches):
            yield ${key}order[batch * self.batch_size : (batch + 1) * self.batch_size]
'''

_PAIRS = '''class Pairs(Dataset):
    """Pairs of a part's samples, with 1 where both are of one class."""

    def __init__(self, part: str, size: int) -> None:
        arrays = load_file(DATA)
        self.x, self.y, self.size = arrays[f"{part}.x"], arrays[f"{part}.y"], size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        a, b = rows.T
        return self.x[a], self.x[b], (self.y[a] == self.y[b]).float()
'''

_LOADERS = Template('''def loaders() -> tuple[DataLoader, Order, dict[str, DataLoader]]:
    """Batches for training with their order, and those of the other parts by name."""
$parts
    order = Order(parts["train"], $batch_size, shuffle=True, drop_last=$drop_last)
    orders = {name: order if name == "train" else Order(part, $eval_batch_size) for name, part in parts.items()}
    made = {name: DataLoader(part, None, sampler=orders[name], num_workers=WORKERS) for name, part in parts.items()}
    return made.pop("train"), order, made
''')

_WHOLE = Template("""    arrays, parts = load_file(DATA), {}
    for name in $parts:
        parts[name] = TensorDataset($columns)""")

_IMAGES = Template('''@lru_cache
def opened() -> Any:
    """The file of arrays; each process opens it once."""
    return safe_open(DATA, "np")


class Images(Dataset):
    """Batches of a part's images and labels, after steps with random numbers of the seed, the epoch and the $of."""

    def __init__(self, part: str, size: int, steps: list[Step], normalize: Normalize | None) -> None:
        self.part, self.size, self.steps, self.normalize = part, size, steps, normalize$held

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: tuple[int, int, list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        epoch, $batch, rows = key
        generators = $generators
        samples = [self.sample(row, rng) for row, rng in zip(rows, generators)]
        images, labels = (torch.from_numpy(np.stack(part)) for part in zip(*samples))
        return images, labels

    def sample(self, row: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """An image after the steps, (channels, height, width), and its label."""
        image, label = $x, $y
$change        return normalized(image.transpose(2, 0, 1), $white, self.normalize), label
''')
_ALONE = Template("""        for step in self.steps:
            image = step.apply(image, step.draw(rng, image), $white)
""")
_BOXES = Template("""        boxes = label[label[:, 4] >= 0]
        for step in self.steps:
            drawn, shape = step.draw_for(rng, image, boxes), image.shape
            image, place = step.apply(image, drawn, $white), step.place(drawn, shape)
            scale, shift = np.array([place.scale_x, place.scale_y]), np.array([place.shift_x, place.shift_y])
            boxes = moved_boxes(boxes, scale, shift, image.shape[:2])
        label = padded(boxes, len(label))
""")
_TOGETHER = Template("""        scale, shift = np.ones(2), np.zeros(2)  # what was at x is at scale * x + shift
        for step in self.steps:
            drawn, shape = step.draw(rng, image), image.shape
            image, place = step.apply(image, drawn, $white), step.place(drawn, shape)
            factor = np.array([place.scale_x, place.scale_y])
            scale, shift = factor * scale, factor * shift + [place.shift_x, place.shift_y]
        label = $moved
""")


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
    if any(len(one) != 2 for one in samples) or (several and recipe.data.augment is not None):
        problems.append(f"data {name}, whose samples have no label, or several arrays that random steps change")
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
    fixed = {"batch_size": recipe.data.batch_size, "eval_batch_size": recipe.data.eval_batch_size}
    fixed.update(seed=recipe.seed % 2**32, drop_last=bool(recipe.data.drop_last))
    if changed:
        lists, parts = _lists(recipe, data, names)
        dataset = _dataset(data.train, arrays)
        order = filled(_ORDER, keys="tuple[int, int, list[int]]", key="self.epoch - 1, batch, ", pairs="")
        pieces = [f"{_code_of(lists + dataset)}\n\n{lists}", order, dataset]
    elif drawn:
        order = filled(_ORDER, keys="np.ndarray", key="", pairs=f"same={drawn.same}, balanced={drawn.balanced}")
        pieces = ["\n" + _code_of(order), order, _PAIRS]
        sizes = {name: len(arrays[f"{name}.y"]) for name in names}
        sizes["train"] = drawn.length or sizes["train"]
        parts = f"    parts = {{name: Pairs(name, size) for name, size in {json.dumps(sizes)}.items()}}"
    else:
        columns = [f'arrays[f"{{name}}.{key[6:]}"]' for key in arrays if key.startswith("train.")]
        parts = _WHOLE.substitute(parts=json.dumps(names), columns=", ".join(columns))
        pieces = ["\n" + filled(_ORDER, keys="list[int]", key="", pairs="")]
    head = _HEAD.substitute(fixed, changed=", changed by its random steps" if changed else "")
    body = "\n\n".join([*pieces, _LOADERS.substitute(fixed, parts=parts)])
    return Data(tidied(f"{head}\n{body}"), arrays)


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


def _dataset(part: Any, arrays: Dict[str, "np.ndarray"]) -> str:
    """The class that reads batches; images in arrays share the generator of their batch."""
    generator = "np.random.Generator(np.random.PCG64([SEED, epoch, {}]))"
    texts: Dict[str, Any] = {"white": "255", "of": "sample", "batch": "_", "held": ""}
    texts["generators"] = f"[{generator.format('row')} for row in rows]"
    for key in "xy":
        whole = f"train.{key}" in arrays
        texts[key] = f"self.{key}[row]" if whole else f'opened().get_tensor(f"{{self.part}}.{key}.{{row}}")'
        texts["held"] += f'\n        self.{key} = opened().get_tensor(f"{{part}}.{key}")' if whole else ""
    if isinstance(part, Split):
        texts.update(white="1.0", of="batch", batch="batch")
        texts["generators"] = f"[{generator.format('batch')}] * len(rows)"
        scaled = arrays["train.x"].dtype == np.uint8
        texts["x"] = "np.multiply(self.x[row], np.float32(1 / 255), dtype=np.float32)" if scaled else texts["x"]
        texts["x"] += ".transpose(1, 2, 0)"
    moves, pairs = getattr(part, "moves", None), list(map(tuple, getattr(part, "pairs", ())))
    moved = f"moved_{moves}(label, scale, shift, image.shape[:2]{f', {pairs}' if moves == 'points' else ''})"
    change = {None: _ALONE, "boxes": _BOXES}.get(moves, _TOGETHER).substitute(texts, moved=moved)
    return _IMAGES.substitute(texts, change=change)


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
    joined = "\n\n".join(own for name, own in known.items() if name in used)
    return re.sub(r"(?m)^([^\s@].* = .*\n)\n\n(?=(#.*\n)*\w+ = )", r"\1", joined)  # constants stand together


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
