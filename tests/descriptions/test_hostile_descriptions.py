"""Descriptions from strangers, and nets that cannot be described, are clear errors."""

from mxkit.errors import ArchitectureError
from mxkit.nets.architecture import build, describe
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import pytest


def test_a_function_named_like_an_operator_is_not_taken_for_it():
    def tanh(F, x=None):
        return x * 2

    for net in (nn.HybridLambda(tanh), nn.Lambda(tanh), nn.Lambda(lambda x: x)):
        with pytest.raises(ArchitectureError, match="function"):
            describe(net)


class Own(mx.init.Initializer):
    """Not registered."""


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda net: setattr(net[0], "forward", len), "its method forward was replaced"),
        (lambda net: setattr(net[0], "_flatten", "maybe"), "flatten: expected true or false"),
        (lambda net: net[0]._children.update(extra=nn.Dense(1)), "does not use a child of this name"),
        (lambda net: net[1]._kwargs.update(cudnn_off=True), "its _kwargs is"),
        (lambda net: net[0].weight.__setattr__("init", nn.Flatten()), "no form in JSON"),
        (lambda net: net.register_child(nn.Dense(1), "a.b"), "a child's name has dots"),
        (lambda net: net._children.update(me=net), "its own descendant"),
        (lambda net: net.add(gluon.HybridBlock()), "it computes nothing by itself"),
        (lambda net: net.add(nn.Dense(2, bias_initializer=Own())), r"bias_initializer: .*@mx\.init\.register"),
    ],
)
def test_what_cannot_be_kept_is_an_error(change, text):
    net = nn.HybridSequential()
    net.add(nn.Dense(2), nn.Conv2D(2, 1))
    change(net)
    with pytest.raises(ArchitectureError, match=text):
        describe(net)


DENSE = {"class": "Dense", "arguments": {"units": 2}}


def layer(name, **arguments):
    return {"class": name, "arguments": arguments}


def stack(*nodes):
    return {"class": "HybridSequential", "children": list(nodes)}


def deep(levels):
    node = DENSE
    for _ in range(levels):
        node = stack(node)
    return node


def laughing(levels):
    """A few nodes that stand for 2 ** levels blocks."""
    node, path = stack(DENSE, {"shared": "0." * levels + "0"}), "0." * levels
    for level in range(levels):
        path = "0." * (levels - level - 1)
        node = stack(node, {"shared": path + "0"})
    return node


CIRCLE = stack()
CIRCLE["children"].append(CIRCLE)

