"""`evaluate` and `predict` against NumPy over all samples, however they are cut into batches."""

from callback_runs import Named
import mxkit
from mxkit.errors import DataError, TrapWarning
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np
from oracle import FEATURES, SOFTMAX, array, make_batches, make_net
import pytest

SAMPLES = 1300  # 64 leaves 20, 1000 leaves 300: the mean over batches is another number


@pytest.fixture(scope="module")
def scored():
    """A net, its samples, and NumPy's accuracy, loss, MAE and MSE over them."""
    net = make_net()
    ((x, y),) = make_batches([SAMPLES], seed=1)
    x, y = x.asnumpy(), y.asnumpy()
    order = np.argsort(net(mx.nd.array(x)).asnumpy().argmax(axis=1) == y)[::-1]  # the right ones first
    x, y = x[order], y[order]
    output = net(mx.nd.array(x)).asnumpy().astype("float64")
    losses = np.log(np.exp(output).sum(axis=1)) - output[np.arange(SAMPLES), y]
    return x, y, int((output.argmax(axis=1) == y).sum()) / SAMPLES, losses.mean()


def cut(x, y, size):
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize(("devices", "size"), [("cpu:1", 64), ("cpu:2", 1000)])
def test_accuracy_and_loss_equal_numpy_over_all_samples(scored, size, devices):
    """T16."""
    x, y, accuracy, loss = scored
    found = mxkit.evaluate(make_net(devices), cut(x, y, size), loss="softmax_ce", metrics=["accuracy"])
    assert found["accuracy"] == accuracy  # to the last digit
    assert found["loss"] == pytest.approx(loss, rel=1e-6)
    by_batch = [
        mxkit.evaluate(make_net(devices), [batch], metrics=["accuracy"])["accuracy"] for batch in cut(x, y, size)
    ]
    assert abs(np.mean(by_batch) - accuracy) > 0.005


@pytest.mark.usefixtures("switched")
def test_dropout_is_off_also_inside_record():
    """T15."""
    net = make_net(dropout=0.5)
    batches = make_batches([40, 7])
    calm = mxkit.evaluate(net, batches, loss=SOFTMAX, metrics=["accuracy"])
    outputs = mxkit.predict(net, batches).asnumpy()
    with autograd.record():
        assert mxkit.evaluate(net, batches, loss=SOFTMAX, metrics=["accuracy"]) == calm
        np.testing.assert_array_equal(mxkit.predict(net, batches).asnumpy(), outputs)
        assert autograd.is_recording()
        assert autograd.is_training()
        noisy = net(batches[0][0])
    assert (noisy.asnumpy() != outputs[:40]).any()  # the mode is back


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize("devices", ["cpu:1", "cpu:3"])
def test_predict_keeps_the_order(devices):
    batches = make_batches([5, 1, 7, 2])
    net = make_net(devices)
    expected = np.concatenate([make_net()(x).asnumpy() for x, _ in batches])
    found = mxkit.predict(net, batches)
    assert found.ctx == mx.cpu()
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-6, atol=1e-7)


def test_predict_takes_arrays_and_batches_without_labels():
    net = make_net()
    x = np.random.randn(600, FEATURES)  # more than one batch of 256
    expected = net(mx.nd.array(x)).asnumpy()
    for data in (x, mx.nd.array(x), [x[:500], x[500:]], [(x[:500],), (x[500:],)], lambda: iter([x])):
        np.testing.assert_allclose(mxkit.predict(net, data).asnumpy(), expected, rtol=1e-6, atol=1e-7)


