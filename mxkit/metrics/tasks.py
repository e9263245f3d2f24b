"""Checks that labels suit a metric: class numbers, 0 and 1, or quantities of the outputs' shape."""

from typing import Any, Optional

from mxkit.core.arrays import Shape, squeezed
from mxkit.core.loss_meanings import CLASSES, Task
from mxkit.errors import DataError, LabelError
import numpy as np


def check_labels(name: str, task: Task, output: Shape, label: Any, ignore_label: Optional[float]) -> None:
    """Refuse labels of a first batch that are no class: they would count as wrong, or would not count."""
    host = label.asnumpy()
    host = host.astype(np.float64) if host.dtype.kind != "f" else host
    if ignore_label is not None:
        host = host[host != ignore_label]
    with np.errstate(invalid="ignore"):  # NumPy before 1.19 warns of comparing NaN
        if task.kind == CLASSES and not task.dense:
            classes = output[task.axis]
            right = (host >= 0) & (host < classes) & (host == np.floor(host))
            expected = f"whole numbers from 0 to {classes - 1}, because the net has {classes} outputs"
        elif task.kind == CLASSES:
            right, expected = host >= 0, "a value of at least 0 for each class"
        elif bool((host < 0).any()):
            right, expected = np.abs(host) == 1, "-1 and 1, or 0 and 1"
        else:
            right, expected = (host >= 0) & (host <= 1), "from 0 to 1, or -1 and 1"
    if not right.all():
        values = ", ".join(f"{value:g}" for value in sorted(set(host[~right].ravel().tolist()))[:5])
        raise LabelError(f"metric {name!r}: labels must be {expected}; received {values}")


def check_form(name: str, output: Any, label: Any) -> None:
    """Refuse labels of quantities that are not one value for each output: a reshape would pair the wrong values.

    Raises:
        DataError: The shapes differ by more than axes of length 1.
    """
    if squeezed(label.shape) != squeezed(output.shape):
        what = "one size" if label.size != output.size else "one shape"
        raise DataError(
            f"metric {name!r}: expected labels and outputs of {what}; received {label.shape} and {output.shape}"
        )
