"""A trace knows which block made what; tests/nets has what features and tables make of it."""

import json

from built_nets import hybrid_net, stack
from mxkit.core import tracing
from mxkit.core.blocks import blocks_by_path
from mxkit.core.graphs import opened
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import pytest


def operators(symbols):
    """Name of each operator of a graph, and the call that its attribute tells."""
    nodes = json.loads(mx.sym.Group(symbols).tojson())["nodes"]
    return [(node["op"], node.get("attrs", {}).get(tracing.CALL)) for node in nodes if node["op"] != "null"]


def state(net):
    """All that a trace touches: hooks, variables, graphs, attributes."""
    found = []
    for path, block in blocks_by_path(net):
        hooks = block._forward_hooks, block._forward_pre_hooks
        found.append((path, {name: id(value) for name, value in vars(block).items()}, [id(one) for one in hooks]))
        found.append([(parameter.name, id(parameter._var)) for parameter in block.params.values()])
    return found


def twice(layer):
    """Calls `layer` twice, and adds up by itself."""
    return hybrid_net(lambda net, F, x: net.layer(net.layer(x)) + 1, layer=layer)


def symbol_block():
    data = mx.sym.var("data")
    graph = mx.sym.FullyConnected(data, mx.sym.var("w"), no_bias=True, num_hidden=2, name="fc")
    return gluon.SymbolBlock(mx.sym.BatchNorm(graph, name="norm"), data)


pytestmark = pytest.mark.filterwarnings("ignore:Cannot decide type")


def test_calls_and_operators_know_each_other():
    net = stack(nn.Dense(3, activation="relu"), twice(nn.Dense(3)))
    traced = tracing.trace(net, [mx.nd.ones((1, 2))])
    assert [call.path for call in traced.calls] == ["", "0", "0.act", "1", "1.layer", "1.layer"]
    assert [call.number for call in traced.calls] == [0, 0, 0, 0, 0, 1]
    names = ["FullyConnected", "Activation", "FullyConnected", "FullyConnected", "_plus_scalar"]
    assert operators(traced.outputs) == list(zip(names, "12453"))
    assert traced.calls[4].outputs[0] is traced.calls[5].inputs[0]
    assert traced.calls[0].block is net
    assert [variable.name for variable in traced.inputs] == ["data0"]


def test_parameters_named_like_inputs_or_paths_get_names_of_their_own():
    class Net(gluon.HybridBlock):
        def __init__(self):
            super().__init__(prefix="")
            self.data0 = self.params.get("data0", shape=(1,))
            self.other = self.params.get("more", shape=(1,))
            self.params.get("other", shape=(1,))

        def hybrid_forward(self, F, x, data0, other):
            return x * data0 + other

    net = Net()
    traced = tracing.trace(net, [mx.nd.ones((1, 2))])
    names = {name: parameter.name for name, parameter in traced.parameters.items()}
    assert names == {"data0_": "data0", "other": "more", "other_": "other"}
    assert mx.sym.Group(traced.outputs).list_inputs() == ["data0", "data0_", "other"]


def test_a_trace_that_fails_leaves_the_net_as_it_was():
    net = stack(symbol_block(), nn.Dense(2), nn.HybridLambda(lambda F, x: x.reshape(x.shape)))
    before = state(net)
    with pytest.raises(AttributeError, match="shape"):
        tracing.trace(net, [mx.nd.ones((1, 2))])
    assert state(net) == before
    assert operators([mx.sym.relu(mx.sym.var("x"))]) == [("relu", None)]


# ---- recorded_calls with arrays


def test_calls_with_arrays():
    net = nn.Sequential()
    net.add(nn.Dense(3, activation="relu"), nn.Lambda(lambda x: (x, "text")), nn.Lambda(lambda pair: [None, pair[0]]))
    net.initialize()
    ended = []
    with tracing.recorded_calls(net, ended.append) as calls:
        output = net(mx.nd.ones((1, 2)))
    assert [call.path for call in calls] == ["", "0", "0.act", "1", "2"]
    assert [call.path for call in ended] == ["0.act", "0", "1", "2", ""]
    assert all(isinstance(array, mx.nd.NDArray) for call in calls for array in call.outputs if array is not None)
    assert calls[3].outputs == []
    assert calls[3].structure is None
    assert calls[4].outputs[0] is None
    assert tracing.regroup(calls[4], calls[4].outputs)[1] is output[1]


class Careful(gluon.HybridBlock):
    """Catches the error of one part and calls another one."""

    def __init__(self):
        super().__init__()
        self.bad, self.good = nn.HybridSequential(), nn.Dense(2)
        self.bad.add(nn.HybridLambda(lambda F, x: x.nothing))

    def hybrid_forward(self, F, x):
        try:
            return self.bad(x)
        except AttributeError:
            return self.good(x)


def test_calls_that_exceptions_ended():
    net = Careful()
    net.initialize()
    with tracing.recorded_calls(net) as calls:
        net(mx.nd.ones((1, 2)))
    assert [(call.path, len(call.outputs)) for call in calls] == [("", 1), ("bad", 0), ("bad.0", 0), ("good", 1)]
    before = state(net)
    with pytest.raises(AttributeError), tracing.recorded_calls(net) as calls:
        net.bad(mx.nd.ones((1, 2)))
    assert state(net) == before
    assert operators([mx.sym.relu(mx.sym.var("x"))]) == [("relu", None)]
    net = stack(twice(Careful()))
    traced = tracing.trace(net, [mx.nd.ones((1, 2))])
    paths = [traced.calls[int(number)].path for _, number in operators(traced.outputs)]
    assert paths == ["0.layer.good", "0.layer.good", "0"]


def test_symbols_that_gluon_sends_through_blocks_are_no_calls():
    """It does for shapes that are not known yet, and for the graph of a hybridized block (T35)."""
    net = nn.Sequential()
    inner = stack(nn.Dense(2))
    net.add(nn.Dense(3, activation="relu"), inner)
    net.initialize()
    inner.hybridize()
    with tracing.recorded_calls(net) as calls:
        net(mx.nd.ones((1, 2)))
    assert [call.path for call in calls] == ["", "0", "0.act", "1"]
    assert tracing.CALL not in inner._cached_graph[1].tojson()
    with tracing.recorded_calls(net) as calls, opened(net, ["1.0"]):
        net(mx.nd.ones((1, 2)))
    assert [call.path for call in calls] == ["", "0", "0.act", "1", "1.0"]
    assert inner._active
