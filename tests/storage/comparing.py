"""What tests of checkpoints share: a net, its data, and values of nets, compared bit for bit."""

import mxkit
from mxnet.gluon import nn
import numpy as np

DATA = np.random.RandomState(0)
X, Y = DATA.randn(40, 5).astype("float32"), DATA.randint(0, 3, 40)


def make_net(devices="cpu", norm=False, seed=3, width=6):
    """A small classifier of rows of `X`."""
    mxkit.seed_all(seed)
    net = nn.HybridSequential()
    net.add(nn.Dense(width, in_units=5, activation="tanh"))
    if norm:
        net.add(nn.BatchNorm(in_channels=width))
    net.add(nn.Dense(3, in_units=width))
    mxkit.initialize(net, devices=devices)
    return net


def values(net):
    """Arrays by path and number of the device."""
    parameters = net._collect_params_with_prefix().items()
    return {f"{path}@{i}": array.asnumpy() for path, p in parameters for i, array in enumerate(p.list_data())}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for path in one:
        np.testing.assert_array_equal(one[path], other[path])
