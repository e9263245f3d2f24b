"""Nets by name, those of the model zoos without numbers and without the network."""

import socket
import sys

from built_nets import ready
import mxkit
from mxkit.errors import DownloadError, UnknownNameError
from mxkit.models import get_model, model_names
from mxkit.nets.architecture import catalog
from mxkit.nets.architecture.catalog import MADE
import mxnet as mx
from mxnet import gluon
import numpy as np
import pytest
from sharing import Kind, long

# gluoncv's own imports
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::SyntaxWarning")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    def refuse(*arguments, **more):
        raise AssertionError("a connection was asked for")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize(
    ("name", "classes"),
    [("zoo:resnet18_v2", 7), ("gluoncv:cifar_resnet20_v1", 10), ("gluoncv:CIFAR_ResNet20_v1", 3)],
)
def test_nets_come_by_name(name, classes):
    net = ready(get_model(name, classes=classes), devices="cpu")
    assert net(mx.nd.ones((1, 3, 32, 32))).shape == (1, classes)
    assert getattr(net, MADE) == (name.lower(), {"classes": classes})


@pytest.mark.parametrize("name", ["squeezenet1.1", *map(long, ("mobilenetv2_0.25", "densenet121", "inceptionv3"))])
@pytest.mark.parametrize("hybridized", [True, long(False)])
def test_nets_compute_the_same_in_both_kinds(name, hybridized):
    def made(kind):
        net = kind.net(lambda: started(name))
        net.hybridize(hybridized)
        return mxkit.predict(net, x).asnumpy()

    def started(name):
        mxkit.seed_all(0)
        return ready(get_model(f"zoo:{name}", classes=5), sample=(1, *x.shape[1:]), devices="cpu")

    side = 299 if name == "inceptionv3" else 224
    x = np.random.RandomState(0).rand(1, 3, side, side).astype("float32")
    np.testing.assert_array_equal(made(Kind(True)), made(Kind(False)))


def test_names_are_listed_by_source():
    others = {"Siamese", "SizedNet", "get_model", "model_names", "usable_sizes"}
    assert model_names() == sorted(set(mxkit.models.__all__) - others)
    assert {"resnet18_v2", "alexnet", "mobilenetv2_1.0"} <= set(model_names("zoo"))
    assert "cifar_resnet20_v1" in model_names("gluoncv")
    with pytest.raises(UnknownNameError, match="unknown source of models 'torch': Known: gluoncv, zoo"):
        model_names("torch")


def test_what_a_net_was_made_with_is_nobody_elses():
    classes = ["a", "b"]
    net = get_model("gluoncv:yolo3_mobilenet0.25_custom", classes=classes)
    classes.append("c")
    assert getattr(net, MADE)[1] == {"classes": ["a", "b"]}


# detection, segmentation, pose and video nets, whose functions load their bases' numbers unless they are told not to
@pytest.mark.parametrize(
    "name",
    [long("ssd_512_resnet18_v1_voc"), "yolo3_mobilenet0.25_voc", "fastscnn_citys", "simple_pose_resnet18_v1b"]
    + ["i3d_resnet50_v1_hmdb51", "resnext101e_64x4d", "deeplab_resnet50_ade", "darknet53"],
)
def test_bases_are_made_without_numbers(name):
    assert list(get_model(f"gluoncv:{name}").collect_params())


def test_nets_of_masks_come_without_values():
    """T274: gluoncv initializes what it does not load, with its own initializer."""
    from gluoncv.model_zoo import get_model

    assert get_model("fastscnn_citys", crop_size=64).classifier.conv.weight.data().shape == (19, 128, 1, 1)
    net = ready(mxkit.models.get_model("gluoncv:fastscnn_citys", crop_size=64), initializer="zeros", devices="cpu:2")
    assert [float(one.abs().sum().asscalar()) for one in net.classifier.conv.weight.list_data()] == [0, 0]


def test_nets_that_gluoncv_makes_with_numbers_only_are_refused():
    always = [name for name in model_names("gluoncv") if catalog._ALWAYS_PRETRAINED.fullmatch(name)]
    assert {"mobilenet1.0_int8", "resnet18_v1b_custom", "resnet152_v1b_sthsthv2"} <= set(always)
    assert "resnet18_v1b" not in always
    for name in always:
        with pytest.raises(ValueError, match="with weights from the network only"):
            get_model(f"gluoncv:{name}")


@pytest.mark.parametrize("source", ["zoo:mobilenet0.25", "gluoncv:cifar_resnet20_v1"])
def test_numbers_come_only_where_they_are_asked_for(source, tmp_path, monkeypatch):
    monkeypatch.setenv("MXNET_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MXKIT_OFFLINE", "1")
    for asking in ({"pretrained": True}, {"weights": "pretrained"}):
        with pytest.raises(DownloadError, match=f"weights of '{source}' are missing and cannot be downloaded: "):
            get_model(source, **asking)
    net = get_model(source, pretrained=False, root="nowhere", ctx=None)
    assert getattr(net, MADE) == (source, {})
    assert all(parameter._data is None for parameter in net.collect_params().values())


def test_what_gluoncv_alone_can_load_is_left_to_it(monkeypatch):
    """Its own loading code is reached, and would now open the network."""

    def refuse(*arguments, **more):
        raise ConnectionError("the network")

    for name, module in list(sys.modules.items()):
        if name.startswith("gluoncv") and hasattr(module, "get_model_file"):
            monkeypatch.setattr(module, "get_model_file", refuse)
    with pytest.raises(ConnectionError, match="the network"):  # one of several published files, by its hash
        get_model("gluoncv:cifar_resnet20_v1", pretrained="01234567")


@pytest.mark.long
def test_names_of_gluoncvs_graphs_are_its_own():
    first, second = (get_model("gluoncv:ssd_300_mobilenet0.25_custom", classes=["a"]) for _ in range(2))
    graphs = [net.features for net in (first, second)]
    assert all(isinstance(graph, gluon.SymbolBlock) for graph in graphs)
    assert list(graphs[0]._reg_params) == list(graphs[1]._reg_params)
    assert not {one.name for one in first.collect_params().values()} & {
        one.name for one in second.collect_params().values()
    }
    x = mx.nd.random.uniform(shape=(1, 3, 128, 128))
    for net in (first, second):
        net.initialize()
    assert [one.shape for one in first(x)] == [one.shape for one in second(x)]


REFUSED = [
    ("zoo:resnet18_v3", {}, UnknownNameError, "did you mean 'zoo:resnet18_v"),
    ("gluoncv:cifar_resnet20", {}, UnknownNameError, "did you mean 'gluoncv:cifar_resnet20_v"),
    ("resnet18_v1", {}, UnknownNameError, "did you mean 'zoo:resnet18_v1'"),
    ("torch:resnet18", {}, UnknownNameError, "Known: gluoncv, zoo"),
]
REFUSED += [
    (name, {"clases": 10}, TypeError, f"model '{name}' refuses its arguments .*clases")
    for name in ("mlp", "zoo:resnet18_v2", "gluoncv:cifar_resnet20_v1")
]


@pytest.mark.parametrize(("name", "arguments", "error", "text"), REFUSED)
def test_names_and_arguments_that_are_not_there(name, arguments, error, text):
    with pytest.raises(error, match=text):
        get_model(name, **arguments)
