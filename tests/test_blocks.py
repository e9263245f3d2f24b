"""Parameters by path, and the devices of a net."""

import mxkit
from mxkit.blocks import net_devices, parameters_by_path, paths_of
from mxkit.errors import DeviceError, NotInitializedError
import mxnet as mx
from mxnet.gluon import nn
import pytest


def test_t37_paths_do_not_carry_gluons_counters():
    first, second = mxkit.models.lenet(), mxkit.models.lenet()
    assert list(parameters_by_path(first)) == list(parameters_by_path(second))
    assert "0.weight" in parameters_by_path(first)
    assert {p.name for p in parameters_by_path(first).values()}.isdisjoint(
        p.name for p in parameters_by_path(second).values()
    )


def test_paths_of_parameters_in_the_nets_order_and_of_a_strangers():
    net, stranger = mxkit.models.mlp(), nn.Dense(2)
    assert paths_of([stranger.weight, net[2].bias, net[1].weight], net) == ["1.weight", "2.bias", stranger.weight.name]


def test_a_shared_parameter_stands_under_both_paths():
    net = nn.HybridSequential()
    net.add(nn.Dense(2, in_units=2))
    net.add(nn.Dense(2, in_units=2, params=net[0].params))
    found = parameters_by_path(net)
    assert sorted(found) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    assert found["0.weight"] is found["1.weight"]


@pytest.mark.parametrize("in_units", [0, 4], ids=["deferred", "known"])
def test_net_devices(in_units):
    net = nn.Dense(2, in_units=in_units)
    with pytest.raises(
        NotInitializedError, match=r"parameter 'weight' has no value. Call mxkit.initialize\(net, 'xavier'\)"
    ):
        net_devices(net)
    devices = [mx.cpu(1), mx.cpu(0)]
    net.initialize(ctx=devices)
    assert net_devices(net) == devices
    assert net_devices(net, devices) == devices
    with pytest.raises(
        DeviceError, match=r"the net lives on \[cpu\(1\), cpu\(0\)\]; asked for were \[cpu\(1\)\]. Move it"
    ):
        net_devices(net, [mx.cpu(1)])


def test_a_net_without_parameters_lives_on_the_cpu():
    assert net_devices(nn.Flatten()) == [mx.cpu()]


def test_a_net_spread_over_devices():
    net = nn.HybridSequential()
    net.add(nn.Dense(2, in_units=2), nn.Dense(2, in_units=2))
    net[0].initialize(ctx=mx.cpu(0))
    net[1].initialize(ctx=mx.cpu(1))
    text = r"'0.weight' lives on \[cpu\(0\)\], '1.weight' on \[cpu\(1\)\]. Move it as a whole: mxkit.to"
    with pytest.raises(DeviceError, match=text):
        net_devices(net)
