"""Every net of mxkit.models: counted, trained at its smallest size, exported, described, rebuilt."""

import json
from math import prod
import os
from pathlib import Path
import subprocess
import sys

import mxkit
from mxkit.core.blocks import blocks_by_path
from mxkit.models import Siamese, get_model, lenet, linear_regression, mlp, model_names, usable_sizes
import mxnet as mx
import numpy as np
import pytest
from sharing import long

# SEEDS' table 2, run there on the tutorials' own code with 10 classes: name, arguments, channels, size, count.
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
    ("resnet18", {"tutorial": True}, 3, 96, 11_184_522),
    ("resnet18", {"tutorial": True}, 3, 224, 11_199_882),
    ("densenet121", {"tutorial": True}, 3, 32, 11_470_602),
    ("densenet121", {"tutorial": True}, 3, 96, 11_567_882),
    ("densenet121", {"tutorial": True}, 3, 224, 12_054_282),
]
ZOO = {
    "vgg11": "vgg11",
    "vgg13": "vgg13",
    "vgg16": "vgg16",
    "vgg19": "vgg19",
    "resnet18": "resnet18_v1",
    "resnet34": "resnet34_v1",
    "resnet50": "resnet50_v1",
    "densenet121": "densenet121",
}
# Name, arguments, channels, and the smallest size: that of SEEDS' table 2 where it has one.
SMALLEST = [
    ("softmax_regression", {}, 1, 1),
    ("mlp", {"dropout": 0.5}, 1, 1),
    ("lenet", {}, 1, 16),
    ("lenet", {"kernel_sizes": (5, 3), "batch_norm": True}, 1, 12),
    ("lenet5", {}, 1, 12),
    ("lenet5", {"batch_norm": True}, 1, 12),
    ("alexnet", {}, 3, 67),
    ("alexnet", {"small": True}, 3, 15),
    ("vgg11", {}, 3, 32),
    ("vgg13", {}, 3, 32),
    ("vgg16", {}, 3, 32),
    ("vgg19", {}, 3, 32),
    ("nin", {}, 3, 195),
    ("nin", {"small": True}, 3, 15),
    ("googlenet", {}, 3, 93),
    ("googlenet", {"small": True}, 3, 7),
    ("resnet18", {}, 3, 1),
    ("resnet18", {"small": True}, 3, 1),
    ("resnet18", {"tutorial": True}, 3, 75),
    ("resnet34", {}, 3, 1),
    ("resnet50", {}, 3, 1),
    ("densenet121", {}, 3, 29),
    ("densenet121", {"small": True}, 3, 8),
    ("densenet121", {"tutorial": True}, 3, 29),
    ("densenet121", {"tutorial": True, "small": True}, 3, 8),
]


def counted(net):
    return sum(prod(one.shape) for one in net.collect_params().values() if one.grad_req != "null")


def images_of(channels, size, samples=3):
    return mx.nd.array(np.random.RandomState(0).rand(samples, channels, size, size), dtype="float32")


def values_of(net):
    return {path: one.data().asnumpy() for path, one in net._collect_params_with_prefix().items()}


def unchecked(net, x):
    """What MXNet does without mxkit's look at the size."""
    return mx.gluon.nn.HybridSequential.__call__(net, x)


@pytest.mark.parametrize(("name", "arguments", "channels", "size", "count"), TABLE_2)
def test_rows_60_to_71_parameters_are_counted_before_any_batch(name, arguments, channels, size, count):
    net = get_model(name, in_channels=channels, input_size=size, **arguments)
    assert counted(net) == count


@pytest.mark.parametrize("name", sorted(ZOO))
def test_counts_of_the_zoos_own_nets(name):
    ours = counted(get_model(name, classes=17, in_channels=3, input_size=224))
    assert ours == mxkit.layers(get_model(f"zoo:{ZOO[name]}", classes=17), (1, 3, 224, 224)).trained


def test_every_net_is_tried():
    assert {one[0] for one in SMALLEST} | {"linear_regression"} == set(model_names())


# Those that take seconds, of which a smaller one of the family is tried in `make test`.
LARGE = [("alexnet", {}), ("vgg13", {}), ("vgg16", {}), ("vgg19", {}), ("nin", {}), ("googlenet", {}), ("resnet18", {})]
LARGE += [("resnet18", {"tutorial": True}), ("resnet34", {}), ("resnet50", {}), ("densenet121", {})]
LARGE += [("densenet121", {"tutorial": True}), ("densenet121", {"tutorial": True, "small": True})]


