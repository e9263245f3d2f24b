"""Descriptions from strangers, and nets that cannot be described, are clear errors."""

from mxkit.errors import ArchitectureError
from mxkit.nets.architecture import build, describe
import mxnet as mx
from mxnet.gluon import nn
import pytest

# gluoncv's own imports
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::SyntaxWarning")


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
        (lambda net: net[1]._kwargs.update(cudnn_off=True), "its _kwargs is"),
        (lambda net: net[0].weight.__setattr__("init", nn.Flatten()), "no form in JSON"),
        (lambda net: net.register_child(nn.Dense(1), "a.b"), "a child's name has dots"),
        (lambda net: net._children.update(me=net), "its own descendant"),
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


CIRCLE = stack()
CIRCLE["children"].append(CIRCLE)

HOSTILE = [
    (DENSE, "format None"),
    ([], r"format \[\]"),
    ({"format": 2, "net": DENSE}, "format 2"),
    ({"format": 1, "net": "Dense"}, "the net: 'Dense' is refused"),
    ({"format": 1, "net": DENSE, "code": "x"}, "unknown name 'code'"),
    (layer("os.system"), "unknown class 'os.system'"),
    (layer("Dens", units=2), "did you mean 'Dense'"),
    (layer(["Dense"]), "is refused"),
    (layer("Resnet", channels=2), "first import its class, decorated with @mxkit.nets.register_block"),
    (layer("SymbolBlock"), "needs inputs, outputs and graph"),
    ({**DENSE, "module": "os"}, "unknown name 'module'"),
    (layer("Dense", unit=2), "did you mean 'units'"),
    (layer("Dense"), "Dense.* is refused.*units"),
    (layer("Dense", units=2, params={}), "unknown name 'params'"),
    (layer("Dense", units=2, weight_initializer=["load", {"param": "/etc/passwd"}]), "unknown initializer 'load'"),
    (layer("Dense", units=2, weight_initializer=["xavier", {"magnitud": 2}]), "magnitud"),
    (layer("Dense", units=2, weight_initializer=["xavier"]), "is refused"),
    (layer("Dense", units=2, dtype="object"), "dtype: expected one of"),
    (layer("Conv2D", channels=4, kernel_size=[3, 3, 3]), "Conv2D.* is refused"),
    (layer("Conv2D", channels=4, kernel_size=3, layout="NCW"), "Conv2D.* is refused"),
    *((layer("Lambda", function=name), "function: expected") for name in ("load", "save", "__class__")),
    (layer("HybridLambda", function="Custom"), "function: expected"),
    (layer("LinearBottleneck"), "has the children out; received none"),
    (layer("ResNetV1"), "has the children features, output"),
    ({"class": "ResidualCell"}, "has the children base_cell"),
    ({"class": "ResidualCell", "children": [{"name": "base_cell", **DENSE}]}, "ResidualCell.* is refused"),
    (stack(layer("Lambda", function="tanh")), "must also be HybridBlock"),
    ({"class": "HybridSequential", "children": {"0": DENSE}}, "is refused"),
    (stack({"name": "a", **DENSE}, {"name": "a", **DENSE}), "names that differ"),
    (stack({"name": "a.b", **DENSE}), "names that differ"),
    (stack({"name": 3, **DENSE}), "is refused"),
    *((stack({"shared": path}, DENSE), "block '0': .*is refused") for path in ("", "1", {})),
    (deep(150), "nested deeper"),
    (CIRCLE, "nested deeper"),
    ({"format": 1, "net": DENSE, "parameters": {"weigt": {}}}, "did you mean 'weight'"),
    ({"format": 1, "net": DENSE, "parameters": {"weight": {"grad_req": "all"}}}, "grad_req"),
    ({"format": 1, "net": DENSE, "parameters": {"weight": {"_data": 1}}}, "unknown name '_data'"),
    ({"format": 1, "net": DENSE, "parameters": {"weight": {"shape": [3, 3]}}}, "parameter 'weight'.* is refused"),
    ({"format": 1, "net": DENSE, "parameters": []}, "is refused"),
    ({"format": 1, "net": DENSE, "shared_parameters": {"bias": "weight"}}, "their shapes differ"),
    ({"format": 1, "net": DENSE, "shared_parameters": {"bias": 3}}, "no parameter 3"),
    ({"model": "gluoncv:os.system"}, "the net: .*unknown model"),
    ({"model": "zoo:resnet18_v3"}, "did you mean 'zoo:resnet18_v[12]'"),
    ({"model": "elsewhere:resnet18_v1"}, "unknown source of models 'elsewhere'"),
    ({"model": ["zoo:alexnet"]}, "is refused"),
    ({"model": "zoo:alexnet", "class": "Dense"}, "unknown name 'class'"),
    ({"model": "zoo:alexnet", "arguments": []}, "is refused"),
    ({"model": "zoo:alexnet", "arguments": {"clases": 3}}, "refuses its arguments"),
    ({"model": "zoo:alexnet", "arguments": {"pretrained": True}}, "without weights"),
    ({"model": "gluoncv:alexnet", "arguments": {"root": "/tmp/x"}}, "without weights"),
    ({"model": "gluoncv:ssd_300_mobilenet0.25_custom", "arguments": {"transfer": "coco"}}, "without weights"),
    ({"model": "gluoncv:mobilenet1.0_int8"}, "from the network only"),
    ({"model": "zoo:alexnet", "arguments": {"name": "x"}}, "refuses"),
]


@pytest.mark.parametrize(("description", "text"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_descriptions_are_clear_errors(description, text):
    if isinstance(description, dict) and {"class", "model"} & {*description} and description is not DENSE:
        description = {"format": 1, "net": description}
    with pytest.raises(ArchitectureError, match=text) as caught:
        build(description)
    assert isinstance(caught.value, ValueError)
    assert len(str(caught.value)) < 2000
