"""The text of a net's PyTorch code, its keys and its refusals. Nothing here needs torch."""

import ast
import subprocess
import sys

from built_nets import hybrid_net, imported, stack
from mxkit.core.blocks import parameters_by_path
from mxkit.errors import ExportError
from mxkit.exporting.to_torch.code import torch_files
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn, rnn
import numpy as np
import pytest
from sharing import text_of
from torch_nets import NETS, floats, initialized, lenet, several, shared

OTHER_NAMES = {"gamma": "weight", "beta": "bias"}


def in_torch(path):
    """The key of `state_dict` for a parameter's path."""
    before, _, name = path.rpartition(".")
    return f"{before}.{OTHER_NAMES.get(name, name)}"


@pytest.fixture(scope="module")
def converted():
    """Text and weights of every net."""
    nets = {build.__name__: build() for build in NETS}
    return {name: (*net, *torch_files(*net)[:2]) for name, net in nets.items()}


@pytest.fixture(scope="module")
def residual(converted):
    net, _, text, weights = converted["resnet"]
    return net, text, weights


def test_keys_are_the_paths_of_the_parameters(residual):
    net, _, weights = residual
    keys = {key for key in weights if not key.endswith("num_batches_tracked")}
    assert keys == {in_torch(path) for path in parameters_by_path(net)}
    for path, parameter in parameters_by_path(net).items():
        np.testing.assert_array_equal(weights[in_torch(path)], parameter.data().asnumpy())


def test_blocks_of_a_class_share_one_with_arguments(residual):
    text = residual[1]
    assert text.count("class ") == 3
    assert "nn.Sequential(BasicBlockV1(64), BasicBlockV1(64))," in text
    assert "nn.Sequential(BasicBlockV1_2(64, 128), BasicBlockV1(128))," in text  # with a downsample
    assert "def __init__(self, in_channels: int, channels: int) -> None:" in text
    assert "nn.Conv2d(in_channels, channels, kernel_size=1, stride=2, bias=False),\n" in text


def stage(*blocks):
    return hybrid_net(lambda net, F, x: F.relu(net.blocks(x)), blocks=stack(*blocks))


def test_blocks_of_a_class_are_in_classes_of_their_own():
    block = gluon.model_zoo.vision.resnet.BasicBlockV1
    net = stack(
        stage(block(8, 1, in_channels=8)), stage(block(16, 2, True, in_channels=8), block(16, 1, in_channels=16))
    )
    text, _, _ = torch_files(initialized(net), {"x": floats(2, 8, 16, 16)})
    assert text.count("class BasicBlockV1") == 2
    assert "self.blocks = nn.Sequential(BasicBlockV1(8))\n" in text
    assert "self.blocks = nn.Sequential(BasicBlockV1_2(), BasicBlockV1(16))\n" in text


def test_the_file_depends_on_torch_alone(converted):
    for _, _, text, _ in converted.values():
        imported = {
            (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).partition(".")[0]
            for node in ast.walk(ast.parse(text))
            if isinstance(node, (ast.Import, ast.ImportFrom))
        }
        assert imported <= {"collections", "pathlib", "typing", "torch", "safetensors"}


def test_ruff_has_nothing_to_say(converted, tmp_path):
    for name, (_, _, text, _) in converted.items():
        tmp_path.joinpath(f"{name}.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--target-version=py310", "."]
    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, check=False, timeout=120)
    assert done.returncode == 0, done.stdout.decode()[:3000]


def bottlenecks():
    block, net = gluon.model_zoo.vision.BottleneckV1, nn.HybridSequential()
    net.add(block(16, 1, True, in_channels=4), block(16, 1), block(32, 2, True, in_channels=16))
    return initialized(net), {"x": floats(2, 4, 8, 8)}


@pytest.mark.parametrize(
    ("build", "parts"),
    [
        (lenet, ['("0", nn.Conv2d(1, 6, kernel_size=5)),', '("0_act", nn.ReLU()),', '("4_flatten", nn.Flatten()),']),
        (several, ["self.scale = nn.Parameter(torch.zeros(1, 8))", "self.type_ = nn.Linear(8, 3)"]),
        (several, ['self.register_buffer("offset", torch.zeros(1, 8))', "-> tuple[Tensor, list[Tensor]]:"]),
        (shared, ["self.again = self.middle", "self.out.weight = self.embed.weight"]),
        (bottlenecks, ["class BottleneckV1_2(", "BottleneckV1(16, 8, 32, stride=2),"]),
    ],
)
def test_the_code_says(build, parts):
    text = torch_files(*build())[0]
    assert [part for part in parts if part not in text] == []


def test_keys_of_own_and_shared_parameters(converted):
    weights = converted["several"][3]
    np.testing.assert_array_equal(weights["offset"], np.arange(8, dtype="f").reshape(1, 8))
    assert {"again.weight", "middle.weight", "out.weight", "embed.weight"} < set(converted["shared"][3])
    expected = {f"{number}.{name}" for number in (0, 2, 4, 6) for name in ("weight", "bias")}
    assert set(converted["lenet"][3]) == expected


