"""Sets MXNet's two modes separately: recording of gradients, and behaviour of layers in training."""

from contextlib import contextmanager
from typing import Iterator, Optional

from mxnet import autograd


@contextmanager
def mode(*, record: Optional[bool] = None, train: Optional[bool] = None) -> Iterator[None]:
    """Set separately whether gradients are recorded, and whether layers behave as in training.

    By default, `autograd.record()` switches both on and `pause()` both off; this function changes only the modes that
    you name. Blocks may be nested: the innermost decides, and each restores the earlier modes.

    Args:
        record: Whether gradients are recorded. None does not change it.
        train: Whether dropout drops and BatchNorm uses the batch's statistics. None does not change it.

    Returns:
        A context manager that restores the earlier modes at its end, also after an error.

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
