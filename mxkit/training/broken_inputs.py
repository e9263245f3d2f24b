"""Finds NaN and infinity in the batches of an update whose loss is not finite."""

from typing import Any, Iterable

from mxkit.core.arrays import to_host
from mxkit.core.device import unpack
import numpy as np


def describe_not_finite(batches: Iterable[Any], first: int) -> str:
    """Describe the first row with NaN or infinity, or return '' if there is none.

    Args:
        batches: Batches `(x, y)`, as for `updates`.
        first: Number of the first of them in its epoch, from 1.

    >>> describe_not_finite([(np.ones((2, 3)), np.ones(2)), (np.array([[0.0], [np.inf]]), np.ones(2))], 4)
    'The inputs of batch 5 hold NaN or infinity in row 1 (from 0): repair the data'
    """
    for number, batch in enumerate(batches, first):
        for name, arrays in zip(("inputs", "labels"), unpack(batch)):
            for values in map(to_host, arrays):
                if values.dtype.kind != "f" or not values.ndim:
                    continue
                rows = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))
                if rows.size:
                    more = f" and {rows.size - 1} more" if rows.size > 1 else ""
                    where = f"in row {rows[0]} (from 0){more}"
                    return f"The {name} of batch {number} hold NaN or infinity {where}: repair the data"
    return ""
