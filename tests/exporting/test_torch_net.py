"""The PyTorch code of nets, run by torch: every step against MXNet, gradients, torch.compile, torch.export, mypy."""

from functools import partial
import importlib.util
import shutil
import subprocess
import sys

import cancelling_nets
import mxkit
from mxkit.errors import ExportError
from mxkit.exporting.proof import Proof
from mxkit.exporting.to_torch.code import torch_files
from mxkit.exporting.to_torch.expressions import Argument, Call
from mxkit.exporting.to_torch.operators import MODULES
from mxkit.exporting.to_torch.program import identifier
from mxkit.exporting.to_torch.proof import compare_torch, not_compared
import mxnet as mx
from mxnet import gluon
import numpy as np
from pages import ROOT, run_python
import pytest
import torch_nets
from torch_nets import NETS, Language, floats, initialized, language, lenet, recurrent, resnet, several, shared

pytestmark = pytest.mark.torch
TOLERANCE = 1e-4
DOCS = ROOT / "docs"


def batch_of(inputs, size):
    """Other arguments like these, at another batch size."""
    random = np.random.RandomState(size)

    def like(value):
        if isinstance(value, list):
            return [like(part) for part in value]
        shape = list(value.shape)
        shape[shape.index(2)] = size
        if value.dtype == np.int32:
            return random.randint(0, 11, shape).astype("int32")
        return random.uniform(-1, 1, shape).astype("f")

    return [like(value) for value in inputs.values()]


def rows_of(build, sizes=(1,), train=False):
    """The rows of a net's comparison."""
    net, inputs = build()
    text, weights, source = torch_files(net, inputs)
    return compare_torch(source, text, weights, [batch_of(inputs, size) for size in sizes], train)


