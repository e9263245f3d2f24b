"""`export` of everything that holds a net, and what it says where it cannot."""

from functools import partial
import json
import sys
import tarfile

from built_nets import ready, stack
import mxkit
from mxkit.errors import CheckpointError, ExportError, MxkitError, NotInitializedError, UnknownNameError
from mxkit.exporting.proof import Row, compare
import mxnet as mx
from mxnet.gluon import nn
import numpy as np
import pytest
from sharing import command, long, needs_onnx

X = np.random.RandomState(0).uniform(-1, 1, (3, 5)).astype("float32")


@pytest.fixture
def net():
    return trained()


def outputs(net):
    return net(mx.nd.array(X)).asnumpy()


def module_files(folder, head="SoftmaxOutput"):
    dense = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")
    symbol = getattr(mx.sym, head)(dense, mx.sym.var("softmax_label"), name="softmax")
    symbol.save(str(folder / "old-symbol.json"))
    weight, bias = mx.nd.array(np.arange(15).reshape(3, 5) / 10), mx.nd.array([1, 2, 3])
    mx.nd.save(str(folder / "old-0004.params"), {"arg:fc_weight": weight, "arg:fc_bias": bias})
    scores = X @ (np.arange(15, dtype="float32").reshape(3, 5) / 10).T + np.array([1, 2, 3], "float32")
    return np.exp(scores) / np.exp(scores).sum(1, keepdims=True)


def test_a_file_of_save_net(net, tmp_path):
    mxkit.save_net(tmp_path / "a.net", net)
    mxkit.export(tmp_path / "a.net", tmp_path / "out")
    assert outputs(mxkit.load_exported(tmp_path / "out")).tobytes() == outputs(net).tobytes()


@pytest.mark.parametrize("ending", ["", "-symbol.json"])
def test_files_of_module_without_their_head(tmp_path, ending):
    expected = module_files(tmp_path)
    exported = mxkit.export(f"{tmp_path}/old{ending}", tmp_path / "new", input_shape=(1, 5))
    assert exported.notes == (
        "the parameters are those of old-0004.params",
        "the training head 'softmax' (SoftmaxOutput) became softmax; its label is no input",
    )
    assert exported.files["parameters"].name == "new-0004.params"
    np.testing.assert_allclose(outputs(mxkit.load_exported(tmp_path / "new")), expected, rtol=1e-6)


@pytest.mark.parametrize("folder", ["", "model/"])
def test_an_archive_as_of_sagemaker(folder, tmp_path):
    expected = module_files(tmp_path)
    (tmp_path / "shapes.json").write_text(json.dumps([{"shape": [1, 5], "name": "data"}]))
    names = ("image-classification-symbol.json", "image-classification-0004.params", "model-shapes.json")
    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as archive:
        for file, name in zip(("old-symbol.json", "old-0004.params", "shapes.json"), names):
            archive.add(tmp_path / file, folder + name)
    mxkit.export(tmp_path / "model.tar.gz", tmp_path / "new")
    np.testing.assert_allclose(outputs(mxkit.load_exported(tmp_path / "new")), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("alone.params", FileNotFoundError, "A file .params holds arrays alone: load it into its net"),
        ("", FileNotFoundError, "expected a net, a run's folder, .*received something else"),
        ("nothing", FileNotFoundError, "nothing: expected a net.*received none"),
        ("no.tar.gz", ValueError, "is damaged, or no archive"),
        ("model.tar.gz", ValueError, "expected a NAME-symbol.json .*received alone.params"),
        (3, TypeError, "expected a net, a gluon.Block; received int"),
        ("zoo:resnet19_v1", UnknownNameError, "resnet19_v1"),
    ],
)
def test_sources_that_hold_no_net(net, tmp_path, name, error, text):
    net.save_parameters(str(tmp_path / "alone.params"))
    (tmp_path / "no.tar.gz").write_bytes(b"\x1f\x8b no archive")
    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "alone.params", "alone.params")
    source = name if name == 3 or name.startswith("zoo:") else tmp_path / name
    with pytest.raises(error, match=text):
        mxkit.export(source, tmp_path / "out")


