"""Losses as users pass them: a name, an object, or a `BatchLoss` with another call of the net or another divisor.

Every loss gives one value per sample; the loop divides by the true number of samples.
"""

from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple, Union

from mxkit.core.arguments import Plugged, make, split_spec
from mxkit.core.arrays import arrays_in, is_numpy, legacy, of_kind, switches
from mxkit.core.loss_meanings import is_plain
from mxkit.errors import DataError, LossShapeError, unknown_name
from mxkit.losses import gluon_losses, own_losses
from mxkit.losses.net_losses import NET_LOSSES, NetLoss
from mxkit.losses.per_sample import ClassWeight, ClassWeights, EitherKind, apply_steps, label_steps
from mxkit.runtime.gluon_layers import FASTER
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np

Loss = Callable[..., Any]
LossSpec = Union[str, Tuple[str, Mapping[str, Any]], Loss]
Arrays = Tuple[Any, ...]
Forward = Callable[[Any, Arrays, Arrays], Any]
Count = Callable[[Arrays, Arrays], float]

# Attributes that every block has, and types of a loss's settings.
_NO_SETTINGS = frozenset(vars(gluon.HybridBlock())) | {FASTER}
# Losses of Gluon with code for `mx.np`; the others compute on views.
_FOR_NUMPY = (
    gluon.loss.L1Loss,
    gluon.loss.L2Loss,
    gluon.loss.SigmoidBCELoss,
    gluon.loss.SoftmaxCrossEntropyLoss,
)
_SETTINGS = (bool, int, float, str, list, tuple, dict, ClassWeights, type(None))


def softmax_ce(
    axis: int = -1,
    sparse_label: bool = True,
    from_logits: bool = False,
    weight: Optional[float] = None,
    batch_axis: int = 0,
    class_weight: Optional[ClassWeight] = None,
) -> "gluon.loss.SoftmaxCrossEntropyLoss":
    """Gluon's softmax cross-entropy, or with `class_weight` mxkit's `WeightedSoftmaxCELoss`."""
    arguments = {"axis": axis, "sparse_label": sparse_label, "from_logits": from_logits, "weight": weight}
    if class_weight is None:
        return gluon_losses.SoftmaxCrossEntropyLoss(batch_axis=batch_axis, **arguments)
    return own_losses.WeightedSoftmaxCELoss(class_weight, batch_axis=batch_axis, **arguments)


def sigmoid_bce(
    from_sigmoid: bool = False,
    weight: Optional[float] = None,
    batch_axis: int = 0,
    class_weight: Optional[ClassWeight] = None,
    pos_weight: Union[None, float, Sequence[float]] = None,
) -> gluon_losses.SigmoidBCELoss:
    """`SigmoidBCELoss`; with weights for classes, `WeightedSigmoidBCELoss`."""
    if class_weight is None and pos_weight is None:
        return gluon_losses.SigmoidBCELoss(from_sigmoid, weight, batch_axis)
    arguments = {"from_sigmoid": from_sigmoid, "weight": weight, "batch_axis": batch_axis}
    return gluon_losses.WeightedSigmoidBCELoss(pos_weight, class_weight, **arguments)


LOSSES: Dict[str, Callable[..., Any]] = {
    "batch_hard_triplet": own_losses.TripletLoss,
    "contrastive": own_losses.ContrastiveLoss,
    "cosine_embedding": gluon_losses.CosineEmbeddingLoss,
    "ctc": gluon_losses.CTCLoss,
    "distillation": own_losses.KnowledgeDistillation,
    "focal": own_losses.FocalLoss,
    "hinge": gluon_losses.HingeLoss,
    "huber": gluon_losses.HuberLoss,
    "kl_div": gluon_losses.KLDivLoss,
    "l1": gluon_losses.L1Loss,
    "l2": gluon_losses.L2Loss,
    "label_smoothing": own_losses.LabelSmoothing,
    "logistic": gluon_losses.LogisticLoss,
    "poisson_nll": gluon_losses.PoissonNLLLoss,
    "sigmoid_bce": sigmoid_bce,
    "softmax_ce": softmax_ce,
    "squared_hinge": gluon_losses.SquaredHingeLoss,
    "triplet": gluon_losses.TripletLoss,
}
LOSSES = Plugged("mxkit.losses", LOSSES)


