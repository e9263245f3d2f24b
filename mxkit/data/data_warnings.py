"""Warnings of likely mistakes in data that raise no error, one line each."""

from itertools import chain
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence

from mxkit.data.source import source_of
from mxkit.data.streaming_statistics import ArraySummary

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
        if pair.samples == second.samples:
            lines.append(f"every sample of {pair.second} is in {pair.first} too: the scores would be too good")
        else:
            share = pair.samples / second.samples
            lines.append(f"{pair.samples} samples of {pair.second} ({share:.2%}) are in {pair.first} too")
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
        yield (
            f"a {part.kind} can be read only once, and `describe` read it; pass a function that returns a new one (T62)"
        )
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
                yield (
                    f"the mean is {one.mean[0]:.4g} in {train.name}, {other.mean[0]:.4g} in {part.name}, "
                    f"{apart:.1f} standard deviations apart: were both scaled alike?"
                )
    if train.labels and train.labels[0].classes and part.labels[0].classes and train.whole:
        new = sorted(set(part.labels[0].classes) - set(train.labels[0].classes))
        if new:
            yield f"{part.name} has classes that {train.name} has not: {_first_labels(new)}"


def _first_labels(labels: Sequence[int]) -> str:
    return str(labels[:_MOST_LABELS]) + (
        f" and {len(labels) - _MOST_LABELS} more" if len(labels) > _MOST_LABELS else ""
    )
