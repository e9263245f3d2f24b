"""Gluon's datasets and loaders taken apart: what they read, in which order, through which function."""

from typing import Any, List, NamedTuple, Optional, Tuple

from mxnet import gluon
from mxnet.gluon.data.dataset import _FilteredDataset, _LazyTransformDataset, _SampledDataset, _TransformFirstClosure


class LoaderParts(NamedTuple):
    """What a DataLoader was made with.

    Attributes:
        dataset: What it reads.
        sampler: Numbers of samples in their order; None where the user gave a batch sampler of another class.
        batch_size: None where that is not known.
        last_batch: "keep", "discard" or "rollover".
    """

    dataset: Any
    sampler: Any
    batch_size: Optional[int]
    last_batch: str


def loader_parts(data: Any) -> Optional[LoaderParts]:
    """Take a gluon DataLoader apart; None of anything else."""
    batches = getattr(data, "_batch_sampler", None)
    if batches is None or not hasattr(data, "_dataset"):
        return None
    size, last = getattr(batches, "_batch_size", None), getattr(batches, "_last_batch", "keep")
    return LoaderParts(data._dataset, getattr(batches, "_sampler", None), size, last)


def transformed(dataset: Any) -> Optional[Tuple[Any, Any]]:
    """What `dataset.transform(function)` was made of: the dataset and the function; None of anything else."""
    return (dataset._data, dataset._fn) if type(dataset) is _LazyTransformDataset else None


def chosen(dataset: Any) -> Optional[Tuple[Any, List[int]]]:
    """What `dataset.sample`, `take`, `shard` and `filter` were made of: the dataset, the numbers of their samples."""
    return (dataset._dataset, dataset._indices) if type(dataset) in (_SampledDataset, _FilteredDataset) else None


def of_first(function: Any) -> Optional[Any]:
    """The function that `transform_first` was called with; None of one that gets the whole sample."""
    return function._fn if isinstance(function, _TransformFirstClosure) else None


def for_first(function: Any) -> Any:
    """A function of whole samples that changes their first array."""
    return _TransformFirstClosure(function)


def held_arrays(dataset: Any) -> List[Any]:
    """Arrays of an ArrayDataset, or what a SimpleDataset reads."""
    return list(dataset._data) if isinstance(dataset, gluon.data.ArrayDataset) else [dataset._data]


def own_transform(dataset: Any) -> Any:
    """The function that one of Gluon's vision datasets was made with, or None."""
    return dataset._transform