def get_loss(spec: LossSpec) -> Loss:
    """Return the loss of a name, or a loss unchanged.

    A loss by name takes arrays and symbols of `mx.nd` and of `mx.np`, and returns the kind of the net's output.

    Args:
        spec: A name of `LOSSES` or `NET_LOSSES`, a pair of a name and its arguments, or any callable
            `loss(output, *labels)` that gives shape (B,), which is returned unchanged.

    Raises:
        UnknownNameError: No loss has this name; the message lists all names and the closest ones.
        TypeError: `spec` has another form, is a class, has an argument that the loss does not take, or a `weight` that
            is no number.
        LossShapeError: The loss is Gluon's `PoissonNLLLoss`, which gives one mean per batch.
        ValueError: The sample axis of the loss is not 0.

    >>> get_loss(("huber", {"rho": 2.0}))
    HuberLoss(batch_axis=0, w=None)
    """
    spec, arguments = split_spec(spec)
    if isinstance(spec, str):
        if spec in NET_LOSSES:
            of_net: Any = make("loss", spec, NET_LOSSES[spec], arguments)
            return of_net  # type: ignore[no-any-return]
        if spec not in LOSSES:
            raise unknown_name("loss", spec, {**LOSSES, **NET_LOSSES})
        if isinstance(arguments.get("weight"), (list, tuple, dict)):
            raise TypeError(
                f"loss {spec!r}: weight is one number for all samples; received {arguments['weight']!r:.100}. A weight "
                "for each class is class_weight, which softmax_ce, focal, label_smoothing and sigmoid_bce take"
            )
        spec = make("loss", spec, LOSSES[spec], arguments)
    if isinstance(spec, type):
        raise TypeError(f"loss: expected an object; received the class {spec.__name__}: write {spec.__name__}()")
    if isinstance(spec, gluon.loss.Loss):
        _refuse_means(spec)
    if callable(spec) or isinstance(spec, NetLoss):
        return spec
    raise TypeError(f"loss: expected a name, (name, arguments) or a callable; received {spec!r}")


def _refuse_means(loss: Any) -> None:
    if type(loss) is gluon.loss.PoissonNLLLoss:
        raise LossShapeError(
            "PoissonNLLLoss gives one number per batch. It is a mean or a sum already, but a loss must give one value "
            "per sample: take loss='poisson_nll', which has the same arguments (T120)"
        )
    if loss._batch_axis != 0:
        argument = "label_layout='NT'" if isinstance(loss, gluon.loss.CTCLoss) else "batch_axis=0"
        raise ValueError(
            f"{type(loss).__name__}: axis 0 of every array of a batch is the sample axis, but the loss takes axis "
            f"{loss._batch_axis}. Make it with {argument}"
        )


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
        only_in_training: Whether the loss needs what the net gives in training alone; `evaluate` then computes metrics.
        moves: What the labels of a net of gluoncv are: "boxes", "mask" or "points"; None for other losses.
        least_count: The divisor of an update whose count is 0; 0 refuses such an update.
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
        made = None if loss is None else get_loss(loss)
        of_net = made if isinstance(made, NetLoss) else None
        if of_net is not None:
            forward, count = of_net.forward, count or (None if of_net.counts_images else of_net.count)
        # images without an object train a detector too; gluoncv divides by 1 where there is none
        self.least_count = 0.0 if of_net is None else 1.0
        self.moves = None if of_net is None else of_net.moves
        self.only_in_training = of_net is not None and of_net.only_in_training
        self.loss: Optional[Loss] = made if of_net is None else None
        self.by_name = loss is not None and self.loss is not loss
        registered = type(self.loss).__module__.partition(".")[0] not in ("mxkit", "mxnet")
        self.on_views = (self.by_name and not registered) or (is_plain(loss) and not isinstance(loss, _FOR_NUMPY))
        self.user_forward = forward
        self._count = count
        self.counts = count is not None
        form = _described(self.loss if forward is None else forward) if of_net is None else repr(of_net)
        self.description = form + (", with count" if count else "")

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
        # a loss by name prepares labels beside weights itself
        if not (isinstance(loss, EitherKind) and isinstance(scores, mx.nd.NDArray) and len(plain) > 1):
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
        if name not in _NO_SETTINGS and isinstance(value, _SETTINGS)
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
    raise LossShapeError(
        f"{caller} must return the losses as an NDArray of shape (B,), one per sample; received {losses!r:.100}"
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
