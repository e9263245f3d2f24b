"""MXNet's one switch for training, taken apart: recording gradients, and how layers behave."""

from contextlib import contextmanager
from typing import Iterator, Optional

from mxnet import autograd


@contextmanager
def mode(*, record: Optional[bool] = None, train: Optional[bool] = None) -> Iterator[None]:
    """Set apart what MXNet's contexts join: whether gradients are recorded, and whether layers behave as in training.

    `autograd.record()` switches both on and `pause()` both off, unless told otherwise; here nothing changes but what
    is named. Blocks may be nested; the innermost decides, and each puts back what was.

    Args:
        record: Record for gradients, or not. None leaves it.
        train: Dropout drops and BatchNorm takes its statistics from the batch, or not. None leaves it.

    Returns:
        A context manager; what was before is put back at its end, also after an error.

    >>> with mode(record=True):  # a gradient through the net as it predicts
    ...     mx.autograd.is_recording(), mx.autograd.is_training()
    (True, False)
    """
    before = autograd.is_recording(), autograd.is_training()
    try:
        if record is not None:
            autograd.set_recording(record)
        if train is not None:
            autograd.set_training(train)
        yield
    finally:
        autograd.set_recording(before[0])
        autograd.set_training(before[1])
