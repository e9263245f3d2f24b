"""A short digest of a dataset, computed from a few of its samples."""

import hashlib
from typing import Any, List, Optional

from mxkit.core.blocks import held_arrays, loader_parts, transformed
from mxkit.data.batching import narrow_dtype
from mxkit.data.order import EpochOrder
from mxkit.data.splits import Split
from mxnet import gluon
import numpy as np

# Number of samples that are read of an array, and of values of each sample.
_SAMPLES = 64
_VALUES = 1024


def fingerprint(data: Any) -> Optional[str]:
    """Digest of a loader's arrays: of their lengths, and of shapes, dtypes and some values of samples spread over them.

    At most 64 samples of an array are read, which is fast for files on disk too. The first and the last sample are not
    enough: the folds of a cross-validation share them.

    Args:
        data: A loader over arrays, or over gluon's ArrayDataset; or a `Split`.

    Returns:
        16 hexadecimal digits, the same in every process; None if the samples are not in arrays.

    >>> from mxkit.data import ArrayLoader
    >>> x, y = np.arange(12.0), np.arange(12)
    >>> fingerprint(ArrayLoader(x, y, 4)) == fingerprint(ArrayLoader(x.copy(), y, 3, shuffle=True))
    True
    >>> fingerprint(ArrayLoader(x, y, 4)) == fingerprint(ArrayLoader(x[::-1], y, 4))
    False
    """
    arrays = _arrays(data)
    if not arrays:
        return None
    digest = hashlib.sha256()
    for array in arrays:
        size = len(array)
        digest.update(f"{size};".encode())
        for row in np.unique(np.linspace(0, size - 1, min(size, _SAMPLES)).astype(np.int64)):
            sample = array[int(row)]
            host = np.asarray(sample.asnumpy() if hasattr(sample, "asnumpy") else sample)
            if host.dtype.kind not in "biuf":  # the bytes of Python objects differ from process to process
                return None
            start = max(0, (host.size - _VALUES) // 2)  # the middle, where pictures differ, in a page or two of a file
            values = host.reshape(-1)[start : start + _VALUES]
            dtype = narrow_dtype(host.dtype)  # so that a float64 file has the digest of its float32 copy in memory
            digest.update(f"{host.shape}{dtype.str};".encode() + values.astype(dtype).tobytes())
    return digest.hexdigest()[:16]


def _arrays(data: Any) -> List[Any]:
    loader = loader_parts(data)
    dataset = loader.dataset if loader else getattr(data, "dataset", None)
    lazy = transformed(dataset)
    while lazy:
        dataset = lazy[0]
        lazy = transformed(dataset)
    if isinstance(dataset, gluon.data.ArrayDataset):
        return held_arrays(dataset)
    if not isinstance(data, (EpochOrder, Split)):
        return []
    parts = [getattr(data, name, None) for name in ("x", "y", "sequences", "labels")]
    return [array for part in parts if part is not None for array in (part if isinstance(part, tuple) else (part,))]
