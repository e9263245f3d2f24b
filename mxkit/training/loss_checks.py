"""What each loss wants of a net's outputs and of labels, checked on the first batch: Gluon computes with anything."""

from contextlib import contextmanager
from contextvars import ContextVar
import json
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence
import warnings

from mxkit.core.arrays import squeezed
from mxkit.core.device import Shard
from mxkit.core.tracing import trace
from mxkit.data.loader import ArrayLoader
from mxkit.errors import DataError, LossShapeError, TrapWarning
from mxkit.losses.by_name import Loss
from mxkit.losses.classification import KnowledgeDistillation
from mxkit.losses.distances import ContrastiveLoss, TripletLoss
from mxkit.losses.shapes import is_plain, needed_steps, refuse_labels, weight_place
import mxnet as mx
from mxnet import gluon
import numpy as np

# Labels of a whole epoch are looked at up to this size; beyond, those of the first batch.
LOOKED_BYTES = 2**28
# Deviation from 1 of a sum of probabilities, which float16 and bfloat16 round.
ROUNDED = 1e-2
# Outputs between 0 and 1 that are no accident, for a net that cannot be traced.
SEVERAL = 16
# Operators that leave a net's last activation what it is.
_PASSING = {
    "reshape",
    "flatten",
    "_copy",
    "identity",
    "squeeze",
    "expand_dims",
    "cast",
    "amp_cast",
    "transpose",
    "blockgrad",
}

_SIGNS = "Number the classes -1 and 1: 2 * y - 1"
_quiet: ContextVar[bool] = ContextVar("mxkit_quiet", default=False)


class Rule(NamedTuple):
    """What the values of labels must be.

    Attributes:
        expected: For the message, after "labels must be".
        right: Tells of each value of an array whether it is; of each row, where it returns fewer.
        way: What to do, a sentence.
        place: Of the array among the labels.
    """

    expected: str
    right: Callable[["np.ndarray"], "np.ndarray"]
    way: str
    place: int = 0


