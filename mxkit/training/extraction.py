"""Features of a whole dataset, in memory or in files."""

from contextlib import closing
from itertools import chain
from pathlib import Path
import re
from typing import Any, Dict, List, Optional, Tuple, Union

from mxkit.core.device import Shard
from mxkit.data.npy_file import GrowingArray
from mxkit.data.source import Data, whole_part
from mxkit.errors import DataError
from mxkit.nets.features import Features, Names
from mxkit.training.passes import run_over, samples_in_order
import numpy as np


def extract(
    net: Any,
    names: Names,
    data: Union[Data, Any],
    *,
    labels: Optional[str] = None,
    folder: Union[str, Path, None] = None,
    limit_batches: Optional[int] = None,
    progress: bool = True,
) -> Dict[str, "np.ndarray"]:
    """Compute features of every sample, in predict mode: the base of learning on a frozen net.

    Args:
        net: An initialized block. Batches are split over its devices.
        names: As for `Features`.
        data: An array of shape (N, ...), which is cut into batches of 256; or batches `x` or `(x, y)` from anything
            that `updates` reads.
        labels: Return the batches' `y` too, under this name. Then `data` may shuffle.
        folder: Write each feature to `FOLDER/NAME.npy` while it is computed, for more than memory holds; earlier files
            of these names are replaced at the end, all of them or none. None keeps them in memory.
        limit_batches: Read no more batches than this. None reads all.
        progress: Show a bar on a terminal.

    Returns:
        Name to array of shape (N, ...), samples in the order of `data`; float32 stays float32. With `folder` they are
        read from the files as they are used (`numpy.load(path, mmap_mode="r")`).

    Raises:
        EmptyDataError: `data` gave no batch.
        DataError: `data` shuffles, and nobody asked for the labels; or a layer's output does not have one row per
            sample.
        ValueError: Two names would be one file.

    >>> net = mxkit.models.mlp(hidden=[8]); mxkit.initialize(net)
    >>> x, y = np.zeros((5, 4), "float32"), np.arange(5)
    >>> found = extract(net, {"hidden": "1"}, mxkit.data.ArrayLoader(x, y, 2), labels="label")
    >>> {name: array.shape for name, array in found.items()}
    {'hidden': (5, 8), 'label': (5,)}
    """
    features = Features(net, names)
    if labels is None:
        data = samples_in_order(data, "extract", ", or labels='label' to get them in the same order", labels=False)
    else:
        data = whole_part(data, "extract", labels=isinstance(data, tuple))
    with closing(_Store(None if folder is None else Path(folder))) as store, run_over(
        net,
        data,
        forward=lambda shard: features(*shard.inputs),
        labels=labels is not None,
        limit_batches=limit_batches,
        bar="extract" if progress else None,
    ) as run:
        for shards in run:
            store.add(run.queue([_rows(features, shard, labels) for shard in shards]))
        store.add(run.rest())
        return store.finish()


def _rows(features: Features, shard: Shard, labels: Optional[str]) -> List[Tuple[str, Any]]:
    """Features of a shard by name, still on its device."""
    found = _flat(features(*shard.inputs))
    if labels is not None:
        found.update(_labelled(labels, shard.labels, found))
    for name, array in found.items():
        if array.shape[:1] != (shard.samples,):
            raise DataError(
                f"extract: {name!r} has shape {array.shape} for {shard.samples} samples: rows cannot be "
                "told apart. Ask for a layer whose first axis is the batch"
            )
    return list(found.items())


def _flat(found: Dict[str, Any]) -> Dict[str, Any]:
    """Several outputs of one layer as `name[0]`, `name[1]`."""
    flat: Dict[str, Any] = {}
    for name, value in found.items():
        if isinstance(value, (list, tuple)):
            flat.update(_flat({f"{name}[{number}]": one for number, one in enumerate(value) if one is not None}))
        else:
            flat[name] = value
    return flat


def _labelled(name: str, labels: Tuple[Any, ...], found: Dict[str, Any]) -> Dict[str, Any]:
    if not labels:
        raise DataError("extract: labels are asked for, but the batches are x alone; expected (x, y)")
    told = _flat({name: labels[0] if len(labels) == 1 else list(labels)})
    twice = sorted(set(told) & set(found))
    if twice:
        raise ValueError(f"extract: a feature is called {twice[0]!r} too; pass another name for the labels")
    return told


def _host(array: Any) -> "np.ndarray":
    host: np.ndarray = array.asnumpy()
    # NumPy's files have no bfloat16: that type belongs to another library
    return host if host.dtype.kind in "fiub" else host.astype(np.float32)


class _Store:
    """Rows by name: in memory, or in files that get their names at the end.

    Args:
        folder: Of the files. None stores in memory.
    """

    def __init__(self, folder: Optional[Path]) -> None:
        self._folder = folder
        self._parts: Dict[str, Any] = {}
        self._paths: Dict[str, Path] = {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def add(self, batches: List[List[List[Tuple[str, Any]]]]) -> None:
        """Append the rows of each batch's shards; waits for them."""
        for shards in batches:
            for name, array in chain(*shards):
                if name not in self._parts:
                    self._parts[name] = [] if self._folder is None else GrowingArray(self._path(name, self._folder))
                self._parts[name].append(_host(array))

    def _path(self, name: str, folder: Path) -> Path:
        path = folder / f"{re.sub(r'[^A-Za-z0-9._#=+-]', '_', name) or 'net'}.npy"
        # some file systems ignore the case of names
        other = next((known for known, taken in self._paths.items() if taken.name.lower() == path.name.lower()), None)
        if other is not None:
            raise ValueError(f"extract: {other!r} and {name!r} would both be {path.name}: give one of them an alias")
        self._paths[name] = path
        return path

    def finish(self) -> Dict[str, "np.ndarray"]:
        if self._folder is None:
            return {name: np.concatenate(self._parts.pop(name)) for name in list(self._parts)}
        for file in self._parts.values():
            file.seal()
        for file in self._parts.values():
            file.publish()
        return {name: np.load(path, mmap_mode="r") for name, path in self._paths.items()}

    def close(self) -> None:
        for name in self._paths:
            if name in self._parts:
                self._parts[name].close()
