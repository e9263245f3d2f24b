"""SymbolBlocks come back by their graph, and a graph from a stranger is checked before MXNet parses it."""

import json

from built_nets import imported, ready, stack
import mxkit
from mxkit.core.arrays import call, switches
from mxkit.core.blocks import parameters_by_path
from mxkit.core.replicas import set_values
from mxkit.errors import ArchitectureError
from mxkit.nets.architecture import build, describe, differences
from mxkit.nets.saving import load_net, save_net
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import pytest
from round_trip import assert_same, batch, on, rebuilt

# of SymbolBlock.imports with parameters
pytestmark = pytest.mark.filterwarnings("ignore:Cannot decide type for the following arguments:UserWarning")
A, C = (mx.sym.var(name, dtype="float32") for name in "ac")


def small_net():
    return ready(nn.Conv2D(2, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Dense(2))


def traced(net=None):
    net = net or small_net()
    return gluon.SymbolBlock(net(A), A, params=net.collect_params())


def read_by_gluon(tmp_path, parameters=True):
    net = small_net()
    net.hybridize()
    net(mx.nd.ones((1, 1, 5, 5)))
    net.export(str(tmp_path / "net"))
    file = [str(tmp_path / "net-0000.params")] * parameters
    return gluon.SymbolBlock.imports(str(tmp_path / "net-symbol.json"), ["data"], *file)


def test_a_graph_of_a_traced_net_comes_back():
    net = traced()
    assert describe(net)["net"]["arguments"]["inputs"] == ["a"]
    twin = assert_same(net, on(2, 1, 5, 5))
    assert [one.name for one in twin.collect_params().values()] == [one.name for one in net.collect_params().values()]
    # BatchNorm's statistics are none of the gradient's business, as the traced net says
    statistics = next(path for path in parameters_by_path(net) if path.endswith("running_mean"))
    assert describe(net)["parameters"][statistics]["differentiable"] is False


@pytest.mark.parametrize("parameters", [True, False])
def test_a_graph_from_a_file_comes_back(parameters, tmp_path):
    net = read_by_gluon(tmp_path, parameters)
    if parameters:
        shapes = [one.list_data()[0].shape for one in parameters_by_path(net).values()]
        assert [one.shape for one in parameters_by_path(build(describe(net))).values()] == shapes
    assert_same(net, on(2, 1, 5, 5))


def test_a_graph_that_mxkit_exported_comes_back_without_the_files_digest(tmp_path):
    mxkit.export(small_net(), tmp_path / "net", input_shape=(1, 1, 5, 5))
    for net in (mxkit.load_exported(tmp_path / "net"), imported(tmp_path / "net")):
        assert "mxkit" not in json.dumps(describe(net))
        assert_same(net, on(2, 1, 5, 5))


SPLIT = mx.sym.split(A * C, num_outputs=2)
HEADS = {
    "one": (A + C, [A, C], 0),
    "one in a list": ([A + C], [A, C], 0),
    "a symbol with two": (SPLIT, [A, C], 2),
    "a list": ([A + C, A - C], [A, C], [0, 0]),
    "nested": ([[A + C, SPLIT], A], [A, C], [[0, 2], 0]),
    "an input alone": (A, [A], 0),
    "an input that is not used": (A * 2, [A, C], 0),
    "nested inputs": (A - C, [C, [A]], 0),
}


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.filterwarnings("ignore:The .-th input to HybridBlock is not used")
def test_inputs_and_outputs_are_nested_as_they_were(name):
    outputs, inputs, form = HEADS[name]
    net = gluon.SymbolBlock(outputs, inputs)
    x, y = batch(2, 4), batch(2, 4)
    arguments = [x, [y]] if name == "nested inputs" else [x, y][: len(inputs)]
    told = describe(net)["net"]["arguments"]
    assert told["outputs"] == form
    assert told["inputs"] == (["c", ["a"]] if name == "nested inputs" else ["a", "c"][: len(inputs)])
    twin = rebuilt(net)

    def shape(out):
        return [shape(one) for one in out] if isinstance(out, (list, tuple)) else out.asnumpy().tolist()

    assert shape(twin(*arguments)) == shape(net(*arguments))


def test_a_graph_with_one_parameter_has_it_under_no_name():
    net = gluon.SymbolBlock(mx.sym.FullyConnected(A, num_hidden=3, no_bias=True, name="fc"), A)
    assert list(parameters_by_path(net)) == [""]
    assert_same(net, on(2, 4))


def test_a_graph_inside_a_net_comes_back_in_a_file(tmp_path):
    net = stack(read_by_gluon(tmp_path), nn.Dense(3))
    net[1].initialize()
    net[0].collect_params().setattr("grad_req", "null")
    x = batch(2, 1, 5, 5)
    expected = net(x)
    found = load_net(save_net(tmp_path / "net.mxk", net))
    assert found(x).asnumpy().tobytes() == expected.asnumpy().tobytes()
    assert differences(describe(net), describe(found)) == []
    assert {one.grad_req for one in found[0].collect_params().values()} == {"null"}
    other = stack(traced(), nn.Dense(3))
    assert "0: inputs: ['data'] here, ['a'] there" in differences(describe(net), describe(other))


@pytest.mark.parametrize("graph_first", [True, False])
def test_parameters_that_a_graph_shares_with_a_net_keep_the_graphs_names(graph_first):
    inner = small_net()
    inner(mx.nd.ones((1, 1, 5, 5)))
    both = [traced(inner), inner] if graph_first else [inner, traced(inner)]
    net = gluon.contrib.nn.HybridConcurrent(axis=1)
    net.add(*both)
    assert len(describe(net)["shared_parameters"]) == 8
    twin = assert_same(net, on(2, 1, 5, 5))
    assert len(list(twin.collect_params())) == len(list(inner.collect_params()))


@pytest.mark.parametrize(("outputs", "switch"), [(1, False), (1, True), (2, False)])
def test_a_graph_of_either_kind_comes_back_as_one_of_its_kind(kind, outputs, switch):
    x, weight = (mx.sym.var(name, dtype="float32") for name in ("x", "weight"))
    graph = mx.sym.FullyConnected(x, weight, no_bias=True, num_hidden=3, name="fc")
    net = ready(gluon.SymbolBlock(kind.of([graph, mx.sym.tanh(graph)][:outputs]), kind.of(x)))
    inputs = [kind.of(batch(2, 4))]
    expected = call(net, inputs)
    with switches(switch):
        twin = rebuilt(net)
        assert json.loads(json.dumps(describe(net))) == describe(twin)
    set_values(twin.collect_params()["weight"], net.collect_params()["weight"].data(), [mx.cpu()])
    for found, other in zip(call(twin, inputs), expected) if outputs > 1 else [(call(twin, inputs), expected)]:
        assert kind.holds(found)
        assert found.asnumpy().tobytes() == other.asnumpy().tobytes()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda it: it.pop("graph"), "needs inputs, outputs and graph"),
        (lambda it: it.update(graph=[]), "its graph is damaged"),
        (lambda it: it.update(graph={}), "its graph is damaged"),
        (lambda it: it["graph"]["nodes"][2].update(op="_NDArray"), "could harm the process"),
        (lambda it: it["graph"]["nodes"][2].update(op="Custom2"), "expected an operator that MXNet"),
        (lambda it: it["graph"]["nodes"][2].update(inputs=[[0, 0, 0], [9, 0, 0]]), "number of a node below 2"),
        (lambda it: it["graph"].update(heads=[[2, 7, 0]]), "its graph is damaged"),
        (lambda it: it["graph"].update(x=float("nan")), "its graph is damaged"),
        (lambda it: it.update(inputs=[1]), "is refused"),
        (lambda it: it.update(outputs=[0, 0]), "more than the graph's"),
        (lambda it: it.update(outputs=2**31 - 1), "more than the graph's"),
        (lambda it: it["graph"].update(heads=[[2, 0, 0], [0, 0, 0]]), "expected 2 outputs, as the graph has"),
    ],
)
def test_damaged_graphs_are_clear_errors(change, text):
    description = describe(gluon.SymbolBlock(A + C, [A, C]))
    change(description["net"]["arguments"])
    with pytest.raises(ArchitectureError, match=text) as caught:
        build(description)
    assert len(str(caught.value)) < 2000
