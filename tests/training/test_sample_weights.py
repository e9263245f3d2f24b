"""Sample weights and class weights: against a hand-written Gluon loop and NumPy, on every way through a training."""

import re

from built_nets import ready
import mxkit
from mxkit.errors import DataError, LossShapeError
from mxkit.losses.named_losses import LOSSES, get_loss
import mxnet as mx
from mxnet import gluon
import numpy as np
from oracle import FEATURES, make_net, train_by_hand, weights
import pytest
from sharing import pairs

SGD = ("sgd", {"learning_rate": 0.1})
RANDOM = np.random.RandomState(0)
B, C, T = 6, 3, 4
X = RANDOM.randn(B, FEATURES).astype("float32")
W = RANDOM.rand(B).astype("float32") * 3
SIGNS = np.where(RANDOM.rand(B, C) < 0.5, -1, 1).astype("float32")
REAL = RANDOM.randn(B, C).astype("float32")
SHARES = RANDOM.dirichlet(np.ones(C), B).astype("float32")
CLASSES = RANDOM.randint(0, C, B)
# Labels of each loss that takes outputs of shape (B, C) and sample weights.
LABELS = {
    "focal": CLASSES,
    "hinge": SIGNS,
    "huber": REAL,
    ("kl_div", "from_logits"): SHARES,
    "l1": REAL,
    "l2": REAL,
    "label_smoothing": CLASSES,
    "logistic": SIGNS,
    "poisson_nll": CLASSES[:, None] * np.ones(C, "float32"),
    "sigmoid_bce": (SIGNS + 1) / 2,
    "softmax_ce": CLASSES,
    ("softmax_ce", "sparse_label"): SHARES,
    "squared_hinge": SIGNS,
    "batch_hard_triplet": CLASSES,
    "distillation": (REAL, CLASSES),
    "cosine_embedding": (REAL, SIGNS[:, 0]),
}


def spec_of(key):
    return key if isinstance(key, str) else (key[0], {key[1]: False})


def batch_of(key, weight, rows=slice(None)):
    labels = LABELS[key] if isinstance(LABELS[key], tuple) else (LABELS[key],)
    return X[rows], tuple(one[rows] for one in (*labels, weight))


def arrays(labels):
    return [mx.nd.array(one, dtype="float32" if one.dtype.kind == "f" else "int32") for one in labels]


def weighed_by_hand(key, batches):
    """Losses of single samples times their weights, in a loop that nobody could misread."""
    net, loss, means = make_net(), get_loss(spec_of(key)), []
    given = [(mx.nd.array(x), *arrays(labels[:-1]), mx.nd.array(labels[-1].reshape(-1))) for x, labels in batches]
    train_by_hand(
        net,
        given,
        SGD,
        loss=lambda output, *labels: loss(output, *labels[:-1]).reshape((-1,)) * labels[-1],
        note=lambda output, losses: means.append(float(losses.mean().asscalar())),
    )
    return net, means


def test_every_loss_of_outputs_and_weights_has_its_labels_here():
    others = {"contrastive", "ctc", "triplet"}
    assert {key if isinstance(key, str) else key[0] for key in LABELS} == set(LOSSES) - others


@pytest.mark.parametrize(("key", "way"), pairs(LABELS, ["plain", "hybridized", "graph of a loss object", "cpu:2"]))
def test_a_weight_per_sample_counts_for_its_sample_whatever_its_shape(key, way):
    """T118."""
    if way == "cpu:2" and key == "batch_hard_triplet":
        pytest.skip("it mines each device's samples")
    for shape in ((B,), (B, 1)):
        batches = [batch_of(key, W.reshape(shape))] * 3
        expected, means = weighed_by_hand(key, batches)
        loss = spec_of(key)
        if way == "graph of a loss object":
            loss = get_loss(loss)
            loss.hybridize()
        net = make_net("cpu:2" if way == "cpu:2" else "cpu", hybridize=way not in ("plain", "cpu:2"))
        read = [update.loss for update in mxkit.updates(net, batches, loss=loss, trainer=SGD)]
        np.testing.assert_allclose(read, means, rtol=1e-5)
        np.testing.assert_allclose(weights(net), weights(expected), rtol=1e-4, atol=1e-6)
        found = mxkit.evaluate(make_net(), batches, loss=spec_of(key))["loss"]
        np.testing.assert_allclose(found, means[0], rtol=1e-5)


