"""The losses of a batch, and their divisor."""

from typing import Any, Callable, Optional, Tuple, Union

from mxkit.core.arguments import make, split_spec
from mxkit.core.arrays import arrays_in, is_numpy, legacy, of_kind, switches
from mxkit.core.loss_kinds import is_plain
from mxkit.errors import DataError, LossShapeError
from mxkit.losses.named_losses import LOSSES, Loss, LossSpec, get_loss
from mxkit.losses.per_sample import ClassWeights
from mxkit.losses.shapes import apply_steps, label_steps
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np

Arrays = Tuple[Any, ...]
Forward = Callable[[Any, Arrays, Arrays], Any]
Count = Callable[[Arrays, Arrays], float]

# Attributes that every block has, and types of a loss's settings.
_BLOCK = frozenset(vars(gluon.HybridBlock()))
# Losses of Gluon with code for `mx.np`; the others compute on views.
_FOR_NUMPY = (
    gluon.loss.L1Loss,
    gluon.loss.L2Loss,
    gluon.loss.SigmoidBCELoss,
    gluon.loss.SoftmaxCrossEntropyLoss,
)
_SETTINGS = (bool, int, float, str, list, tuple, dict, ClassWeights, type(None))


class BatchLoss:
    """The losses of a batch that need more than `loss(net(*inputs), *labels)`, or another divisor than the samples.

    `fit`, `updates`, `evaluate` and `profile` take one as their `loss`.

    Args:
        loss: A name, a pair of a name and arguments, or a callable, as for `updates`.
        forward: Replaces `loss` for nets with several losses or another kind of call (detection, siamese
            pairs): `forward(net, inputs, labels)` gets tuples of arrays of the net's kind on one device and returns the
            losses of shape (B,), or `(losses, output)` if metrics need an output.
        count: `count(inputs, labels)` returns what a batch adds to the divisor of losses and gradients, if this is not
            the number of samples: the sum of sample weights, or the number of unmasked tokens. It gets tuples of the
            batch's arrays, before they are copied to a device; NumPy arrays need no wait.

    Attributes:
        loss: The loss, or None with `forward`.
        by_name: Whether the loss is a name.
        on_views: Whether it computes on NDArrays for nets of `mx.np` too: losses of MXNet and mxkit, not a user's.
        user_forward: `forward`, or None.
        counts: Whether there is a `count`.
        description: The loss and its settings as text, for checkpoints.

    Raises:
        ValueError: Both `loss` and `forward` are given, or neither.
        UnknownNameError: No loss has this name.

    >>> mean_of_tokens = mxkit.losses.BatchLoss("softmax_ce", count=lambda inputs, labels: int((labels[0] >= 0).sum()))
    >>> mean_of_tokens.count((), (np.array([[2, 1, -1], [0, -1, -1]]),))
    3.0
    """

    def __init__(
        self, loss: Optional[LossSpec] = None, *, forward: Optional[Forward] = None, count: Optional[Count] = None
    ) -> None:
        if (loss is None) == (forward is None):
            received = "both" if loss is not None else "neither"
            raise ValueError(f"BatchLoss: expected loss or forward=function(net, inputs, labels); received {received}")
        for name, function in (("forward", forward), ("count", count)):
            if function is not None and not callable(function):
                raise TypeError(f"BatchLoss: {name}: expected a function; received {function!r:.100}")
        self.loss: Optional[Loss] = None if loss is None else get_loss(loss)
        self.by_name = loss is not None and self.loss is not loss
        registered = type(self.loss).__module__.partition(".")[0] not in ("mxkit", "mxnet")
        self.on_views = (self.by_name and not registered) or (is_plain(loss) and not isinstance(loss, _FOR_NUMPY))
        self.user_forward = forward
        self._count = count
        self.counts = count is not None
        self.description = _described(self.loss if forward is None else forward) + (", with count" if count else "")

    def forward(self, net: Any, inputs: Arrays, labels: Arrays) -> Tuple[Any, Any]:
        """Return the net's output, or None if `forward` returns none, and the losses as an NDArray.

        The kind of the inputs decides the kind of the output and of what users' functions get.
        """
        numpy = is_numpy(inputs)
        with switches(numpy):
            if self.user_forward is not None:
                result = self.user_forward(net, inputs, labels)
                losses, output = result if isinstance(result, (tuple, list)) and len(result) == 2 else (result, None)
                return output, _checked(losses, "BatchLoss: forward")
            output = net(*inputs)
        loss: Any = self.loss
        scores, plain = legacy(output), legacy(labels)
        plain = apply_steps(label_steps(loss, scores, plain), scores, plain)
        users = numpy and not self.on_views
        with switches(users):
            losses = loss(output, *of_kind(plain, True)) if users else loss(scores, *plain)
        return output, _checked(losses, "the loss")

    def count(self, inputs: Arrays, labels: Arrays) -> Optional[float]:
        """Return what a batch adds to the divisor; None is its number of samples.

        Raises:
            DataError: `count` returned no number of at least 0.
        """
        if self._count is None:
            return None
        arrays = arrays_in((inputs, labels))
        with switches(is_numpy(arrays) if arrays else mx.util.is_np_array()):
            return checked_count(self._count(inputs, labels))


def _described(form: Any) -> str:
    """A loss and its settings as text; of a function only its name."""
    if not isinstance(form, gluon.Block):
        return str(getattr(form, "__qualname__", type(form).__name__))
    settings = [
        f"{name.strip('_')}={value!r:.200}"
        for name, value in vars(form).items()
        if name not in _BLOCK and isinstance(value, _SETTINGS)
    ]
    return f"{type(form).__name__}({', '.join(settings)})"


def _checked(losses: Any, caller: str) -> Any:
    if isinstance(losses, mx.nd.NDArray):
        if np.dtype(losses.dtype).kind in "bui" and autograd.is_recording():
            raise LossShapeError(
                f"{caller} returned {np.dtype(losses.dtype)}: comparisons and whole numbers have no gradient and "
                "train nothing. Return losses of floating point; measure others by mxkit.metrics.Mean(function)"
            )
        return legacy(losses)
    way = ". Is a `return` missing?" if losses is None else ""
    raise LossShapeError(
        f"{caller} must return the losses as an NDArray of shape (B,), one per sample; received {losses!r:.100}{way}"
    )


def checked_count(count: Any) -> float:
    """Return a count as a number; wait for it if it is an NDArray.

    Raises:
        DataError: It is negative, infinite or NaN.
    """
    try:
        value = float(count.asnumpy().item() if isinstance(count, mx.nd.NDArray) else count)
    except (TypeError, ValueError):
        value = -1.0
    if not 0 <= value < float("inf"):
        raise DataError(f"count must give a number of at least 0; received {count!r:.100}")
    return value


BatchLossSpec = Union[LossSpec, BatchLoss]


def get_batch_loss(spec: Optional[BatchLossSpec]) -> BatchLoss:
    """Return the `BatchLoss` of a loss as for `get_loss`, or a `BatchLoss` unchanged.

    The function of a registered name may return either.

    Raises:
        ValueError: `spec` is None.
    """
    if spec is None:
        raise ValueError(
            "pass loss=..., or loss=mxkit.losses.BatchLoss(forward=...) for a net with another kind of call"
        )
    if isinstance(spec, BatchLoss):
        return spec
    name, arguments = split_spec(spec)
    maker = LOSSES.get(name) if isinstance(name, str) else None
    if maker is not None and not maker.__module__.startswith("mxkit."):
        made = make("loss", name, maker, arguments)
        if isinstance(made, BatchLoss):
            return made
    return BatchLoss(spec)
