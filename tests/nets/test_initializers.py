"""Initializers by name, and the one call that gives a net its first values."""

from built_nets import ready, stack
import mxkit
from mxkit.errors import DeviceError, UnknownNameError
from mxkit.nets.initializers import get_initializer, initializer_names
import mxnet as mx
from mxnet.gluon import nn
import numpy as np
import pytest
from sharing import Kind


def test_every_device_gets_the_same_values_and_a_seed_decides_them():
    def values(seed):
        mxkit.seed_all(seed)
        net = ready(nn.Dense(3, in_units=4), devices="cpu:2")
        first, second = (weight.asnumpy() for weight in net.weight.list_data())
        np.testing.assert_array_equal(first, second)
        return first

    np.testing.assert_array_equal(values(1), values(1))
    assert (values(1) != values(2)).any()


@pytest.mark.parametrize("spec", ["xavier", "normal", ("xavier", {"rnd_type": "gaussian"}), "msraprelu", "orthogonal"])
def test_both_kinds_get_the_same_values(spec):
    def values(kind, later):
        mxkit.seed_all(3)
        with kind.switches():
            net = stack(nn.Conv2D(4, 3), nn.Dense(5, weight_initializer=mx.init.Normal(0.1)), nn.BatchNorm())
            mxkit.initialize(net, spec, devices="cpu:2", sample=None if later else (2, 1, 8, 8))
            net(kind.of(np.zeros((2, 1, 8, 8))))
        if later:  # whatever the switches are
            mxkit.initialize(net, spec, devices="cpu:2", force=True)
        assert all(kind.holds(array) for one in net.collect_params().values() for array in one.list_data())
        assert all(map(kind.holds, net[0].weight.list_grad()))
        return [array.asnumpy() for one in net.collect_params().values() for array in one.list_data()]

    for later in (False, True):
        np.testing.assert_equal(list(values(Kind(False), later)), list(values(Kind(True), later)))


def test_an_initializer_of_ones_own_gets_arrays_of_the_nets_kind(kind):
    class Checking(mx.init.Initializer):
        def _init_weight(self, name, array):
            assert kind.holds(array)
            assert mx.util.is_np_array() == kind.numpy
            array[:] = 3

    with kind.switches():
        net = ready(nn.Dense(2, in_units=3), initializer=Checking(), devices="cpu")
    mxkit.initialize(net, Checking(), devices="cpu", force=True)
    assert (net.weight.data().asnumpy() == 3).all()


@pytest.mark.parametrize("value", [3, mx.nd.full((2, 3), 3), mx.np.full((2, 3), 3)], ids=["number", "nd", "np"])
def test_a_constant_may_be_an_array_of_either_kind(value):
    with Kind(True).switches():
        net = ready(nn.Dense(2, in_units=3), initializer=mx.init.Constant(value), devices="cpu:2")
    assert (net.weight.data(mx.cpu(1)).asnumpy() == 3).all()


def test_the_default_is_xavier_with_its_bounds():
    """T22."""
    net = ready(nn.Dense(300, in_units=100), devices="cpu")
    weight = net.weight.data().asnumpy()
    bound = np.sqrt(3 / 200)  # magnitude 3 over the mean of both sides
    assert bound * 0.99 < np.abs(weight).max() <= bound
    assert not net.bias.data().asnumpy().any()


@pytest.mark.parametrize("spec", [("Normal", {"sigma": 0.25}), mx.init.Normal(0.25)])
def test_specs(spec):
    net = ready(nn.Dense(300, in_units=100), initializer=spec, devices="cpu")
    assert net.weight.data().asnumpy().std() == pytest.approx(0.25, rel=0.02)


def test_a_second_call_is_refused_unless_forced():
    """T20."""
    for net in (nn.Dense(3, in_units=4), nn.Dense(3)):  # shapes known, and not yet
        mxkit.initialize(net, devices="cpu")
        with pytest.raises(
            ValueError, match=r"initialize: parameter 'weight' has a value already, on \[cpu\(0\)\]. Pass"
        ):
            mxkit.initialize(net, devices="cpu")
        mxkit.initialize(net, "zeros", devices="cpu:2", force=True)
        assert net.weight.list_ctx() == mxkit.devices("cpu:2")
        for device in mxkit.devices("cpu:2"):
            assert not net(mx.nd.ones((1, 4), ctx=device)).asnumpy().any()


