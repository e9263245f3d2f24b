"""Nets and arrays of mx.np give the pictures of those of mx.nd, whatever the switches of MXNet are."""

from built_nets import ready
import mxkit
from mxkit import plots
from mxkit.core.arrays import is_numpy, switches
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn
import numpy as np
import pytest
from sharing import Kind

X = np.random.RandomState(0).rand(4, 3, 8, 8).astype("float32")
Y = np.array([0, 1, 2, 3])


def make():
    mxkit.seed_all(0)
    layers = nn.Conv2D(6, 3, in_channels=3), nn.Conv2DTranspose(4, 3, in_channels=6), nn.Dense(4, in_units=256)
    return ready(*layers, devices="cpu:2")


def features(net, x):
    return mxkit.Features(net, ["*"])(x)


def gradients(net, x, y):
    for device, image, label in zip(net[0].weight.list_ctx(), (x[:2], x[2:]), (y[:2], y[2:])):
        image, label = (array.copyto(device) for array in (image, label))
        with switches(is_numpy(x)), autograd.record():
            loss = gluon.loss.SoftmaxCELoss()(net(image), label)
        loss.backward()
    return plots.plot_gradients(net)


PICTURES = {
    "features": lambda net, x, y: plots.plot_features(features(net, x), image=x, order="strength")["1"],
    "bars": lambda net, x, y: plots.plot_features(features(net, x), image=x[0])["2"],
    "activations": lambda net, x, y: plots.plot_activations(features(net, x)),
    "filters": lambda net, x, y: plots.plot_filters(net, "0"),
    "transposed": lambda net, x, y: plots.plot_filters(net, "1"),
    "gradients": gradients,
    "images": lambda net, x, y: plots.show_images(x, y, predicted=y[::-1]),
    "list": lambda net, x, y: plots.show_images([x[0], x[1]], [y[0], y[1]]),
    "batch": lambda net, x, y: plots.show_batch(mxkit.data.ArrayLoader(x, y, 4)),
    "data": lambda net, x, y: plots.show_data(mxkit.data.describe([(x, y)])),
    "augment": lambda net, x, y: plots.show_augment(x[0].transpose((1, 2, 0)), ["flip"]),
}


def drawn(picture, kind):
    figure = PICTURES[picture](kind.net(make), kind.of(X), kind.of(Y))
    figure.set_dpi(40)
    if hasattr(figure, "set_layout_engine"):  # not in matplotlib 3.5
        figure.set_layout_engine("none")  # which takes most of the time
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba()).copy()


@pytest.mark.parametrize("picture", PICTURES)
def test_pictures_do_not_depend_on_the_kind_of_arrays(picture):
    expected = drawn(picture, Kind(False))
    for numpy in (False, True):
        with switches(not numpy):
            np.testing.assert_array_equal(drawn(picture, Kind(numpy)), expected)


def test_a_feature_without_an_axis_is_one_value():
    with switches(True):
        figure = plots.plot_activations({"loss": mx.np.ones(())})
    assert "mean 1, std 0" in figure.axes[0].get_title(loc="left")
