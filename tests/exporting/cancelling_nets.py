"""Nets with sums that cancel to zero, or nearly so, for batches of (N, 6, 6, 6): `NETS[name]()`."""

from built_nets import stack
import mxnet as mx
from mxnet.gluon import nn

SHAPE = (2, 6, 6, 6)


def chain(*blocks):
    mx.random.seed(0)
    net = stack(*(one if isinstance(one, mx.gluon.Block) else nn.HybridLambda(one) for one in blocks))
    net.initialize(mx.init.Xavier())
    return net


def means(F, x):
    return F.mean(x, axis=(2, 3))


def instance():
    """The mean of what a layer has normalized, and layers without a bias behind it."""
    return chain(nn.Conv2D(4, 3), nn.InstanceNorm(), means, nn.Dense(6, activation="tanh"), nn.Dense(2))


def pooled():
    """A pooling layer instead of the mean."""
    return chain(nn.InstanceNorm(), nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(3))


def shifted():
    """The same with small biases in the normalization and behind it."""
    net = chain(nn.InstanceNorm(), means, nn.Dense(3))
    net(mx.nd.ones(SHAPE))
    net[0].beta.set_data(mx.nd.ones(6) * 1e-3)
    net[2].bias.set_data(mx.nd.ones(3) * 2e-3)
    return net


def layer_norm():
    return chain(nn.Conv2D(4, 3), nn.LayerNorm(), lambda F, x: F.sum(x, axis=-1), nn.BatchNorm())


def centred():
    """Numbers minus their own mean, added up."""
    return chain(lambda F, x: F.broadcast_sub(x, F.mean(x, axis=1, keepdims=True)), lambda F, x: F.sum(x, axis=1))


def chances():
    """Probabilities add up to 1."""
    return chain(lambda F, x: F.softmax(x * 3, axis=2), lambda F, x: F.sum(x, axis=2) - 1)


def branches():
    """A small difference of two branches."""
    return chain(nn.Conv2D(4, 3), lambda F, x: F.elemwise_sub(F.tanh(x), F.tanh(x) * 0.99998))


def variance():
    """Mean of the squares minus square of the mean, of numbers far from zero."""
    return chain(lambda F, x: F.square(means(F, x + 3.7)) - means(F, F.square(x + 3.7)), lambda F, x: x / 10)


NETS = {one.__name__: one for one in (instance, pooled, shifted, layer_norm, centred, chances, branches, variance)}
