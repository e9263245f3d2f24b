"""What Gluon accepts in silence and gets wrong, checked once, on the first batch."""

import os
from typing import Any, Callable, Sequence

from mxkit.device import Shard
from mxkit.errors import LabelError, LossShapeError
import mxnet as mx
from mxnet import gluon
import numpy as np


def check_loss_shape(losses: Any, samples: int) -> None:
    """Refuse a loss without one value per sample: the mean over true samples could not be formed (T4).

    Raises:
        LossShapeError: The loss of a batch of B samples has not the shape (B,).
    """
    shape = tuple(losses.shape)
    if shape[:1] == (samples,) and losses.size == samples:
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


def check_labels(loss: Callable[..., Any], output: Any, labels: Sequence[Any], all_labels: Any = None) -> None:
    """Refuse class numbers that `SoftmaxCrossEntropyLoss` would clip into range (T10).

    Args:
        loss: Only MXNet's softmax cross-entropy over class numbers is checked.
        output: Scores, the classes on the loss's axis.
        labels: Labels of one batch.
        all_labels: NumPy labels of the whole epoch where the loader has them; they are checked instead.

    Raises:
        LabelError: A label is no whole number from 0 to the number of classes - 1.
    """
    if not isinstance(loss, gluon.loss.SoftmaxCrossEntropyLoss) or not loss._sparse_label or not labels:
        return
    classes = output.shape[loss._axis]
    found = labels[0].asnumpy() if all_labels is None else all_labels
    wrong = found[~((found >= 0) & (found < classes) & (found == np.floor(found)))]
    if wrong.size:
        raise LabelError(
            f"labels must be whole numbers from 0 to {classes - 1}, because the net has {classes} outputs; received "
            f"{', '.join(str(value) for value in sorted(set(wrong.ravel().tolist()))[:5])} in {wrong.size} of "
            f"{found.size} labels. SoftmaxCrossEntropyLoss would clip them in silence; number the classes from 0, "
            f"or give the net more outputs"
        )


def check_frozen_dense(net: Any, devices: Sequence["mx.Context"]) -> None:
    """Refuse a Dense layer whose bias is trained while its weight is frozen.

    oneDNN's kernel then writes no gradient for the bias, which is trained on what lay in memory (T46).

    Raises:
        ValueError: The net has such a layer, and runs on the CPU with oneDNN.
    """
    if os.environ.get("MXNET_MKLDNN_ENABLED") == "0" or all(device.device_type != "cpu" for device in devices):
        return

    def look(block: Any, path: str) -> None:
        dense = isinstance(block, gluon.nn.Dense) and block.bias is not None
        if dense and block.weight.grad_req == "null" and block.bias.grad_req != "null":
            raise ValueError(
                f"{path or 'the net'}: the weight of this Dense layer is frozen, its bias is not. On the CPU MXNet "
                "computes no gradient for such a bias and says nothing. Freeze the bias too, or set "
                "MXNET_MKLDNN_ENABLED=0 before the program starts"
            )
        for name, child in block._children.items():
            look(child, f"{path}.{name}" if path else name)

    look(net, "")


def check_first_shard(shard: Shard, output: Any, losses: Any, loss: Callable[..., Any], data: Any) -> None:
    """Run the checks of a first batch; one wait for its labels."""
    check_loss_shape(losses, shard.samples)
    if not isinstance(output, (list, tuple)):
        everything = getattr(data, "y", None)
        check_labels(loss, output, shard.labels, everything if hasattr(everything, "astype") else None)
