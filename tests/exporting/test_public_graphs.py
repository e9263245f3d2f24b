"""Published graphs of Module: read, cut, called by name, and exported again, against a plain executor."""

import json

from built_nets import hybrid_net, ready
from files_of_old_mxnet import file_bytes
import mxkit
from mxkit.errors import CheckpointError, TrapWarning, UnknownNameError
from mxkit.exporting.exported_files import load_exported
from mxkit.exporting.writing import export
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn, rnn
import numpy as np
from public_graphs import GRAPHS, PublicGraph, arrays, conv, dense, json_of, normed, outputs, pixels, served, var, write
import pytest
from sharing import needs


def computed(block, inputs):
    found = block(*[mx.nd.array(array) for array in inputs.values()])
    return [one.asnumpy() for one in (found if isinstance(found, (list, tuple)) else [found])]


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)  # executors fuse norms into convolutions


@pytest.mark.parametrize("name", GRAPHS)
def test_a_published_graph_computes_what_an_executor_computes(name, tmp_path):
    graph = GRAPHS[name]()
    path, x = write(graph, tmp_path), pixels(graph)
    expected, names = outputs(graph, x), list(x)
    block = load_exported(path, inputs=names, outputs=graph.cut)
    assert_equal(computed(block, x), expected)
    written = export(path, tmp_path / "new", inputs=x, outputs=graph.cut)
    assert [one.split()[0] for one in written.inputs] == names
    assert_equal(computed(load_exported(tmp_path / "new"), x), expected)
    # plain MXNet reads what was written, and finds all shapes
    read, *values = mx.model.load_checkpoint(str(tmp_path / "new"), int(written.files["parameters"].stem[4:]))
    module = mx.mod.Module(read, data_names=names, label_names=None)
    module.bind([(one, array.shape) for one, array in x.items()], for_training=False)
    module.set_params(*values)
    module.forward(mx.io.DataBatch([mx.nd.array(array) for array in x.values()]), is_train=False)
    assert_equal([one.asnumpy() for one in module.get_outputs()], expected)


