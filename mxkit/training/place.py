"""The place of an error in a training."""

from functools import partial
from typing import Any, Callable, Optional

from mxkit.core.blocks import paths_of
from mxkit.core.device import describe_batch
from mxkit.core.forward_errors import explain_forward_error
from mxkit.errors import MxkitError, TrainingError, UnusedParameterError
from mxkit.gradients.custom import callback_error
from mxkit.gradients.functions import CUTS, UNREACHED
from mxkit.training.accumulator import Accumulator
from mxkit.training.ledger import numbers
import mxnet as mx
from mxnet import autograd


class Place:
    """Adds its place to an error: epoch, update, the batch's shapes and dtypes, and the block of the net.

    Args:
        net: The net that is trained.
        accumulator: Counts the updates.
        epoch: Number of the epoch from 0, or None if epochs are not counted.
        rerun: Repeats the forward pass of a batch, to locate an asynchronous error of MXNet.

    Attributes:
        batch: The current batch.
    """

    def __init__(
        self, net: Any, accumulator: Accumulator, epoch: Optional[int], rerun: Callable[[Any], object]
    ) -> None:
        self._net, self._accumulator, self._epoch, self._rerun = net, accumulator, epoch, rerun
        self.batch: Any = ()
        callback_error()  # discards an error from before this training

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Optional[BaseException], traceback: Any) -> None:
        if isinstance(error, Exception):
            self.explain(error)

    def explain(self, error: Exception) -> None:
        """Raise an error of the net, the loss or the engine with its place; the caller raises mxkit's own errors."""
        where = numbers(self._epoch, self._accumulator.updates + 1)
        if isinstance(error, UnusedParameterError):
            paths = paths_of(error.parameters, self._net)
            raise UnusedParameterError(paths, error.parameters, f"{where}: ") from error
        if not isinstance(error, MxkitError):
            text = self._text(error)
            cause = callback_error() if isinstance(error, mx.MXNetError) else None
            if cause is not None:  # MXNet's error does not name an exception in a Python callback
                text = f"{type(cause).__name__}: {cause} (in a custom gradient, of this update or one shortly before)"
            raise TrainingError(f"{where}, batch {describe_batch(self.batch)}: {text}") from (cause or error)

    def _text(self, error: Exception) -> str:
        with autograd.train_mode():
            located = explain_forward_error(self._net, error, partial(self._rerun, self.batch))
        if located:
            return str(located)
        kind, text = type(error).__name__, str(error)
        if UNREACHED[0] in text and not any(one.grad_req != "null" for one in self._net.collect_params().values()):
            return "all parameters of the net are frozen: nothing can be trained. Call mxkit.unfreeze(net)"
        if UNREACHED[0] in text:
            return f"the loss does not depend on the net's parameters by recorded operators. {CUTS}. {kind}: {text}"
        return text if text.startswith(f"{kind}:") else f"{kind}: {text}"
