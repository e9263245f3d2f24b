"""Nets for the conversion to PyTorch, each with an example of its arguments at batch 2."""

from built_nets import hybrid_net, stack
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np


def floats(*shape):
    return np.random.RandomState(0).uniform(-1, 1, shape).astype("f")


def initialized(net):
    net.initialize(mx.init.Xavier(magnitude=2))
    return net


class Several(gluon.HybridBlock):
    """Own parameters, a constant, a name that nn.Module has, several inputs and nested outputs."""

    def __init__(self):
        super().__init__()
        self.scale = self.params.get("scale", shape=(1, 8), init=mx.init.Normal(1))
        self.offset = self.params.get_constant("offset", mx.nd.arange(8).reshape((1, 8)))
        self.fc1 = nn.Dense(8, activation="relu")
        self.fc2 = nn.Dense(8)
        self.type = nn.Dense(3)

    def hybrid_forward(self, F, a, b, scale, offset):
        x = F.broadcast_add(F.broadcast_mul(self.fc1(a), scale), offset)
        u, v = F.split(x + self.fc2(b), 2, axis=1)
        return self.type(x), [F.tanh(u), v * 2]


class Language(gluon.HybridBlock):
    """Tokens and states in, scores and states out."""

    def __init__(self, layer=gluon.rnn.LSTM, count=3):
        super().__init__()
        self.encoder = nn.Embedding(11, 6)
        self.rnn = layer(5, count, dropout=0.2)
        self.drop = nn.Dropout(0.5)
        self.decoder = nn.Dense(11, flatten=False)

    def hybrid_forward(self, F, x, states):
        y, states = self.rnn(self.drop(self.encoder(x)), states)
        return self.decoder(self.drop(y)), states


def several():
    return initialized(Several()), {"a": floats(2, 5), "b": floats(2, 7)}


def shared():
    """A block at two paths, called three times, and a parameter of two blocks."""
    embed, middle = nn.Embedding(11, 6), nn.Dense(6, flatten=False)
    blocks = {"embed": embed, "middle": middle, "again": middle}
    blocks["out"] = nn.Dense(11, flatten=False, params=embed.params)
    net = hybrid_net(lambda net, F, x: net.out(net.again(net.middle(F.relu(net.middle(net.embed(x)))))), **blocks)
    return initialized(net), {"x": np.arange(8).reshape(2, 4).astype("int32")}


def language():
    return initialized(Language()), {"x": np.ones((7, 2), "int32"), "states": [floats(3, 2, 5), floats(3, 2, 5)]}


def unrolled():
    """A cell that is called for each step, from states of zeros."""
    forward = lambda net, F, x: net.fc(net.cell.unroll(3, x, layout="NTC", merge_outputs=True)[0])  # noqa: E731
    return initialized(hybrid_net(forward, cell=gluon.rnn.LSTMCell(4), fc=nn.Dense(2))), {"x": floats(2, 3, 5)}


def lenet():
    net = stack(
        nn.Conv2D(6, 5, activation="relu"), nn.MaxPool2D(2, 2), nn.Conv2D(8, 3, activation="tanh"), nn.AvgPool2D(2)
    )
    net.add(nn.Dense(12, activation="sigmoid"), nn.Dropout(0.5), nn.Dense(3))
    return initialized(net), {"data": floats(2, 1, 20, 20)}


def twice():
    net, layer = nn.HybridSequential(), nn.Dense(6)
    net.add(layer, nn.Activation("relu"), layer, nn.BatchNorm(), nn.HybridLambda(lambda F, x: F.exp(x)), nn.PReLU())
    layer.initialize()
    for block in list(net)[3:]:
        block.initialize()
    return net, {"x": floats(2, 6)}


def branches():
    branch = gluon.contrib.nn.HybridConcurrent(axis=1)
    branch.add(nn.Conv2D(3, 1), nn.Conv2D(2, 3, padding=1), gluon.contrib.nn.Identity())
    net = stack(branch, nn.GlobalAvgPool2D(), nn.Flatten(), nn.LayerNorm())
    return initialized(net), {"x": floats(2, 3, 8, 8)}


def recurrent():
    net = stack(gluon.rnn.GRU(5, layout="NTC", bidirectional=True), nn.Dense(3))
    return initialized(net), {"x": floats(2, 3, 6)}


def one_layer():
    return initialized(nn.Dense(3, activation="relu")), {"x": floats(2, 6)}


def zoo(name):
    return initialized(gluon.model_zoo.vision.get_model(name, classes=5)), {"data": floats(2, 3, 64, 64)}


def resnet():
    return zoo("resnet18_v1")


def mobilenet():
    return zoo("mobilenet0.25")


NETS = [several, shared, language, unrolled, lenet, twice, branches, recurrent, one_layer, resnet, mobilenet]
