"""The base for own layers: shapes, constants, devices, graphs, files, descriptions."""

import copy

from built_nets import imported, ready, stack
import mxkit
from mxkit.errors import NotInitializedError
from mxkit.gradients.functions import check_gradient
from mxkit.nets.finetuning import copy_net
from mxkit.nets.own_layers import Layer
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np
import pytest

X = np.random.RandomState(0).randn(4, 5).astype("float32")
X_ND = mx.nd.array(X)


@mxkit.nets.register_block
class Linear(Layer):
    """Seed's MyDense, with the weight as nn.Dense has it."""

    def __init__(self, units, scale=2.0, activation="relu", **kwargs):
        super().__init__(**kwargs)
        self._activation = activation
        self.parameter("weight", (units, 0))
        self.parameter("bias", (units,), wd_mult=0.0)
        self.constant("scale", [scale])

    def infer(self, x):
        return {"weight": (self.weight.shape[0], x[-1])}

    def hybrid_forward(self, F, x, weight, bias, scale):
        y = F.broadcast_add(F.dot(x, weight, transpose_b=True), bias)
        return F.broadcast_mul(F.Activation(y, act_type=self._activation), scale)


class ByOperator(Layer):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.parameter("weight", (units, 0))

    def hybrid_forward(self, F, x, weight):
        return F.FullyConnected(x, weight, no_bias=True, num_hidden=self.weight.shape[0])


def made(cls=Linear, units=3, devices="cpu", **arguments):
    return ready(cls(units, **arguments), devices=devices)


def expected(net, x=X, scale=2.0):
    return np.maximum(x @ net.weight.data().asnumpy().T + net.bias.data().asnumpy(), 0) * scale


@pytest.mark.parametrize("hybrid", [False, True])
def test_shapes_come_from_the_first_input(hybrid):
    net = made()
    if hybrid:
        net.hybridize()
    np.testing.assert_allclose(net(mx.nd.array(X)).asnumpy(), expected(net), rtol=1e-5)
    assert net.weight.shape == (3, 5)
    assert check_gradient(net, X).compared == X.size + 15 + 3
    net = made(ByOperator)
    if hybrid:
        net.hybridize()
    np.testing.assert_allclose(net(mx.nd.array(X)).asnumpy(), X @ net.weight.data().asnumpy().T, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("hybrid", [False, True])
def test_several_devices_have_their_own_values(hybrid):
    net = made(devices="cpu:2")
    if hybrid:
        net.hybridize()
    for number in range(2):
        net(mx.nd.array(X, ctx=mx.cpu(number)))
    net.weight.data(mx.cpu(1))[:] = 7  # MyDense read cpu(0)'s copy
    found = net(mx.nd.ones((1, 5), ctx=mx.cpu(1)))
    assert found.context == mx.cpu(1)
    np.testing.assert_array_equal(found.asnumpy(), [[70, 70, 70]])


@pytest.mark.parametrize("hybrid", [False, True])
def test_layers_of_mx_np(hybrid):
    class Scaled(Layer):
        def __init__(self, units, **kwargs):
            super().__init__(**kwargs)
            self.parameter("weight", (units, 0))
            self.constant("scale", [2.0])

        def infer(self, x):
            return {"weight": (self.weight.shape[0], x[-1])}

        def hybrid_forward(self, F, x, weight, scale):
            return F.np.dot(x, F.np.transpose(weight)) * scale

    with mx.util.np_shape(), mx.util.np_array():
        net = made(Scaled, devices="cpu:2")
        net.hybridize(hybrid)
        found = net(mx.np.array(X))
    for device in net.weight.list_ctx():
        assert isinstance(net.weight.data(device), mx.np.ndarray)
        assert isinstance(net.scale.data(device), mx.np.ndarray)
    np.testing.assert_allclose(found.asnumpy(), X @ net.weight.data(mx.cpu()).asnumpy().T * 2, rtol=1e-5)
    np.testing.assert_array_equal(mxkit.Features(net, "")(X_ND)[""].asnumpy(), found.asnumpy())


@pytest.mark.parametrize("value", [[2.0], X_ND[0, :1], X_ND[0, :1].as_np_ndarray()], ids=["number", "nd", "np"])
def test_parameters_without_axes_and_constants_of_either_kind(value, kind):
    class Gain(Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.parameter("gain", () if kind.numpy else (1,), init=mx.init.Constant(3))
            self.constant("scale", value)

        def hybrid_forward(self, F, x, gain, scale):
            return x * gain * scale if kind.numpy else F.broadcast_mul(x, gain * scale)

    with kind.switches():
        net = ready(Gain(), devices="cpu:2")
    twin = copy_net(net)
    assert mxkit.nets.compare(net, twin)
    mxkit.freeze(net)
    mxkit.to(mxkit.unfreeze(net) and net, "cpu")
    found = mxkit.predict(net, X)
    np.testing.assert_allclose(found.asnumpy(), X * 3 * net.scale.data().asnumpy(), rtol=1e-6)
    np.testing.assert_array_equal(mxkit.predict(twin, X).asnumpy(), found.asnumpy())
    with kind.switches():
        for array in twin.gain.list_data():
            array[()] = 6
    assert mxkit.nets.compare(net, twin).values["gain"].largest == 3


def test_constants_are_saved_moved_and_never_trained(tmp_path):
    net = made(scale=5.0)
    net(mx.nd.array(X))
    net.save_parameters(str(tmp_path / "net.params"))
    other = made(scale=1.0)
    other.load_parameters(str(tmp_path / "net.params"))
    np.testing.assert_allclose(other(mx.nd.array(X)).asnumpy(), expected(net, scale=5.0), rtol=1e-5)
    net.collect_params().reset_ctx([mx.cpu(1)])
    assert net(mx.nd.array(X, ctx=mx.cpu(1))).context == mx.cpu(1)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0, "wd": 0.1})
    with autograd.record():
        loss = net(mx.nd.array(X, ctx=mx.cpu(1))).sum()
    loss.backward()
    trainer.step(1)
    assert net.scale.data().asscalar() == 5.0


