"""`evaluate`, `predict` and `extract` against NumPy and the net itself, however samples are cut into batches."""

from built_nets import hybrid_net, plain_net, ready, stack
from callback_runs import Named
import mxkit
from mxkit.data import ArrayLoader
from mxkit.errors import DataError, EmptyDataError, TrapWarning
from mxkit.training.evaluation import extract
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np
from oracle import FEATURES, SOFTMAX, array, in_batches, make_batches, make_net
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


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize(("devices", "size"), [("cpu:1", 64), ("cpu:2", 1000)])
def test_accuracy_and_loss_equal_numpy_over_all_samples(scored, size, devices):
    """T16."""
    x, y, accuracy, loss = scored
    found = mxkit.evaluate(make_net(devices), in_batches(x, y, size), loss="softmax_ce", metrics=["accuracy"])
    assert found["accuracy"] == accuracy  # to the last digit
    assert found["loss"] == pytest.approx(loss, rel=1e-6)
    by_batch = [
        mxkit.evaluate(make_net(devices), [batch], metrics=["accuracy"])["accuracy"] for batch in in_batches(x, y, size)
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


@pytest.mark.usefixtures("switched")
def test_predict_returns_several_outputs_and_feeds_several_inputs():
    heads = {"left": gluon.nn.Dense(2, in_units=FEATURES), "right": gluon.nn.Dense(4, in_units=2)}
    net = ready(hybrid_net(lambda net, F, x, z: (net.left(x), net.right(z)), **heads), devices="cpu:2")
    x, z = np.random.randn(9, FEATURES), np.random.randn(9, 2)
    left, right = mxkit.predict(net, [((x[:4], z[:4]), None)[:1], ((x[4:], z[4:]),)])
    np.testing.assert_allclose(left.asnumpy(), net.left(array(x)).asnumpy(), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(right.asnumpy(), net.right(array(z)).asnumpy(), rtol=1e-6, atol=1e-7)


def test_predict_refuses_a_loader_that_shuffles():
    x, random = np.zeros((4, 1), "float32"), gluon.data.RandomSampler(4)
    net = ready(gluon.nn.Dense(1, in_units=1), gluon.nn.Dropout(0.5))
    loaders = [
        mxkit.data.ArrayLoader(x, None, 2, shuffle=True),
        gluon.data.DataLoader(x, 2, shuffle=True),
        gluon.data.DataLoader(x, 2, sampler=random),
        gluon.data.DataLoader(x, 2, sampler=gluon.contrib.data.IntervalSampler(4, 2)),
        gluon.data.DataLoader(x, batch_sampler=gluon.data.BatchSampler(random, 2)),
        mx.io.NDArrayIter(x, batch_size=2, shuffle=True),
        mx.io.PrefetchingIter(mx.io.NDArrayIter(x, batch_size=2, shuffle=True)),
    ]
    extracted = lambda net, data: mxkit.extract(net, "0", data)  # noqa: E731
    for loader in loaders:
        for call in (mxkit.predict, extracted, mxkit.training.predict_mc_dropout):
            with pytest.raises(DataError, match="(predict|extract|predict_mc_dropout): the loader shuffles"):
                call(net, loader)
    in_order = gluon.data.DataLoader(x, batch_sampler=gluon.data.BatchSampler(gluon.data.SequentialSampler(4), 2))
    assert mxkit.predict(net, in_order).shape == mxkit.predict(net, gluon.data.DataLoader(x, 2)).shape == (4, 1)


# errors


def test_inputs_with_nan_that_a_relu_hides():
    """T25."""
    net = ready(mxkit.models.mlp(3, hidden=[8]))
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
    with pytest.raises(TypeError, match="(data|metric 'accuracy'): expected a net that returns an NDArray"):
        mxkit.evaluate(Named(form), make_batches([4]), metrics=["accuracy"])
    loss = mxkit.losses.BatchLoss(forward=lambda net, inputs, labels: (SOFTMAX(net.net(*inputs), *labels), {}))
    with pytest.raises(TypeError, match="metric 'accuracy': expected a net that returns an NDArray"):
        mxkit.evaluate(Named(form), make_batches([4]), loss=loss, metrics=["accuracy"])


def test_outputs_without_a_row_per_sample_are_not_joined(kind):
    net, x = plain_net(lambda net, x: (x * 2, x[:1] * 0)), np.ones((6, 2), "float32")
    with kind.switches():
        outputs, anchors = mxkit.predict(net, [kind.of(x)])
        assert (outputs.shape, anchors.shape) == ((6, 2), (1, 2))
        with pytest.raises(DataError, match=r"an output of the net has the shape \(1, 2\), not one row per sample"):
            mxkit.predict(net, mxkit.data.ArrayLoader(x, None, batch_size=5))


class States(gluon.nn.HybridBlock):
    """Gives the state of two layers, shape (2, samples, 2), which looks like rows of two samples."""

    def hybrid_forward(self, F, x):
        self.seen = x
        return x, F.stack(x * 0, x * 0 + 1, axis=0)


def drawn(net, x):
    head = plain_net(lambda block, x: net(block.drop(x))[1], drop=gluon.nn.Dropout(0.5))
    return mxkit.training.predict_mc_dropout(ready(head), x, draws=2)


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize(
    ("devices", "size", "collect"),
    [
        ("cpu", 2, mxkit.predict),
        ("cpu:2", 4, mxkit.predict),
        ("cpu", 2, lambda net, x: extract(stack(net), "0", x)),
        ("cpu", 2, drawn),
    ],
    ids=["predict", "devices", "extract", "draws"],
)
def test_layers_are_not_joined_as_samples(devices, size, collect, hybrid):
    net = ready(stack(gluon.nn.Dense(2, in_units=2), States()), devices=devices)
    if hybrid:
        net.hybridize()
    x = np.ones((4, 2), "float32")
    with pytest.raises(DataError, match=r"has the shape \(2, 1, 2\) for 1 sample, not (one|a) row per sample"):
        collect(net, ArrayLoader(x, None, batch_size=size))


def test_rows_as_long_as_the_batch_are_joined_and_leave_nothing_behind():
    net = ready(stack(gluon.nn.Dense(2, in_units=2), States()))
    heads = plain_net(lambda block, x: block.net(x)[0], net=net)
    found = mxkit.predict(heads, ArrayLoader(np.ones((4, 2), "float32"), None, batch_size=2))
    assert found.shape == (4, 2)
    assert net[1].seen.shape == (2, 2)


def test_a_net_for_one_size_of_the_batch_predicts():
    net = plain_net(lambda net, x: x.reshape((2, 2)) * mx.nd.ones((2, 2)))
    found = mxkit.predict(ready(net), ArrayLoader(np.ones((4, 2), "float32"), None, batch_size=2))
    np.testing.assert_array_equal(found.asnumpy(), np.ones((4, 2)))


def test_scores_do_not_depend_on_the_device_of_a_sample(tmp_path):
    """T71."""
    net = ready(gluon.nn.BatchNorm(in_channels=FEATURES), gluon.nn.Dense(3, in_units=FEATURES), devices="cpu:2")
    net[0].running_mean.data(mx.cpu(1))[:] = 3
    net.hybridize(static_alloc=True)
    data = make_batches([5, 6])
    expected = mxkit.evaluate(net, data, loss=SOFTMAX, metrics=["accuracy"])
    one = mxkit.load_net(mxkit.save_net(tmp_path / "one.net", net), devices="cpu")
    assert mxkit.evaluate(one, data, loss=SOFTMAX, metrics=["accuracy"]) == pytest.approx(expected)
    x = np.concatenate([x.asnumpy() for x, _ in data])
    np.testing.assert_allclose(mxkit.predict(net, x).asnumpy(), mxkit.predict(one, x).asnumpy(), rtol=1e-6)
    assert net[0].running_mean.data(mx.cpu(1)).asnumpy().tolist() == [3] * FEATURES


X = np.random.RandomState(0).rand(37, 1, 8, 8).astype(np.float32)
Y = np.arange(37, dtype=np.int32)


def small_net(devices="cpu"):
    mxkit.seed_all(3)
    layers = gluon.nn.Conv2D(4, 3), gluon.nn.BatchNorm(), gluon.nn.Dropout(0.5), gluon.nn.Dense(5)
    return ready(*layers, devices=devices, sample=(2, 1, 8, 8))


@pytest.mark.parametrize(("batch_size", "where"), [(5, "cpu"), (5, "cpu:3"), (37, "cpu"), (64, "cpu:3")])
def test_rows_are_those_of_the_net(batch_size, where, kind):
    nd, net = small_net(where), kind.net(lambda: small_net(where))
    found = extract(net, ["0", {"scores": "-1"}], ArrayLoader(X, Y, batch_size), labels="label")
    assert list(found) == ["0", "scores", "label"]
    np.testing.assert_allclose(found["0"], nd[0](mx.nd.array(X)).asnumpy(), atol=1e-6)
    np.testing.assert_allclose(found["scores"], nd(mx.nd.array(X)).asnumpy(), atol=1e-6)  # no dropout: predict mode
    assert (found["label"] == Y).all()
    assert found["0"].dtype == np.float32
    assert found["label"].dtype == np.int32


def test_a_shuffled_loader_needs_the_labels():
    net = small_net()
    loader = ArrayLoader(X, Y, 8, shuffle=True, seed=1)
    with pytest.raises(DataError, match="the loader shuffles.*labels='label'"):
        extract(net, "0", loader)
    found = extract(net, "0", loader, labels="label")
    assert sorted(found["label"]) == list(range(37))
    assert not (found["label"] == Y).all()
    np.testing.assert_allclose(found["0"], net[0](mx.nd.array(X)).asnumpy()[found["label"]], atol=1e-6)
    assert loader.epoch == 0  # looking at the data changes no later order
    assert extract(net, "0", ArrayLoader(X, Y, 8), limit_batches=2)["0"].shape[0] == 16


def test_blocks_of_several_outputs_and_of_half_precision():
    net = stack(plain_net(lambda net, x: (x * 2, [x.mean(axis=(1, 2, 3)), x + 1])), kind=gluon.nn.Sequential)
    found = extract(net, "0", mx.nd.array(X))
    assert list(found) == ["0[0]", "0[1][0]", "0[1][1]"]
    assert (found["0[1][1]"] == X + 1).all()
    net = stack(gluon.nn.Activation("relu"))  # MXNet multiplies no matrices in float16 on the CPU
    found = extract(net, "0", [mx.nd.array(X[:8], dtype="float16"), mx.nd.array(X[8:16], dtype="float16")])["0"]
    assert found.dtype == np.float16
    assert (found == X[:16].astype(np.float16)).all()


def test_wrong_requests():
    with pytest.raises(DataError, match=r"'0': expected a row per sample, \(8, ...\); received shape \(1,\)"):
        extract(stack(gluon.nn.HybridLambda(lambda F, x: F.sum(x))), "0", ArrayLoader(X, Y, 8))
    net = small_net()
    with pytest.raises(EmptyDataError, match="gave no batch"):
        extract(net, "0", [])
    with pytest.raises(DataError, match=r"extract: labels: expected batches \(x, y\); received x alone"):
        extract(net, "0", mx.nd.array(X), labels="label")
    with pytest.raises(ValueError, match="a feature is called 'label' too"):
        extract(net, {"label": "0"}, ArrayLoader(X, Y, 8), labels="label")
    with pytest.raises(ValueError, match="must match exactly"):
        extract(net, "0", [mx.nd.array(X[:8]), mx.nd.array(X[:8, :, :6, :6])])
