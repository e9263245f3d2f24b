"""`data.py` of a training that leaves, and its arrays: the run's batches, with random steps as functions of the sample.

The code of the steps is that of mxkit's own, taken from their source, so that each step is written once.
"""

import ast
from dataclasses import fields
import inspect
from itertools import islice
import json
import re
from string import Template
from typing import Any, Dict, List, NamedTuple, Set, Tuple

from mxkit.core.arrays import to_host
from mxkit.data import augment_labels, augment_steps
from mxkit.data.augment_steps import Normalize, Step, ToTensor
from mxkit.data.pixels import FILE, drawn_by_dataset
from mxkit.data.splits import Split
from mxkit.errors import ExportError
from mxkit.recipe.building import SPLITS, batches, has_samples, is_loader
from mxkit.recipe.schema import Recipe, augment_of
import numpy as np

# Arrays are held in memory twice while they are written.
_BYTES = 2 * 10**9
_WIDTH = 120

_HEAD = Template('''"""The run's data: the arrays of data.safetensors, in the order of the MXNet run$changed."""

$imports

SEED = $seed
WORKERS = 0  # processes that read ahead; the batches are the same with any number of them
DATA = Path(__file__).parent / "data.safetensors"
''')

_ORDER = Template('''class Order(Sampler):
    """Batches of sample numbers, in an order that depends on the seed and the epoch; a resumed epoch begins later."""

    def __init__(self, size: int, batch_size: int, *, shuffle: bool = False, drop_last: bool = False) -> None:
        self.size, self.batch_size, self.shuffle, self.epoch, self.first = size, batch_size, shuffle, 1, 0
        self.batches = size // batch_size if drop_last else -(-size // batch_size)

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
        generator = np.random.Generator(np.random.PCG64([SEED, self.epoch - 1]))
        order = (generator.permutation(self.size) if self.shuffle else np.arange(self.size)).tolist()
        for batch in range(self.first, self.batches):
            yield ${key}order[batch * self.batch_size : (batch + 1) * self.batch_size]
''')

_LOADERS = Template('''def loaders() -> tuple[DataLoader, Order, dict[str, DataLoader]]:
    """Batches for training with their order, and those of the other parts by name."""
$parts
    order = Order(len(parts["train"]), $batch_size, shuffle=True, drop_last=$drop_last)
    orders = {name: order if name == "train" else Order(len(part), $eval_batch_size) for name, part in parts.items()}
    made = {name: DataLoader(part, None, sampler=orders[name], num_workers=WORKERS) for name, part in parts.items()}
    return made.pop("train"), order, made
''')