def test_a_refused_call_changes_nothing():
    net = stack(nn.Dense(3, in_units=4), nn.Dense(3, in_units=3))
    net[1].initialize(ctx=mx.cpu())
    with pytest.raises(ValueError, match="parameter '1.weight' has a value already"):
        mxkit.initialize(net, devices="cpu")
    assert net[0].weight._data is None


@pytest.mark.parametrize("size", [5, 0], ids=["known", "deferred"])
@pytest.mark.parametrize("spec", ["orthogonal", "xavier", "msraprelu", "bilinear"])
def test_a_parameter_of_too_few_axes_is_named_before_any_has_values(spec, size):
    net = stack(nn.Dense(3, in_units=4, weight_initializer="normal"), nn.HybridSequential())
    net[1].scale = net[1].params.get("scale", shape=(size,), allow_deferred_init=True)
    text = rf"parameter '1.scale' of shape \({size},\) has too few axes for .* Give this parameter another initializer"
    with pytest.raises(ValueError, match=text):
        mxkit.initialize(net, spec)
    net[1].scale.init = "normal"
    mxkit.initialize(net, spec)
    assert net[0].weight.data().shape == (3, 4)


def test_an_initializer_of_ones_own_may_draw_vectors():
    class Flat(mx.init.Xavier):
        def _init_weight(self, name, array):
            array[:] = 2

    net = nn.HybridSequential()
    net.scale = net.params.get("scale", shape=(5,))
    mxkit.initialize(net, Flat())
    assert (net.scale.data().asnumpy() == 2).all()


def test_wrong_specs():
    net = nn.Dense(3, in_units=4)
    with pytest.raises(UnknownNameError, match="unknown initializer 'xavir': did you mean 'xavier'"):
        mxkit.initialize(net, "xavir")
    with pytest.raises(TypeError, match=r"initializer: expected a name, \(name, arguments\) or an object of mx.init"):
        get_initializer(0.1)
    with pytest.raises(TypeError, match=r"initializer 'normal' takes no argument 'std'; it takes sigma"):
        get_initializer(("normal", {"std": 0.1}))
    with pytest.raises(DeviceError, match="devices: expected"):
        mxkit.initialize(net, devices="tpu")
    assert net.weight._data is None
    assert {"xavier", "normal", "uniform", "zeros"} <= set(initializer_names())


@pytest.mark.parametrize("sample", [(2, 1, 8, 8), mx.nd.ones((2, 1, 8, 8)), np.ones((2, 1, 8, 8), "float32")])
def test_a_sample_makes_every_size_known_on_every_device(sample):
    net = stack(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Dropout(0.5), nn.Dense(3))
    net.hybridize()
    mxkit.initialize(net, "xavier", devices="cpu:2", sample=sample)
    assert net[3].weight.shape == (3, 144)
    for parameter in net.collect_params().values():
        first, second = (one.asnumpy() for one in parameter.list_data())
        assert (first == second).all()
    assert (net[1].running_mean.data().asnumpy() == 0).all()  # predict mode


def test_norms_in_a_symbol_begin_with_ones_and_zeros():
    """T269."""
    data = mx.sym.var("data", dtype="float32")
    symbol = mx.sym.BatchNorm(mx.sym.Convolution(data, kernel=(1, 1), num_filter=3, name="conv"), name="norm")
    net = ready(mx.gluon.SymbolBlock(symbol, data), sample=(2, 4, 5, 5))
    values = {name: parameter.data().asnumpy() for name, parameter in net.collect_params().items()}
    assert {name: value.tolist() for name, value in values.items() if name.startswith("norm") or "bias" in name} == {
        "norm_gamma": [1, 1, 1],
        "norm_beta": [0, 0, 0],
        "norm_moving_mean": [0, 0, 0],
        "norm_moving_var": [1, 1, 1],
        "conv_bias": [0, 0, 0],
    }
    assert len(set(values["conv_weight"].ravel().tolist())) > 5
