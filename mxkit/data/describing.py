"""What is in the data, before a net is trained on it."""

from array import array as compact_array
from itertools import islice
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.core.arguments import whole_number
from mxkit.core.arrays import to_host
from mxkit.core.device import unpack
from mxkit.core.seeding import generators_kept
from mxkit.data.data_warnings import warnings_of
from mxkit.data.source import Data, read_epoch
from mxkit.data.splits import Split, Splits
from mxkit.data.streaming_statistics import ArraySummary, common, sample_hashes
from mxkit.errors import DataError, EmptyDataError
import mxnet as mx
import numpy as np

_ROWS = 256
_KEPT = 16


class PartDescription:
    """What was seen of one part of the data.

    Attributes:
        name: `"train"`, `"test"`, ...
        kind: Type of what was read.
        samples: How many samples were read.
        batches: How many batches; None where arrays or a dataset were read.
        batch_sizes: Least and greatest size of a batch, and that of the last.
        whole: Whether all was read: `limit_batches` did not end it.
        raw: Whether these are samples that a loader is still to cast and scale.
        inputs: Of each input of the net.
        labels: Of each label.
        repeated: Samples that came before, all bytes the same.
        hashes: uint64 of shape (samples,).
        images: The first few samples of the first input.
        names: Their labels.
    """

    def __init__(self, name: str, data: Any, raw: bool) -> None:
        self.name, self.kind, self.raw, self.data = name, type(data).__name__, raw, data
        self.samples = 0
        self.batches: Optional[int] = None if raw else 0
        self.batch_sizes: Tuple[int, int, int] = (0, 0, 0)
        self.whole = True
        self.inputs: List[ArraySummary] = []
        self.labels: List[ArraySummary] = []
        self.images: List[np.ndarray] = []
        self.names: List[Any] = []
        self._hashes = compact_array("Q")  # 8 bytes a sample

    @property
    def hashes(self) -> "np.ndarray":
        return np.array(self._hashes, np.uint64)

    @property
    def repeated(self) -> int:
        return self.samples - len(np.unique(self.hashes))

    def add(self, batch: Any) -> None:
        """Look at a batch."""
        inputs, labels = ([_host(array) for array in group] for group in unpack(batch))
        sizes = {host.shape[:1] for host in (*inputs, *labels)}
        if len(sizes) != 1 or sizes == {()}:
            shapes = [host.shape for host in (*inputs, *labels)]
            raise DataError(f"describe: {self.name}: axis 0 of all arrays of a batch must be equal; found {shapes}")
        for summaries, hosts in ((self.inputs, inputs), (self.labels, labels)):
            summaries.extend(ArraySummary() for _ in hosts[len(summaries) :])
            for summary, host in zip(summaries, hosts):
                summary.add(host, labels=summaries is self.labels)
        size = len(inputs[0])
        kept = max(_KEPT - len(self.images), 0)
        self.images += [sample.copy() for sample in inputs[0][:kept]]
        self.names += list(labels[0][:kept]) if labels else []
        self._hashes.extend(sample_hashes(inputs))
        self.samples += size
        if self.batches is not None:
            least = min(size, self.batch_sizes[0]) if self.batches else size
            self.batches, self.batch_sizes = self.batches + 1, (least, max(size, self.batch_sizes[1]), size)

    def __str__(self) -> str:
        least, most, last = self.batch_sizes
        cut = f"{self.batches} batches of {most}" + (f" (the last has {last})" if last != most else "") + ", "
        ends = "" if self.whole else ", the first of more"
        lines = [f"{self.name}: {self.kind}, {'' if self.batches is None else cut}{self.samples} samples{ends}"]
        for letter, group in (("x", self.inputs), ("y", self.labels)):
            for number, summary in enumerate(group):
                lines.append(f"  {letter}{number if len(group) > 1 else ''}  {_told(summary)}")
        return "\n".join(lines)