def written(tmp_path, build):
    """The net as the two files give it, and its weights."""
    from safetensors.numpy import save_file

    text, weights, _ = torch_files(*build())
    (tmp_path / "net.py").write_text(text, encoding="utf-8")
    save_file({key: np.ascontiguousarray(value) for key, value in weights.items()}, tmp_path / "model.safetensors")
    spec = importlib.util.spec_from_file_location("converted_net", tmp_path / "net.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load(tmp_path / "model.safetensors"), weights


@pytest.mark.parametrize("build", NETS)
def test_every_step_and_gradient_is_equal(build):
    rows = rows_of(build, (1, 4), train=True)
    Proof(rows, TOLERANCE, {}).check(build.__name__)
    kinds = {row.operator.partition(",")[0] for row in rows}
    assert {"training", "gradient", "the file"} <= kinds
    assert {row.batch for row in rows} == {1, 4}


RNN = [gluon.rnn.LSTM, gluon.rnn.GRU, *(partial(gluon.rnn.RNN, activation=one) for one in ("relu", "tanh"))]


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("layer", RNN)
def test_recurrent_layers_give_what_mxnet_gives(layer, both):
    # one layer, or two in both directions: MXNet's gradient of the middle one of three is wrong for gluon.rnn.RNN
    states = [floats(4 if both else 1, 2, 5)] * (2 if layer is gluon.rnn.LSTM else 1)
    inputs = {"x": np.ones((7, 2), "int32"), "states": states}
    rows = rows_of(
        lambda: (initialized(Language(partial(layer, bidirectional=both), 1 + both)), inputs), (1, 4), train=True
    )
    Proof(rows, 1e-5, {}).check("the net")
    assert {f"rnn.weight_hh_l{int(both)}", "rnn.bias_ih_l0"} <= {row.name for row in rows if row.operator == "gradient"}


def test_what_is_not_compared_is_listed():
    assert not_compared(torch_files(*resnet())[2]) == []
    left = not_compared(torch_files(*recurrent())[2])
    # the eight parameters' reshaping and joining, and the first state are parts of nn.GRU
    assert len(left) == 8 + 1 + 1
    assert not [name for name in left if "dense" in name]


@pytest.mark.parametrize("build", [several, shared, language, lenet, torch_nets.twice, torch_nets.mobilenet])
def test_the_files_alone_make_the_net(build, tmp_path):
    import torch

    loaded, weights = written(tmp_path, build)
    assert set(loaded.state_dict()) == set(weights)
    assert not loaded.training
    if build is shared:
        assert loaded.again is loaded.middle
        assert loaded.out.weight is loaded.embed.weight
    for key, value in loaded.state_dict().items():
        assert torch.equal(value, torch.from_numpy(np.array(weights[key])))


def _other(name, change):
    own = MODULES[name]

    def changed(node):
        made = own(node)
        return made if made is None else change(made)

    return name, changed


def with_eps(value):
    def changed(layer):
        function, arguments = layer.constructor
        kept = tuple(one for one in arguments if one.name != "eps")
        return layer._replace(constructor=Call(function, (*kept, Argument("eps", value, ""))))

    return changed


def averaged(layer):
    function, arguments = layer.constructor
    return layer._replace(constructor=Call(function.replace("Max", "Avg"), arguments))


BROKEN = {
    "features.1": _other("BatchNorm", with_eps("0.1")),
    "features.2": _other("Activation", lambda one: one._replace(constructor=Call("nn.Sigmoid", ()))),
    "features.3": _other("Pooling", averaged),
    "features.0": _other("Convolution", lambda one: one._replace(state={"weight": one.state["weight"][..., ::-1]})),
    "output": _other("FullyConnected", lambda one: one._replace(state={**one.state, "bias": one.state["bias"] + 0.01})),
}


@pytest.mark.parametrize("path", BROKEN)
def test_a_broken_conversion_is_found_at_its_path(monkeypatch, path):
    monkeypatch.setitem(MODULES, *BROKEN[path])
    proof = Proof(rows_of(resnet), TOLERANCE, {})
    assert proof.failures[0].name == path
    with pytest.raises(ExportError, match=f"the first ones:\n  {path} "):
        proof.check("the net")


def rows_of_cancelling(name, train=False):
    return rows_of(lambda: (cancelling_nets.NETS[name](), {"x": np.zeros(cancelling_nets.SHAPE, "f")}), (1, 4), train)


@pytest.mark.parametrize("name", cancelling_nets.NETS)
def test_a_sum_that_cancels_is_judged_by_its_summands(name):
    Proof(rows_of_cancelling(name, train=True), TOLERANCE, {}).check(name)


def test_a_wrong_epsilon_is_found_where_a_sum_cancels(monkeypatch):
    monkeypatch.setitem(MODULES, *_other("InstanceNorm", with_eps("0.01")))
    assert Proof(rows_of_cancelling("instance"), TOLERANCE, {}).failures[0].operator == "InstanceNorm"


def test_a_change_of_the_file_is_found():
    net, inputs = resnet()
    text, weights, source = torch_files(net, inputs)
    broken = text.replace("x = x + y", "x = x - y")
    assert broken != text
    proof = Proof(compare_torch(source, broken, weights, [batch_of(inputs, 1)]), TOLERANCE, {})
    assert [row.operator for row in proof.failures] == ["the file"]


def test_a_wrong_gradient_is_found(monkeypatch):
    def detached(made):
        return made._replace(constructor=Call("nn.Hardtanh", ())) if made.constructor.function == "nn.Tanh" else made

    monkeypatch.setitem(MODULES, *_other("Activation", detached))
    rows = rows_of(lenet, (4,), train=True)
    assert "0.weight" in [row.name for row in Proof(rows, TOLERANCE, {}).failures if row.operator == "gradient"]


def test_code_that_fails_is_named_by_its_path(monkeypatch):
    changed = _other("Pooling", lambda one: one._replace(constructor=Call("nn.MaxPool2d", (Argument("", "30"),))))
    monkeypatch.setitem(MODULES, *changed)
    with pytest.raises(ExportError, match="the PyTorch code fails after '0': "):
        rows_of(lenet)


@pytest.mark.parametrize(
    ("build", "backend"), [(lenet, "inductor"), (resnet, "eager"), (several, "eager"), (language, "eager")]
)
@pytest.mark.filterwarnings("ignore")  # torch's own
def test_compiled_and_exported(build, backend, tmp_path):
    import torch

    loaded, _ = written(tmp_path, build)
    arguments = [
        [torch.from_numpy(part) for part in value] if isinstance(value, list) else torch.from_numpy(value)
        for value in build()[1].values()
    ]
    backend = backend if shutil.which("g++") else "eager"
    whole = build is not language  # torch does not compile its own recurrent layers as a part of a graph
    with torch.no_grad():
        expected = loaded(*arguments)
        compiled = torch.compile(loaded, fullgraph=whole, backend=backend)(*arguments)
        exported = torch.export.export(loaded, tuple(arguments)).module()(*arguments)
    for actual in (compiled, exported):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_mypy_has_nothing_to_say(tmp_path):
    for build in NETS:
        (tmp_path / f"{build.__name__}_net.py").write_text(torch_files(*build())[0], encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file=", "--disallow-untyped-defs", "."]
    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=500)
    assert done.returncode == 0, done.stdout.decode()[:3000]


def test_names_of_torch_are_known():
    import torch

    for kind in (torch.nn.Module, torch.nn.ModuleList, torch.nn.Sequential):
        for name in dir(kind()):
            if not name.startswith("_"):
                assert identifier(name, set()) != name


def test_a_net_on_another_device(tmp_path):
    net = mx.gluon.nn.Dense(3, in_units=4)
    net.initialize(ctx=mx.cpu(1))
    exported = mxkit.export(net, tmp_path / "net.py", input_shape=(1, 4))
    assert exported.proof.worst.relative < TOLERANCE
    assert net.weight.list_ctx() == [mx.cpu(1)]


def test_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    run_python(DOCS / "leave-pytorch.md")


# -- other sizes of images than the traced one ------------------------------------------------------------------


def pooled(**attrs):
    return lambda F, x: F.Pooling(x, pooling_convention="full", **attrs)


OF_ANY_SIZE = {
    "max": pooled(kernel=(3, 3), stride=(2, 2), pad=(1, 1)),
    "avg": pooled(kernel=(3, 2), stride=(2, 1), pool_type="avg"),
    "slice": lambda F, x: F.slice(x, begin=(0, 0, 5, -2), end=(None, None, 1, None), step=(1, 1, -2, -1)),
    "scale": lambda F, x: F.contrib.BilinearResize2D(x, scale_height=1.7, scale_width=2, mode="size"),
}


@pytest.mark.parametrize("name", OF_ANY_SIZE)
def test_other_sizes_than_the_traced_one(name, tmp_path):
    import torch

    net = gluon.nn.HybridLambda(OF_ANY_SIZE[name])
    made, _ = written(tmp_path, lambda: (net, {"x": floats(2, 3, 9, 9)}))
    for size in ((8, 8), (10, 10), (11, 7), (6, 9)):
        x = floats(2, 3, *size)
        np.testing.assert_allclose(made(torch.tensor(x)).numpy(), net(mx.nd.array(x)).asnumpy(), 1e-5, 1e-6)


class Deconvolution(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.weight = self.params.get("weight", shape=(3, 4, 4, 4))
        self.bias = self.params.get("bias", shape=(4,))

    def hybrid_forward(self, F, x, weight, bias):
        sizes = {"kernel": (4, 4), "stride": (2, 2), "pad": (2, 2), "target_shape": (10, 10)}
        return F.Deconvolution(x, weight, bias, num_filter=4, no_bias=False, **sizes)


def test_a_transposed_convolution_with_a_target_shape(tmp_path):
    import torch

    net = Deconvolution()
    net.initialize(mx.init.Normal(1))
    made = written(tmp_path, lambda: (net, {"x": floats(2, 3, 6, 6)}))[0].double()
    net.cast("float64")  # oneDNN takes the stated padding, which fits one size
    for size in ((5, 6), (6, 5), (7, 7)):
        x = floats(2, 3, *size).astype("float64")
        expected = net(mx.nd.array(x, dtype="float64")).asnumpy()
        np.testing.assert_allclose(made(torch.tensor(x)).detach().numpy(), expected, 1e-9, 1e-9)