def test_safetensors_by_structural_path(net, tmp_path):
    exported = mxkit.export(net, tmp_path / "net.safetensors", format="safetensors")
    assert [path.name for path in exported.files.values()] == ["net.safetensors", "net.safetensors.json"]
    from safetensors.numpy import load_file

    stored = load_file(exported.files["weights"])
    assert sorted(stored) == ["1.bias", "1.weight", "2.bias", "2.weight"]
    assert stored["1.weight"].tobytes() == net[1].weight.data().asnumpy().tobytes()
    twin = mxkit.models.mlp(3, hidden=[4])
    mxkit.load_parameters(twin, exported.files["weights"])
    assert outputs(twin).tobytes() == outputs(net).tobytes()
    assert outputs(mxkit.load_exported(exported.files["weights"])).tobytes() == outputs(net).tobytes()


def test_a_file_that_computes_something_else_gets_no_name(net, tmp_path, monkeypatch):
    wrong = [Row("fc1", "FullyConnected", (1, 3), 1, 1.0, 0.25, 0.25), Row("fc2", "FullyConnected", (1, 3), 1, 1, 0, 0)]
    monkeypatch.setattr("mxkit.exporting.writing.compare_symbol", lambda *_: wrong)
    text = (
        r"up to 0.0001; received at 1 of 3 arrays, the first ones:\n  fc1 \(FullyConnected, shape \(1, 3\), batch 1\)"
    )
    with pytest.raises(ExportError, match=text):
        mxkit.export(net, tmp_path / "out" / "net", input_shape=(1, 5))
    assert not (tmp_path / "out").exists()
    assert mxkit.export(net, tmp_path / "net", input_shape=(1, 5), tolerance=0.3).proof.worst.name == "fc1"


def test_the_comparison_reads_the_files_that_it_writes(net, tmp_path, monkeypatch):
    contents = mxkit.exporting.symbol_files.symbol_contents

    def damaged(graph, casts):
        net[2].bias.set_data(net[2].bias.data() + 1)
        try:
            return contents(mxkit.exporting.net_graph.graph_of(net))
        finally:
            net[2].bias.set_data(net[2].bias.data() - 1)

    monkeypatch.setattr("mxkit.exporting.writing.symbol_contents", damaged)
    with pytest.raises(ExportError, match=r"dense\d+_bias"):
        mxkit.export(net, tmp_path / "net", input_shape=(1, 5))


def test_the_proof_is_a_table_and_json(net, tmp_path):
    exported = mxkit.export(net, tmp_path / "net", inputs=X)
    lines = str(exported.proof).splitlines()
    assert lines[0].split() == ["layer", "operator", "shape", "batch", "largest", "value", "difference", "relative"]
    assert len(lines) == len(exported.proof.rows) + 2
    stored = json.loads(exported.files["proof"].read_text())
    assert {row["batch"] for row in stored["rows"]} == {0, 3}
    assert stored["versions"]["mxnet"] == mx.__version__
    assert stored["largest_relative_difference"] == 0
    assert exported.inputs == ("data (N, 5) float32",)


def uninitialized():
    return mxkit.models.mlp(3, hidden=[4])


def waiting():
    """A net whose shapes wait for a first batch."""
    return ready(uninitialized())


def trained():
    net = waiting()
    net(mx.nd.array(X))
    return net


def wide():
    net = trained()
    net.cast("float64")
    return net


def broken():
    net = trained()
    net[2].weight.set_data(net[2].weight.data() * float("nan"))
    return net


def mixed():
    return ready(stack(nn.Dense(4), nn.Lambda("tanh"), kind=nn.Sequential))


