"""Features of a whole dataset, in memory or in files."""

from pathlib import Path
import re
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

from mxkit.core.blocks import net_devices
from mxkit.core.device import DeviceSpec, Shards, split_batch
from mxkit.core.device import devices as resolve_devices
from mxkit.core.forward_errors import explained
from mxkit.data.npy_file import GrowingArray
from mxkit.data.source import Data, read_epoch, shuffles, whole_part
from mxkit.errors import DataError
from mxkit.nets.features import Features, Names
from mxkit.training.unread import Queued
import mxnet as mx
from mxnet import autograd
import numpy as np
from tqdm import tqdm


def extract(
    net: Any,
    names: Names,
    data: Union[Data, Any],
    *,
    labels: Optional[str] = None,
    folder: Union[str, Path, None] = None,
    devices: Optional[DeviceSpec] = None,
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
        devices: An error tells if the net lives elsewhere. None accepts any.
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
    where = net_devices(net, None if devices is None else resolve_devices(devices))
    if labels is None and shuffles(data):
        raise DataError(
            "extract: the loader shuffles, so nobody could tell which row belongs to which sample. Pass shuffle=False, "
            "or labels='label' to get them in the same order"
        )
    data = whole_part(data, "extract", labels=labels is not None and isinstance(data, tuple))
    store = _Files(Path(folder)) if folder is not None else _Memory()
    queued = Queued()
    with store, autograd.pause(train_mode=False), explained(net):
        for shards, found in _features(features, data, where, labels, limit_batches, progress):
            store.add(queued.add(shards, found, [array for rows in found for array in rows.values()]))
        store.add(queued.rest())
        return store.finish()


def _features(
    features: Features,
    data: Data,
    where: List["mx.Context"],
    labels: Optional[str],
    limit_batches: Optional[int],
    progress: bool,
) -> Iterator[Tuple[Shards, List[Dict[str, Any]]]]:
    """Batches with the features of each shard, still on its device."""
    total = len(data) if hasattr(data, "__len__") else None  # type: ignore[arg-type]
    total = limit_batches if total is None or (limit_batches is not None and limit_batches < total) else total
    with tqdm(total=total, desc="features", unit=" batches", disable=None if progress else True, leave=False) as bar:
        for number, batch in enumerate(read_epoch(data, keep_count=True, once=True)):
            if number == limit_batches:
                break
            shards, rows = split_batch(batch if isinstance(batch, (list, tuple)) else (batch,), where), []
            for shard in shards:
                found = _flat(features(*shard.inputs))
                if labels is not None:
                    found.update(_labelled(labels, shard.labels, found))
                for name, array in found.items():
                    if array.shape[:1] != (shard.samples,):
                        raise DataError(
                            f"extract: {name!r} has shape {array.shape} for {shard.samples} samples: rows cannot be "
                            "told apart. Ask for a layer whose first axis is the batch"
                        )
                rows.append(found)
            yield shards, rows
            bar.update()


def _flat(found: Dict[str, Any], above: str = "") -> Dict[str, Any]:
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


def _each(batches: List[List[Dict[str, Any]]]) -> Iterator[Tuple[str, Any]]:
    """Features by name, of the shards of batches in their order."""
    return (pair for shards in batches for rows in shards for pair in rows.items())


def _host(array: Any) -> "np.ndarray":
    host: np.ndarray = array.asnumpy()
    # NumPy's files know no bfloat16, which is a type of another library
    return host if host.dtype.kind in "fiub" else host.astype(np.float32)


class _Memory:
    """Collects rows in memory."""

    def __init__(self) -> None:
        self._parts: Dict[str, List[np.ndarray]] = {}

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: Any) -> None:
        return None

    def add(self, batches: List[List[Dict[str, Any]]]) -> None:
        for name, array in _each(batches):
            self._parts.setdefault(name, []).append(_host(array))

    def finish(self) -> Dict[str, "np.ndarray"]:
        return {name: np.concatenate(self._parts.pop(name)) for name in list(self._parts)}


class _Files:
    """Appends rows to files, which get their names when all is done."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: Dict[str, GrowingArray] = {}
        self._paths: Dict[str, Path] = {}

    def __enter__(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)

    def __exit__(self, *error: Any) -> None:
        for file in self._files.values():
            file.close()

    def add(self, batches: List[List[Dict[str, Any]]]) -> None:
        for name, array in _each(batches):
            if name not in self._files:
                self._open(name)
            self._files[name].append(_host(array))

    def _open(self, name: str) -> None:
        path = self._folder / f"{re.sub(r'[^A-Za-z0-9._#=+-]', '_', name) or 'net'}.npy"
        # file systems that fold case are told apart by nothing but this
        other = next((known for known, taken in self._paths.items() if taken.name.lower() == path.name.lower()), None)
        if other is not None:
            raise ValueError(f"extract: {other!r} and {name!r} would both be {path.name}: give one of them an alias")
        self._paths[name] = path
        self._files[name] = GrowingArray(path)

    def finish(self) -> Dict[str, "np.ndarray"]:
        for file in self._files.values():
            file.seal()
        for file in self._files.values():
            file.publish()
        return {name: np.load(path, mmap_mode="r") for name, path in self._paths.items()}
