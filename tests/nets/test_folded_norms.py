"""BatchNorm that is multiplied into the weights of convolutions, for graphs in bfloat16."""

from built_nets import hybrid_net, stack
from mxkit.exporting.net_graph import graph_function, graph_of
from mxkit.nets.prediction_graphs import with_folded_norms
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon.model_zoo.vision.mobilenet import LinearBottleneck
import numpy as np
import pytest

nn = gluon.nn


def called_twice():
    """One convolution and one BatchNorm, called twice: their operators have one name."""
    layers = {"conv": nn.Conv2D(3, 3, padding=1, use_bias=False), "norm": nn.BatchNorm()}
    return hybrid_net(lambda net, F, x: net.norm(net.conv(F.relu(net.norm(net.conv(x))))), **layers)


def read_twice():
    """The first BatchNorm is read twice, and the second convolution, too."""

    def forward(net, F, x):
        y = net.first(net.one(x))
        z = net.other(y)
        return y + net.second(z) * F.sin(z)

    convolutions = {"one": nn.Conv2D(4, 3), "other": nn.Conv2D(4, 3, padding=1)}
    return hybrid_net(forward, **convolutions, first=nn.BatchNorm(), second=nn.BatchNorm(scale=False, epsilon=0.1))


CASES = {
    "without bias": (lambda: stack(nn.Conv2D(5, 3, use_bias=False), nn.BatchNorm()), (2, 3, 7, 7), 1),
    "groups": (lambda: stack(nn.Conv2D(6, 3, groups=3), nn.BatchNorm(scale=False)), (2, 3, 7, 7), 1),
    "one axis": (lambda: stack(nn.Conv1D(5, 3), nn.BatchNorm(center=False), nn.Activation("relu")), (2, 3, 9), 1),
    "another axis": (lambda: stack(nn.Conv2D(5, 3), nn.BatchNorm(axis=2)), (2, 3, 7, 7), 0),
    "transposed": (lambda: stack(nn.Conv2DTranspose(5, 3), nn.BatchNorm()), (2, 3, 7, 7), 0),
    "norm first": (lambda: stack(nn.BatchNorm(), nn.Conv2D(5, 3)), (2, 3, 7, 7), 0),
    "twice": (called_twice, (2, 3, 7, 7), 2),
    "read twice": (read_twice, (2, 3, 7, 7), 1),
    "mobilenet_v2": (lambda: stack(*(LinearBottleneck(3, 3, t, 1) for t in (1, 2))), (2, 3, 8, 8), 6),
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
    norms = [one.symbol.tojson().count('"op": "BatchNorm"') for one in (graph, made)]
    assert norms[0] - norms[1] == folds
    (inputs,) = graph.inputs
    (found,) = graph_function(made.symbol, made.arrays, graph.numpy)({inputs: x})
    np.testing.assert_allclose(found.asnumpy(), net(x).asnumpy(), rtol=1e-4, atol=1e-5)
    assert set(made.symbol.list_inputs()) == {*made.arrays, inputs}
