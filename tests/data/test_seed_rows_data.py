"""Rows of SEEDS.md on arrays, autograd, data, augmentation and dtypes; see test_seed_rows.py."""

import random

import mxkit
from mxkit.errors import DataError, ForwardError, LabelError, TrainingError
import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
import numpy as np
import pytest
from seed_code import ONE_BATCH, backward_of, leaf, stack, train

# A to C: background, arrays, autograd


def test_row_1_the_estimator_takes_a_data_loader_only():
    from mxnet.gluon.contrib.estimator import Estimator

    net = stack(nn.Dense(3, in_units=2))
    theirs = Estimator(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer=gluon.Trainer(net.collect_params(), "sgd"))
    with pytest.raises(ValueError, match="only support input as Gluon DataLoader"):
        theirs.fit(ONE_BATCH, epochs=1)
    assert len(mxkit.fit(net, ONE_BATCH, loss="softmax_ce", trainer="sgd", epochs=2, progress=False)) == 2


def test_row_6_numpy_and_ndarray_mixed():
    x, y = np.ones((2, 3)), nd.ones((2, 3))
    for mixed in (lambda: x + y, lambda: y + x):
        with pytest.raises(TypeError, match="numpy.ndarray'> not supported"):
            mixed()
    with pytest.raises(AssertionError, match="must have NDArray type"):
        nd.zeros_like(x)

    net = stack(nn.Dense(3))
    assert mxkit.predict(net, x).shape == mxkit.predict(net, y).shape == (2, 3)


def test_row_7_writing_in_place_while_recording():
    class InPlace(nn.HybridBlock):
        def forward(self, x):
            y = x * 2
            y[0] = 1
            return y

    with autograd.record(), pytest.raises(mx.MXNetError, match="cannot use inplace operations"):
        InPlace()(leaf(1, 2))

    with pytest.raises(TrainingError, match=r"update 1, .*'1' \(InPlace\).*(?s:.)*cannot use inplace operations"):
        train(stack(nn.Dense(3), InPlace()))


def test_row_9_whole_numbers_become_float32():
    labels = np.array([2**24 + 1])
    assert int(nd.array(labels).asscalar()) == 2**24
    assert nd.from_numpy(np.ones(2)).dtype == np.float64

    ((x, y),) = mxkit.data.ArrayLoader(np.ones((1, 2)), labels, 1)
    assert (x.dtype, y.dtype, int(y.asscalar())) == (np.float32, np.int32, 2**24 + 1)
    with pytest.raises(DataError, match="int64 becomes int32, which cannot hold 1099511627776"):
        mxkit.data.ArrayLoader(np.ones((1, 2)), np.array([2**40]), 1)


def test_row_14_a_gradient_that_is_a_sum():
    def f(x):
        return nd.mean(x) + 2 * x

    x = leaf([1, 2, 3], [3, 2, 1])
    backward_of(f, x)
    np.testing.assert_allclose(x.grad.asnumpy(), np.full((2, 3), 3), rtol=1e-6)  # not 2 + 1/6
    np.testing.assert_allclose(mxkit.gradients.jacobian(f)(x)[0, 0].asnumpy()[0], [2 + 1 / 6, 1 / 6, 1 / 6], rtol=1e-5)
    mxkit.gradients.check_gradient(f, x)


def test_row_16_backward_without_a_graph():
    x = leaf(3)
    y = backward_of(nd.square, x)
    for head in (y, nd.ones(1) * 2):
        with pytest.raises(mx.MXNetError, match="not in a computational graph"):
            head.backward()

    gradient = mxkit.gradients.grad(nd.square)
    assert gradient(x).asscalar() == gradient(x).asscalar() == 6


