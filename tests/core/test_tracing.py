"""A trace knows which block made what, and leaves no trace in the net."""

import json

from built_nets import hybrid_net, ready, stack
from mxkit.core import tracing
from mxkit.core.blocks import blocks_by_path
from mxkit.core.graphs import opened
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np
import pytest
from sharing import Kind

ND = Kind(False)


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


class Twice(gluon.HybridBlock):
    """Calls `layer` twice, and adds up by itself."""

    def __init__(self, layer, **options):
        super().__init__(**options)
        self.layer = layer

    def hybrid_forward(self, F, x, y=None):
        found = self.layer(self.layer(x)) + 1
        return found if y is None else found + y


def symbol_block(weight="w", kind=ND):
    data = mx.sym.var("data")
    graph = mx.sym.FullyConnected(data, mx.sym.var(weight), no_bias=True, num_hidden=2, name="fc")
    norm = mx.sym.BatchNorm(graph, name="norm")
    return gluon.SymbolBlock(kind.of(norm), kind.of(data))


pytestmark = pytest.mark.filterwarnings("ignore:Cannot decide type")


def test_calls_and_operators_know_each_other():
    net = stack(nn.Dense(3, activation="relu"), Twice(nn.Dense(3)))
    traced = tracing.trace(net, [mx.nd.ones((1, 2))])
    assert [call.path for call in traced.calls] == ["", "0", "0.act", "1", "1.layer", "1.layer"]
    assert [call.number for call in traced.calls] == [0, 0, 0, 0, 0, 1]
    names = ["FullyConnected", "Activation", "FullyConnected", "FullyConnected", "_plus_scalar"]
    assert operators(traced.outputs) == list(zip(names, "12453"))
    assert traced.calls[4].outputs[0] is traced.calls[5].inputs[0]
    assert traced.calls[0].block is net
    assert [variable.name for variable in traced.inputs] == ["data0"]


def test_parameters_go_by_their_first_paths():
    net = stack(nn.Dense(3, prefix="a_"), nn.Dense(3, prefix="a_"), prefix="net_")
    traced = tracing.trace(net, [mx.nd.ones((1, 2))])
    assert list(traced.parameters) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert traced.parameters["1.bias"] is net[1].bias
    assert mx.sym.Group(traced.outputs).list_inputs() == ["data0", *traced.parameters]
    net = stack(net[0], net[0])
    traced = tracing.trace(net, [mx.nd.ones((1, 3))])
    assert list(traced.parameters) == ["0.weight", "0.bias"]
    assert mx.sym.Group(traced.outputs).list_inputs() == ["data0", "0.weight", "0.bias"]


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


def test_none_and_lists_among_the_inputs():
    net = Twice(nn.Dense(2))
    assert len(tracing.trace(net, [mx.nd.ones((1, 2)), None]).inputs) == 1
    traced = tracing.trace(net, [mx.nd.ones((1, 2)), mx.nd.ones((1, 2))])
    assert [variable.name for variable in traced.inputs] == ["data0", "data1"]
    cell = gluon.rnn.LSTMCell(3)
    traced = tracing.trace(cell, [mx.nd.ones((1, 2)), [mx.nd.ones((1, 3)), mx.nd.ones((1, 3))]])
    assert [variable.name for variable in traced.inputs] == ["data0", "data1", "data2"]
    assert tracing.regroup(traced.calls[0], "abc") == ["a", ["b", "c"]]


@pytest.mark.parametrize("hybridized", [False, True])
def test_a_trace_leaves_the_net_as_it_was(hybridized, kind):
    net = stack(nn.Dense(3, activation="relu"), symbol_block("w", kind), Twice(nn.Dense(2)), nn.BatchNorm())
    x = kind.of(np.ones((1, 2)))
    with kind.switches():
        net.initialize()
        net(x)
        if hybridized:
            net.hybridize()
            net(x)
    graph = net[1]._cached_graph[1].tojson()
    net[0].register_forward_hook(lambda *_: pytest.fail("a hook was called"))
    before = state(net)
    tracing.trace(net, [x])
    assert state(net) == before
    assert net[1]._cached_graph[1].tojson() == graph


def test_a_trace_that_fails_leaves_the_net_as_it_was():
    net = stack(symbol_block(), nn.Dense(2), nn.HybridLambda(lambda F, x: x.reshape(x.shape)))
    before = state(net)
    with pytest.raises(AttributeError, match="shape"):
        tracing.trace(net, [mx.nd.ones((1, 2))])
    assert state(net) == before
    assert operators([mx.sym.relu(mx.sym.var("x"))]) == [("relu", None)]


def test_symbols_that_blocks_keep_are_taken_away():
    def forward(net, F, x):
        net.last, net.pair, net.count = x, [x, x], net.count + 1
        return x * 2

    net = hybrid_net(forward, last=mx.nd.ones(1), count=0)
    last = net.last
    tracing.trace(net, [mx.nd.ones((1, 2))])
    assert net.last is last
    assert not hasattr(net, "pair")
    assert net.count == 1


def test_graphs_of_symbol_blocks_take_part():
    net = stack(symbol_block(), symbol_block())
    traced = tracing.trace(net, [mx.nd.ones((1, 2))])
    names = ["w", "norm_gamma", "norm_beta", "norm_moving_mean", "norm_moving_var"]
    assert sorted(traced.parameters) == sorted(f"{place}.{name}" for place in "01" for name in names)
    assert set(mx.sym.Group(traced.outputs).list_inputs()) == {"data0", *traced.parameters}
    assert len(mx.sym.Group(traced.outputs).list_auxiliary_states()) == 4
    assert [number for _, number in operators(traced.outputs)] == [None] * 4