def test_a_graph_without_blocks_becomes_layers_named_after_its_variables(tmp_path):
    net, inputs = nn.HybridSequential(prefix="net_"), {"data": floats(2, 3, 8, 8)}
    with net.name_scope():
        net.add(nn.Conv2D(4, 3, padding=1, use_bias=False), nn.BatchNorm(), nn.Dense(3))
    initialized(net).hybridize()
    net(mx.nd.array(inputs["data"]))
    net.export(str(tmp_path / "net"))
    text, weights, _ = torch_files(imported(tmp_path / "net"), inputs)
    assert "class Net(nn.Module):" in text
    assert "self.conv0 = nn.Conv2d(3, 4, kernel_size=3, padding=1, bias=False)" in text
    assert {"conv0.weight", "batchnorm0.running_var", "dense0.bias"} < set(weights)


def test_the_net_is_as_before():
    net, inputs = lenet()
    net.hybridize(static_alloc=True)
    x = mx.nd.array(inputs["data"])
    expected = net(x).asnumpy()
    attributes = {block: dict(vars(block)) for block in (net, net[0], net[4])}
    torch_files(net, inputs)
    assert all(dict(vars(block)) == before for block, before in attributes.items())
    np.testing.assert_array_equal(net(x).asnumpy(), expected)


class Stray(gluon.HybridBlock):
    """Two operators without an equivalent, one of them in a child."""

    def __init__(self):
        super().__init__()
        self.child = nn.HybridLambda(lambda F, x: F.shuffle(x))

    def hybrid_forward(self, F, x):
        return F.sample_poisson(self.child(x))


def test_all_that_cannot_leave_is_named_at_once():
    net = stack(nn.Dense(3), Stray())
    text = text_of(ExportError, torch_files, initialized(net), {"x": floats(2, 4)})
    assert "the net has 2 operators without an equivalent in PyTorch; nothing was written:\n" in text
    assert "\n  '1.child' (HybridLambda): _shuffle: it draws random numbers" in text
    assert "\n  '1' (Stray): _sample_poisson: it draws random numbers" in text or "sample_poisson: " in text


@pytest.mark.parametrize("net", [rnn.LSTM(4), rnn.GRU(4, bidirectional=True), rnn.RNN(4)], ids=lambda net: net.prefix)
def test_a_recurrent_net_needs_no_first_states(net):
    text, weights, _ = torch_files(initialized(net), {"x": floats(3, 2, 5)})
    assert "    def forward(self, inputs: Tensor) -> Tensor:\n        inputs, _ = self." in text
    assert weights["rnn.weight_ih_l0"].shape[1] == 5


def side(net, F, x):
    """The child's result reaches the parent beside its return value."""
    return net.layer(x) + net.layer.kept


class Leak(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        self.kept = F.relu(x)
        return x * 2


def after_dense(function):
    return stack(nn.Dense(3), nn.HybridLambda(function))


def condition(F, x):
    return F.contrib.cond(F.sum(x).reshape((1,)) > 0, lambda: x * 2, lambda: x * 3)


def repeated(F, x):
    below = lambda s: F.sum(s).reshape((1,)) < 100  # noqa: E731
    return F.contrib.while_loop(below, lambda s: (s, [s * 2]), [x], max_iterations=3)[1][0]


def clipped():
    return rnn.LSTM(4, state_clip_min=-1, state_clip_max=1)


REFUSED = [
    (lambda: after_dense(condition), r"\n  '1' \(HybridLambda\): _cond: a condition over"),
    (lambda: after_dense(repeated), r"\n  '1' \(HybridLambda\): _while_loop: a loop over"),
    (
        lambda: after_dense(lambda F, x: x if x.shape[0] == 2 else -x),
        "cannot be traced with symbols.*neither shapes nor numbers",
    ),
    (lambda: nn.HybridLambda(lambda F, x: x), "the net returns its inputs and computes nothing"),
    (
        lambda: hybrid_net(side, layer=Leak()),
        r"the net \(Net\) uses relu .*which 'layer' \(Leak\) computed and did not",
    ),
    (clipped, r"\n  the net \(LSTM\): RNN: lstm_state_clip_min and lstm_state_clip_max; torch does not clip"),
    (lambda: stack(clipped()), r"\n  '0' \(LSTM\): RNN: lstm_state_clip_min"),
]


@pytest.mark.parametrize(("build", "text"), REFUSED)
def test_nets_without_an_equivalent_are_named(build, text):
    net = build()
    shape = (3, 2, 5) if "LSTM" in text else (2, 4)
    with pytest.raises(ExportError, match=text):
        torch_files(initialized(net), {"x": floats(*shape)})
