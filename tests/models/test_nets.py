"""Every net of mxkit.models: counted, trained at its smallest size, exported, described, rebuilt.

`heavy_epochs.py` trains the large ones for an epoch; `make zoo` runs it.
"""

import json
from math import prod
import os
from pathlib import Path
import subprocess
import sys

from built_nets import ready
from heavy_epochs import HEAVY, LIGHT, digits_of, epoch_of, share_left
import mxkit
from mxkit.core.blocks import blocks_by_path
from mxkit.models import Siamese, get_model, lenet, mlp, model_names, usable_sizes
import mxnet as mx
import numpy as np
import pytest
from sharing import long

# Counted on the tutorials' own code with 10 classes: name, arguments, channels, size, count.
TABLE_2 = [
    ("softmax_regression", {}, 1, 28, 7_850),
    ("mlp", {}, 1, 28, 203_530),
    ("mlp", {"hidden": (256, 256), "dropout": (0.2, 0.5)}, 1, 28, 269_322),
    ("lenet", {}, 1, 28, 129_388),
    ("lenet", {"kernel_sizes": (5, 3)}, 1, 28, 170_988),
    ("lenet", {"kernel_sizes": (5, 3), "batch_norm": True}, 1, 28, 171_128),
    ("alexnet", {}, 3, 224, 46_787_978),
    ("alexnet", {}, 3, 227, 58_322_314),
    ("vgg11", {}, 3, 96, 44_921_226),
    ("vgg11", {}, 3, 224, 128_807_306),
    ("nin", {}, 3, 224, 2_015_398),
    ("nin", {}, 3, 227, 2_015_398),
    ("googlenet", {}, 3, 96, 5_983_802),
    ("googlenet", {}, 3, 224, 6_065_722),
]
ZOO = {
    **{name: name for name in ("vgg11", "vgg13", "vgg16", "vgg19", "densenet121")},
    **{name: f"{name}_v1" for name in ("resnet18", "resnet34", "resnet50")},
}


def counted(net):
    return sum(prod(one.shape) for one in net.collect_params().values() if one.grad_req != "null")


def images_of(channels, size, samples=3):
    return mx.nd.array(np.random.RandomState(0).rand(samples, channels, size, size), dtype="float32")


def values_of(net):
    return {path: one.data().asnumpy() for path, one in net._collect_params_with_prefix().items()}


@pytest.mark.parametrize(("name", "arguments", "channels", "size", "count"), TABLE_2)
def test_parameters_are_counted_before_any_batch(name, arguments, channels, size, count):
    net = get_model(name, in_channels=channels, input_size=size, **arguments)
    assert counted(net) == count
    page = Path(mxkit.__file__).parents[1].joinpath("docs", "models.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `") and f"{count:,}" in line]
    assert [row for row in rows if f"`{name}" in row]


@pytest.mark.parametrize("name", sorted(ZOO))
def test_counts_of_the_zoos_own_nets(name):
    ours = counted(get_model(name, classes=17, in_channels=3, input_size=224))
    assert ours == mxkit.layers(get_model(f"zoo:{ZOO[name]}", classes=17), (1, 3, 224, 224)).trained


def test_every_net_is_tried():
    # a test of recipes in the same process may have registered a net of its own
    own = {name for name in model_names() if not name.startswith("small_")} - {"travelling_net"}  # test_gluoncv_nets
    assert {one[0] for one in LIGHT + HEAVY} | {"linear_regression"} == own


# `make zoo` trains, saves and exports the heavy nets (`heavy_epochs.py`). Here: two, and one of each family of mx.np.
QUICK = [one for one in HEAVY if one[:2] in (("nin", {"small": True}), ("googlenet", {"small": True}))]
FAMILIES = [one for one in HEAVY if one[:2] in (("alexnet", {"small": True}), ("vgg11", {}), QUICK[0][:2])]
FAMILIES += [one for one in HEAVY if one[0] == "densenet121" and one[1] == {"small": True}]


@pytest.mark.parametrize(
    ("name", "arguments", "channels", "least", "kind"),
    [(*one, "nd") for one in LIGHT[:-1] + QUICK]
    + [(*one, "np") for one in LIGHT if one[0] != "resnet18"]
    + [long(*LIGHT[-1], "nd"), *(long(*one, "np") for one in [LIGHT[-1], QUICK[1], *FAMILIES])],
    indirect=["kind"],
)
def test_smallest_size_trains_exports_describes_and_rebuilds(name, arguments, channels, least, kind, tmp_path):
    with kind.switches():
        _train_and_rebuild(get_model(name, classes=4, **arguments), channels, least, kind, tmp_path)


