"""Nets of both model zoos come back. `tests/zoo/check_features.py` runs the large ones, too."""

import re

from built_nets import stack
from mxkit.core.blocks import parameters_by_path
from mxkit.errors import ArchitectureError
from mxkit.models.registry import get_model
from mxkit.nets.architecture import build, describe
from mxkit.nets.architecture.catalog import zoo_names
from mxkit.nets.saving import load_net, save_net
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision
import pytest
from round_trip import assert_same, batch, on, rebuilt

# gluoncv's own imports
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::SyntaxWarning")
SMALL = ["mobilenet0.25", "mobilenetv2_0.25", "resnet18_v2", "squeezenet1.1"]


@pytest.mark.parametrize("name", SMALL)
def test_nets_of_the_zoo_come_back(name):
    assert len(zoo_names("zoo")) == 34
    side = 224 if "squeeze" in name else 32
    assert_same(vision.get_model(name, classes=7), on(1, 3, side, side))


def test_a_net_of_the_zoo_that_was_changed_is_rebuilt_as_it_is():
    net = vision.resnet18_v1()
    net.output = nn.Dense(3, activation="sigmoid")
    net.features.add(nn.Dropout(0.5))
    twin = assert_same(net, on(1, 3, 32, 32))
    assert len(twin.features) == len(net.features)
    assert twin.output.act._act_type == "sigmoid"


def test_a_net_of_gluoncvs_comes_back_by_name_and_arguments(tmp_path):
    inner = get_model("gluoncv:cifar_resnet20_v1", classes=5)
    node = {"model": "gluoncv:cifar_resnet20_v1", "arguments": {"classes": 5}}
    assert describe(inner) == {"format": 1, "net": node}
    net = stack(inner, nn.Dense(3))
    inner.output.weight.grad_req = "null"
    inner.features[0].weight.wd_mult = 0.0
    told = describe(net)
    assert told["net"]["children"][0] == node
    assert told["parameters"]["0.output.weight"] == {"grad_req": "null"}
    assert_same(net, on(1, 3, 32, 32))
    x = batch(1, 3, 32, 32)
    found = load_net(save_net(tmp_path / "net.mxk", net))
    assert found(x).asnumpy().tobytes() == net(x).asnumpy().tobytes()


def test_detection_nets_have_the_same_paths_however_many_were_made_before():
    # T37: the graph inside a feature expander names its parameters by the process's counters
    first, second = (get_model("gluoncv:mask_rcnn_fpn_syncbn_mobilenet1_0_coco") for _ in range(2))
    assert isinstance(first.features, gluon.SymbolBlock)
    assert list(parameters_by_path(first)) == list(parameters_by_path(second))
    assert describe(first) == describe(second)
    rebuilt(first)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda net: net.features.add(nn.Dense(2)), r"features .*would be rebuilt as HybridSequential"),
        (lambda net: setattr(net, "output", nn.Dense(3)), "output .*its _units is 3, and would be 10"),
        (lambda net: net.features[0]._kwargs.update(stride=(2, 2)), r"features\.0 .*its _kwargs is"),
        (lambda net: net.features[2].register_child(nn.Flatten()), r"features\.2 .*would be rebuilt"),
    ],
)
def test_a_net_of_gluoncvs_that_was_changed_is_refused(change, text):
    net = get_model("gluoncv:cifar_resnet20_v1")
    change(net)
    with pytest.raises(ArchitectureError, match=text):
        describe(net)


def test_a_net_of_gluoncvs_that_was_made_elsewhere_is_refused_with_the_way_out():
    from gluoncv.model_zoo import cifar_resnet20_v1

    with pytest.raises(ArchitectureError, match=re.escape("get_model('gluoncv:...')")):
        describe(cifar_resnet20_v1())


def test_models_may_be_named_in_descriptions_written_by_hand():
    node = {"model": "zoo:mobilenet0.25", "arguments": {"classes": 3}}
    net = build({"format": 1, "net": {"class": "HybridSequential", "children": [node, {"shared": "0"}]}})
    assert net[0] is net[1]
    assert describe(net[0]) == describe(vision.mobilenet0_25(classes=3))