def test_described_rebuilt_copied_cast_and_exported(tmp_path):
    net = ready(Linear(4, activation="tanh"), Linear(2, scale=3.0), devices="cpu")
    y = net(mx.nd.array(X)).asnumpy()
    twin = mxkit.nets.build(mxkit.nets.describe(net))
    net.save_parameters(str(tmp_path / "net.params"))
    twin.load_parameters(str(tmp_path / "net.params"))
    np.testing.assert_array_equal(twin(mx.nd.array(X)).asnumpy(), y)
    np.testing.assert_array_equal(copy.deepcopy(net)(mx.nd.array(X)).asnumpy(), y)
    mxkit.save_net(tmp_path / "net.mxk", net)
    np.testing.assert_array_equal(mxkit.load_net(tmp_path / "net.mxk")(mx.nd.array(X)).asnumpy(), y)
    net.hybridize()
    np.testing.assert_allclose(net(mx.nd.array(X)).asnumpy(), y, rtol=1e-6)
    net.export(str(tmp_path / "net"))
    np.testing.assert_allclose(imported(tmp_path / "net")(mx.nd.array(X)).asnumpy(), y, rtol=1e-6)
    net.cast("float64")
    assert net(mx.nd.array(X, dtype="float64")).dtype == np.float64


def test_a_hybridized_net_around_it_is_told_to_run_once():
    net = ready(Linear(4), Linear(2), devices="cpu")
    net.hybridize()
    with pytest.raises(NotInitializedError, match=r"Linear: the shapes of weight come from infer\(\)"):
        net(mx.nd.array(X))
    net.hybridize(False)
    net(mx.nd.array(X))
    net.hybridize()
    assert net(mx.nd.array(X)).shape == (4, 2)
    net = stack(ByOperator(4), ByOperator(2))  # MXNet infers through the graph
    mxkit.initialize(net, "xavier", devices="cpu")
    net.hybridize()
    assert net(mx.nd.array(X)).shape == (4, 2)


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ({"weight": (2, 5)}, r"a whole shape like \(3, 0\); it returned 'weight': \(2, 5\)"),
        ({"weight": (3, 0)}, r"it returned 'weight': \(3, 0\)"),
        ({"wieght": (3, 5)}, r"names among weight, bias, scale; it returned 'wieght'"),
    ],
)
def test_infer_is_checked(told, text):
    class Wrong(Linear):
        def infer(self, x):
            return told

    with pytest.raises(ValueError, match=text):
        made(Wrong)(mx.nd.array(X))


@pytest.mark.parametrize("name", ["weight", "name", "two words", 3])
def test_names_are_checked(name):
    net = Linear(3)
    with pytest.raises(ValueError, match="cannot be an attribute.s name, or is taken"):
        net.parameter(name, (1,))
    with pytest.raises(ValueError, match="cannot be an attribute.s name, or is taken"):
        net.constant(name, [1])