def test_parameters_of_blocks_without_a_path_are_refused():
    net = hybrid_net(lambda net, F, x: net.hidden[0](x), hidden=[nn.Dense(2, prefix="secret_")])

    with pytest.raises(ValueError, match="secret_weight, secret_bias of blocks that have no path"):
        tracing.trace(net, [mx.nd.ones((1, 2))])


def test_shapes():
    net = stack(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Dense(5), gluon.nn.HybridLambda(lambda F, x: F.split(x, 5)))
    traced = tracing.trace(net, [mx.nd.ones((2, 3, 8, 8))])
    outputs, parameters = tracing.infer_shapes(traced, traced.outputs, [(2, 3, 8, 8)])
    assert outputs == [(2, 1)] * 5
    assert parameters["0.weight"] == (4, 3, 3, 3)
    assert parameters["1.running_mean"] == (4,)
    assert parameters["2.weight"] == (5, 144)
    outputs, parameters = tracing.infer_shapes(traced, traced.calls[1].outputs, [(1, 3, 5, 5)])
    assert outputs == [(1, 4, 3, 3)]
    assert set(parameters) == {"0.weight", "0.bias"}
    with pytest.raises(mx.MXNetError):
        tracing.infer_shapes(traced, traced.outputs, [(2, 3)])
    loose = tracing.Trace([], [mx.sym.var("a")], [], {})
    with pytest.raises(ValueError, match="do not tell all shapes"):
        tracing.infer_shapes(loose, loose.outputs, [])


def test_what_a_graph_needs_and_the_trace_does_not_know():
    class Loop(Twice):
        def hybrid_forward(self, F, x):
            return F.contrib.foreach(lambda row, state: (self.layer(row), state), x, F.zeros((1, 2)))[0]

    traced = tracing.trace(Loop(nn.Dense(2, in_units=2)), [mx.nd.ones((3, 1, 2))])
    assert tracing.unknown_variables(traced, traced.outputs) == []
    inside = next(call for call in traced.calls if call.path == "layer")
    assert len(tracing.unknown_variables(traced, inside.outputs)) == 1


# ---- recorded_calls with arrays


def test_calls_with_arrays():
    layers = nn.Dense(3, activation="relu"), nn.Lambda(lambda x: (x, "text")), nn.Lambda(lambda pair: [None, pair[0]])
    net = ready(stack(*layers, kind=nn.Sequential))
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
        self.bad, self.good = stack(nn.HybridLambda(lambda F, x: x.nothing)), nn.Dense(2)

    def hybrid_forward(self, F, x):
        try:
            return self.bad(x)
        except AttributeError:
            return self.good(x)


def test_calls_that_exceptions_ended():
    net = ready(Careful())
    with tracing.recorded_calls(net) as calls:
        net(mx.nd.ones((1, 2)))
    assert [(call.path, len(call.outputs)) for call in calls] == [("", 1), ("bad", 0), ("bad.0", 0), ("good", 1)]
    before = state(net)
    with pytest.raises(AttributeError), tracing.recorded_calls(net) as calls:
        net.bad(mx.nd.ones((1, 2)))
    assert state(net) == before
    assert operators([mx.sym.relu(mx.sym.var("x"))]) == [("relu", None)]
    net = stack(Twice(Careful()))
    traced = tracing.trace(net, [mx.nd.ones((1, 2))])
    paths = [traced.calls[int(number)].path for _, number in operators(traced.outputs)]
    assert paths == ["0.layer.good", "0.layer.good", "0"]


def test_symbols_that_gluon_sends_through_blocks_are_no_calls():
    """It does for shapes that are not known yet, and for the graph of a hybridized block (T35)."""
    inner = stack(nn.Dense(2))
    net = ready(stack(nn.Dense(3, activation="relu"), inner, kind=nn.Sequential))
    inner.hybridize()
    with tracing.recorded_calls(net) as calls:
        net(mx.nd.ones((1, 2)))
    assert [call.path for call in calls] == ["", "0", "0.act", "1"]
    assert tracing.CALL not in inner._cached_graph[1].tojson()
    with tracing.recorded_calls(net) as calls, opened(net, ["1.0"]):
        net(mx.nd.ones((1, 2)))
    assert [call.path for call in calls] == ["", "0", "0.act", "1", "1.0"]
    assert inner._active


def test_blocks_are_opened_above_each_path_of_a_shared_one_and_nowhere_else():
    shared = nn.Dense(2)
    net = stack(stack(shared), stack(shared), stack(nn.Dense(2)))
    net.hybridize()

    with pytest.raises(KeyError), opened(net, ["0.0"]):  # noqa: PT012
        assert [path for path, block in blocks_by_path(net) if block._active] == ["0.0", "1.0", "2", "2.0"]
        raise KeyError
    assert all(block._active for _, block in blocks_by_path(net))


@pytest.mark.parametrize("switch", [False, True])
def test_the_inputs_choose_the_kind_of_a_graph_not_the_switches(kind, switch):
    net = stack(nn.Dense(3, activation="relu"), nn.BatchNorm(), nn.HybridLambda(lambda F, x: x.mean()))
    with Kind(switch).switches():
        traced = tracing.trace(net, [kind.of(np.ones((1, 2)))])
        outputs, parameters = tracing.infer_shapes(traced, traced.outputs, [(1, 2)])
    assert all(isinstance(one, mx.sym.np._Symbol) == kind.numpy for one in [*traced.inputs, *traced.outputs])
    assert outputs == [() if kind.numpy else (1,)]
    np.testing.assert_equal(parameters["0.weight"], (3, 2))
