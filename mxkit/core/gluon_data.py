"""Gluon's datasets and loaders taken apart: what they read, in which order, through which function."""

from typing import Any, NamedTuple, Optional

from mxnet import gluon


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
    if not isinstance(data, gluon.data.DataLoader):
        return None
    batches = data._batch_sampler
    size, last = getattr(batches, "_batch_size", None), getattr(batches, "_last_batch", "keep")
    return LoaderParts(data._dataset, getattr(batches, "_sampler", None), size, last)