@pytest.mark.parametrize("kind", [gluon.loss.L2Loss, gluon.loss.SigmoidBCELoss, gluon.loss.SoftmaxCrossEntropyLoss])
def test_a_loop_of_gluons_multiplies_means_and_fit_does_not(kind):
    """T118."""
    labels = mx.nd.array(CLASSES if kind is gluon.loss.SoftmaxCrossEntropyLoss else (SIGNS + 1) / 2)
    net, weight = make_net(), mx.nd.array(W)
    right = kind()(net(mx.nd.array(X)), labels, weight.reshape((-1, 1))).asnumpy()
    loader = mxkit.data.ArrayLoader(X, (labels.asnumpy(), W), 4)
    np.testing.assert_allclose(mxkit.evaluate(net, loader, loss=kind())["loss"], right.mean(), rtol=1e-5)


def test_weights_of_several_shapes_in_one_training_of_a_graph():
    """T118."""
    positions = RANDOM.rand(B, C).astype("float32")
    batches = [batch_of("l2", weight) for weight in (W, W, positions, positions, W, W.reshape(-1, 1), positions)]
    nets = [make_net(hybridize=hybridize) for hybridize in (False, True)]
    for net in nets:
        list(mxkit.updates(net, batches, loss="l2", trainer=SGD))
    np.testing.assert_allclose(weights(nets[1]), weights(nets[0]), rtol=1e-6)


def token_net(hybridize=False):
    mxkit.seed_all(1)
    net = ready(gluon.nn.Dense(C, in_units=2, flatten=False))
    net.hybridize(hybridize)
    return net


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("shape", [(B, T), (B, T, 1)])
@pytest.mark.parametrize("name", ["softmax_ce", "label_smoothing", "focal"])
def test_a_weight_per_position_of_a_sequence_is_a_mask(name, shape, hybridize):
    """T118."""
    x, y = RANDOM.randn(B, T, 2).astype("float32"), RANDOM.randint(0, C, (B, T))
    mask = (np.arange(T) < RANDOM.randint(1, T + 1, (B, 1))).astype("float32")
    net = token_net(hybridize)
    single = get_loss(name)(net(mx.nd.array(x)).reshape((B * T, C)), mx.nd.array(y.reshape(-1))).asnumpy()
    expected = (single.reshape(B, T) * mask).sum() / mask.sum()
    batch = [(x, (y, mask.reshape(shape)))] * 3

    def count(inputs, labels):
        return float(labels[1].sum()) / T  # losses are means over T

    loss = mxkit.losses.BatchLoss(name, count=count)
    found = mxkit.evaluate(net, batch, loss=loss)["loss"], next(mxkit.updates(net, batch, loss=loss, trainer=SGD)).loss
    assert found == pytest.approx((expected, expected), rel=1e-5)


def test_weights_of_images_that_broadcast_over_channels():
    """T118."""
    net = ready(gluon.nn.Conv2D(2, 1, in_channels=1))
    x, y = RANDOM.rand(3, 1, 4, 4).astype("float32"), RANDOM.rand(3, 2, 4, 4).astype("float32")
    mask = RANDOM.rand(3, 1, 4, 4).astype("float32")
    expected = ((net(mx.nd.array(x)).asnumpy() - y) ** 2 / 2 * mask).mean()
    assert mxkit.evaluate(net, [(x, (y, mask))], loss="l2")["loss"] == pytest.approx(expected, rel=1e-5)
    labels, pixels = RANDOM.randint(0, 2, (3, 4, 4)), mask[:, 0]
    loss = ("softmax_ce", {"axis": 1})
    whole = get_loss(loss)(net(mx.nd.array(x)), mx.nd.array(labels), mx.nd.array(mask)).asnumpy()
    assert mxkit.evaluate(net, [(x, (labels, pixels))], loss=loss)["loss"] == pytest.approx(whole.mean(), rel=1e-5)


@pytest.mark.parametrize("shape", [(B, C + 1), (B, 2, 1)])
@pytest.mark.parametrize("name", ["l2", "softmax_ce", "focal", "batch_hard_triplet"])
def test_other_shapes_are_refused(name, shape):
    """T118."""
    net = make_net()
    before = weights(net)
    text = rf"sample_weight: expected shape \(6,\) or \(6, 1\).*; received {re.escape(str(shape))}"
    for hybridize in (False, True):
        net.hybridize(hybridize)
        with pytest.raises(DataError, match=text):
            list(mxkit.updates(net, [batch_of(name, np.ones(shape, "float32"))], loss=name, trainer=SGD))
    np.testing.assert_array_equal(weights(net), before)