@pytest.mark.parametrize(
    ("name", "arguments", "channels", "least"), [long(*one) if one[:2] in LARGE else one for one in SMALLEST]
)
def test_smallest_size_trains_exports_describes_and_rebuilds(name, arguments, channels, least, tmp_path):
    net = get_model(name, classes=4, **arguments)
    assert usable_sizes(net, channels)[0] == least
    description = json.loads(json.dumps(mxkit.nets.describe(net)))
    x = images_of(channels, least)
    mxkit.initialize(net, devices="cpu")
    imperative = net(x).asnumpy()
    assert np.ptp(imperative) > 0
    net.hybridize()
    np.testing.assert_allclose(net(x).asnumpy(), imperative, rtol=1e-4, atol=1e-5)
    before = values_of(net)
    data = [(x, mx.nd.array([0, 1, 3]))]
    history = mxkit.fit(net, data, loss="softmax_ce", trainer="sgd", epochs=1, seed=1, progress=False)
    assert np.isfinite(history[0]["train_loss"])
    assert [path for path, values in values_of(net).items() if (values != before[path]).any()]
    scores = net(x).asnumpy()
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


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("lenet", {}), ("lenet5", {}), ("alexnet", {"small": True}), ("vgg11", {}), ("resnet18", {}), ("nin", {})],
)
def test_with_all_sizes_given_no_batch_is_needed(name, arguments):
    size = 200 if name == "nin" else 32
    net = get_model(name, in_channels=2, input_size=size, **arguments)
    net.initialize()
    for parameter in net.collect_params().values():
        assert parameter.data().shape == parameter.shape
    assert net(mx.nd.ones((1, 2, size, size))).shape == (1, 10)


def test_in_channels_alone_leave_the_size_to_the_first_batch():
    net = lenet(in_channels=3)
    assert net[0].weight.shape == (20, 3, 5, 5)
    net.initialize()
    assert net(mx.nd.ones((2, 3, 20, 24))).shape == (2, 10)


def test_row86_linear_regression_finds_the_tutorials_line():
    random = np.random.RandomState(0)
    x = random.randn(1000, 2).astype("float32")
    y = (x @ np.array([2, -3.4]) + 4.2 + 0.01 * random.randn(1000)).astype("float32")[:, None]
    net = linear_regression(in_units=2)
    mxkit.initialize(net, devices="cpu")
    assert counted(net) == 3
    trainer = ("sgd", {"learning_rate": 0.1})
    data = mxkit.data.ArrayLoader(x, y, batch_size=10, shuffle=True)
    mxkit.fit(net, data, loss="l2", trainer=trainer, epochs=2, seed=1, progress=False)
    np.testing.assert_allclose(net[0].weight.data().asnumpy(), [[2, -3.4]], atol=0.01)
    np.testing.assert_allclose(net[0].bias.data().asnumpy(), [4.2], atol=0.01)


def test_lenet5_is_the_one_of_1998():
    net = get_model("lenet5", in_channels=1, input_size=28)
    assert counted(net) == 61_706
    kinds = [type(layer).__name__ for layer in net]
    assert kinds.count("AvgPool2D") == 2
    assert [layer._act_type for layer in net if isinstance(layer, mx.gluon.nn.Activation)] == ["sigmoid"] * 4
    assert mxkit.layers(net, (1, 1, 28, 28))["5"].outputs == ((1, 16, 5, 5),)


def test_the_tutorials_densenet_has_63_layers_with_weights():
    net = get_model("densenet121", tutorial=True)
    weights = [path for path, value in net._collect_params_with_prefix().items() if path.endswith(".weight")]
    assert len(weights) == 63
    net = get_model("densenet121")
    assert len([path for path in net._collect_params_with_prefix() if path.endswith(".weight")]) == 121


@pytest.mark.parametrize("argument", ["classes", "in_channels", "input_size"])
@pytest.mark.parametrize("name", sorted(set(model_names()) - {"linear_regression"}))
def test_sizes_are_whole_numbers(name, argument):
    with pytest.raises(ValueError, match=f"{argument}: expected a whole number.* received -1"):
        get_model(name, **{argument: -1})


def test_resnet18_of_the_tutorials_has_no_small_form():
    with pytest.raises(ValueError, match="leave out small=True or tutorial=True"):
        get_model("resnet18", small=True, tutorial=True)


def test_row71_scores_of_nin_can_be_below_0():
    net = get_model("nin", small=True)
    mxkit.initialize(net, devices="cpu")
    assert (net(images_of(3, 16)).asnumpy() < 0).any()


def test_every_convolution_of_googlenet_has_a_relu():
    blocks = [one for _, one in blocks_by_path(get_model("googlenet")) if isinstance(one, mx.gluon.nn.Conv2D)]
    assert len(blocks) == 57
    assert all(one.act._act_type == "relu" for one in blocks)


def test_mlp_of_two_layers_can_be_deep():
    assert [layer._units for layer in mlp(hidden=[3, 2]) if isinstance(layer, mx.gluon.nn.Dense)] == [3, 2, 10]


@pytest.mark.parametrize(("name", "arguments", "channels", "size", "count"), TABLE_2)
def test_the_page_tells_the_counts(name, arguments, channels, size, count):
    page = Path(mxkit.__file__).parents[1].joinpath("docs", "models.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `") and f"{count:,}" in line]
    assert [row for row in rows if f"`{name}" in row]
