"""Describes data before a net is trained on it: shapes, ranges, classes, duplicates and likely mistakes."""

from array import array as compact_array
from itertools import combinations, islice
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.core.arguments import whole_number
from mxkit.core.arrays import to_host
from mxkit.core.device import unpack
from mxkit.core.seeding import generators_kept
from mxkit.data.data_warnings import warnings_of
from mxkit.data.source import Data, source_of
from mxkit.data.splits import Split, Splits
from mxkit.data.streaming_statistics import ArraySummary, common, sample_hashes
from mxkit.errors import DataError, EmptyDataError
import mxnet as mx
import numpy as np

_ROWS = 256
_MOST_IMAGES = 16


class PartDescription:
    """Description of one part of the data.

    Attributes:
        name: `"train"`, `"test"`, ...
        kind: Type of the data.
        samples: Number of samples that were read.
        batches: Number of batches; None if arrays or a dataset were read.
        batch_sizes: Smallest and largest size of a batch, and that of the last.
        whole: Whether all samples were read: `limit_batches` did not stop the reading.
        raw: Whether these are samples that a loader has yet to cast and scale.
        inputs: Statistics of each input of the net.
        labels: Statistics of each label.
        repeated: Number of samples whose bytes equal those of an earlier sample.
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
        self._hashes = compact_array("Q")  # 8 bytes per sample

    @property
    def hashes(self) -> "np.ndarray":
        return np.array(self._hashes, np.uint64)

    @property
    def repeated(self) -> int:
        return self.samples - len(np.unique(self.hashes))

    def add(self, batch: Any) -> None:
        """Add a batch to the statistics."""
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
        missing = max(_MOST_IMAGES - len(self.images), 0)
        self.images += [sample.copy() for sample in inputs[0][:missing]]
        self.names += list(labels[0][:missing]) if labels else []
        self._hashes.extend(sample_hashes(inputs))
        self.samples += size
        if self.batches is not None:
            least = min(size, self.batch_sizes[0]) if self.batches else size
            self.batches, self.batch_sizes = self.batches + 1, (least, max(size, self.batch_sizes[1]), size)

    def __str__(self) -> str:
        _, most, last = self.batch_sizes
        batches = f"{self.batches} batches of {most}" + (f" (the last has {last})" if last != most else "") + ", "
        ends = "" if self.whole else ", the first of more"
        lines = [f"{self.name}: {self.kind}, {'' if self.batches is None else batches}{self.samples} samples{ends}"]
        for letter, group in (("x", self.inputs), ("y", self.labels)):
            for number, summary in enumerate(group):
                lines.append(f"  {letter}{number if len(group) > 1 else ''}  {_summary_line(summary)}")
        return "\n".join(lines)


class Duplicates(NamedTuple):
    """Samples of the second part whose bytes equal those of a sample of the first.

    Attributes:
        first: Name of a part.
        second: Name of another part.
        samples: Number of such samples of `second`.
        examples: Positions of the first few in `first` and in `second`: numbers in the dataset if the loader has an
            `order`, else in the order of reading.
    """

    first: str
    second: str
    samples: int
    examples: List[Tuple[int, int]]


class DataDescription:
    """The result of `describe`; it prints as a text, and `mxkit.plots.show_data` draws its images.

    Attributes:
        parts: Descriptions of the parts, by name.
        duplicates: One entry for each pair of parts that share samples.
        classes: Names of the class numbers, or None.
        warnings: Likely mistakes, one line each.
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
        return "\n".join([*lines, *["warnings:"] * bool(self.warnings), *(f"  - {line}" for line in self.warnings)])


