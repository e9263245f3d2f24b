"""Gluon's losses for arrays of both kinds: most have no code for `mx.np`, and the others ignore `batch_axis` there."""

from typing import Any

from mxkit.losses.per_sample import EitherKind
from mxnet import gluon


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