class Duplicates(NamedTuple):
    """Samples of the second part that are in the first too, all bytes the same.

    Attributes:
        first: Name of a part.
        second: Name of another.
        samples: How many samples of `second`.
        examples: Where the first few stand, in `first` and in `second`: numbers in the dataset where the loader tells
            its order, else in the order of reading.
    """

    first: str
    second: str
    samples: int
    examples: List[Tuple[int, int]]


class DataDescription:
    """What `describe` found; it prints as a text, and `mxkit.plots.show_data` draws its images.

    Attributes:
        parts: By name.
        duplicates: Of each pair of parts that share samples.
        classes: Names of the class numbers, or None.
        warnings: What is mostly a mistake, a line each.
    """

    def __init__(
        self, parts: Dict[str, PartDescription], duplicates: List[Duplicates], classes: Optional[Sequence[str]]
    ) -> None:
        self.parts, self.duplicates, self.classes = parts, duplicates, classes
        self.warnings = warnings_of(list(parts.values()), duplicates, classes)

    def __repr__(self) -> str:
        lines = [str(part) for part in self.parts.values()]
        for pair in self.duplicates:
            where = ", ".join(f"{pair.first}[{i}] = {pair.second}[{j}]" for i, j in pair.examples)
            lines.append(f"{pair.samples} samples of {pair.second} are in {pair.first} too: {where}")
        return "\n".join([*lines, *(["warnings:"] if self.warnings else []), *(f"  - {one}" for one in self.warnings)])


def describe(
    data: Union[Data, Split, Splits, Mapping[str, Any]],
    test: Any = None,
    *,
    classes: Optional[Sequence[str]] = None,
    limit_batches: Optional[int] = None,
) -> DataDescription:
    """Read data once and tell what is in it: shapes, ranges, classes, duplicates, and what is mostly a mistake.

    Args:
        data: Anything that `fit` reads; a `Split`, a gluon Dataset, or `Splits`; or a dict of them by name, the
            training part first. A loader goes on as if nobody had looked.
        test: What the net is judged by, where `data` is one part.
        classes: Names of the class numbers; those of `Splits` by default.
        limit_batches: Read no more batches of each part, or of datasets and arrays no more than 256 samples for each.

    Returns:
        A description that prints as a text. 8 bytes a sample are kept, and 16 samples of each part.

    Raises:
        EmptyDataError: A part has no sample.
        DataError: Something is no batch, or no number.
        ValueError: `test` is given beside several parts.

    Side effects:
        Reads the whole data, which for image files takes as long as an epoch. An iterator is used up, which is told.

    >>> x, y = np.linspace(0, 1, 12).reshape(6, 2), np.array([0, 1, 0, 1, 0, 3])
    >>> print(describe(mxkit.data.ArrayLoader(x, y, batch_size=4)))
    data: ArrayLoader, 2 batches of 4 (the last has 2), 6 samples
      x  (2,) float32, 0 to 1, mean 0.5, std 0.3138
      y  () int32, 0 to 3, 3 classes of 1 to 3 samples
    warnings:
      - data: classes [2] of 0 to 3 have no sample
    """
    if limit_batches is not None:
        whole_number(limit_batches, "describe: limit_batches")
    several = isinstance(data, (Splits, Mapping))
    if several and test is not None:
        raise ValueError("describe: pass `test` beside one part, or all parts in a dict")
    named: Dict[str, Any] = {"data": data} if test is None else {"train": data, "test": test}
    if isinstance(data, Splits):
        named = {name: part for name, part in zip(Splits._fields, data[:3]) if _size(part)}
        classes = classes or data.classes or None
    elif isinstance(data, Mapping):
        named = dict(data)
    with generators_kept():
        parts = {name: _read(name, one, limit_batches) for name, one in named.items()}
    orders = {name: _order(one, parts[name]) for name, one in named.items()}
    return DataDescription(parts, _duplicates(list(parts.values()), orders), classes)