# -- JSON of older versions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [None, 905, 1100, 10000])
def test_json_of_any_version_is_read(version, tmp_path):
    net = mx.sym.Activation(normed(var("data"), "first", 4), act_type="softrelu")
    picked = mx.sym.argmax(dense(net, "fc", 5), axis=1)
    graph = PublicGraph(mx.sym.Group([net, picked]), {"data": (2, 3, 5, 5)}, version)
    assert_equal(computed(load_exported(write(graph, tmp_path)), pixels(graph)), outputs(graph, pixels(graph)))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda graph: graph["nodes"][3]["inputs"].pop(), "3 inputs of Convolution"),
        (lambda graph: graph["nodes"][6].update(param={"axis": 1}), "attributes of text"),
        (lambda graph: graph["nodes"][1].update(name="bn_moving_mean"), "variables with different names"),
        (lambda graph: graph["nodes"][3].update(op="_Native"), "could harm"),
        (lambda graph: graph["nodes"][3]["param"].update(num_group="0"), "at least 1"),
    ],
)
def test_damage_of_old_json_is_refused(change, text, tmp_path):
    net = conv(var("data"), "conv", 4)
    graph = PublicGraph(mx.sym.BatchNorm(net, name="bn"), {"data": (2, 3, 5, 5)}, None)
    path = write(graph, tmp_path)
    content = json.loads(json_of(graph.symbol, None))
    change(content)
    (tmp_path / "net-symbol.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=text):
        load_exported(path)


# -- names and order of inputs ----------------------------------------------------------------------------------


@needs("safetensors")
@needs("onnxruntime")
def test_inputs_have_the_order_that_is_named_in_every_format(tmp_path):
    """T264."""
    graph = GRAPHS["recommender"]()
    path, x = write(graph, tmp_path), pixels(graph)
    (expected,), called = outputs(graph, x), {"user": x["user"], "item": x["item"]}
    with pytest.warns(TrapWarning, match=r"the order of a call: it is taken to be item, user \(T264\)"):
        assert_equal(computed(load_exported(path), x), [expected])
    block = load_exported(path, inputs=["user", "item"])
    assert_equal(computed(block, called), [expected])
    for format in ("symbol", "onnx", "torch", "safetensors"):
        by_name = export(path, tmp_path / f"{format}_1", format=format, inputs=called, verify=format != "torch")
        in_order = export(block, tmp_path / f"{format}_2", format=format, input_shape=[(1, 3)] * 2, verify=False)
        assert by_name.inputs == in_order.inputs == ("user (N, 3) float32", "item (N, 3) float32")
    for name in ("symbol_1", "symbol_2", "onnx_1.onnx", "onnx_2.onnx"):
        assert_equal(computed(load_exported(tmp_path / name), called), [expected])
    for number in (1, 2):
        assert "forward(self, user: Tensor, item: Tensor)" in (tmp_path / f"torch_{number}.py").read_text()
    shapes = {"item": (1, 3), "user": (1, 3)}
    assert export(block, tmp_path / "same", input_shape=shapes).inputs == in_order.inputs
    for wrong in ({"user": (1, 3)}, {"user": (1, 3), "items": (1, 3)}):
        with pytest.raises(ValueError, match="user, item"):
            export(block, tmp_path / "wrong", input_shape=wrong)
    with pytest.raises(ValueError, match=r"inputs of the graph are item, user; inputs= named user, data"):
        load_exported(path, inputs=["user", "data"])
    with pytest.raises(ValueError, match=r"inputs=, outputs= and scores= are for graphs"):
        load_exported(tmp_path / "onnx_1.onnx", inputs=["user", "item"])


# -- graphs that are a part of others ---------------------------------------------------------------------------


def test_parameters_that_a_cut_graph_lacks_are_left_out(tmp_path):
    graph = GRAPHS["arcface"]()
    path, x = write(graph, tmp_path), pixels(graph)
    served(graph).save(str(tmp_path / "net-symbol.json"))
    with pytest.warns(TrapWarning, match="left out arg:fc7_weight, which the graph lacks"):
        block = load_exported(path)
    assert_equal(computed(block, x), outputs(graph, x))
    without = {name: array for name, array in arrays(graph).items() if name != "arg:pre_fc1_bias"}
    (tmp_path / "net-0003.params").write_bytes(file_bytes("V2", without))
    with pytest.raises(CheckpointError, match="arg:fc7_weight in the file alone, arg:pre_fc1_bias in the graph alone"):
        load_exported(path)


@pytest.mark.parametrize(("name", "candidates"), [
    ("arcface", "blockgrad0_output, fc7_output"), ("ssd", "det_out_output, cls_prob_output"),
    ("lstm_ocr", "pred_output"),
])  # fmt: skip
def test_a_label_that_more_than_a_loss_head_reads_is_refused_with_the_outputs_without_it(name, candidates, tmp_path):
    graph = GRAPHS[name]()
    path, label = write(graph, tmp_path), next(iter(graph.labels))
    text = f"{label} is not read by loss heads alone.*these do not read it: {candidates}"
    for read in (load_exported, lambda path: export(path, tmp_path / "new", input_shape=(1, 3, 8, 8))):
        with pytest.raises(ValueError, match=text.replace("blockgrad0", r"blockgrad\d+")):
            read(path)
    whole = load_exported(path, inputs=[*graph.shapes, *graph.labels])
    given = {**pixels(graph), **{one: np.ones(shape, "float32") for one, shape in graph.labels.items()}}
    assert len(computed(whole, given)) == len(graph.symbol.list_outputs())
    with pytest.raises(UnknownNameError, match=f"unknown output of the graph 'x{graph.cut}'"):
        load_exported(path, outputs="x" + graph.cut)


def test_two_paths_are_read_and_others_refused(tmp_path):
    graph, other = tmp_path / "any.json", tmp_path / "thing.params"
    symbol = PublicGraph(dense(var("data"), "fc", 2), {"data": (2, 3)}, files=("any.json", "thing.params"))
    assert write(symbol, tmp_path) == (graph, other)
    assert load_exported([str(graph), other])(mx.nd.ones((1, 3))).shape == (1, 2)
    for wrong, options in (((graph,), {}), ((graph, other), {"epoch": 3})):
        with pytest.raises(ValueError, match=r"expected \(graph, parameters\), two paths without epoch="):
            load_exported(wrong, **options)
    with pytest.raises(FileNotFoundError, match="none"):
        load_exported((graph, tmp_path / "none"))


# -- inputs of the comparison -----------------------------------------------------------------------------------


@pytest.mark.parametrize("format", [
    "symbol", pytest.param("safetensors", marks=needs("safetensors")), pytest.param("onnx", marks=needs("onnxruntime"))
])  # fmt: skip
def test_inputs_with_the_batch_on_another_axis(format, tmp_path):
    net = ready(hybrid_net(lambda net, F, x, h, c: net.cells(x, [h, c]), cells=rnn.LSTM(4, input_size=3)))
    given = tuple(
        np.random.RandomState(0).rand(*shape).astype("float32") for shape in [(5, 2, 3), (1, 2, 4), (1, 2, 4)]
    )
    written = export(net, tmp_path / "net", format=format, inputs=given)
    assert written.inputs[:2] == ("data0 (5, N, 3) float32", "data1 (1, N, 4) float32")
    assert written.proof.worst.relative < 1e-5


def test_a_net_that_fits_one_batch_only_is_written_with_the_inputs_that_are_given(tmp_path):
    net = nn.HybridLambda(lambda F, x, y: F.reshape(x, (2, 3)) + y)
    given = np.ones((3, 2), "float32"), np.ones((2, 3), "float32")
    written = export(net, tmp_path / "net", inputs=given)
    assert mxkit.load_exported(tmp_path / "net")(*map(mx.nd.array, given)).shape == (2, 3)
    assert {row.shape for row in written.proof.rows} == {(2, 3)}
    assert written.inputs == ("data0 (3, 2) float32", "data1 (2, 3) float32")


@pytest.mark.filterwarnings("ignore:Cannot decide type")
def test_values_tell_shapes_that_no_layer_tells(tmp_path):
    graph = GRAPHS["arcface_head"]()
    path, x = write(graph, tmp_path), pixels(graph)
    files = (str(tmp_path / name) for name in graph.files)
    block = gluon.SymbolBlock.imports(next(files), ["data"], next(files))  # without shapes of its parameters
    for net in (block, load_exported(path)):
        written = export(net, tmp_path / "new", input_shape=(1, 6), overwrite=True)
        told = mx.sym.load(str(written.files["symbol"])).attr_dict()
        assert [told[name]["__shape__"] for name in graph.weights] == [str(shape) for shape in graph.weights.values()]
        assert_equal(computed(load_exported(tmp_path / "new"), x), outputs(graph, x))
    assert mxkit.layers(load_exported(path), (1, 6))
