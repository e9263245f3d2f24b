"""How the losses of a batch are computed and counted."""

from typing import Any, Callable, Optional, Tuple, Union

from mxkit.errors import DataError, LossShapeError
from mxkit.losses.by_name import Loss, LossSpec, get_loss
from mxkit.losses.shapes import apply_steps, label_steps
import mxnet as mx

Arrays = Tuple[Any, ...]
Forward = Callable[[Any, Arrays, Arrays], Any]
Count = Callable[[Arrays, Arrays], float]


class BatchLoss:
    """The losses of a batch, where `loss(net(*inputs), *labels)` or the number of samples is not enough.

    `fit`, `updates`, `evaluate` and `profile` take one as their `loss`.

    Args:
        loss: A name, a pair of a name and arguments, or a callable, as for `updates`.
        forward: In its place, for nets of several losses or of another way to be called (detection, siamese
            pairs): `forward(net, inputs, labels)` gets tuples of arrays on one device and returns the losses of shape
            (B,), or `(losses, output)` where metrics are to see an output.
        count: `count(inputs, labels)` states what a batch adds to the number that losses and gradients are divided
            by, where it is not the number of samples: the sum of sample weights, or of the tokens that a mask
            leaves. It gets tuples of the batch's arrays as the data gave them; from NumPy it waits for nothing.

    Attributes:
        loss: The loss, or None where there is `forward`.
        by_name: Whether the loss was given as a name.
        user_forward: `forward`, or None.
        counts: Whether something else than samples is counted.

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
        self.user_forward = forward
        self._count = count
        self.counts = count is not None

    def forward(self, net: Any, inputs: Arrays, labels: Arrays) -> Tuple[Any, Any]:
        """Return the net's output, None where there is none, and the losses."""
        if self.user_forward is not None:
            found = self.user_forward(net, inputs, labels)
            losses, output = found if isinstance(found, (tuple, list)) and len(found) == 2 else (found, None)
            return output, _arrays(losses, "BatchLoss: forward")
        output = net(*inputs)
        loss: Any = self.loss
        losses = loss(output, *apply_steps(label_steps(loss, output, labels), output, labels))
        return output, _arrays(losses, "the loss")

    def count(self, inputs: Arrays, labels: Arrays) -> Optional[float]:
        """What a batch adds to the divisor; None is its number of samples.

        Raises:
            DataError: `count` returned no number of at least 0.
        """
        return None if self._count is None else checked_count(self._count(inputs, labels))


def _arrays(losses: Any, who: str) -> Any:
    if isinstance(losses, mx.nd.NDArray):
        return losses
    way = ". Is a `return` missing?" if losses is None else ""
    raise LossShapeError(
        f"{who} must return the losses as an NDArray of shape (B,), one per sample; received {losses!r:.100}{way}"
    )


def checked_count(count: Any) -> float:
    """Return a stated count as a number; one on a device is waited for.

    Raises:
        DataError: It is negative, infinite or NaN.
    """
    try:
        value = float(count.asscalar() if isinstance(count, mx.nd.NDArray) else count)
    except (TypeError, ValueError):
        value = -1.0
    if not 0 <= value < float("inf"):
        raise DataError(f"count must give a number of at least 0; received {count!r:.100}")
    return value


BatchLossSpec = Union[LossSpec, BatchLoss]


def get_batch_loss(spec: Optional[BatchLossSpec]) -> BatchLoss:
    """Return the `BatchLoss` that `spec` means: one, or a loss as for `get_loss`.

    Raises:
        ValueError: `spec` is None.
    """
    if spec is None:
        raise ValueError(
            "pass loss=..., or loss=mxkit.losses.BatchLoss(forward=...) for a net that is called in its own way"
        )
    return spec if isinstance(spec, BatchLoss) else BatchLoss(spec)