@pytest.mark.parametrize("name", ["l2", "softmax_ce", "focal"])
@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf])
def test_weights_below_0_and_nan_are_refused_before_training(wrong, name):
    weight = W.copy()
    weight[5] = wrong
    labels = LABELS[name]
    net = make_net()
    before = weights(net)
    text = rf"sample weights, .* must be finite and at least 0; received {wrong} in 1 of 6 weights"
    for data in ([batch_of(name, weight)], mxkit.data.ArrayLoader(X, (labels, weight), 2)):
        with pytest.raises(DataError, match=text):
            mxkit.fit(net, data, loss=name, trainer=SGD, epochs=1, progress=False)
        with pytest.raises(DataError, match=text):
            mxkit.evaluate(net, data, loss=name)
    np.testing.assert_array_equal(weights(net), before)


def test_a_subclass_of_ones_own_gets_its_weights_in_the_shape_of_its_base():
    class Scaled(gluon.loss.SoftmaxCrossEntropyLoss):
        def hybrid_forward(self, F, pred, label, sample_weight=None):
            return super().hybrid_forward(F, pred, label, sample_weight) * 2

    for weight in (W, np.arange(B)):  # whole numbers are weights too
        expected = mxkit.evaluate(make_net(), [batch_of("softmax_ce", weight * 1.0)], loss="softmax_ce")["loss"]
        found = mxkit.evaluate(make_net(), [batch_of("softmax_ce", weight)], loss=Scaled())["loss"]
        assert found == pytest.approx(2 * expected, rel=1e-6)