class TwoHeads(gluon.HybridBlock):
    """Two inputs, two outputs."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.left = gluon.nn.Dense(2, in_units=FEATURES)
            self.right = gluon.nn.Dense(4, in_units=2)

    def hybrid_forward(self, F, x, z):
        return self.left(x), self.right(z)


@pytest.mark.usefixtures("switched")
def test_predict_returns_several_outputs_and_feeds_several_inputs():
    net = TwoHeads()
    mxkit.initialize(net, devices="cpu:2")
    x, z = np.random.randn(9, FEATURES), np.random.randn(9, 2)
    left, right = mxkit.predict(net, [((x[:4], z[:4]), None)[:1], ((x[4:], z[4:]),)])
    np.testing.assert_allclose(left.asnumpy(), net.left(array(x)).asnumpy(), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(right.asnumpy(), net.right(array(z)).asnumpy(), rtol=1e-6, atol=1e-7)


def test_evaluate_leaves_the_order_of_a_loader_alone():
    loader = mxkit.data.ArrayLoader(np.arange(50.0)[:, None], None, 50, shuffle=True, seed=1)
    net = gluon.nn.Dense(1, in_units=1)
    mxkit.initialize(net, devices="cpu")
    for order in [loader.order(0), loader.order(1), loader.order(2)]:
        ((x,),) = list(loader)
        np.testing.assert_array_equal(x.asnumpy()[:, 0], order)
        mxkit.evaluate(net, loader, loss=lambda output: output.square().reshape((-1,)))


def test_predict_refuses_a_loader_that_shuffles():
    x, random = np.zeros((4, 1), "float32"), gluon.data.RandomSampler(4)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(1, in_units=1), gluon.nn.Dropout(0.5))
    mxkit.initialize(net, devices="cpu")
    interval = gluon.contrib.data.IntervalSampler(4, 2)
    loaders = [
        mxkit.data.ArrayLoader(x, None, 2, shuffle=True),
        gluon.data.DataLoader(x, 2, shuffle=True),
        gluon.data.DataLoader(x, 2, sampler=random),
        gluon.data.DataLoader(x, 2, sampler=interval),
        gluon.data.DataLoader(x, batch_sampler=gluon.data.BatchSampler(random, 2)),
        mx.io.NDArrayIter(x, batch_size=2, shuffle=True),
        mx.io.PrefetchingIter(mx.io.NDArrayIter(x, batch_size=2, shuffle=True)),
    ]
    for loader in loaders:
        with pytest.raises(mxkit.errors.DataError, match="predict: the loader shuffles, so results would"):
            mxkit.predict(net, loader)
        with pytest.raises(mxkit.errors.DataError, match="extract: the loader shuffles"):
            mxkit.extract(net, "0", loader)
        with pytest.raises(mxkit.errors.DataError, match="predict_mc_dropout: the loader shuffles"):
            mxkit.training.predict_mc_dropout(net, loader)
    in_order = gluon.data.DataLoader(x, batch_sampler=gluon.data.BatchSampler(gluon.data.SequentialSampler(4), 2))
    assert mxkit.predict(net, in_order).shape == mxkit.predict(net, gluon.data.DataLoader(x, 2)).shape == (4, 1)


# errors


def test_inputs_with_nan_that_a_relu_hides():
    """T25."""
    net = mxkit.models.mlp(3, hidden=[8])
    mxkit.initialize(net, "xavier")
    x, y = np.random.RandomState(0).rand(20, 5).astype("float32"), np.arange(20) % 3
    x[3, 1] = np.nan
    batches = [(x[:10], y[:10]), (x[10:], y[10:])]
    with pytest.warns(TrapWarning, match="the inputs of data hold NaN or infinity, which ReLU"):
        assert np.isfinite(mxkit.evaluate(net, batches, loss="softmax_ce")["loss"])
    with pytest.warns(TrapWarning, match="the inputs of predict hold NaN or infinity"):
        assert np.isfinite(mxkit.predict(net, x).asnumpy()).all()
    assert np.isfinite(mxkit.predict(net, np.where(np.isnan(x), 0, x)).asnumpy()).all()


@pytest.mark.parametrize(
    ("form", "received"), [(lambda o: {"scores": o}, "a dict"), (lambda o: (o, [o]), "a list in a tuple")]
)
def test_outputs_that_are_no_arrays_are_named(form, received):
    text = f"expected a net that returns an NDArray, or a tuple of NDArrays; received {received}. Wrap the net"
    with pytest.raises(TypeError, match=f"predict: {text}"):
        mxkit.predict(Named(form), make_batches([4]))
    loss = mxkit.losses.BatchLoss(forward=lambda net, inputs, labels: (SOFTMAX(net.net(*inputs), *labels), {}))
    with pytest.raises(TypeError, match="metric 'accuracy': expected a net that returns an NDArray"):
        mxkit.evaluate(Named(form), make_batches([4]), loss=loss, metrics=["accuracy"])


def test_outputs_without_a_row_per_sample_are_not_joined(kind):
    class Anchors(gluon.Block):
        def forward(self, x):
            return x * 2, x[:1] * 0

    net, x = Anchors(), np.ones((6, 2), "float32")
    with kind.switches():
        outputs, anchors = mxkit.predict(net, [kind.of(x)])
        assert (outputs.shape, anchors.shape) == ((6, 2), (1, 2))
        with pytest.raises(DataError, match=r"an output of the net has the shape \(1, 2\), not one row per sample"):
            mxkit.predict(net, mxkit.data.ArrayLoader(x, None, batch_size=5))


def test_scores_do_not_depend_on_the_device_of_a_sample(tmp_path):
    """T71."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.BatchNorm(in_channels=FEATURES), gluon.nn.Dense(3, in_units=FEATURES))
    mxkit.initialize(net, devices="cpu:2")
    net[0].running_mean.data(mx.cpu(1))[:] = 3
    net.hybridize(static_alloc=True)
    data = make_batches([5, 6])
    expected = mxkit.evaluate(net, data, loss=SOFTMAX, metrics=["accuracy"])
    one = mxkit.load_net(mxkit.save_net(tmp_path / "one.net", net), devices="cpu")
    assert mxkit.evaluate(one, data, loss=SOFTMAX, metrics=["accuracy"]) == pytest.approx(expected)
    x = np.concatenate([x.asnumpy() for x, _ in data])
    np.testing.assert_allclose(mxkit.predict(net, x).asnumpy(), mxkit.predict(one, x).asnumpy(), rtol=1e-6)
    assert net[0].running_mean.data(mx.cpu(1)).asnumpy().tolist() == [3] * FEATURES
