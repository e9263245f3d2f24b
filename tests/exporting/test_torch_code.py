"""The text of a net's PyTorch code, its keys and its refusals. Nothing here needs torch."""

import ast
import subprocess
import sys

from mxkit.core.blocks import parameters_by_path
from mxkit.errors import ExportError
from mxkit.exporting.to_torch.code import torch_files
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np
import pytest
from torch_nets import NETS, floats, initialized, lenet, resnet, several, shared, zoo

OTHER_NAMES = {"gamma": "weight", "beta": "bias"}


def in_torch(path):
    """The key of `state_dict` for a parameter's path."""
    before, _, name = path.rpartition(".")
    return f"{before}.{OTHER_NAMES.get(name, name)}"


@pytest.fixture(scope="module")
def converted():
    """Text and weights of every net."""
    return {build.__name__: (*build(), *torch_files(*build())[:2]) for build in NETS}


@pytest.fixture(scope="module")
def residual():
    net, inputs = resnet()
    return (net, *torch_files(net, inputs)[:2])


def test_keys_are_the_paths_of_the_parameters(residual):
    net, _, weights = residual
    keys = {key for key in weights if not key.endswith("num_batches_tracked")}
    assert keys == {in_torch(path) for path in parameters_by_path(net)}
    for path, parameter in parameters_by_path(net).items():
        np.testing.assert_array_equal(weights[in_torch(path)], parameter.data().asnumpy())


def test_blocks_of_a_class_share_one_with_arguments(residual):
    text = residual[1]
    assert text.count("class ") == 2
    assert "self, in_channels: int, channels: int, stride: int = 1, downsample: bool = False\n" in text
    assert "nn.Sequential(BasicBlockV1(64, 64), BasicBlockV1(64, 64))," in text
    assert "BasicBlockV1(64, 128, stride=2, downsample=True)," in text
    assert "in_channels, channels, kernel_size=1, stride=stride, bias=False\n" in text


class Stage(gluon.HybridBlock):
    def __init__(self, *blocks):
        super().__init__()
        self.blocks = nn.HybridSequential()
        self.blocks.add(*blocks)

    def hybrid_forward(self, F, x):
        return F.relu(self.blocks(x))


def test_blocks_of_a_class_are_in_classes_of_their_own():
    block = gluon.model_zoo.vision.resnet.BasicBlockV1
    net = nn.HybridSequential()
    net.add(Stage(block(8, 1, in_channels=8)), Stage(block(16, 2, True, in_channels=8), block(16, 1, in_channels=16)))
    text, _, _ = torch_files(initialized(net), {"x": floats(2, 8, 16, 16)})
    assert text.count("class BasicBlockV1") == 1
    assert "self.blocks = nn.Sequential(BasicBlockV1(8, 8))\n" in text
    assert "BasicBlockV1(8, 16, stride=2, downsample=True),\n            BasicBlockV1(16, 16),\n" in text


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
    for command in (["check"], ["format", "--diff"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--isolated", "--no-cache", "--target-version=py310", "."],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout.decode()[:3000]


def test_activations_of_layers_have_names_of_their_own():
    net, inputs = lenet()
    text, weights, _ = torch_files(net, inputs)
    assert '("0", nn.Conv2d(1, 6, kernel_size=5)),\n' in text
    assert '("0_act", nn.ReLU()),\n' in text
    assert '("4_flatten", nn.Flatten()),\n' in text
    assert set(weights) == {f"{number}.{name}" for number in (0, 2, 4, 6) for name in ("weight", "bias")}


def test_own_parameters_and_nested_outputs():
    text, weights, _ = torch_files(*several())
    assert "self.scale = nn.Parameter(torch.zeros(1, 8))" in text
    assert 'self.register_buffer("offset", torch.zeros(1, 8))' in text
    assert "def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, list[Tensor]]:" in text
    assert "self.type_ = nn.Linear(8, 3)" in text
    np.testing.assert_array_equal(weights["offset"], np.arange(8, dtype="f").reshape(1, 8))


def test_shared_blocks_and_parameters_are_one():
    text, weights, _ = torch_files(*shared())
    assert "self.again = self.middle" in text
    assert "self.out.weight = self.embed.weight" in text
    assert {"again.weight", "middle.weight", "out.weight", "embed.weight"} < set(weights)


def test_bottlenecks_have_three_sizes():
    text = torch_files(*zoo("resnet50_v1"))[0]
    assert text.count("class ") == 2
    assert "BottleneckV1(64, 64, 256, downsample=True)," in text


def test_a_graph_without_blocks_becomes_layers_named_after_its_variables(tmp_path):
    net, inputs = zoo("resnet18_v1")
    net.hybridize()
    net(mx.nd.array(inputs["data"]))
    net.export(str(tmp_path / "net"))
    with pytest.warns(UserWarning, match="Cannot decide type"):
        block = gluon.SymbolBlock.imports(
            str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params")
        )
    text, weights, _ = torch_files(block, inputs)
    assert "class Net(nn.Module):" in text
    assert "self.stage1_conv0 = nn.Conv2d(64, 64, kernel_size=3, padding=1, bias=False)" in text
    assert {"stage1_conv0.weight", "batchnorm0.running_var", "dense0.bias"} < set(weights)


def test_the_net_is_as_before():
    net, inputs = resnet()
    net.hybridize(static_alloc=True)
    x = mx.nd.array(inputs["data"])
    expected = net(x).asnumpy()
    attributes = {block: dict(vars(block)) for block in (net, net.features, net.features[4][0])}
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
    net = nn.HybridSequential()
    net.add(nn.Dense(3), Stray())
    with pytest.raises(ExportError) as caught:
        torch_files(initialized(net), {"x": floats(2, 4)})
    text = str(caught.value)
    assert "the net has 2 operators without an equivalent in PyTorch; nothing was written:\n" in text
    assert "\n  '1.child' (HybridLambda): _shuffle: it draws random numbers" in text
    assert "\n  '1' (Stray): _sample_poisson: it draws random numbers" in text or "sample_poisson: " in text


class Reads(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return x if x.shape[0] == 2 else -x


def test_a_net_that_symbols_cannot_trace():
    with pytest.raises(ExportError, match="Reads cannot be traced with symbols: .*reads neither shapes nor numbers"):
        torch_files(initialized(Reads()), {"x": floats(2, 4)})


class Side(gluon.HybridBlock):
    """The child's result reaches the parent beside its return value."""

    def __init__(self):
        super().__init__()
        self.child = Leak()

    def hybrid_forward(self, F, x):
        return self.child(x) + self.child.kept


class Leak(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        self.kept = F.relu(x)
        return x * 2


def test_results_that_a_block_does_not_return():
    with pytest.raises(ExportError, match=r"the net \(Side\) uses relu .*which 'child' \(Leak\) computed and did not"):
        torch_files(initialized(Side()), {"x": floats(2, 4)})