HOSTILE = [
    (DENSE, "the description: expected format"),
    ([], "the description: expected a dict"),
    ({"format": 2, "net": DENSE}, "format 2"),
    ({"format": True, "net": DENSE}, "format True"),
    ({"format": 1, "net": "Dense"}, "the net: expected a dict"),
    ({"format": 1, "net": DENSE, "code": "x"}, "'code'"),
    (layer("os.system"), "unknown class 'os.system'"),
    (layer("Dens", units=2), "did you mean 'Dense'"),
    (layer(["Dense"]), "unknown class"),
    (layer("Resnet", channels=2), "first import its class, decorated with @mxkit.nets.register_block"),
    (layer("Block"), "unknown class"),
    (layer("SymbolBlock"), "needs inputs, outputs and graph"),
    ({**DENSE, "module": "os"}, "'module'"),
    (layer("Dense", units="2"), "units: expected a whole number"),
    (layer("Dense", units=True), "units: expected a whole number"),
    (layer("Dense", units=2.0), "units: expected a whole number"),
    (layer("Dense", units=0), "units: expected a whole number"),
    (layer("Dense", units=2**31), "units: expected a whole number"),
    (layer("Dense", unit=2), "did you mean 'units'"),
    (layer("Dense"), "Dense refuses"),
    (layer("Dense", units=2, params={}), "no argument 'params'"),
    (layer("Dense", units=2, activation="nothing"), "activation: expected null, or one of"),
    (layer("Dense", units=2, weight_initializer=["load", {"param": "/etc/passwd"}]), "weight_initializer: expected"),
    (layer("Dense", units=2, weight_initializer=["xavier", {"magnitud": 2}]), "weight_initializer: expected"),
    (layer("Dense", units=2, weight_initializer=["xavier"]), "weight_initializer: expected"),
    (layer("Dense", units=2, dtype="object"), "dtype: expected one of"),
    # these two end the process in MXNet (SIGFPE)
    (layer("Conv2D", channels=4, kernel_size=3, groups=0, in_channels=4), "groups: expected a whole number"),
    (layer("GroupNorm", num_groups=0), "num_groups: expected a whole number"),
    (layer("Conv2D", channels=4, kernel_size=[3, 3, 3]), "Conv2D refuses"),
    (layer("Conv2D", channels=4, kernel_size=[[3], 3]), "kernel_size: expected"),
    (layer("Conv2D", channels=4, kernel_size=3, layout="NCW"), "Conv2D refuses"),
    (layer("LSTM", hidden_size=4, num_layers=10**9), "num_layers: expected"),
    (layer("Dropout", rate="0.5"), "rate: expected a number"),
    (layer("Dropout", rate=float("nan")), "rate: expected a number"),
    (layer("Dropout", rate=0.5, axes=[0] * 99), "axes: expected"),
    (layer("Lambda", function="load"), "function: expected"),
    (layer("Lambda", function="save"), "function: expected"),
    (layer("Lambda", function="__class__"), "function: expected"),
    (layer("HybridLambda", function="Custom"), "function: expected"),
    (layer("LinearBottleneck"), "expected|needs|children"),
    (layer("ResNetV1"), "has the children features, output"),
    ({"class": "Flatten", "children": [DENSE]}, "has the children"),
    ({"class": "ResidualCell"}, "has the children base_cell"),
    ({"class": "ResidualCell", "children": [{"name": "base_cell", **DENSE}]}, "ResidualCell refuses"),
    ({"class": "HybridSequential", "children": [layer("Lambda", function="tanh")]}, "must also be HybridBlock"),
    ({"class": "HybridSequential", "children": {"0": DENSE}}, "children: expected a list"),
    (stack({"name": "a", **DENSE}, {"name": "a", **DENSE}), "names that differ"),
    (stack({"name": "a.b", **DENSE}), "names that differ"),
    (stack({"name": 3, **DENSE}), "names that differ"),
    (stack({"shared": ""}), "path of a block before it"),
    (stack({"shared": "1"}, DENSE), "path of a block before it"),
    (stack({"shared": {}}, DENSE), "path of a block before it"),
    (deep(150), "nested deeper"),
    (CIRCLE, "nested deeper"),
    (laughing(40), "more than 100000 blocks"),
    ({"format": 1, "net": DENSE, "parameters": {"weigt": {}}}, "did you mean 'weight'"),
    ({"format": 1, "net": DENSE, "parameters": {"weight": {"grad_req": "all"}}}, "'grad_req': expected one of"),
    ({"format": 1, "net": DENSE, "parameters": {"weight": {"_data": 1}}}, "expected one of"),
    ({"format": 1, "net": DENSE, "parameters": {"weight": {"shape": [3, 3]}}}, "refuses shape"),
    ({"format": 1, "net": DENSE, "parameters": {"weight": {"shape": [2, 0]}}}, "'shape': expected"),
    ({"format": 1, "net": DENSE, "parameters": []}, "parameters: expected a dict"),
    ({"format": 1, "net": DENSE, "shared_parameters": {"bias": "weight"}}, "their shapes differ"),
    ({"format": 1, "net": DENSE, "shared_parameters": {"bias": 3}}, "no parameter 3"),
]


@pytest.mark.parametrize(("description", "text"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_descriptions_are_clear_errors(description, text):
    if isinstance(description, dict) and "class" in description and description is not DENSE:
        description = {"format": 1, "net": description}
    with pytest.raises(ArchitectureError, match=text) as caught:
        build(description)
    assert isinstance(caught.value, ValueError)
    assert len(str(caught.value)) < 2000
