"""Losses for arrays and symbols of both kinds, Gluon's own among them.

Most losses of Gluon have no code for `mx.np`, and the others ignore `batch_axis` there.
"""

from typing import Any

from mxkit.core.arrays import is_numpy, legacy, of_kind, switches
from mxkit.losses.shapes import apply_steps, label_steps
import mxnet as mx
from mxnet import gluon


class EitherKind:
    """Mixin of losses: computes on views as NDArray, and returns the kind of the output; symbols likewise.

    With arrays of `mx.np`, labels are checked and converted as in `fit`.
    """

    def __call__(self, *arrays: Any) -> Any:
        call, numpy = super().__call__, is_numpy(arrays)  # type: ignore[misc]
        if not (numpy or mx.util.is_np_array()):
            return call(*arrays)
        with switches(False):
            output, *labels = legacy(arrays)
            if numpy:
                labels = apply_steps(label_steps(self, output, labels), output, labels)
            return of_kind(call(output, *labels), numpy)


def _for_both_kinds(loss: Any) -> Any:
    return type(loss.__name__, (EitherKind, loss), {"__doc__": loss.__doc__, "__module__": __name__})


CTCLoss = _for_both_kinds(gluon.loss.CTCLoss)
HingeLoss = _for_both_kinds(gluon.loss.HingeLoss)
HuberLoss = _for_both_kinds(gluon.loss.HuberLoss)
KLDivLoss = _for_both_kinds(gluon.loss.KLDivLoss)
L1Loss = _for_both_kinds(gluon.loss.L1Loss)
L2Loss = _for_both_kinds(gluon.loss.L2Loss)
SoftmaxCrossEntropyLoss = _for_both_kinds(gluon.loss.SoftmaxCrossEntropyLoss)
SquaredHingeLoss = _for_both_kinds(gluon.loss.SquaredHingeLoss)
TripletLoss = _for_both_kinds(gluon.loss.TripletLoss)