class TestClassWeights:
    def check(self, spec, y, per_sample, net=None):
        """A loss with class weights equals the loss without, times each sample's weight."""
        name, arguments = spec
        plain = (name, {key: one for key, one in arguments.items() if key != "class_weight"})
        x = X[: len(y)]
        expected = mxkit.evaluate(make_net(), [(x, (y, per_sample))], loss=plain)["loss"]
        found = mxkit.evaluate(make_net(), [(x, y)], loss=spec)["loss"]
        assert found == pytest.approx(expected, rel=1e-5)
        nets = [make_net(hybridize=hybridize) for hybridize in (False, True)] + [make_net("cpu:2"), make_net()]
        for one in nets[:-1]:
            list(mxkit.updates(one, [(x, y)] * 3, loss=spec, trainer=SGD))
        list(mxkit.updates(nets[-1], [(x, (y, per_sample))] * 3, loss=plain, trainer=SGD))
        for one in nets[:-1]:
            np.testing.assert_allclose(weights(one), weights(nets[-1]), rtol=1e-4, atol=1e-6)

    @pytest.mark.parametrize(
        "given", [[1, 5, 0.5], {0: 1, 1: 5, 2: 0.5}, {"1": 5, "2": 0.5}, np.array([1, 5, 0.5])], ids=str
    )
    @pytest.mark.parametrize("name", ["softmax_ce", "focal", "label_smoothing"])
    def test_a_sample_counts_by_the_weight_of_its_class(self, name, given):
        self.check((name, {"class_weight": given}), CLASSES, np.array([1, 5, 0.5], "float32")[CLASSES])

    def test_of_two_classes_and_one_output_each(self):
        y = (SIGNS + 1) / 2
        self.check(("sigmoid_bce", {"class_weight": {0: 2, 1: 5}}), y, np.where(y > 0, 5, 2).astype("float32"))

    def test_with_sample_weights_both_count_and_positions_of_a_sequence_too(self):
        loss, own = ("softmax_ce", {"class_weight": [1, 5, 0.5]}), np.array([1, 5, 0.5], "float32")
        expected = mxkit.evaluate(make_net(), [(X, (CLASSES, W * own[CLASSES]))], loss="softmax_ce")["loss"]
        assert mxkit.evaluate(make_net(), [(X, (CLASSES, W))], loss=loss)["loss"] == pytest.approx(expected, rel=1e-5)
        x, y = RANDOM.randn(B, T, 2).astype("float32"), RANDOM.randint(0, C, (B, T))
        expected = mxkit.evaluate(token_net(), [(x, (y, own[y]))], loss="softmax_ce")["loss"]
        assert mxkit.evaluate(token_net(), [(x, y)], loss=loss)["loss"] == pytest.approx(expected, rel=1e-5)

    def test_pos_weight_is_gluons(self):
        y, net = (SIGNS + 1) / 2, make_net()
        output = net(mx.nd.array(X))
        for given in (3, [3, 1, 0.5]):
            array = mx.nd.array(np.atleast_1d(np.asarray(given, "float32")))
            expected = gluon.loss.SigmoidBCELoss()(output, mx.nd.array(y), None, array).asnumpy().mean()
            found = mxkit.evaluate(net, [(X, y)], loss=("sigmoid_bce", {"pos_weight": given}))["loss"]
            assert found == pytest.approx(expected, rel=1e-5)

    @pytest.mark.parametrize(
        ("spec", "text"),
        [
            (("softmax_ce", {"class_weight": [1, 5]}), "class_weight: the net has 3 outputs; received 2 weights"),
            (("softmax_ce", {"class_weight": {3: 1}}), "the net has 3 outputs; received a weight for class 3"),
            (("focal", {"class_weight": [1] * 4}), "FocalLoss: class_weight: .* 3 outputs; received 4 weights"),
            (("sigmoid_bce", {"pos_weight": [1, 5]}), "pos_weight: the net has 3 outputs; received 2 weights"),
            (("softmax_ce", {"class_weight": [1, -1]}), "class 1: expected a finite number of at least 0; received -1"),
            (("softmax_ce", {"class_weight": 5}), r"expected a weight for each class, \[1, 5\] or .*; received 5"),
            *(
                ((name, {"class_weight": given}), "expected a (weight for each class|finite number)")
                for name in ("softmax_ce", "focal")
                for given in ({"cat": 1}, {3.5: 2}, {True: 2}, [1, True], {1: 2, "1": 3})
            ),
            (("softmax_ce", {"class_weight": [1, 5], "sparse_label": False}), "expected labels that are class numbers"),
            (("sigmoid_bce", {"class_weight": [1, 5, 2]}), r"weights of the labels 0 and 1.*pass pos_weight=\[...\]"),
            (("softmax_ce", {"weight": [1, 5]}), "weight is one number.*is class_weight"),
        ],
        ids=str,
    )
    def test_wrong_ones_are_refused(self, spec, text):
        y = (SIGNS + 1) / 2 if spec[0] == "sigmoid_bce" else CLASSES
        with pytest.raises(TypeError if "weight" in spec[1] else ValueError, match=text):
            list(mxkit.updates(make_net(), [(X, y)], loss=spec, trainer=SGD))

    def test_without_them_the_loss_is_gluons_own(self):
        kind = type(get_loss(("softmax_ce", {"weight": 2.0})))
        assert kind.hybrid_forward is gluon.loss.SoftmaxCrossEntropyLoss.hybrid_forward
        assert kind.forward is gluon.HybridBlock.forward


def test_gluons_poisson_loss_is_a_mean_over_the_batch_and_nan_for_targets_of_0():
    """T120."""
    output, target = mx.nd.array(REAL), mx.nd.array(CLASSES[:, None] * np.ones(C))

    with pytest.raises(LossShapeError, match="It is a mean or a sum already.*take loss='poisson_nll'"):
        mxkit.evaluate(make_net(), [(X, CLASSES)], loss=gluon.loss.PoissonNLLLoss())
    for arguments in ({}, {"from_logits": False}, {"compute_full": True}, {"weight": 2.0}):
        output = mx.nd.abs(output) + 0.1
        found = get_loss(("poisson_nll", arguments))(output, target + 2)
        expected = gluon.loss.PoissonNLLLoss(**arguments)(output, target + 2).asscalar()
        assert found.shape == (B,)
        assert found.mean().asscalar() == pytest.approx(expected, rel=1e-5)
        assert np.isfinite(get_loss(("poisson_nll", arguments))(output, target).asnumpy()).all()


@pytest.mark.parametrize("name", ["l2", "l1", "huber", "sigmoid_bce", "logistic"])
def test_a_loss_by_name_pairs_each_weight_with_its_sample(name):
    """T118: in a loop of one's own, and inside `BatchLoss(forward=...)`."""
    x, y, weights = mx.nd.array([[1], [2], [-3]]), mx.nd.array([[1], [0], [1]]), mx.nd.array([0.5, 2, 4])
    loss = get_loss(name)
    np.testing.assert_allclose(loss(x, y, weights).asnumpy(), loss(x, y).asnumpy() * weights.asnumpy(), rtol=1e-6)