def describe(
    data: Union[Data, Split, Splits, Mapping[str, Any]],
    test: Any = None,
    *,
    classes: Optional[Sequence[str]] = None,
    limit_batches: Optional[int] = None,
) -> DataDescription:
    """Read data once and describe it: shapes, ranges, classes, duplicates, and likely mistakes.

    Args:
        data: Anything that `fit` reads; a `Split`, a gluon Dataset, or `Splits`, of which parts that are None are
            left out; or a dict of them by name, the training part first. A loader's epochs and order do not change.
        test: The part that the net is evaluated on, if `data` is one part.
        classes: Names of the class numbers; those of `Splits` by default.
        limit_batches: Number of batches to read of each part; of datasets and arrays, 256 samples for each.

    Returns:
        A description that prints as a text. It holds 8 bytes per sample, and 16 samples of each part.

    Raises:
        EmptyDataError: A part has no sample.
        DataError: The data are no batches, or hold something other than numbers.
        ValueError: `test` is passed beside several parts.

    Side effects:
        Reads all data, which takes as long as an epoch for image files. A generator is empty afterwards, and a warning
        says so.

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
    if isinstance(data, (Splits, Mapping)) and test is not None:
        raise ValueError("describe: pass `test` beside one part, or all parts in a dict")
    named: Dict[str, Any] = {"data": data} if test is None else {"train": data, "test": test}
    if isinstance(data, Splits):
        # a part without samples is not described; a loader need not know its number
        named = {name: part for name, part in zip(Splits._fields, data[:3]) if _has_samples(part)}
        classes = classes or data.classes or None
    elif isinstance(data, Mapping):
        named = dict(data)
    with generators_kept():
        parts = {name: _read(name, part, limit_batches) for name, part in named.items()}
    orders = {name: _order(part, parts[name]) for name, part in named.items()}
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
        batches = source_of(data).read(name=f"describe: {name}", keep_count=True)
    for batch in islice(batches, limit):
        part.add(batch)
    if not part.samples:
        raise EmptyDataError(f"describe: {name} has no sample")
    part.whole = next(batches, None) is None
    source_of(data).reset()
    return part


def _batch_of_one(sample: Any) -> Any:
    hosts = [_host(part)[None] for part in (sample if isinstance(sample, tuple) else (sample,))]
    return (hosts[0], tuple(hosts[1:])) if len(hosts) > 1 else (hosts[0],)


def _host(array: Any) -> "np.ndarray":
    host = to_host(array)
    if host.dtype.kind not in "fiub":
        raise DataError(f"describe: expected arrays of numbers; received {host.dtype} of {type(array).__name__}")
    return host


def _order(data: Any, part: PartDescription) -> "np.ndarray":
    """The number in the dataset of each sample that was read, if the loader has an `order`."""
    if hasattr(data, "order") and hasattr(data, "epoch"):
        return np.asarray(data.order(data.epoch))[: part.samples]
    return np.arange(part.samples)


def _has_samples(part: Any) -> bool:
    x = part.x if isinstance(part, Split) else part
    return x is not None and (not hasattr(x, "__len__") or len(x) > 0)


def _duplicates(parts: Sequence[PartDescription], orders: Mapping[str, "np.ndarray"]) -> List[Duplicates]:
    duplicates = []
    for first, second in combinations(parts, 2):
        samples, places = common(first.hashes, second.hashes)
        if samples:
            examples = [(int(orders[first.name][i]), int(orders[second.name][j])) for i, j in places]
            duplicates.append(Duplicates(first.name, second.name, samples, examples))
    return duplicates


def class_name(label: Any, classes: Optional[Sequence[str]]) -> str:
    """Name of a sample's class, or its number if it has no name; '' for a label of several numbers."""
    value = np.asarray(label)
    if value.size != 1:
        return ""
    number = value.ravel()[0]
    if classes is not None and number == np.floor(number) and 0 <= number < len(classes):
        return str(classes[int(number)])
    return f"{number:g}"


def _summary_line(summary: ArraySummary) -> str:
    shapes = [str(shape) for shape in sorted(summary.shapes)]
    shapes = shapes if len(shapes) <= 3 else [*shapes[:3], "others"]
    text = f"{' or '.join(shapes)} {'/'.join(sorted(summary.dtypes))}"
    if summary.low is not None and summary.high is not None:
        text += f", {summary.low:.4g} to {summary.high:.4g}"
    if summary.classes is not None:
        counts = sorted(summary.classes.values())
        spread = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
        return f"{text}, {len(counts)} class{'es' if len(counts) > 1 else ''} of {spread} samples"
    mean, std = (", ".join(f"{value:.4g}" for value in values) for values in (summary.mean, summary.std))
    lost = "".join(
        f", {count} {kind}" for count, kind in ((summary.nan, "NaN"), (summary.infinite, "infinite")) if count
    )
    return f"{text}, mean {mean}, std {std}{lost}"