_WHOLE = Template("""    arrays = load_file(DATA)
    parts = {name: TensorDataset(arrays[f"{name}.x"], arrays[f"{name}.y"]) for name in $parts}""")

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
        generators = [np.random.Generator(np.random.PCG64([SEED, epoch, $generators
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
_TOGETHER = Template("""        scale, shift = np.ones(2), np.zeros(2)  # what was at x is at scale * x + shift
        for step in self.steps:
            drawn, shape = step.draw(rng, image), image.shape
            image, place = step.apply(image, drawn, $white), step.place(drawn, shape)
            factor = np.array([place.scale_x, place.scale_y])
            scale, shift = factor * scale, factor * shift + [place.shift_x, place.shift_y]
        label = $moved
""")


_IMPORTS = (
    ("collections.abc", "Iterator Sequence"),
    ("dataclasses", "dataclass field"),
    ("functools", "lru_cache"),
    ("pathlib", "Path"),
    ("typing", "Any NamedTuple"),
    ("", ""),
    ("cv2", ""),
    ("numpy as np", ""),
    ("torch", ""),
    ("safetensors", "safe_open"),
    ("safetensors.torch", "load_file"),
    ("torch.utils.data", "DataLoader Dataset Sampler TensorDataset"),
)
# What a file of PyTorch's says in place of mxkit's words for Python 3.8; a text that has become short is one line.
_REWRITTEN = (
    (r'"(np\.ndarray)"', r"\1"),
    (r"\b(Tuple|List|Dict)\[", lambda found: f"{found[1].lower()}["),
    (r'DataError\((f?)"Augment: ', r'ValueError(\1"'),
    (r" {4}import cv2\n\n", ""),
    (r"  # type: ignore.*", ""),
    (r"Optional\[(\w+)\]", r"\1 | None"),
    (r"= Union\[(\w+), (.+)\]", r"= \1 | \2"),
    (r"(def \w+\()\n +(.*[^,])\n *(\) -> .*:)\n", lambda found: _joined(found)),
    (r"\n{3,}( +)", r"\n\n\1"),
)
_DROPPED = {"__post_init__", "name", "draw_for", "checks", "draws"}


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
    if any(len(one) != 2 or any(isinstance(array, tuple) for array in one) for one in samples):
        problems.append(f"data {name}, whose samples are not one input and one label")
    if any(map(is_loader, parts)):
        problems.append(f"data {name}, which makes its batches itself: a dataset with len() and [number] leaves")
    if any(getattr(part, "moves", None) == "boxes" for part in parts):
        problems.append(f"data {name}, whose labels are boxes")
    if not isinstance(data.train, Split) and not is_loader(data.train) and _is_random(recipe, data):
        problems.append(f"data {name}, whose samples are random: give its transform's steps to data.augment")
    if recipe.data.pairs is not None:
        problems.append("data.pairs")
    for key in ("augment", "eval_augment"):
        augment = augment_of(getattr(recipe.data, key))
        random = augment is not None and any(step.draws for step in augment.steps)
        if key == "eval_augment" and random:
            problems.append("data.eval_augment with random steps")
        if augment is None or recipe.data.augment is None:
            continue
        functions = [repr(one) for one in augment.steps if not _has_code(one)]
        problems += [f"data.{key} with {', '.join(functions)}: take steps that mxkit has by name"] if functions else []
        if not augment.tensor and not isinstance(data.train, Split):
            problems.append(f"data.{key} without to_tensor")
    return problems


def _has_code(step: Step) -> bool:
    own = type(step).__module__ in (augment_steps.__name__, augment_labels.__name__)
    return own and not isinstance(step, augment_labels.BoxCrop)


def _is_random(recipe: Recipe, data: Any) -> bool:
    """Whether samples of the training part differ from epoch to epoch before `data.augment` changes them."""
    if not drawn_by_dataset(data.train) - {FILE}:
        return False
    loader = batches(_unchanged(recipe), data, "train")
    epochs = islice(zip(loader, loader), 16)
    return any(to_host(one).tobytes() != to_host(other).tobytes() for pair in epochs for one, other in zip(*pair))


def _unchanged(recipe: Recipe) -> Recipe:
    """A recipe whose data is read sample by sample, without its steps."""
    plain = {"augment": None, "eval_augment": None, "eval_batch_size": 1}
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=plain)})


def data_of(recipe: Recipe, data: Any) -> Data:
    """`data.py` and its arrays.

    Raises:
        ExportError: The arrays are too large.
    """
    names = [name for name in SPLITS if has_samples(getattr(data, name))]
    changed = recipe.data.augment is not None
    arrays = _arrays(_unchanged(recipe) if changed else recipe, data, names, changed)
    fixed = {"batch_size": recipe.data.batch_size, "eval_batch_size": recipe.data.eval_batch_size}
    fixed.update(seed=recipe.seed % 2**32, drop_last=bool(recipe.data.drop_last))
    if not changed:
        parts = _WHOLE.substitute(parts=json.dumps(names))
        pieces = [_ORDER.substitute(keys="list[int]", key="")]
    else:
        lists, parts = _lists(recipe, data, names)
        dataset = _dataset(data.train, arrays)
        code = code_of(f"{lists}\n{dataset}", keep_place=".place(" in dataset)
        pieces = [code, lists, _ORDER.substitute(keys="tuple[int, int, list[int]]", key="self.epoch - 1, batch, ")]
        pieces.append(dataset)
    body = "\n\n".join([*pieces, _LOADERS.substitute(fixed, parts=parts)])
    suffix, blank = (", changed by its random steps", "\n") if changed else ("", "\n\n")
    head = _HEAD.substitute(fixed, changed=suffix, imports=_imports(f"Path {body}"))
    return Data(f"{head}{blank}{body}", arrays)


def _imports(text: str) -> str:
    """Import lines of what a text uses."""
    lines = []
    for module, names in _IMPORTS:
        used = [name for name in names.split() if re.search(rf"\b{name}\b", text)]
        if used:
            lines.append(f"from {module} import {', '.join(used)}")
        elif not names and (not module or re.search(rf"\b{module.split()[-1]}\.", text)):
            lines.append(f"import {module}" if module else "")
    return "\n".join(lines)


def _arrays(recipe: Recipe, data: Any, names: List[str], changed: bool) -> Dict[str, "np.ndarray"]:
    """Inputs and labels of each part, as the net gets them, or as they are stored if steps change them."""
    found: Dict[str, Any] = {}
    size = 0
    columns: Dict[str, List[Any]] = {}
    for name in names:
        loader: Any = batches(recipe, data, name)
        whole = changed and isinstance(getattr(data, name), Split)
        for sample in [(loader.x, loader.y)] if whole else loader:
            for key, one in zip("xy", map(to_host, sample)):
                columns.setdefault(f"{name}.{key}", []).append(one)
                size += one.nbytes
            if size > _BYTES:
                raise ExportError(
                    f"export: the samples of {recipe.data.name} come to more than {_BYTES / 1e9:.0f} GB. Train on a "
                    "part of them or on smaller images (reduce_to=), or leave without training="
                )
    for key in "xy":
        own = {name: column for name, column in columns.items() if name.endswith(key)}
        if len({one.shape[1:] for column in own.values() for one in column}) == 1:
            found.update({name: np.concatenate(column) for name, column in own.items()})
        else:
            found.update({f"{name}.{row}": one[0] for name, column in own.items() for row, one in enumerate(column)})
    return (
        found if changed else {name: one.astype(np.float32) if name[-1] == "x" else one for name, one in found.items()}
    )


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
    """The call that makes a step, without its defaults."""
    own = [one for one in fields(step) if one.init and getattr(step, one.name) != one.default]  # type: ignore[arg-type]
    return f"{type(step).__name__}({', '.join(f'{one.name}={_value(getattr(step, one.name))}' for one in own)})"


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple, np.ndarray)):
        return f"({', '.join(map(_value, value))}{',' * (len(value) == 1)})"
    return (
        json.dumps(value) if isinstance(value, str) else repr(value.item() if isinstance(value, np.generic) else value)
    )


