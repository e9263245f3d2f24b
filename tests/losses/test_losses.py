"""Losses by name: each gives one value per sample."""

from mxkit.core.loss_kinds import kind_of
from mxkit.errors import UnknownNameError
from mxkit.losses.by_name import LOSSES, get_loss
import mxnet as mx
from mxnet import gluon
import numpy as np
import pytest

B, C = 5, 4
RANDOM = np.random.RandomState(0)
OUTPUT = mx.nd.array(RANDOM.rand(B, C) * 0.8 + 0.1)
OUTPUTS = {
    "contrastive": [OUTPUT, mx.nd.array(RANDOM.rand(B, C))],
    "ctc": mx.nd.array(RANDOM.rand(B, 6, C)),
}
ARGUMENTS = {
    "cosine_embedding": (mx.nd.array(RANDOM.rand(B, C)), mx.nd.array([1, -1, 1, 1, -1])),
    "contrastive": (mx.nd.array([1, 0, 0, 1, 1]),),
    "distillation": (mx.nd.array(RANDOM.randn(B, C)), mx.nd.array([0, 1, 2, 3, 0])),
    "focal": (mx.nd.array([0, 1, 2, 3, 0]),),
    "label_smoothing": (mx.nd.array([0, 1, 2, 3, 0]),),
    "softmax_ce": (mx.nd.array([0, 1, 2, 3, 0]),),
    "triplet": (mx.nd.array(RANDOM.rand(B, C)), mx.nd.array(RANDOM.rand(B, C))),
    "ctc": (mx.nd.array([[0, 1], [1, 1], [0, 0], [1, 2], [2, 0]]),),
}


def one_row(array, sample):
    if isinstance(array, list):
        return [one_row(one, sample) for one in array]
    return array[sample : sample + 1]


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"batch_hard_triplet"}))  # it looks at the whole batch
def test_every_loss_gives_one_value_per_sample(name):
    output = OUTPUTS.get(name, OUTPUT)
    labels = ARGUMENTS.get(name, (mx.nd.array(np.sign(RANDOM.randn(B, C))),))
    found = get_loss(name)(output, *labels)
    assert found.shape[0] == found.size == B  # (B, 1) of one loss
    for sample in range(B):  # it depends on its own sample alone
        rows = [one_row(array, sample) for array in (output, *labels)]
        np.testing.assert_allclose(get_loss(name)(*rows).asnumpy(), found[sample : sample + 1].asnumpy(), rtol=1e-5)


def test_every_loss_has_a_row_in_the_table_of_kinds():
    assert {name for name in LOSSES if kind_of(get_loss(name)) is None} == set()


def test_specs():
    assert isinstance(get_loss("l2"), gluon.loss.L2Loss)
    assert get_loss(("huber", {"rho": 2.0}))._rho == 2.0
    assert get_loss(["huber", {"rho": 3.0}])._rho == 3.0

    def own(output, label):
        return output

    assert get_loss(own) is own
    mine = gluon.loss.L1Loss()
    assert get_loss(mine) is mine


def test_wrong_specs():
    with pytest.raises(UnknownNameError, match="unknown loss 'cross_entropy_softmax'"):
        get_loss("cross_entropy_softmax")
    with pytest.raises(TypeError, match=r"loss: expected a name, \(name, arguments\) or a callable; received 5"):
        get_loss(5)


def test_arguments_that_a_loss_does_not_take_and_classes(monkeypatch):
    class Own(gluon.loss.Loss):
        def __init__(self, margin=1, **kwargs):
            super().__init__(None, 0, **kwargs)

    monkeypatch.setitem(LOSSES, "own", Own)
    monkeypatch.setitem(LOSSES, "any", lambda **options: gluon.loss.L2Loss(**options))
    for spec, text in [
        (("huber", {"delta": 1}), r"loss 'huber' takes no argument 'delta'; did you mean 'rho'\? It takes rho, weight"),
        (("softmax_ce", {"ignore_index": 0}), "'softmax_ce' takes no argument 'ignore_index'; it takes axis, sparse_"),
        (
            ("own", {"margn": 1}),
            r"'own' takes no argument 'margn'; did you mean 'margin'\? It takes margin, weight",
        ),
        (("any", {"margin": 1}), "loss 'any': .*unexpected keyword argument 'margin'"),
        (gluon.loss.SoftmaxCrossEntropyLoss, r"class SoftmaxCrossEntropyLoss: write SoftmaxCrossEntropyLoss\(\)"),
    ]:
        with pytest.raises(TypeError, match=text):
            get_loss(spec)
    assert isinstance(get_loss(("own", {"margin": 2})), Own)
    assert get_loss(("any", {"weight": 2}))._weight == 2