def _train_and_rebuild(net, channels, least, kind, tmp_path):
    assert usable_sizes(net, channels)[0] == least
    description = json.loads(json.dumps(mxkit.nets.describe(net)))
    x = kind.of(images_of(channels, least))
    mxkit.initialize(net, devices="cpu")
    imperative = net(x).asnumpy()
    assert np.ptp(imperative) > 0
    net.hybridize()
    np.testing.assert_allclose(net(x).asnumpy(), imperative, rtol=1e-4, atol=1e-5)
    before = values_of(net)
    data = [(x, kind.of(mx.nd.array([0, 1, 3])))]
    history = mxkit.fit(net, data, loss="softmax_ce", trainer="sgd", epochs=1, seed=1, progress=False)
    assert np.isfinite(history[0]["train_loss"])
    assert [path for path, values in values_of(net).items() if (values != before[path]).any()]
    scores = net(x).asnumpy()
    assert kind.holds(net(x))
    assert scores.shape == (3, 4)

    twin = mxkit.nets.build(description)
    assert type(twin) is type(net)
    assert list(twin._collect_params_with_prefix()) == list(before)
    twin.initialize()
    twin(x)
    for mine, its in zip(net._collect_params_with_prefix().values(), twin._collect_params_with_prefix().values()):
        its.set_data(mine.data())
    twin.hybridize()
    np.testing.assert_array_equal(twin(x).asnumpy(), scores)

    mxkit.export(net, tmp_path / "net", input_shape=x.shape)
    graph = mxkit.load_exported(tmp_path / "net")
    np.testing.assert_array_equal(graph(x).asnumpy(), scores)


@pytest.mark.long
def test_a_fresh_process_reads_saved_nets(tmp_path):
    """The blocks of mxkit.models are known to `load_net`, although nobody imported them by name."""
    for number, net in enumerate([lenet(in_channels=1, input_size=28), Siamese(mx.gluon.nn.Dense(2, in_units=3))]):
        net.initialize()
        mxkit.save_net(tmp_path / f"{number}.mxk", net)
    code = "import mxkit, sys; print(*(type(mxkit.load_net(path)).__name__ for path in sys.argv[1:]))"
    command = [sys.executable, "-c", code, *map(str, sorted(tmp_path.iterdir()))]
    environment = {**os.environ, "PYTHONPATH": str(Path(mxkit.__file__).parents[1])}
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True, timeout=300)
    assert done.stdout.split() == [b"SizedNet", b"Siamese"]


@pytest.mark.parametrize("name", ["lenet", "lenet5", "vgg11", "resnet18", "nin"])
def test_with_all_sizes_given_no_batch_is_needed(name):
    size = 200 if name == "nin" else 32
    net = ready(get_model(name, in_channels=2, input_size=size))
    assert all(parameter.data().shape == parameter.shape for parameter in net.collect_params().values())
    assert net(mx.nd.ones((1, 2, size, size))).shape == (1, 10)


def test_layers_are_those_of_the_papers_and_of_the_tutorials():
    net = get_model("lenet5", in_channels=1, input_size=28)
    assert counted(net) == 61_706
    assert [type(layer).__name__ for layer in net].count("AvgPool2D") == 2
    assert [layer._act_type for layer in net if isinstance(layer, mx.gluon.nn.Activation)] == ["sigmoid"] * 4
    assert mxkit.layers(net, (1, 1, 28, 28))["5"].outputs == ((1, 16, 5, 5),)
    assert len([path for path in get_model("densenet121")._collect_params_with_prefix() if ".weight" in path]) == 121
    blocks = [one for _, one in blocks_by_path(get_model("googlenet")) if isinstance(one, mx.gluon.nn.Conv2D)]
    assert [one.act._act_type for one in blocks] == ["relu"] * 57
    assert lenet(in_channels=3)[0].weight.shape == (20, 3, 5, 5)
    net = mlp(hidden=(3, 2), dropout=(0.2, 0.5))
    assert [layer._units for layer in net if isinstance(layer, mx.gluon.nn.Dense)] == [3, 2, 10]
    assert [layer._rate for layer in net if isinstance(layer, mx.gluon.nn.Dropout)] == [0.2, 0.5]
    net = ready(get_model("nin", small=True), devices="cpu")
    assert (net(images_of(3, 16)).asnumpy() < 0).any()  # row 71: the tutorials' last ReLU forbids it


@pytest.mark.parametrize(
    "name", sorted(name for name in set(model_names()) - {"linear_regression"} if not name.startswith("small_"))
)
def test_sizes_are_whole_numbers(name):
    for argument in ("classes", "in_channels", "input_size"):
        with pytest.raises(ValueError, match=f"{argument}: expected a whole number.* received -1"):
            get_model(name, **{argument: -1})


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("mlp", {"dropout": 1}, "at least 0 and below 1.* received 1"),
        ("mlp", {"hidden": (), "dropout": -1}, "at least 0 and below 1.* received -1"),
        ("mlp", {"dropout": (0.2, 0.5)}, r"one for each of the 1 hidden layers.* received \(0.2, 0.5\)"),
    ],
)
def test_wrong_arguments(name, arguments, text):
    with pytest.raises(ValueError, match=text):
        get_model(name, **arguments)


@pytest.mark.parametrize(
    ("name", "arguments", "channels", "least"),
    [long(*one) if one[0] == "resnet18" or one[:2] == ("lenet5", {}) else one for one in LIGHT],
)
def test_one_epoch_of_digits_lowers_the_loss(name, arguments, channels, least):
    assert epoch_of(name, arguments, channels, least)[1] < 0.9


def test_one_epoch_of_digits_lowers_the_loss_of_linear_regression():
    net = ready(get_model("linear_regression"))
    x, y = digits_of(8, 1, 320)
    assert share_left(net, x, y.astype("float32")[:, None] / 9, "l2", 1e-2) < 0.5