def _dataset(part: Any, arrays: Dict[str, "np.ndarray"]) -> str:
    """The class that reads batches; images in arrays share the generator of their batch."""
    texts = {"white": "255", "of": "sample", "batch": "_", "generators": "row])) for row in rows]", "held": ""}
    for key in "xy":
        whole = f"train.{key}" in arrays
        texts[key] = f"self.{key}[row]" if whole else f'opened().get_tensor(f"{{self.part}}.{key}.{{row}}")'
        texts["held"] += f'\n        self.{key} = opened().get_tensor(f"{{part}}.{key}")' if whole else ""
    if isinstance(part, Split):
        texts.update(white="1.0", of="batch", batch="batch", generators="batch]))] * len(rows)")
        scaled = arrays["train.x"].dtype == np.uint8
        texts["x"] = "np.multiply(self.x[row], np.float32(1 / 255), dtype=np.float32)" if scaled else texts["x"]
        texts["x"] += ".transpose(1, 2, 0)"
    moves, pairs = getattr(part, "moves", None), list(map(tuple, getattr(part, "pairs", ())))
    moved = f"moved_{moves}(label, scale, shift, image.shape[:2]{f', {pairs}' if moves == 'points' else ''})"
    change = (_TOGETHER if moves else _ALONE).substitute(texts, moved=moved)
    return _IMAGES.substitute(texts, change=change)


def code_of(text: str, *, keep_place: bool) -> str:
    """The source of those of mxkit's steps and functions that a text uses, and of all that they use.

    Args:
        text: Code.
        keep_place: Whether labels move with images.
    """
    known: Dict[str, str] = {}
    for module in (augment_steps, augment_labels):
        source = inspect.getsource(module)
        for node in ast.parse(source).body:
            names = [getattr(one, "id", "") for one in getattr(node, "targets", ())] or [getattr(node, "name", "")]
            own = _trimmed(source.split("\n"), node, _DROPPED if keep_place else {*_DROPPED, "place"})
            known.update({name: own for name in names if name})
    wanted, used = _names(text), set()  # type: List[str], Set[str]
    while wanted:
        name = wanted.pop()
        if name in known and name not in used:
            used.add(name)
            wanted += _names(known[name])
    kept = [known[name] for name in known if name in used]
    joined = "\n\n".join(kept)
    return re.sub(r"(?m)^([^\s@].* = .*\n)\n\n(?=(#.*\n)*\w+ = )", r"\1", joined)  # constants stand together


def _names(text: str) -> List[str]:
    return [one.id for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Name)]


def _trimmed(lines: List[str], node: ast.AST, dropped: Set[str]) -> str:
    """The text of a statement with the comment above it, a class without some of its members."""

    def span(one: Any) -> Tuple[int, int]:
        return min([one.lineno, *(first.lineno for first in getattr(one, "decorator_list", ()))]) - 1, one.end_lineno

    first, last = span(node)
    while lines[first - 1].startswith("#"):
        first -= 1
    members: List[Any] = node.body if isinstance(node, ast.ClassDef) else []
    left_out = {
        number
        for one in members
        if getattr(one, "name", getattr(getattr(one, "target", None), "id", "")) in dropped
        for number in range(*span(one))
    }
    text = "\n".join(line for number, line in enumerate(lines[first:last], first) if number not in left_out) + "\n"
    for pattern, by in _REWRITTEN:
        text = re.sub(pattern, by, text)
    return text.rstrip("\n") + "\n"


def _joined(signature: Any) -> str:
    line = "".join(signature.groups())
    return f"{line}\n" if len(line) <= _WIDTH else signature[0]
