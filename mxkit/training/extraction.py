"""Computes features of a whole dataset, in memory or in files."""

from contextlib import closing
from itertools import chain
from pathlib import Path
import re
from typing import Any, Dict, List, Optional, Tuple, Union

from mxkit.core.device import Shard
from mxkit.data.npy_file import GrowingArray
from mxkit.data.source import Data, whole_source
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
    """Compute features of every sample, in predict mode, for example to train a small net on them.

    Args:
        net: An initialized block. Batches are split over its devices.
        names: As for `Features`.
        data: An array of shape (N, ...), which is cut into batches of 256, images of uint8 divided by 255; or batches
            `x` or `(x, y)` from anything that `updates` reads.
        labels: Name for the batches' `y`, to return them too; then `data` may shuffle. None returns no labels.
        folder: Write each feature to `FOLDER/NAME.npy` as it is computed, if memory cannot hold it. Earlier files of
            these names are replaced at the end, all of them or none. None keeps the features in memory.
        limit_batches: Most batches to read. None reads all.
        progress: Show a bar on a terminal.

    Returns:
        Arrays of shape (N, ...) by name, samples in the order of `data`; float32 stays float32. With `folder` they are
        memory-mapped (`numpy.load(path, mmap_mode="r")`).

    Raises:
        EmptyDataError: `data` has no batch.
        DataError: `data` shuffles, and `labels` is None; or a layer's output does not have one row per sample.
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
        data = whole_source(data, "extract", labels=isinstance(data, tuple))
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
    rows = _flat(features(*shard.inputs))
    if labels is not None:
        if not shard.labels:
            raise DataError("extract: labels: expected batches (x, y); received x alone")
        named = _flat({labels: shard.labels[0] if len(shard.labels) == 1 else shard.labels})
        twice = sorted(set(named) & set(rows))
        if twice:
            raise ValueError(f"extract: a feature is called {twice[0]!r} too; pass another name for the labels")
        rows.update(named)
    for name, array in rows.items():
        if array.shape[:1] != (shard.samples,):
            raise DataError(
                f"extract: {name!r}: expected a row per sample, ({shard.samples}, ...); received shape {array.shape}. "
                "Choose a layer whose first axis is the batch"
            )
    return list(rows.items())


def _flat(values: Dict[str, Any]) -> Dict[str, Any]:
    """Several outputs of one layer as `name[0]`, `name[1]`."""
    flat: Dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, (list, tuple)):
            parts = {f"{name}[{number}]": part for number, part in enumerate(value) if part is not None}
            flat.update(_flat(parts))
        else:
            flat[name] = value
    return flat


def _host(array: Any) -> "np.ndarray":
    host: np.ndarray = array.asnumpy()
    # NumPy's files have no bfloat16
    return host if host.dtype.kind in "fiub" else host.astype(np.float32)


class _Store:
    """Rows by name: in memory (`folder` is None), or in files that get their final names at the end."""

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
        same = [other for other, taken in self._paths.items() if taken.name.lower() == path.name.lower()]
        if same:
            raise ValueError(f"extract: {same[0]!r} and {name!r} would both be {path.name}: give one of them an alias")
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
