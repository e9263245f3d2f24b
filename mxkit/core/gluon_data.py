"""Reads the private attributes of Gluon's datasets and loaders: source, order and function."""

from typing import Any, List, NamedTuple, Optional, Tuple

from mxnet import gluon
from mxnet.gluon.data import vision
from mxnet.gluon.data.dataset import _FilteredDataset, _LazyTransformDataset, _SampledDataset, _TransformFirstClosure


class LoaderParts(NamedTuple):
    """Arguments of a DataLoader.

    Attributes:
        dataset: Its dataset.
        sampler: Yields the numbers of the samples; None for a batch sampler of another class.
        batch_size: None if it is unknown.
        last_batch: "keep", "discard" or "rollover".
        workers: Number of its worker processes or threads.
    """

    dataset: Any
    sampler: Any
    batch_size: Optional[int]
    last_batch: str
    workers: int


def loader_parts(data: Any) -> Optional[LoaderParts]:
    """Return the arguments of a gluon DataLoader, or None for another object."""
    batches = getattr(data, "_batch_sampler", None)
    if batches is None or not hasattr(data, "_dataset"):
        return None
    size, last = getattr(batches, "_batch_size", None), getattr(batches, "_last_batch", "keep")
    return LoaderParts(data._dataset, getattr(batches, "_sampler", None), size, last, getattr(data, "_num_workers", 0))


def transformed(dataset: Any) -> Optional[Tuple[Any, Any]]:
    """Return dataset and function of `dataset.transform(function)`, or None for another object."""
    return (dataset._data, dataset._fn) if type(dataset) is _LazyTransformDataset else None


def chosen(dataset: Any) -> Optional[Tuple[Any, List[int]]]:
    """Return the dataset and the numbers of the samples of a `sample`, `take`, `shard` or `filter`, or None."""
    return (dataset._dataset, dataset._indices) if type(dataset) in (_SampledDataset, _FilteredDataset) else None


def of_first(function: Any) -> Optional[Any]:
    """Return the function of `transform_first`, or None for a function of whole samples."""
    return function._fn if isinstance(function, _TransformFirstClosure) else None


def for_first(function: Any) -> Any:
    """Make a function of whole samples that changes the first array."""
    return _TransformFirstClosure(function)


def held_arrays(dataset: Any) -> List[Any]:
    """Return the arrays of an ArrayDataset, or the data of a SimpleDataset."""
    return list(dataset._data) if isinstance(dataset, gluon.data.ArrayDataset) else [dataset._data]


def own_transform(dataset: Any) -> Any:
    """Return the argument `transform` of one of Gluon's vision datasets."""
    return dataset._transform


def own_flag(dataset: Any) -> Any:
    """Return the argument `flag` of one of Gluon's datasets of encoded images."""
    return dataset._flag


def transform_options(transform: Any) -> Tuple[Any, ...]:
    """Return the arguments of a crop of Gluon, of Resize or of Normalize, in the order of their computation."""
    if type(transform) is vision.transforms.Normalize:
        return transform._mean, transform._std
    if type(transform) is vision.transforms.Resize:
        return transform._size, transform._keep, transform._interpolation
    return tuple(transform._args)