def _read(name: str, data: Any, limit: Optional[int]) -> PartDescription:
    raw = isinstance(data, (Split, mx.gluon.data.Dataset))
    part = PartDescription(name, data, raw)
    if isinstance(data, Split):
        batches: Iterator[Any] = ((data.x[i : i + _ROWS], data.y[i : i + _ROWS]) for i in range(0, len(data.x), _ROWS))
    elif raw:
        limit = None if limit is None else limit * _ROWS
        batches = (_batch_of_one(data[row]) for row in range(len(data)))
    else:
        batches = read_epoch(data, name=f"describe: {name}", keep_count=True)
    read = 0
    for batch in islice(batches, limit):
        part.add(batch)
        read += 1
    if not part.samples:
        raise EmptyDataError(f"describe: {name} has no sample")
    total = -(-len(data.x) // _ROWS) if isinstance(data, Split) else len(data) if hasattr(data, "__len__") else None
    part.whole = limit is None or read < limit or read == total
    if isinstance(data, mx.io.DataIter):
        data.reset()
    return part


def _batch_of_one(sample: Any) -> Any:
    parts = sample if isinstance(sample, tuple) else (sample,)
    hosts = [_host(one)[None] for one in parts]
    return (hosts[0], tuple(hosts[1:])) if len(hosts) > 1 else (hosts[0],)


def _size(part: Any) -> int:
    return len(part.x) if isinstance(part, Split) else len(part)


def _host(array: Any) -> "np.ndarray":
    host = to_host(array)
    if host.dtype.kind not in "fiub":
        raise DataError(f"describe: expected arrays of numbers; received {host.dtype} of {type(array).__name__}")
    return host


def _order(data: Any, part: PartDescription) -> "np.ndarray":
    """Number in the dataset of each sample that was read, where the loader tells."""
    if hasattr(data, "order") and hasattr(data, "epoch"):
        return np.asarray(data.order(data.epoch))[: part.samples]
    return np.arange(part.samples)


def _duplicates(parts: Sequence[PartDescription], orders: Mapping[str, "np.ndarray"]) -> List[Duplicates]:
    found = []
    for number, first in enumerate(parts):
        for second in parts[number + 1 :]:
            samples, places = common(first.hashes, second.hashes)
            if samples:
                told = [(int(orders[first.name][i]), int(orders[second.name][j])) for i, j in places]
                found.append(Duplicates(first.name, second.name, samples, told))
    return found


def class_name(label: Any, classes: Optional[Sequence[str]]) -> str:
    """Name of a sample's class, its number where it has no name; '' for a label of several numbers."""
    value = np.asarray(label)
    if value.size != 1:
        return ""
    number = value.ravel()[0]
    known = classes is not None and number == np.floor(number) and 0 <= number < len(classes)
    return str(classes[int(number)]) if classes is not None and known else f"{number:g}"


def _told(summary: ArraySummary) -> str:
    """One line about an array."""
    shapes = " or ".join(str(shape) for shape in sorted(summary.shapes)[:3]) + (
        " or others" if len(summary.shapes) > 3 else ""
    )
    text = f"{shapes} {'/'.join(sorted(summary.dtypes))}"
    if summary.low is not None and summary.high is not None:
        text += f", {summary.low:.4g} to {summary.high:.4g}"
    if summary.classes is not None:
        counts = summary.classes.values()
        spread = f"{min(counts)}" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
        return f"{text}, {len(counts)} class{'es' if len(counts) > 1 else ''} of {spread} samples"
    mean, std = (", ".join(f"{value:.4g}" for value in values) for values in (summary.mean, summary.std))
    lost = "".join(
        f", {count} {what}" for count, what in ((summary.nan, "NaN"), (summary.infinite, "infinite")) if count
    )
    return f"{text}, mean {mean}, std {std}{lost}"
