"""What is equal to the bit, or to float32's digits, on a GPU that computes in the exact mode (MXKIT_EXACT=1)."""

import os

from gpu_cases import CPU, SHAPES, convolutional, data, dropout, resumed, statistics
import mxkit
from mxkit.core.arrays import Packed
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn
import numpy as np
import pytest

pytestmark = pytest.mark.gpu_pass("exact")


def test_gpus_are_seen_with_the_word_only():
    assert (os.environ.get("CUDA_VISIBLE_DEVICES") == "") == (os.environ.get("MXKIT_TESTS_GPU") != "1")


@pytest.mark.parametrize("make", [dropout, convolutional], ids=lambda make: make.__name__)
def test_a_run_resumed_inside_an_epoch_is_equal_to_the_bit(accelerators, make, tmp_path):
    expected, history, found, resumed_history = resumed(make, accelerators, tmp_path)
    for path, value in expected.items():
        np.testing.assert_array_equal(found[path], value, err_msg=path)
    assert resumed_history.column("train_loss") == history.column("train_loss")


def test_try_hybridize_keeps_running_statistics(accelerators, told):
    for device in accelerators:
        net = convolutional([device])
        mxkit.fit(net, data(32, SHAPES[convolutional]), loss="softmax_ce", trainer="sgd", epochs=1, progress=False)
        before = statistics(net)
        assert abs(before[0]).max() > 0
        found = mxkit.nets.try_hybridize(net, mx.nd.random.normal(shape=(4, *SHAPES[convolutional]), ctx=device))
        told(str(found))
        assert found, found
        for now, then in zip(statistics(net), before):
            np.testing.assert_array_equal(now, then)


def norm_net(device):
    """BatchNorm with statistics that differ from those of the batches (T130), and max pooling (T137)."""
    mxkit.seed_all(3)
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, in_channels=2), nn.BatchNorm(in_channels=8), nn.MaxPool2D(2), nn.GlobalAvgPool2D())
    net.add(nn.Flatten(), nn.Dense(3, in_units=8))
    mxkit.initialize(net, devices=[device])
    random = np.random.RandomState(5)
    for path, low, high in (("1.running_mean", -1, 1), ("1.running_var", 0.5, 2), ("1.gamma", 0.5, 2)):
        net._collect_params_with_prefix()[path].set_data(mx.nd.array(random.uniform(low, high, 8)))
    return net


def predict_gradients(device, hybridize):
    """Gradients of a net as it predicts: of its input by three ways, and of its parameters."""
    net = norm_net(device)
    net.hybridize(hybridize)
    x = mx.nd.array(np.random.RandomState(6).randn(3, *SHAPES[convolutional]), ctx=device)
    value, found = mxkit.gradients.value_and_grad(net)(x)
    gradients = {"value": value, "value_and_grad": found, "grad": mxkit.gradients.grad(net)(x)}
    gradients["jacobian"] = mxkit.gradients.jacobian(net)(x[:1])
    x.attach_grad()
    with mxkit.gradients.mode(record=True, train=False):
        loss = net(x).square().sum()
    loss.backward()
    gradients["mode"] = x.grad
    trained = {path: one for path, one in net._collect_params_with_prefix().items() if one.grad_req != "null"}
    gradients.update({path: one.grad(device) for path, one in trained.items()})
    return {name: array.asnumpy() for name, array in gradients.items()}


@pytest.mark.parametrize("hybridize", [False, True])
def test_gradients_in_predict_mode_equal_the_cpus(device, hybridize):
    found, expected = (predict_gradients(where, hybridize) for where in (device, CPU))
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-4 * abs(value).max(), err_msg=name)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("scale", [1 / 255, 0.1, 1.0])
def test_bytes_cast_on_the_device_equal_numpys_product(device, scale, static):
    pixels = np.arange(256, dtype="uint8").reshape(1, 1, 16, 16)
    packed = Packed(mx.nd.array(pixels, ctx=device, dtype="uint8"), scale)
    expected = pixels.astype("float32") * np.float32(scale)
    np.testing.assert_array_equal(packed.unpacked().asnumpy(), expected)
    variable = mx.sym.var("data", dtype="uint8")
    graph = gluon.SymbolBlock(packed.symbol(variable), variable)
    graph.hybridize(static_alloc=static, static_shape=static)
    for _ in range(2):
        np.testing.assert_array_equal(graph(packed.array).asnumpy(), expected)


class Pointwise(gluon.HybridBlock):
    """Neighbouring element-wise operators, which MXNet fuses on a GPU."""

    def hybrid_forward(self, F, x):
        return F.sigmoid(x) * F.tanh(2 * x + 1) - F.exp(-F.square(x)) + F.relu(x) / (1 + F.abs(x))


def pointwise_steps(device, **flags):
    """Outputs and gradients of three batches, one shape, through one graph."""
    mxkit.seed_all(3)
    net = nn.HybridSequential()
    net.add(nn.Dense(16, in_units=12), Pointwise(), nn.LayerNorm(in_channels=16), Pointwise(), nn.Dense(3, in_units=16))
    mxkit.initialize(net, devices=[device])
    if flags:
        net.hybridize(**flags)
    found = []
    for number in range(3):
        x = mx.nd.array(np.random.RandomState(number).randn(8, 12), ctx=device)
        x.attach_grad()
        with autograd.record():
            output = net(x)
        output.backward()
        found += [one.asnumpy() for one in (output, x.grad, *(p.grad() for p in net.collect_params().values()))]
    return found


@pytest.mark.parametrize("fusion", ["1", "0"])
def test_static_graphs_equal_eager_computation(device, monkeypatch, fusion, told):
    monkeypatch.setenv("MXNET_USE_FUSION", fusion)  # read when a graph is made
    found = pointwise_steps(device, static_alloc=True, static_shape=True)
    apart = 0.0
    for there, here in zip(found, pointwise_steps(device)):
        np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-5 * abs(here).max())
        apart = max(apart, abs(there - here).max())
    told(f"fusion {'on' if fusion == '1' else 'off'}: static graph and eager differ by {apart:.1e}")