def test_row_17_numpy_cuts_the_graph():
    def cut(x):
        return nd.array(np.square(x.asnumpy()))

    with pytest.raises(mx.MXNetError, match="not in a computational graph"):
        backward_of(cut, leaf(3))
    x = leaf(3, 4)
    backward_of(lambda x: sum(one * one for one in x), x)
    assert x.grad.asnumpy().tolist() == [6, 8]  # loops over elements do not

    with pytest.raises(ValueError, match="does not depend on the argument by recorded operators. NumPy, asnumpy"):
        mxkit.gradients.grad(cut)(x)
    ours = mxkit.gradients.custom_gradient(cut, lambda dy, x, y: 2 * x * dy)
    backward_of(ours, x)
    assert x.grad.asnumpy().tolist() == [6, 8]


# F: data


def test_rows_37_and_41_bytes_and_float64_without_a_transform():
    images = np.random.RandomState(0).randint(0, 256, (4, 1, 8, 8)).astype("uint8")
    for x, dtype in ((images, "uint8"), (np.ones((4, 2)), "float64")):
        net = stack(nn.Dense(3))
        ((theirs, _),) = gluon.data.DataLoader(gluon.data.ArrayDataset(x, np.zeros(4)), 4)
        with pytest.raises(mx.MXNetError, match=f"expected {dtype}, got float32"):
            net(theirs)
        with pytest.raises(DataError, match=rf"is {dtype}: cast it in the loader, x.astype\('float32'\)"):
            train(net, [(theirs, np.zeros(4))])
        train(net, mxkit.data.ArrayLoader(x, np.zeros(4), 4))


# G: augmentation


def test_row_51_brightness_makes_bytes_black():
    image = np.full((8, 8, 3), 200, "uint8")
    ends, floats = [], []
    for seed in range(10):
        random.seed(seed)
        theirs = mx.image.BrightnessJitterAug(0.5)(nd.array(image, dtype="uint8"))
        ends.append(int(theirs.max().asscalar()))
        floats.append(mx.image.BrightnessJitterAug(0.5)(nd.array(image)).max().asscalar())
    assert set(ends) == {0, 200}
    assert max(floats) > 255

    augment = mxkit.data.Augment([mx.image.BrightnessJitterAug(0.5)])
    found = [augment(image, np.random.default_rng(seed)).max() for seed in range(10)]
    assert len(set(found)) > 5
    assert 100 <= min(found) <= max(found) <= 255
    assert (image == 200).all()


def test_row_53_a_transform_written_for_batches():
    image = nd.ones((32, 32, 3))
    with pytest.raises(mx.MXNetError, match=r"\(3 vs. 4\)"):
        nd.transpose(image, (0, 3, 1, 2))

    dataset = gluon.data.SimpleDataset([((np.ones((32, 32, 3)) * 255).astype("uint8"), 3)] * 4)
    augment = mxkit.data.Augment(["flip", ("crop", {"size": 32, "padding": 4}), "to_tensor"])
    ((x, y),) = mxkit.data.DatasetLoader(dataset, 4, transform=augment)
    assert (x.shape, y.shape) == ((4, 3, 32, 32), (4,))


# T: dtypes


def test_row_138_dtypes():
    with pytest.raises(mx.MXNetError, match="expected int32, got float32"):
        nd.ones(2, dtype="int32") + nd.ones(2)
    assert (nd.array([1], dtype="int32") + 0.5).asscalar() == 1
    assert (nd.array([100, 255], dtype="uint8") / 255).asnumpy().tolist() == [0, 1]
    clipped = gluon.loss.SoftmaxCrossEntropyLoss()(nd.array([[1, 2, 3]]), nd.array([7]))
    assert clipped.asscalar() == pytest.approx(0.4076, abs=1e-4)

    net = stack(nn.Dense(3))
    with pytest.raises(ForwardError, match=r"'0' \(Dense\) computes in float32.* got \(2, 2\) int32. Cast the input"):
        mxkit.predict(net, nd.ones((2, 2), dtype="int32"))
    with pytest.raises(LabelError, match="labels must be whole numbers from 0 to 2, .*received 7"):
        train(net, [(np.ones((1, 2), "float32"), np.array([7]))])
