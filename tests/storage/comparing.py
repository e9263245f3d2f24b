"""What tests of checkpoints share: a net, its data, and values of nets, compared bit for bit."""

import mxkit
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn
import numpy as np
from sharing import Kind

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


ND = Kind(False)


def step(net, trainer, number, first=0, kind=ND):
    """Make `number` updates, each a function of its own number and of what there was before."""
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    contexts = net.collect_params().list_ctx()
    for i in range(first, first + number):
        chosen = slice(8 * (i % 5), 8 * (i % 5) + 8)
        parts = zip(*(kind.of(gluon.utils.split_and_load(mx.nd.array(a[chosen]), contexts)) for a in (X, Y)))
        with kind.switches(), autograd.record():
            losses = [loss(net(x), y) for x, y in parts]
        autograd.backward(losses)
        with kind.switches():
            trainer.step(8)
