"""Describes data before a net is trained on it: shapes, ranges, classes, duplicates and likely mistakes.

Data is read batch by batch, in memory that hardly grows with it.
"""

from array import array as compact_array
import hashlib
from itertools import chain, combinations, islice
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

from mxkit.core.arguments import whole_number
from mxkit.core.arrays import to_host
from mxkit.core.device import unpack
from mxkit.core.seeding import generators_kept
from mxkit.data.source import Data, source_of
from mxkit.data.splits import Split, Splits
from mxkit.errors import DataError, EmptyDataError
import mxnet as mx
import numpy as np

# Labels with more distinct values are quantities, not classes.
MOST_CLASSES = 10_000
# Number of values that are converted to float64 at once.
_CHUNK = 2**20


class ArraySummary:
    """Statistics of one input or label.

    Attributes:
        shapes: Shapes of samples.
        dtypes: Names of their dtypes.
        samples: Number of samples.
        low: Smallest finite value; None if there is none.
        high: Largest finite value.
        nan: Number of values that are NaN.
        infinite: Number of values that are infinite.
        whole: Whether all finite values are integers.
        classes: How often each label occurs, if each is one integer; None for anything else.
    """

    def __init__(self) -> None:
        self.shapes: Set[Tuple[int, ...]] = set()
        self.dtypes: Set[str] = set()
        self.samples = 0
        self.low: Optional[float] = None
        self.high: Optional[float] = None
        self.nan = self.infinite = 0
        self.whole = True
        self.classes: Optional[Dict[int, int]] = None
        self._moments: List[np.ndarray] = []

    def add(self, array: "np.ndarray", labels: bool = False) -> None:
        """Add a batch, shape (B, ...)."""
        self.shapes.add(array.shape[1:])
        self.dtypes.add(array.dtype.name)
        if labels:
            self._count_classes(array)
        self.samples += len(array)
        rows = max(1, _CHUNK // max(array[:1].size, 1))
        for first in range(0, len(array) if array.size else 0, rows):
            self._add_values(array[first : first + rows])

    @property
    def shape(self) -> Tuple[int, ...]:
        """Shape of a sample; the smallest if samples differ."""
        return min(self.shapes, default=())

    @property
    def is_image(self) -> bool:
        """Whether a sample has one or three channels, first or last."""
        return all(len(shape) == 3 and (shape[0] in (1, 3) or shape[2] in (1, 3)) for shape in self.shapes)

    @property
    def mean(self) -> Tuple[float, ...]:
        """Mean of the finite values, of each channel if there are channels."""
        return _combined(self._moments)[0]

    @property
    def std(self) -> Tuple[float, ...]:
        """Standard deviation of the finite values, of each channel if there are channels."""
        return _combined(self._moments)[1]

    def _count_classes(self, array: "np.ndarray") -> None:
        if not self.samples:
            self.classes = {}
        if self.classes is None:
            return
        values = array.ravel()
        if values.size != len(array) or not (np.isfinite(values) & (values == np.floor(values))).all():
            self.classes = None
            return
        for value, count in zip(*np.unique(values, return_counts=True)):
            self.classes[int(value)] = self.classes.get(int(value), 0) + int(count)
        if len(self.classes) > MOST_CLASSES:
            self.classes = None

    def _add_values(self, array: "np.ndarray") -> None:
        values = array.astype(np.float64)
        finite = np.isfinite(values)
        lost = values.size - int(np.count_nonzero(finite))
        if lost:
            nan = int(np.count_nonzero(np.isnan(values)))
            self.nan, self.infinite = self.nan + nan, self.infinite + lost - nan
            values = np.where(finite, values, np.nan)
        if lost < values.size:
            low, high = float(np.nanmin(values)), float(np.nanmax(values))
            self.low = low if self.low is None else min(low, self.low)
            self.high = high if self.high is None else max(high, self.high)
            self.whole = self.whole and (array.dtype.kind in "iub" or bool((values == np.floor(values))[finite].all()))
            self._moments.append(_moments(_by_channel(values)))


def _by_channel(values: "np.ndarray") -> "np.ndarray":
    """(channels, values); one channel for everything but images."""
    if values.ndim == 4:
        axis = 1 if values.shape[1] in (1, 3) else 3 if values.shape[3] in (1, 3) else None
        if axis is not None:
            return np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    return values.reshape(1, -1)


def _moments(values: "np.ndarray") -> "np.ndarray":
    """Counts, means and sums of squared deviations of each row, without NaN: shape (3, rows)."""
    valid = ~np.isnan(values)
    counts = valid.sum(axis=1)
    values = np.where(valid, values, 0)
    first = values[:, :1]  # subtracted, so that a constant's mean is exact and its deviation 0
    mean = first[:, 0] + np.where(valid, values - first, 0).sum(axis=1) / np.maximum(counts, 1)
    return np.stack([counts, mean, (np.where(valid, values - mean[:, None], 0) ** 2).sum(axis=1)])


def _combined(parts: Sequence["np.ndarray"]) -> Tuple[Tuple[float, ...], Tuple[float, ...]]:
    """Mean and standard deviation over all parts; over all channels together if their numbers differ."""
    if not parts:
        return (), ()
    if len({part.shape for part in parts}) > 1:
        parts = [part[:, [channel]] for part in parts for channel in range(part.shape[1])]
    counts, means, squares = np.stack(parts, axis=1)
    total = np.maximum(counts.sum(axis=0), 1)
    mean = means[0] + (counts * (means - means[0])).sum(axis=0) / total
    variance = (squares + counts * (means - mean) ** 2).sum(axis=0) / total
    return tuple(mean.tolist()), tuple(np.sqrt(variance).tolist())


def sample_hashes(arrays: Sequence["np.ndarray"]) -> List[int]:
    """A 64-bit hash for each sample of a batch, over the bytes of all inputs."""
    hosts = [np.ascontiguousarray(array) for array in arrays]
    samples = (b"".join(host[row].tobytes() for host in hosts) for row in range(len(hosts[0])))
    return [int.from_bytes(hashlib.blake2b(sample, digest_size=8).digest(), "little") for sample in samples]


def common(first: "np.ndarray", second: "np.ndarray") -> Tuple[int, List[Tuple[int, int]]]:
    """Count the values of `second` that are in `first`, and return the positions of the first few in both.

    >>> common(np.array([5, 7, 9]), np.array([9, 1, 5, 5]))
    (3, [(2, 0), (0, 2), (0, 3)])
    """
    values, places = np.unique(first, return_index=True)
    rows = np.flatnonzero(np.isin(second, values)).tolist()
    return len(rows), [(int(places[np.searchsorted(values, second[row])]), row) for row in rows[:5]]


# Warn if one class is more than this many times as frequent as another.
_IMBALANCE = 10
_MOST_LABELS = 5


# Texts for the warnings here, and for those of `fit` about the first batch.
SINGLE_SAMPLE = "a batch of one sample, of which BatchNorm without height and width makes zeros in training"


def cast_hint(dtype: str) -> str:
    scale = " / 255" if dtype == "uint8" else ""
    return f"cast it in the loader, x.astype('float32'){scale}, or use mxkit.data.ArrayLoader (T14)"


def channels_last(shape: Sequence[Any]) -> str:
    return f"images of shape ({', '.join(map(str, shape))}) look like NHWC"


def not_scaled(high: float) -> str:
    return f"images hold whole numbers up to {high:g}: divide by 255, or training mostly fails"


def warnings_of(parts: Sequence[Any], duplicates: Sequence[Any], classes: Optional[Sequence[str]]) -> List[str]:
    """Warnings about each part, and about pairs of parts.

    Args:
        parts: Of type `PartDescription`, the training part first.
        duplicates: Of type `Duplicates`.
        classes: Names of the class numbers, or None.
    """
    lines: List[str] = []
    for part in parts:
        first = part is parts[0]
        texts: List[Iterable[str]] = [_about_input(summary, part.raw) for summary in part.inputs]
        texts += [_about_labels(summary, classes, first) for summary in part.labels[:1]]
        lines += [f"{part.name}: {text}" for text in chain(*texts, _about_reading(part, test=not first))]
    for part in parts[1:]:
        lines += _about_pair(parts[0], part)
    for pair in duplicates:
        second = next(part for part in parts if part.name == pair.second)
        share = pair.samples / second.samples
        some = f"{pair.samples} samples of {pair.second} ({share:.2%}) are in {pair.first} too"
        every = f"every sample of {pair.second} is in {pair.first} too: the scores would be too good"
        lines.append(every if share == 1 else some)
    return lines


def _about_input(summary: ArraySummary, raw: bool) -> Iterator[str]:
    shape, low, high = summary.shape, summary.low, summary.high
    if summary.nan or summary.infinite:
        yield f"{summary.nan} values are NaN and {summary.infinite} infinite; a ReLU hides them from the loss (T25)"
    if low is not None and low == high:
        yield f"every value is {low:g}"
    if raw:
        return
    if "float64" in summary.dtypes:
        yield f"nets of float32 take no float64: {cast_hint('float64')}"
    if summary.dtypes == {"uint8"} and len(shape) == 3:
        yield f"nets of float32 take no uint8: {cast_hint('uint8')}"
    elif len(shape) == 3 and summary.whole and low is not None and high is not None and low >= 0 and high > 100:
        yield not_scaled(high)
    if len(shape) == 3 and shape[2] in (1, 3) and shape[0] not in (1, 3):
        yield f"{channels_last(('N', *shape))}, but nets read NCHW: x.transpose((0, 3, 1, 2)) (T13)"


def _about_labels(summary: ArraySummary, classes: Optional[Sequence[str]], first: bool) -> Iterator[str]:
    if summary.nan or summary.infinite:
        yield f"{summary.nan} labels are NaN and {summary.infinite} infinite"
    if summary.shape == (1,):
        yield "labels have shape (N, 1): against outputs of shape (N,) some losses make (N, N) of them (T11)"
    counts = summary.classes
    if counts is None:
        return
    if any(dtype.startswith("float") for dtype in summary.dtypes):
        yield f"labels are whole numbers of {'/'.join(sorted(summary.dtypes))}; class numbers are int32"
    if min(counts) < 0 or (classes is not None and max(counts) >= len(classes)):
        size = f"{len(classes)} classes" if classes is not None else "classes"
        yield f"labels go from {min(counts)} to {max(counts)} for {size} from 0 on; the loss would clip them (T10)"
        return
    if first:
        yield from _about_balance(counts, classes)


def _about_balance(counts: Dict[int, int], classes: Optional[Sequence[str]]) -> Iterator[str]:
    if len(counts) == 1:
        yield f"all labels are {next(iter(counts))}"
        return
    if min(counts) > 0 and classes is None:
        yield f"labels begin with {min(counts)}; class numbers begin with 0, or the net needs outputs for none (T10)"
    last = len(classes) - 1 if classes is not None else max(counts)
    if last > 100 * len(counts):
        return  # the labels are other numbers, such as identifiers
    missing = [label for label in range(0 if classes is not None else min(counts), last + 1) if label not in counts]
    if missing:
        yield f"classes {_first_labels(missing)} of 0 to {last} have no sample"
    rare, common = min(counts, key=lambda label: counts[label]), max(counts, key=lambda label: counts[label])
    if counts[common] > _IMBALANCE * counts[rare]:
        yield f"class {common} has {counts[common]} samples, class {rare} has {counts[rare]}: accuracy says little"


def _about_reading(part: Any, test: bool) -> Iterator[str]:
    source = source_of(part.data)
    if source.is_one_shot:
        yield f"a {part.kind} can be read only once, and `describe` read it; pass a function that makes one (T62)"
    if test and source.shuffles:
        yield "it shuffles: predictions would not be in the data's order, and scores need no order"
    if test and source.drops_last:
        yield "it leaves out the last short batch: scores are not of all samples"
    if not test and part.batches and part.batch_sizes[2] == 1 < part.batch_sizes[1] and part.whole:
        yield f"the last batch is {SINGLE_SAMPLE} (T18). Choose another batch_size, or drop_last"
    if part.repeated:
        yield f"{part.repeated} samples are there more than once"


def _about_pair(train: Any, part: Any) -> Iterator[str]:
    """Warnings about a part that differs from the training part, or is the same."""
    if source_of(train.data).origin is source_of(part.data).origin:
        yield f"{train.name} and {part.name} are the same data: the scores would be too good"
    if len(train.inputs) != len(part.inputs) or len(train.labels) != len(part.labels):
        yield f"{train.name} and {part.name} have different numbers of inputs or labels"
        return
    for one, other in zip(train.inputs, part.inputs):
        if len(one.shapes) == len(other.shapes) == 1 and one.shapes != other.shapes:
            yield f"samples have shape {one.shape} in {train.name}, {other.shape} in {part.name}"
        elif one.mean and len(one.mean) == len(other.mean):
            apart = max(abs(a - b) / (s or 1) for a, b, s in zip(one.mean, other.mean, one.std))
            if apart > 2:
                means = f"{one.mean[0]:.4g} in {train.name}, {other.mean[0]:.4g} in {part.name}"
                yield f"the mean is {means}, {apart:.1f} standard deviations apart: were both scaled alike?"
    if train.labels and train.labels[0].classes and part.labels[0].classes and train.whole:
        new = sorted(set(part.labels[0].classes) - set(train.labels[0].classes))
        if new:
            yield f"{part.name} has classes that {train.name} has not: {_first_labels(new)}"


def _first_labels(labels: Sequence[int]) -> str:
    more = len(labels) - _MOST_LABELS
    return f"{labels[:_MOST_LABELS]}" + f" and {more} more" * (more > 0)


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
            summaries += [ArraySummary() for _ in hosts[len(summaries) :]]
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
    return DataDescription(parts, _duplicates(list(parts.values())), classes)


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


def _order(part: PartDescription) -> "np.ndarray":
    """The number in the dataset of each sample that was read, if the loader has an `order`."""
    if hasattr(part.data, "order") and hasattr(part.data, "epoch"):
        return np.asarray(part.data.order(part.data.epoch))
    return np.arange(part.samples)


def _has_samples(part: Any) -> bool:
    x = part.x if isinstance(part, Split) else part
    return x is not None and (not hasattr(x, "__len__") or len(x) > 0)


def _duplicates(parts: Sequence[PartDescription]) -> List[Duplicates]:
    duplicates = []
    for first, second in combinations(parts, 2):
        samples, places = common(first.hashes, second.hashes)
        if samples:
            examples = [(int(_order(first)[i]), int(_order(second)[j])) for i, j in places]
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
    text = f"{' or '.join(shapes[:3] + ['others'] * (len(shapes) > 3))} {'/'.join(sorted(summary.dtypes))}"
    if summary.low is not None and summary.high is not None:
        text += f", {summary.low:.4g} to {summary.high:.4g}"
    if summary.classes is not None:
        counts = sorted(summary.classes.values())
        spread = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
        return f"{text}, {len(counts)} class{'es' if len(counts) > 1 else ''} of {spread} samples"
    mean, std = (", ".join(f"{value:.4g}" for value in values) for values in (summary.mean, summary.std))
    counted = ((summary.nan, "NaN"), (summary.infinite, "infinite"))
    lost = "".join(f", {count} {kind}" for count, kind in counted if count)
    return f"{text}, mean {mean}, std {std}{lost}"