LARGE = partial(nn.HybridLambda, lambda F, x: x * 2 if F is mx.nd and x.shape[0] > 5 else x)
OTHER = partial(nn.HybridLambda, lambda F, x: x * 2 if F is mx.nd else x * 3)
UNREAD = partial(nn.HybridLambda, lambda F, x, y: x * 2)
ONNX = {"format": "onnx", "input_shape": (1, 5)}
REFUSED = [
    (uninitialized, {"input_shape": (1, 3)}, NotInitializedError, "initialize"),
    (waiting, {}, NotInitializedError, "input_shape"),
    *((waiting, {"input_shape": one}, ValueError, "input_shape") for one in (3, (1, 0), (1, "3"), [(1, 2), 3])),
    (trained, {"input_shape": (None, None)}, ValueError, "None may stand for the batch size"),
    (trained, {"input_shape": (1, 7)}, ValueError, "does not fit"),
    (trained, {"inputs": X, "input_shape": (1, 4)}, ValueError, r"an array of shape \(1, 4\) with samples"),
    (trained, {"inputs": X[:0]}, ValueError, r"received \(0, 5\)"),
    (trained, {"inputs": (X, X)}, ValueError, "cannot be traced with 2 symbols"),
    (trained, {"format": "symbols"}, UnknownNameError, "unknown format of export 'symbols': did you mean 'symbol'"),
    (trained, {"format": "onnx"}, ValueError, "needs the shape of the net's 1 input"),
    (trained, {"train": True}, ValueError, "it needs format='torch' and verify=True"),
    (trained, {"which": "best"}, ValueError, "which: 'best' is for the folder of a run"),
    (trained, {"outputs": "fc"}, ValueError, "outputs= and epoch= are for graphs that are read from files"),
    (trained, {"epoch": 3, "format": "safetensors"}, ValueError, "outputs= and epoch= are for graphs"),
    (trained, {"epoch": -1}, ValueError, "epoch"),
    (wide, {**ONNX, "format": "torch", "verify": False}, ValueError, r"received float64: .*net.cast\('float32'\)"),
    (broken, ONNX, ExportError, "output 0 of the net holds NaN or infinity only.*NaN in the weights"),
    (mixed, {"input_shape": (1, 3)}, ValueError, "must be a HybridBlock"),
    (UNREAD, {"input_shape": [(1, 4), (1, 3)]}, ValueError, "the net does not read data1 of its inputs data0, data1"),
    (UNREAD, {"input_shape": (2, 4)}, ValueError, "a list with a shape for each"),
    (OTHER, {"input_shape": (1, 4)}, ExportError, "of the traced graph differs from the net's own, for a batch of 1"),
    (LARGE, ONNX, ExportError, "differs from the net's own, for a batch of 7: relative difference"),
]


@pytest.mark.parametrize(("make", "arguments", "error", "text"), REFUSED)
def test_what_is_refused_leaves_no_file(make, arguments, error, text, tmp_path):
    if arguments.get("format") == "onnx":
        pytest.importorskip("onnxruntime")
    with pytest.raises(error, match=text):
        mxkit.export(make(), tmp_path / "net", **arguments)
    assert not list(tmp_path.iterdir())


@needs_onnx
def test_a_missing_package_is_named_before_anything_is_done(net, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"onnxruntime is not installed: pip install 'mxkit\[onnx\]'"):
        mxkit.export(net, tmp_path / "net", format="onnx", input_shape=(1, 5))


def external(tensor):
    tensor.data_location = 1
    tensor.external_data.add(key="location", value="/etc/passwd")


@needs_onnx
@pytest.mark.parametrize(
    "change",
    [
        lambda model: external(model.graph.initializer[0]),
        lambda model: model.graph.initializer[0].dims.__setitem__(0, 5),
        lambda model: setattr(model.graph.node[0], "op_type", "Nonsense"),
        lambda model: model.Clear(),
    ],
)
def test_damaged_onnx_is_refused_before_onnxruntime_reads_it(change, net, tmp_path):
    import onnx

    file = mxkit.export(net, tmp_path / "net.onnx", input_shape=(1, 5), verify=False).files["onnx"]
    model = onnx.load(str(file))
    change(model)
    file.write_bytes(model.SerializeToString())
    with pytest.raises(CheckpointError, match="onnx refuses it .* export it again"):
        mxkit.load_exported(file)


def test_safetensors_without_a_description(tmp_path):
    from safetensors.numpy import save

    (tmp_path / "x.safetensors").write_bytes(save({"x": X}))
    with pytest.raises(CheckpointError, match="without a description of their net: make the net"):
        mxkit.load_exported(tmp_path / "x.safetensors")


@pytest.mark.parametrize("count", [100, long(2000)])
def test_damaged_safetensors_are_refused_or_read(net, tmp_path, count):
    content = mxkit.export(net, tmp_path / "net", format="safetensors").files["weights"].read_bytes()
    random, path, refused = np.random.RandomState(0), tmp_path / "damaged.safetensors", 0
    header = 8 + int.from_bytes(content[:8], "little")
    for _ in range(count):
        damaged = bytearray(content)
        for place in random.randint(0, header, random.randint(1, 4)):
            damaged[place] = random.choice([random.randint(256), ord("9"), ord("0"), ord('"')])
        path.write_bytes(damaged[: random.randint(1, len(damaged))] if random.rand() < 0.1 else damaged)
        try:
            mxkit.load_exported(path)
        except MxkitError:
            refused += 1
    assert refused > count // 2


def test_a_row_compares_numbers_and_the_places_of_others():
    nan, inf = np.nan, np.inf
    rows = {(1, nan, inf): 0, (1.5, nan, inf): 0.5, (nan, nan, inf): inf, (1, 0, inf): inf, (1, nan, -inf): inf}
    for actual, relative in {**rows, ((1, nan, inf),): inf}.items():
        assert compare("x", "relu", 1, np.array([1.0, nan, inf]), np.array(actual)).relative == relative