@contextmanager
def without_warnings() -> Iterator[None]:
    """Inside `with`, outputs are not warned of: a training does so once, and not for each validation."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


def check_loss_shape(losses: Any, samples: int) -> None:
    """Refuse a loss without one value per sample: the mean over true samples could not be formed (T4).

    Raises:
        LossShapeError: The loss of a batch of B samples has not the shape (B,).
    """
    shape = tuple(losses.shape)
    if shape == (samples,) or (shape[:1] == (samples,) and losses.size == samples):
        return
    if losses.size == 1:
        way = "It is a mean or a sum already: return the samples' own losses, without .mean() or .sum()"
    elif shape[:1] == (samples,):
        way = "Average over the other axes: losses.mean(axis=0, exclude=True)"
    else:
        way = "Labels of shape (n, 1) against outputs of shape (n,) broadcast like this: reshape one of them"
    raise LossShapeError(
        f"the loss must give one value per sample: expected shape ({samples},) for a batch of {samples} samples; "
        f"received {shape}. {way}"
    )


def warn_of_two_losses(output: Any, losses: Any) -> None:
    """Warn of a `forward_loss` that returns two losses, of which the second is taken for the output."""
    if isinstance(output, mx.nd.NDArray) and output.shape == losses.shape:
        _warn(
            f"forward_loss returned two arrays of shape {tuple(losses.shape)}: the first is the loss, and the second "
            "is taken for the net's output, which no metric reads. To train on both, return their sum"
        )


def check_first_batch(net: Any, shard: Shard, output: Any, loss: Optional[Loss], data: Any) -> None:
    """Check outputs, labels and weights of a first batch; waits for them.

    Args:
        net: Traced where its outputs look like those of a sigmoid.
        shard: The batch.
        output: What the net returned for it.
        loss: Gluon's and mxkit's are known; of a user's own nothing is expected.
        data: Where the batch comes from: an `ArrayLoader` has the labels of the whole epoch, all of which are checked.

    Raises:
        LabelError: A label means nothing to the loss.
        DataError: Weights are negative or not finite, or the loss cannot be computed of these outputs.
    """
    check_labels(loss, output, shard.labels, data)
    if not isinstance(loss, gluon.loss.Loss) or not is_plain(loss):
        return
    _check_weights(loss, output, shard.labels, data)
    check_scores(loss, output, shard.labels, net, shard)


def check_labels(loss: Optional[Loss], output: Any, labels: Sequence[Any], data: Any = None) -> None:
    """Refuse labels that a loss would compute with although they mean nothing to it (T10, T121).

    Raises:
        LabelError: There is such a label; the text names what is expected, and the way out.
    """
    if not isinstance(loss, gluon.loss.Loss) or not labels:
        return
    for rule in _rules(loss, output, labels):
        found = _values(data, labels, rule.place)
        if getattr(loss, "_sparse_label", False) and is_plain(loss):
            found = _weighed(loss, output, labels, data, found)
        refuse_labels(found, rule.expected, rule.right, rule.way)


def _weighed(loss: Any, output: Any, labels: Sequence[Any], data: Any, found: "np.ndarray") -> "np.ndarray":
    """Class numbers without those of the weight 0: the loss clips them, and counts nothing of it."""
    place = weight_place(loss, output)
    if place is None or len(labels) <= place:
        return found
    weights = _values(data, labels, place)
    if squeezed(weights.shape) == squeezed(found.shape):
        kept: np.ndarray = weights.reshape(found.shape) != 0
    elif weights.size == len(found):
        kept = weights.reshape(-1) != 0
    else:
        return found
    counted: np.ndarray = found[kept]
    return counted


def _values(data: Any, labels: Sequence[Any], place: int) -> "np.ndarray":
    """Labels of the whole epoch, where a loader hands over its arrays as they are; else those of the batch."""
    if type(data) is ArrayLoader and data.transform is None:
        arrays = data.y if isinstance(data.y, tuple) else (data.y,)
        found = arrays[place] if place < len(arrays) else None
        if isinstance(found, np.ndarray) and found.nbytes <= LOOKED_BYTES:
            return found
    array: np.ndarray = labels[place].asnumpy()
    return array


def _rules(loss: Any, output: Any, labels: Sequence[Any]) -> Iterator[Rule]:
    if isinstance(loss, gluon.loss.SoftmaxCrossEntropyLoss):
        if isinstance(output, mx.nd.NDArray):  # several outputs: which of them the loss reads, it does not tell
            yield from _rules_of_classes(loss, output)
        return
    if not is_plain(loss):
        return
    name = type(loss).__name__
    if isinstance(loss, (gluon.loss.HingeLoss, gluon.loss.SquaredHingeLoss)):
        yield Rule("-1 or 1", _is_sign, f"{name} trains nothing for a label of 0. {_SIGNS} (T121)")
    elif isinstance(loss, gluon.loss.LogisticLoss) and loss._label_format == "signed":
        way = f"{name} takes 0 for half of a class. {_SIGNS}, or pass label_format='binary' (T121)"
        yield Rule("-1 or 1", _is_sign, way)
    elif isinstance(loss, (gluon.loss.SigmoidBCELoss, gluon.loss.LogisticLoss)):
        way = (
            f"{name} falls without end for others. Class numbers need the loss 'softmax_ce', or a column of 0 and 1 "
            "for each class; divide bytes by 255, and make (y + 1) / 2 of labels -1 and 1 (T121)"
        )
        yield Rule("from 0 to 1", _is_share, way)
    elif isinstance(loss, (gluon.loss.L1Loss, gluon.loss.L2Loss, gluon.loss.HuberLoss)):
        yield Rule("finite numbers", np.isfinite, "Leave such samples out, or give them the weight 0 and another label")
    elif isinstance(loss, gluon.loss.PoissonNLLLoss):
        way = f"{name} is for counts; for other numbers take 'l2' or 'huber' (T121)"
        yield Rule("finite numbers of at least 0", lambda found: np.isfinite(found) & (found >= 0), way)
    elif isinstance(loss, gluon.loss.KLDivLoss):
        way = f"{name} takes a probability for each output; class numbers need 'softmax_ce' (T121)"
        yield Rule("distributions, at least 0 with the sum 1", _distributions(_axes_of(output)), way)
    elif isinstance(loss, gluon.loss.CTCLoss):
        yield from _rules_of_sequences(loss, output, labels)
    elif isinstance(loss, gluon.loss.CosineEmbeddingLoss):
        way = f"{name} takes 1 for a pair of one class and -1 for others; a label of 0 trains nothing (T121)"
        yield Rule("-1 or 1", _is_sign, way, place=1)
    elif isinstance(loss, KnowledgeDistillation):
        yield Rule("finite teacher's scores", np.isfinite, "Look at what the teacher predicts")
        way = "Number the classes from 0; a batch is (x, (teacher's scores, y)) (T10)"
        yield _class_rule(output.shape[-1], way, place=1)
    elif isinstance(loss, ContrastiveLoss):
        way = f"{name} takes a number above 0 for a pair of one class; class numbers become pairs in PairLoader (T121)"
        yield Rule("1 for a pair of one class, and 0 or -1 for others", lambda one: _is_sign(one) | (one == 0), way)
    elif isinstance(loss, TripletLoss) and not isinstance(output, (list, tuple)):
        yield Rule("class numbers, which are whole", _is_whole, f"{name} compares them (T121)")
    elif isinstance(loss, gluon.loss.TripletLoss):
        for place in range(len(labels)):
            yield Rule("finite embeddings", np.isfinite, "Look at what computes them", place)


def _rules_of_classes(loss: Any, output: Any) -> Iterator[Rule]:
    axis = loss._axis % output.ndim
    if loss._sparse_label:
        way = (
            "SoftmaxCrossEntropyLoss would clip them in silence; number the classes from 0, or give the net more "
            "outputs. Padding may have any label where its weight is 0"
        )
        yield _class_rule(output.shape[axis], way)
    elif is_plain(loss):
        way = "Divide each row by its sum; a sample counts less by a weight, not by its label (T121)"
        yield Rule("distributions, at least 0 with the sum 1", _distributions([axis]), way)


def _class_rule(classes: int, way: str, place: int = 0) -> Rule:
    expected = f"whole numbers from 0 to {classes - 1}, because the net has {classes} outputs"
    return Rule(expected, lambda found: _is_whole(found) & (found >= 0) & (found < classes), way, place)


def _rules_of_sequences(loss: Any, output: Any, labels: Sequence[Any]) -> Iterator[Rule]:
    """CTC: labels below the blank, which is the last class; -1 after them; no row that the steps are too few for."""
    steps, classes = output.shape[1 if loss._layout == "NTC" else 0], output.shape[2]
    ranged = f"whole numbers from 0 to {classes - 2}, or -1 for padding, because class {classes - 1} is the blank"
    yield Rule(
        ranged, lambda one: _is_whole(one) & (one >= -1) & (one < classes - 1), "Number the symbols from 0 (T121)"
    )
    if len(labels) > 1:  # lengths are looked at with each batch
        return
    yield Rule(
        "followed by padding alone, -1, and at least one a row",
        lambda one: (one[:, 0] >= 0) & ((one[:, 1:] < 0) | (one[:, :-1] >= 0)).all(axis=1),
        "MXNet drops what comes after the first -1, and computes a loss of nothing for an empty row (T121)",
    )
    yield Rule(
        f"short enough for {steps} steps: one for each label, and one between two equal labels",
        lambda one: needed_steps(one) <= steps,
        "MXNet gives such a row the loss 0, and trains nothing. Give the net more steps, or leave the row out (T121)",
    )


def _is_whole(found: "np.ndarray") -> "np.ndarray":
    whole: np.ndarray = np.isfinite(found) & (found == np.floor(found))
    return whole


def _is_sign(found: "np.ndarray") -> "np.ndarray":
    sign: np.ndarray = (found == 1) | (found == -1)
    return sign


def _is_share(found: "np.ndarray") -> "np.ndarray":
    share: np.ndarray = (found >= 0) & (found <= 1)
    return share


def _distributions(axes: Sequence[int]) -> Callable[["np.ndarray"], "np.ndarray"]:
    """Tells of each row along one of the axes whether it is a distribution; along the one where most are."""

    def right(found: "np.ndarray") -> "np.ndarray":
        tried = [
            ((found >= 0).all(axis=axis) & (abs(found.sum(axis=axis, dtype="float64") - 1) <= ROUNDED))
            for axis in axes
            if axis < found.ndim
        ]
        best: np.ndarray = max(tried, key=lambda one: one.mean())
        return best

    return right


def _axes_of(output: Any) -> Sequence[int]:
    return range(output.ndim - 1, 0, -1)


def _check_weights(loss: Any, output: Any, labels: Sequence[Any], data: Any) -> None:
    place = weight_place(loss, output)
    if place is None or len(labels) <= place:
        return
    found = _values(data, labels, place)
    with np.errstate(invalid="ignore"):
        wrong = found[~(np.isfinite(found) & (found >= 0))]
    if wrong.size:
        raise DataError(
            f"sample weights must be finite numbers of at least 0; received "
            f"{', '.join(str(value) for value in sorted(set(wrong.ravel().tolist()))[:5])} in {wrong.size} of "
            f"{found.size} weights. What comes after the labels in (x, (y, w)) is a weight; for factors with a sign "
            "write a loss of your own"
        )


def check_scores(loss: Any, output: Any, labels: Sequence[Any], net: Any, shard: Shard) -> None:
    """Refuse outputs of which a loss cannot be computed; warn of an activation that is applied twice (T12).

    Raises:
        DataError: The loss takes probabilities, or their logarithms, and the outputs are none.
    """
    if not isinstance(output, mx.nd.NDArray):
        return
    if isinstance(loss, gluon.loss.SoftmaxCrossEntropyLoss):
        _check_softmax(loss, output, net, shard)
    elif isinstance(loss, gluon.loss.KLDivLoss):
        _check_divergence(loss, output)
    elif isinstance(loss, gluon.loss.CTCLoss) and _is_softmax(output, 2):
        _warn_of_softmax("CTCLoss")
    elif isinstance(loss, KnowledgeDistillation):
        for what, scores in (("the net's outputs", output), ("the teacher's scores", labels[0])):
            if _is_softmax(scores, 1):
                _warn_of_softmax("KnowledgeDistillation", what)
    elif isinstance(loss, (gluon.loss.SigmoidBCELoss, gluon.loss.LogisticLoss)):
        _check_sigmoid(loss, output, net, shard)
    elif isinstance(loss, gluon.loss.PoissonNLLLoss) and not loss._from_logits and _least(output) < 0:
        raise DataError(
            f"{type(loss).__name__}(from_logits=False) takes expected counts, and the net's outputs go down to "
            f"{_least(output):.4g}, whose logarithm is NaN. Leave from_logits out, or end the net in softrelu (T121)"
        )
    elif isinstance(loss, TripletLoss) and labels:
        _, counts = np.unique(labels[0].asnumpy(), return_counts=True)
        if len(counts) < 2 or counts.max() < 2:
            _warn(
                f"{type(loss).__name__} finds no triplet in a batch of {output.shape[0]} samples of {len(counts)} "
                "classes: every loss is 0 and nothing is trained. Batches need two samples of a class, and two classes"
            )


def _check_softmax(loss: Any, output: Any, net: Any, shard: Shard) -> None:
    axis = loss._axis % output.ndim
    if output.shape[axis] < 2:
        return
    least = 0.0 if loss._from_logits else _least(output)  # of most nets it is below 0, which settles it in one wait
    if not loss._from_logits and least >= 0 and _is_softmax(output, axis):
        _warn_of_softmax("SoftmaxCrossEntropyLoss")
    elif least > 0 and _last_operator(net, shard.unpacked().inputs) == "sigmoid":
        _warn(
            "the net ends in a sigmoid, and SoftmaxCrossEntropyLoss applies a softmax to its outputs, which are then "
            "nearly equal. Take the sigmoid out of the net, or take the loss 'sigmoid_bce' for several labels (T12)"
        )
    if loss._from_logits and not _is_log_softmax(output, axis, 1e-4):
        _warn(
            "SoftmaxCrossEntropyLoss(from_logits=True) expects log-probabilities, the net's outputs are none: leave "
            "from_logits out, or end the net in log_softmax (T12)"
        )


def _check_divergence(loss: Any, output: Any) -> None:
    if not loss._from_logits:
        if _is_softmax(output, loss._axis % output.ndim):
            _warn_of_softmax("KLDivLoss")
    elif not any(_is_log_softmax(output, axis, ROUNDED) for axis in _axes_of(output)):
        raise DataError(
            "KLDivLoss takes log-probabilities, and the net's outputs are none: the loss would fall without end. End "
            "the net in log_softmax, or pass ('kl_div', {'from_logits': False}) (T121)"
        )


def _check_sigmoid(loss: Any, output: Any, net: Any, shard: Shard) -> None:
    values = output.asnumpy()
    with np.errstate(invalid="ignore"):
        outside = bool(((values < 0) | (values > 1)).any())
        inside = bool(((values > 0) & (values < 1)).all())
    if getattr(loss, "_from_sigmoid", False):
        if outside:
            raise DataError(
                f"{type(loss).__name__}(from_sigmoid=True) takes probabilities, and the net's outputs go from "
                f"{np.nanmin(values):.4g} to {np.nanmax(values):.4g}. Leave from_sigmoid out, or end the net in a "
                "sigmoid (T121)"
            )
        return
    if outside or np.isnan(values).any():
        return
    last = _last_operator(net, shard.unpacked().inputs)
    if last == "sigmoid" or (last is None and inside and values.size >= SEVERAL):
        _warn(
            f"the net's outputs are probabilities, and {type(loss).__name__} applies a sigmoid to them again. Take the "
            "sigmoid out of the net; predict gives scores, of which .sigmoid() makes probabilities (T12)"
        )


def _last_operator(net: Any, inputs: Sequence[Any]) -> Optional[str]:
    """Lower-case name of the operator or activation that gives a net's one output; None where nobody can tell."""
    if not isinstance(net, gluon.HybridBlock):
        return None
    try:
        outputs = trace(net, inputs).outputs
        graph = json.loads(outputs[0].tojson())
    except Exception:  # of any kind: the net's own code met a symbol
        return None
    node = graph["nodes"][graph["heads"][0][0]]
    while node["op"].lower() in _PASSING:
        node = graph["nodes"][node["inputs"][0][0]]
    op = node["op"].lower()
    return str(node.get("attrs", {}).get("act_type", op)) if op in ("activation", "leakyrelu") else str(op)


def _is_softmax(output: Any, axis: int) -> bool:
    scores = output.astype("float32", copy=False)
    if scores.shape[axis] < 2:
        return False
    sums = scores.sum(axis=axis).asnumpy()
    return bool(np.allclose(sums, 1, atol=1e-4)) and _least(scores) >= 0


def _is_log_softmax(output: Any, axis: int, tolerance: float) -> bool:
    return bool(np.allclose(output.astype("float32", copy=False).exp().sum(axis=axis).asnumpy(), 1, atol=tolerance))


def _least(array: Any) -> float:
    return float(array.min().asscalar())


def _warn_of_softmax(loss: str, what: str = "the net's outputs") -> None:
    _warn(
        f"{what} are probabilities, and {loss} applies a softmax to them again. Take the softmax out of the net "
        "(of a Module's by load_exported(..., scores=True)); predict gives scores, of which .softmax() makes "
        "probabilities (T12)"
    )


def _warn(text: str) -> None:
    if not _quiet.get():
        # of the line that called `fit`, as far as one can say: the loop is a generator
        warnings.warn(text, TrapWarning, stacklevel=6)
