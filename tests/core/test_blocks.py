"""Parameters by path, and the devices of a net."""

from built_nets import stack
import mxkit
from mxkit.core.blocks import blocks_by_path, net_devices, operator_name, parameters_by_path, paths_of
from mxkit.errors import DeviceError, NotInitializedError
import mxnet as mx
from mxnet.gluon import nn
import pytest


def test_paths_do_not_carry_gluons_counters():
    """T37."""
    first, second = mxkit.models.lenet(), mxkit.models.lenet()
    assert list(parameters_by_path(first)) == list(parameters_by_path(second))
    assert "0.weight" in parameters_by_path(first)
    assert set(first.collect_params()).isdisjoint(second.collect_params())


def test_paths_of_parameters_in_the_nets_order_and_of_a_strangers():
    net, stranger = mxkit.models.mlp(), nn.Dense(2)
    assert paths_of([stranger.weight, net[2].bias, net[1].weight], net) == ["1.weight", "2.bias", stranger.weight.name]


@pytest.mark.parametrize("in_units", [0, 4], ids=["deferred", "known"])
def test_net_devices(in_units):
    net = nn.Dense(2, in_units=in_units)
    text = r"parameter 'weight' has no value. Call mxkit.initialize\(net, 'xavier'\)"
    with pytest.raises(NotInitializedError, match=text):
        net_devices(net)
    devices = [mx.cpu(1), mx.cpu(0)]
    net.initialize(ctx=devices)
    assert net_devices(net) == devices
    assert net_devices(net, devices) == devices
    text = r"the net lives on \[cpu\(1\), cpu\(0\)\]; asked for were \[cpu\(1\)\]. Move it"
    with pytest.raises(DeviceError, match=text):
        net_devices(net, [mx.cpu(1)])
    assert net_devices(nn.Flatten()) == [mx.cpu()]
    spread = stack(net, nn.Dense(2, in_units=2))
    spread[1].initialize()
    with pytest.raises(DeviceError, match=r"'0.weight' lives on .*, '1.weight' on \[cpu\(0\)\]. Move it as a whole"):
        net_devices(spread)


def test_a_convolution_of_mx_np_has_the_operators_name_of_mx_nd(kind):
    with kind.switches():
        names = [operator_name(layer(3, 2)) for layer in (nn.Conv2D, nn.Conv1DTranspose)]
    assert names == ["Convolution", "Deconvolution"]


def test_what_is_no_net_is_refused_by_name(tmp_path):
    x = mx.nd.ones((4, 3))
    loader, net = mxkit.data.ArrayLoader(x, [0, 1, 2, 0], 2), nn.Dense(3, in_units=3)
    net.initialize()
    how = {"loss": "softmax_ce", "trainer": "sgd"}
    for call in (
        lambda: mxkit.fit(loader, net, epochs=1, **how),
        lambda: list(mxkit.updates(loader, net, **how)),
        lambda: mxkit.evaluate(loader, net, loss="softmax_ce"),
        lambda: mxkit.predict(loader, net),
        lambda: mxkit.extract(loader, "0", net),
        lambda: mxkit.layers(loader, (1, 3)),
        lambda: mxkit.export(loader, tmp_path / "a", input_shape=(1, 3)),
        lambda: mxkit.nets.replace(loader, "0", net),
        lambda: mxkit.nets.try_hybridize(loader, net),
        lambda: mxkit.load_parameters(loader, tmp_path / "a.params"),
        lambda: mxkit.to(loader, "cpu"),
        lambda: list(blocks_by_path(loader)),
    ):
        with pytest.raises(TypeError, match="expected a net, a gluon.Block; received ArrayLoader. The net comes first"):
            call()
    with pytest.raises(TypeError, match=r"expected a net; received the class Flatten: write Flatten\(\)"):
        mxkit.predict(nn.Flatten, x)
    with pytest.raises(TypeError, match="expected gluon.Trainer.*; received Dense"):
        mxkit.Accumulator(net)