@needs_onnx
def test_none_names_the_axis_of_the_samples(tmp_path):
    net = ready(nn.Dense(4, flatten=False), nn.Dense(2, flatten=False))
    exported = mxkit.export(net, tmp_path / "net", format="onnx", input_shape=(7, None, 5))
    assert exported.inputs == ("data (7, N, 5) float32",)
    x = mx.nd.random.uniform(shape=(7, 3, 5))
    served = mxkit.load_exported(exported.files["onnx"])
    with pytest.raises(ValueError, match="expected 1 inputs"):
        served(mx.nd.ones((1, 5)), mx.nd.ones((1, 5)))
    np.testing.assert_allclose(served(x).asnumpy(), net(x).asnumpy(), rtol=1e-5, atol=1e-6)


def epochs(folder):
    net = ready(nn.Dense(3, in_units=5))
    for epoch in (0, 3):
        net.weight.set_data(mx.nd.ones((3, 5)) * (epoch + 1))
        mxkit.export(net, folder / "model", epoch=epoch)
    return folder / "model"


@pytest.mark.parametrize(
    ("source", "epoch", "weight"),
    [("", None, 4), ("", 0, 1), ("-symbol.json", 0, 1), ("-0000.params", None, 1), ("-0003.params", None, 4)],
)
def test_the_epoch_is_that_of_the_source(tmp_path, source, epoch, weight):
    exported = mxkit.export(f"{epochs(tmp_path)}{source}", tmp_path / "out.safetensors", epoch=epoch)
    assert mxkit.load_exported(exported.files["weights"])(mx.nd.ones((1, 5))).asnumpy().tolist() == [[5 * weight] * 3]
    assert exported.notes == (f"the parameters are those of model-{weight - 1:04d}.params",)
    with pytest.raises(FileNotFoundError, match="there is no model-0007.params; epochs that are there: 0, 3"):
        mxkit.export(tmp_path / "model", tmp_path / "out", epoch=7)


def test_a_net_of_nan_is_written_as_it_is(tmp_path):
    mxkit.export(broken(), tmp_path / "net")
    assert np.isnan(outputs(mxkit.load_exported(tmp_path / "net"))).all()


def test_gammas_that_mxnet_reads_as_ones_are_written_as_ones(tmp_path):
    norm = ready(nn.BatchNorm(scale=False, in_channels=3))
    norm.gamma.set_data(mx.nd.ones(3) * 5)
    exported = mxkit.export(norm, tmp_path / "net.safetensors", input_shape=(1, 3, 4, 4))
    assert exported.notes == ("written as ones, as which MXNet reads them (scale=False, fix_gamma): gamma",)
    same = mxkit.load_exported(exported.files["weights"])
    assert same.gamma.data().asnumpy().tolist() == [1, 1, 1]


def test_a_proof_of_another_net_is_removed(net, tmp_path):
    assert mxkit.export(net, tmp_path / "net", input_shape=(1, 5)).files["proof"].is_file()
    assert "proof" not in mxkit.export(net, tmp_path / "net", input_shape=(1, 5), verify=False).files
    assert not (tmp_path / "net.symbol.json").exists()


def test_other_formats_replace_nothing_unasked(net, tmp_path):
    mxkit.save_net(tmp_path / "a.net", net)
    first, again = (command("export", tmp_path / "a.net", tmp_path / "b.safetensors") for _ in range(2))
    assert (first[0], again[0]) == (0, 2)
    assert "--overwrite" in again[2]
    mxkit.export(net, tmp_path / "b", format="safetensors", overwrite=True)


def test_the_command_takes_both_files_of_a_graph_and_names_of_outputs(net, tmp_path):
    exported = mxkit.export(net, tmp_path / "net", input_shape=(1, 5))
    graph, weights = exported.files["symbol"], tmp_path / "weights.params"
    exported.files["parameters"].rename(weights)
    inner = mx.sym.load(str(graph)).get_internals().list_outputs()
    name = next(one for one in inner if one.endswith(("fwd_output", "relu0_output")))
    code, _, err = command("export", graph, tmp_path / "cut", "--params", weights, "--outputs", name, "--shape", "1,5")
    assert code == 0, err
    expected = mxkit.load_exported((graph, weights), outputs=name)
    np.testing.assert_array_equal(outputs(mxkit.load_exported(tmp_path / "cut")), outputs(expected))
