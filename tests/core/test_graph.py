"""The view of a graph: attributes with MXNet's defaults, nodes, and graphs made of nodes."""

from mxkit.core.graph import Entry, Graph, defaults_of, symbol_of, with_merged_variables
import mxnet as mx
import pytest


def convolution(**attributes):
    return mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=4, name="conv", **attributes)


def test_attributes_fall_back_to_the_defaults_that_mxnet_states():
    node = Graph.of(convolution(stride=(2, 1))).nodes[-1]
    assert (node.operator, node.name) == ("Convolution", "conv")
    assert node.ints("kernel") == (3, 3)
    assert node.sizes("stride", 2, 1) == [2, 1]
    assert node.sizes("dilate", 2, 1) == [1, 1]
    assert node.integer("num_group") == 1
    assert node.flag("no_bias") is False
    assert node.text("layout") == ""
    assert node.get("no such argument", 7) == 7


@pytest.mark.parametrize(
    ("operator", "name", "text"),
    [
        ("BatchNorm", "eps", "0.001"),
        ("LeakyReLU", "upper_bound", "0.334"),
        ("Dropout", "p", "0.5"),
        ("Pooling", "pool_type", "max"),
        ("topk", "axis", "-1"),
    ],
)
def test_defaults_are_those_of_the_registry_as_people_write_them(operator, name, text):
    assert defaults_of(operator)[name] == text


def test_an_operator_of_another_mxnet_has_no_defaults():
    assert defaults_of("no_such_operator") == {}


def test_a_graph_knows_its_kind_inner_outputs_and_variables():
    graph = Graph.of(convolution().as_np_ndarray() + 1, internals=True)
    assert graph.numpy
    assert isinstance(graph.symbol(), mx.sym.np._Symbol)
    assert set(graph.variables) == {"data", "conv_weight", "conv_bias"}
    convolved = next(node for node in graph.nodes if node.name == "conv")
    assert [one.name for one in graph.sources(convolved)] == ["data", "conv_weight", "conv_bias"]
    assert len(graph.heads) == len(graph.nodes)
    assert Entry(convolved.index) in graph.heads


def test_operators_of_a_loop_are_operators_of_the_graph():
    loop, _ = mx.sym.contrib.foreach(lambda x, state: (x * state, state), mx.sym.var("x"), mx.sym.var("s"))
    assert {"_foreach", "elemwise_mul"} <= {node.operator for node in Graph.of(loop).operators()}


def test_changed_attributes_and_nodes_are_written():
    graph = Graph.of(convolution())
    graph.nodes[-1].update(no_bias="True")
    *_, last = graph.nodes
    kept = [{**node.content, "inputs": [[one.node, 0, 0] for one in node.inputs]} for node in graph.nodes]
    kept[last.index]["inputs"] = kept[last.index]["inputs"][:2]
    assert symbol_of(kept, graph.heads, graph).list_inputs() == ["data", "conv_weight"]


def test_variables_of_one_name_are_merged_and_others_stay():
    two = [mx.sym.var("w") * mx.sym.var("x"), mx.sym.var("w") + mx.sym.var("x")]
    merged = with_merged_variables(two, ["w"])
    assert mx.sym.Group(merged).list_inputs() == ["w", "x", "x"]
    assert [one.list_outputs() for one in merged] == [one.list_outputs() for one in two]
    several = mx.sym.split(mx.sym.var("w"), num_outputs=2)
    assert [len(one.list_outputs()) for one in with_merged_variables([several, *two], ["w"])] == [2, 1, 1]
