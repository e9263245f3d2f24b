"""Losses by name: each gives one value per sample."""

import copy
import pickle

from built_nets import ready
import mxkit
from mxkit.core.arrays import of_kind, switches
from mxkit.core.loss_meanings import meaning_of
from mxkit.errors import DataError, LossShapeError, UnknownNameError
from mxkit.losses.named_losses import LOSSES, BatchLoss, get_batch_loss, get_loss
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np
import pytest
from sharing import Kind

B, C = 5, 4
RANDOM = np.random.RandomState(0)
OUTPUT = mx.nd.array(RANDOM.rand(B, C) * 0.8 + 0.1)
OUTPUTS = {"contrastive": [OUTPUT, mx.nd.array(RANDOM.rand(B, C))], "ctc": mx.nd.array(RANDOM.rand(B, 6, C))}
ARGUMENTS = {
    "batch_hard_triplet": (mx.nd.array([0, 1, 1, 0, 0]),),
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


def value_and_gradients(loss, kind, switch, output, labels):
    output, labels = kind.of(output), kind.of(labels)
    outputs = output if isinstance(output, list) else [output]
    with switches(switch):
        for array in outputs:
            array.attach_grad()
        with autograd.record():
            losses = loss(output, *labels)
        losses.backward()
    assert all(map(kind.holds, [losses, *[array.grad for array in outputs]]))
    return [losses.asnumpy(), *[array.grad.asnumpy() for array in outputs]]


WEIGHTED = [
    ("softmax_ce", {"class_weight": [1, 2, 3, 4]}),
    ("sigmoid_bce", {"class_weight": [1, 2], "pos_weight": [1, 2, 3, 4]}),
]


@pytest.mark.parametrize("spec", [*sorted(LOSSES), *WEIGHTED], ids=str)
def test_every_loss_takes_arrays_of_both_kinds(spec):
    name = spec if isinstance(spec, str) else spec[0]
    output = OUTPUTS.get(name, OUTPUT)
    labels = ARGUMENTS.get(name, (mx.nd.array(np.sign(RANDOM.randn(B, C))),))
    expected = value_and_gradients(get_loss(spec), Kind(False), False, output, labels)
    graph = get_loss(spec)
    graph.hybridize()
    for loss in (get_loss(spec), graph):  # the graph is traced once, for both kinds
        for numpy, switch in ((True, True), (True, False), (False, True), (False, False)):
            for found, wanted in zip(value_and_gradients(loss, Kind(numpy), switch, output, labels), expected):
                np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", ["l2", "huber", "sigmoid_bce", "softmax_ce", "focal", "squared_hinge"])
def test_labels_of_mx_np_have_any_dtype_and_are_checked(name):
    labels = np.array([0, 1, 1, 0, 1] if name in ("softmax_ce", "focal") else np.eye(B, C))
    expected = get_loss(name)(OUTPUT, mx.nd.array(labels)).asnumpy()
    loss, output = get_loss(name), Kind(True).of(OUTPUT)
    for dtype in ("bool", "int32", "int64", "float64"):  # mx.np makes such arrays, by comparisons for example
        np.testing.assert_array_equal(loss(output, Kind(True).of(labels.astype(dtype))).asnumpy(), expected)
    with pytest.raises(DataError, match="labels: expected"):
        loss(output, Kind(True).of(np.ones((B, C + 1))))


@pytest.mark.parametrize("name", ["l2", "huber", "focal", "sigmoid_bce"])
def test_symbols_of_both_kinds(name, kind):
    losses = get_loss(name)(*of_kind([mx.sym.var("output"), mx.sym.var("label")], kind.numpy))
    assert isinstance(losses, mx.sym.np._Symbol) == kind.numpy
    label = ARGUMENTS.get(name, (OUTPUT,))[0]
    with kind.switches():
        found = mx.nd.CachedOp(losses)(*kind.of([OUTPUT, label]))
    assert kind.holds(found)
    np.testing.assert_array_equal(found.asnumpy(), get_loss(name)(OUTPUT, label).asnumpy())


def dense():
    return ready(gluon.nn.Dense(C, in_units=C))


@pytest.mark.parametrize("by_name", ["huber", "l2", "squared_hinge"])
def test_gluons_own_losses_and_counts_with_nets_of_both_kinds(by_name, kind):
    labels, loss = np.sign(RANDOM.randn(B, C)), getattr(gluon.loss, type(get_loss(by_name)).__name__)()
    net = kind.net(dense)
    expected = mxkit.evaluate(net, (OUTPUT.asnumpy(), labels), loss=by_name)["loss"]
    counted = mxkit.losses.BatchLoss(loss, count=lambda inputs, labels: (labels[0] > -2).sum())
    batch = kind.of([OUTPUT, labels])
    assert mxkit.evaluate(net, [tuple(batch)], loss=loss)["loss"] == expected
    assert mxkit.evaluate(net, [tuple(batch)], loss=counted)["loss"] == pytest.approx(expected / C)
    trained = []
    for used in (by_name, loss):
        mxkit.seed_all(0)
        net = kind.net(dense)
        for block in (net, loss):
            block.hybridize()
        mxkit.fit(net, [tuple(batch)] * 3, loss=used, trainer="adam", epochs=2, progress=False)
        trained.append(net.weight.data().asnumpy())
    np.testing.assert_array_equal(*trained)


def test_gluons_losses_ignore_the_sample_axis_under_mx_np():
    """T174."""
    text = "axis 0 of every array of a batch is the sample axis, but the loss takes axis 1"
    for spec in (gluon.loss.L2Loss(batch_axis=1), ("l2", {"batch_axis": 1})):
        with pytest.raises(ValueError, match=text):
            get_loss(spec)


def test_a_subclass_of_gluons_loss_may_take_other_arrays_than_weights(kind):
    class Masked(gluon.loss.SoftmaxCELoss):  # in the way of Dive into Deep Learning
        def forward(self, output, label, valid):
            operators = mx.npx.sequence_mask if kind.numpy else mx.nd.SequenceMask
            weights = operators(label.reshape((B, 3, 1)).astype("float32") * 0 + 1, valid, True, axis=1)
            return super().forward(output, label, weights)

    output, label = RANDOM.randn(B, 3, C).astype("float32"), RANDOM.randint(0, C, (B, 3))
    valid = np.array([1, 2, 3, 1, 2])
    net = kind.net(lambda: gluon.nn.HybridLambda(lambda F, x: x))
    with kind.switches():
        found = mxkit.evaluate(net, (output, (label, valid)), loss=Masked())["loss"]
    logs = output - np.log(np.exp(output).sum(axis=-1, keepdims=True))
    losses = -np.take_along_axis(logs, label[..., None], axis=-1)[..., 0]
    assert found == pytest.approx((losses * (np.arange(3) < valid[:, None])).mean(axis=1).mean(), rel=1e-5)


def test_losses_without_a_gradient_are_refused(kind):
    net, loader = kind.net(dense), mxkit.data.ArrayLoader(OUTPUT.asnumpy(), np.zeros(B), batch_size=B)

    def wrong(output, label):
        return (output.argmax(axis=1).astype("int32") != label.astype("int32")).astype("int32")

    with pytest.raises(LossShapeError, match="the loss returned int32: comparisons and whole numbers have no gradient"):
        mxkit.fit(net, loader, loss=wrong, trainer="sgd", epochs=1, progress=False)
    assert 0 <= mxkit.evaluate(net, loader, loss=wrong)["loss"] <= 1


def test_losses_by_name_are_copied_and_pickled():
    for name in LOSSES:
        for made in (copy.deepcopy(get_loss(name)), pickle.loads(pickle.dumps(get_loss(name)))):
            assert repr(made) == repr(get_loss(name))


def test_every_loss_has_a_row_in_the_table_of_kinds():
    assert all(meaning_of(get_loss(name)).is_known for name in LOSSES)


def test_specs(monkeypatch):
    class Own(gluon.loss.Loss):
        def __init__(self, margin=1, **kwargs):
            super().__init__(None, 0, **kwargs)

    monkeypatch.setitem(LOSSES, "own", Own)
    monkeypatch.setitem(LOSSES, "any", lambda **options: gluon.loss.L2Loss(**options))
    assert isinstance(get_loss(("own", {"margin": 2})), Own)
    assert get_loss(("any", {"weight": 2}))._weight == 2
    assert get_loss(("huber", {"rho": 2.0}))._rho == get_loss(["huber", {"rho": 2.0}])._rho == 2.0
    for mine in (gluon.loss.L1Loss(), lambda output, label: output):
        assert get_loss(mine) is mine
    for spec, text in [
        (("huber", {"delta": 1}), r"loss 'huber' takes no argument 'delta'; did you mean 'rho'\? It takes rho, weight"),
        (("softmax_ce", {"ignore_index": 0}), "'softmax_ce' takes no argument 'ignore_index'; it takes axis, sparse_"),
        (("own", {"margn": 1}), r"'own' takes no argument 'margn'; did you mean 'margin'\? It takes margin, weight"),
        (("any", {"margin": 1}), "loss 'any': .*unexpected keyword argument 'margin'"),
        (gluon.loss.SoftmaxCrossEntropyLoss, r"class SoftmaxCrossEntropyLoss: write SoftmaxCrossEntropyLoss\(\)"),
        (5, r"loss: expected a name, \(name, arguments\) or a callable; received 5"),
    ]:
        with pytest.raises(TypeError, match=text):
            get_loss(spec)
    with pytest.raises(UnknownNameError, match="unknown loss 'cross_entropy_softmax'"):
        get_loss("cross_entropy_softmax")


def test_a_registered_name_may_give_a_batch_loss(monkeypatch):
    def counted(factor=1.0):
        return BatchLoss("l2", count=lambda inputs, labels: factor)

    monkeypatch.setitem(LOSSES, "counted", counted)
    assert get_batch_loss(("counted", {"factor": 2.0})).count((), ()) == 2.0
    with pytest.raises(TypeError, match="counted.*facto"):
        get_batch_loss(("counted", {"facto": 2.0}))
    x, y = mx.nd.ones((3, 2)), mx.nd.zeros((3, 1))
    net = ready(gluon.nn.Dense(1, in_units=2), initializer="ones")
    assert mxkit.evaluate(net, [(x, y)], loss=("counted", {"factor": 2.0}))["loss"] == 3 * 2.0**2 / 2 / 2.0
