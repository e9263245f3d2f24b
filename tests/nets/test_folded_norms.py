"""BatchNorm that is multiplied into the weights of convolutions, for graphs in bfloat16."""

import json

from mxkit.exporting.net_graph import graph_function, graph_of
from mxkit.nets.prediction_graphs import with_folded_norms
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon.model_zoo.vision.mobilenet import LinearBottleneck
import numpy as np
import pytest

nn = gluon.nn


class Twice(gluon.HybridBlock):
    """One convolution and one BatchNorm, called twice: their operators have one name."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2D(3, 3, padding=1, use_bias=False), nn.BatchNorm()

    def hybrid_forward(self, F, x):
        return self.norm(self.conv(F.relu(self.norm(self.conv(x)))))


class ReadTwice(gluon.HybridBlock):
    """The first BatchNorm is read twice, and the second convolution, too."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Conv2D(4, 3), nn.Conv2D(4, 3, padding=1)
        self.first, self.second = nn.BatchNorm(), nn.BatchNorm(scale=False, epsilon=0.1)

    def hybrid_forward(self, F, x):
        y = self.first(self.one(x))
        z = self.other(y)
        return y + self.second(z) * F.sin(z)


def sequence(*blocks):
    net = nn.HybridSequential()
    net.add(*blocks)
    return net


CASES = {
    "without bias": (lambda: sequence(nn.Conv2D(5, 3, use_bias=False), nn.BatchNorm()), (2, 3, 7, 7), 1),
    "groups": (lambda: sequence(nn.Conv2D(6, 3, groups=3), nn.BatchNorm(scale=False)), (2, 3, 7, 7), 1),
    "one axis": (lambda: sequence(nn.Conv1D(5, 3), nn.BatchNorm(center=False), nn.Activation("relu")), (2, 3, 9), 1),
    "another axis": (lambda: sequence(nn.Conv2D(5, 3), nn.BatchNorm(axis=2)), (2, 3, 7, 7), 0),
    "transposed": (lambda: sequence(nn.Conv2DTranspose(5, 3), nn.BatchNorm()), (2, 3, 7, 7), 0),
    "norm first": (lambda: sequence(nn.BatchNorm(), nn.Conv2D(5, 3)), (2, 3, 7, 7), 0),
    "twice": (Twice, (2, 3, 7, 7), 2),
    "read twice": (ReadTwice, (2, 3, 7, 7), 1),
    "mobilenet_v2": (lambda: sequence(*(LinearBottleneck(3, 3, t, 1) for t in (1, 2))), (2, 3, 8, 8), 6),
}


@pytest.mark.parametrize("case", CASES)
def test_the_graph_computes_the_same(case):
    make, shape, folds = CASES[case]
    mx.random.seed(0)
    net, x = make(), mx.nd.random.normal(shape=shape)
    net.initialize(mx.init.Xavier())
    with autograd.record():  # moves the running statistics
        net(x)
    for parameter in net.collect_params(".*(gamma|beta)").values():
        if parameter.grad_req != "null":
            parameter.set_data(mx.nd.random.uniform(0.5, 2, shape=parameter.shape))
    graph = graph_of(net, [shape])
    arrays = {name.partition(":")[2]: array for name, array in graph.arrays.items()}
    made = with_folded_norms(graph.symbol, arrays)
    norms = [
        sum(node["op"] == "BatchNorm" for node in json.loads(one.tojson())["nodes"])
        for one in (graph.symbol, made.symbol)
    ]
    assert norms[0] - norms[1] == folds
    (inputs,) = graph.inputs
    (found,) = graph_function(made.symbol, made.arrays, graph.numpy)({inputs: x})
    np.testing.assert_allclose(found.asnumpy(), net(x).asnumpy(), rtol=1e-4, atol=1e-5)
    assert set(made.symbol.list_inputs()) == {*made.arrays, inputs}
