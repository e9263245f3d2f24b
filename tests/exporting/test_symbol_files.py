"""`export` and `load_exported`: what three readers get from the files, and what broken files do."""

import json
from pathlib import Path
import random
import resource

from built_nets import hybrid_net, imported, ready, stack
import mxkit
from mxkit.errors import CheckpointError, TrapWarning
from mxkit.exporting.exported_files import load_exported
from mxkit.exporting.writing import export
from mxkit.storage.symbol_file import read_symbol, sealed
import mxnet as mx
from mxnet import npx
from mxnet.gluon import nn, rnn
import numpy as np
import pytest
from sharing import Kind, long


def batch(*shape):
    return mx.nd.random.uniform(-1, 1, shape)


def small_net(units=3, **kwargs):
    return ready(
        nn.Conv2D(4, 3, **kwargs), nn.BatchNorm(), nn.MaxPool2D(2), nn.Dense(units), initializer=mx.init.Normal(0.3)
    )


def saved(folder, symbol, **arrays):
    """Files of a graph and its arguments; their common beginning."""
    symbol.save(str(folder / "net-symbol.json"))
    mx.nd.save(str(folder / "net-0000.params"), {f"arg:{name}": array for name, array in arrays.items()})
    return folder / "net"


def dense(units=3, data="data"):
    return mx.sym.FullyConnected(mx.sym.var(data), num_hidden=units, name="fc")


def bits(out):
    outs = out if isinstance(out, (list, tuple)) else [out]
    return [one.asnumpy().tobytes() for one in outs]


def by_module(path, x, epoch=0):
    module = mx.mod.Module.load(str(path), epoch, data_names=["data"], label_names=None)
    module.bind([("data", x.shape)], for_training=False)
    module.forward(mx.io.DataBatch([x]), is_train=False)
    return module.get_outputs()


def by_load_checkpoint(path, x, epoch=0):
    symbol, arguments, auxiliary = mx.model.load_checkpoint(str(path), epoch)
    executor = symbol.bind(mx.cpu(), {"data": x, **arguments}, aux_states=auxiliary, grad_req="null")
    return executor.forward(is_train=False)


def sequential():
    """A Sequential of HybridBlocks, which is none itself."""
    return stack(nn.Dense(4), nn.HybridLambda("tanh"), kind=nn.Sequential)


NETS = {
    "sequential": (sequential, (2, 3)),
    "conv": (lambda: nn.Conv2D(4, 3, activation="relu"), (2, 3, 8, 8)),
    "lenet": (mxkit.models.lenet, (2, 1, 28, 28)),
    "norm": (lambda: small_net(), (2, 3, 8, 8)),
    "lstm": (lambda: rnn.LSTM(5, 2, bidirectional=True), (3, 2, 4)),
}


@pytest.mark.parametrize("name", NETS)
def test_three_readers_give_equal_outputs(name, tmp_path, monkeypatch):
    # Module's executors fuse convolutions and norms, which rounds elsewhere
    monkeypatch.setenv("MXNET_SUBGRAPH_BACKEND", "NONE")
    make, shape = NETS[name]
    net, x = make(), batch(*shape)
    net.initialize(force_reinit=True)
    export(net, tmp_path / "net", input_shape=(1, *shape[1:]) if name != "lstm" else shape)
    expected = bits(net(x))
    assert bits(load_exported(tmp_path / "net")(x)) == expected
    assert bits(imported(tmp_path / "net")(x)) == expected
    assert bits(by_module(tmp_path / "net", x)) == expected
    assert bits(by_load_checkpoint(tmp_path / "net", x)) == expected


def test_the_files_are_those_of_gluon(tmp_path):
    net, x = small_net(), batch(2, 3, 8, 8)
    net.hybridize()
    net(x)
    net.export(str(tmp_path / "theirs"))
    export(net, tmp_path / "ours")
    theirs, ours = (mx.nd.load(str(tmp_path / f"{one}-0000.params")) for one in ("theirs", "ours"))
    assert sorted(ours) == sorted(theirs)
    assert all(ours[name].asnumpy().tobytes() == theirs[name].asnumpy().tobytes() for name in ours)
    assert bits(load_exported(tmp_path / "theirs")(x)) == bits(net(x))


def test_shapes_in_the_graph_are_those_of_the_parameters(tmp_path):
    # T53: Gluon writes down what it knew before the first batch
    net = small_net()
    net(batch(2, 3, 8, 8))
    net[0].weight.lr_mult = 0.5
    text = export(net, tmp_path / "net").files["symbol"].read_text()
    told = {node["name"]: node.get("attrs", {}) for node in json.loads(text)["nodes"] if node["op"] == "null"}
    for parameter in net.collect_params().values():
        assert told[parameter.name]["__shape__"] == str(parameter.shape)
    assert told[net[0].weight.name]["__lr_mult__"] == "0.5"
    assert "(4, 0, 3, 3)" not in text


def test_the_net_stays_as_it_was(tmp_path):
    net, seen = small_net(), []
    net(batch(2, 3, 8, 8))
    net[0].register_forward_hook(lambda *_: seen.append(1))
    export(net, tmp_path / "net")
    assert (seen, net._active, net._cached_graph) == ([], False, ())
    net(batch(2, 3, 8, 8))
    assert seen == [1]


def test_a_child_replaced_after_hybridize_is_exported(tmp_path):
    # T36: the cached graph still has the old one
    net, x = ready(stack(stack(nn.Dense(3, in_units=3)))), batch(2, 3)
    net.hybridize()
    net(x)
    net[0]._children["0"] = nn.Activation("tanh")
    export(net, tmp_path / "net")
    assert bits(load_exported(tmp_path / "net")(x)) == bits(nn.Activation("tanh")(x))


def two(net, F, x, y):
    b = net.second(y)
    return [b, [net.first(x) + b]]


def test_several_inputs_and_outputs(tmp_path):
    net, x, y = ready(hybrid_net(two, first=nn.Dense(3), second=nn.Dense(3))), batch(2, 4), batch(2, 5)
    export(net, tmp_path / "net", input_shape=[(2, 4), (2, 5)])
    first, (second,) = net(x, y)
    # data1 comes first in the graph, and second in the call
    assert bits(load_exported(tmp_path / "net")(x, y)) == bits([first, second])


def test_inputs_come_in_the_order_of_gluon_and_others_in_that_of_the_graph(tmp_path):
    def value_of(names):
        inputs = [mx.sym.var(name) for name in names]
        total = mx.sym.var("start")
        for one in inputs:
            total = total * mx.sym.var("factor") + one if total.name == "start" else total * 10 + one
        return load_exported(saved(tmp_path, total, start=mx.nd.zeros((1,)), factor=mx.nd.ones((1,))))

    with pytest.warns(TrapWarning, match="taken to be z, a, m"):
        block = value_of(["z", "a", "m"])
    assert block(*[mx.nd.array([value]) for value in (1, 2, 3)]).asscalar() == 123
    block = value_of(["data2", "data10", "data1"])
    assert block(*[mx.nd.array([value]) for value in (1, 2, 3)]).asscalar() == 231


def test_the_first_replica_is_written_and_all_devices_are_read(tmp_path):
    net = nn.Dense(2, in_units=3)
    devices = [mx.cpu(0), mx.cpu(1)]
    net.initialize(ctx=devices)
    net.weight.data(mx.cpu(1))[:] = 7
    export(net, tmp_path / "net")
    block = load_exported(tmp_path / "net", devices="cpu:2")
    expected = bits(net(mx.nd.ones((2, 3), ctx=mx.cpu(0))))
    assert [bits(block(mx.nd.ones((2, 3), ctx=device))) for device in devices] == [expected] * 2


def test_dtypes_are_kept(tmp_path):
    net = small_net()
    net(batch(1, 3, 8, 8))
    net.cast("float64")
    x = batch(2, 3, 8, 8).astype("float64")
    export(net, tmp_path / "net")
    block = load_exported(tmp_path / "net")
    assert bits(block(x)) == bits(net(x))
    net.cast("float16")
    export(net, tmp_path / "half")
    types = {name: str(one.dtype.__name__) for name, one in load_exported(tmp_path / "half").collect_params().items()}
    assert types[net[0].weight.name] == "float16"
    assert types[net[1].running_mean.name] == "float32"


def test_what_was_read_can_be_trained_and_exported_again(tmp_path):
    net, x = small_net(), batch(2, 3, 8, 8)
    export(net, tmp_path / "net", input_shape=x.shape)
    block = load_exported(tmp_path / "net")
    mxkit.fit(block, [(x, mx.nd.zeros((2, 3)))], loss="l2", trainer=("sgd", {"learning_rate": 0.1}), epochs=1)
    export(block, tmp_path / "again")
    assert bits(load_exported(tmp_path / "again")(x)) == bits(block(x)) != bits(net(x))


def test_epochs_share_a_graph_and_another_net_is_refused(tmp_path):
    net, x = small_net(), batch(2, 3, 8, 8)
    net(x)
    export(net, tmp_path / "net")
    net[3].weight.set_data(net[3].weight.data() * 2)
    export(net, tmp_path / "net", epoch=12)
    assert bits(load_exported(tmp_path / "net")(x)) == bits(net(x))
    assert bits(load_exported(tmp_path / "net", epoch=0)(x)) != bits(net(x))
    before = (tmp_path / "net-symbol.json").read_bytes()
    other = small_net(units=5)
    with pytest.raises(ValueError, match="another net"):
        export(other, tmp_path / "net", input_shape=x.shape, epoch=13)
    assert (tmp_path / "net-symbol.json").read_bytes() == before
    assert not (tmp_path / "net-0013.params").exists()
    export(other, tmp_path / "net", epoch=13, overwrite=True)
    assert load_exported(tmp_path / "net")(x).shape == (2, 5)
    with pytest.raises(CheckpointError, match="does not belong to its graph"):
        load_exported(tmp_path / "net", epoch=12)


def test_folders_are_made_and_missing_files_are_named(tmp_path):
    net = ready(nn.Dense(2, in_units=3))
    export(net, str(tmp_path / "a" / "b.c" / "net"))
    assert load_exported(tmp_path / "a" / "b.c" / "net")(mx.nd.ones((1, 3))).shape == (1, 2)
    with pytest.raises(FileNotFoundError, match=r"net2-0000\.params"):
        load_exported(tmp_path / "a" / "b.c" / "net2")
    with pytest.raises(FileNotFoundError, match=r"the common beginning of both files: '.*/net'"):
        load_exported(tmp_path / "a" / "b.c" / "net-symbol.json")
    (tmp_path / "taken-symbol.json").mkdir()
    with pytest.raises(OSError, match="taken"):
        export(net, tmp_path / "taken")
    assert not (tmp_path / "taken-0000.params").exists()


# -- files of Module --------------------------------------------------------------------------------------------


def body(classes=3):
    """A convolution with a norm, whose statistics are auxiliary states."""
    net = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=4, name="conv1")
    net = mx.sym.Activation(mx.sym.BatchNorm(net, name="bn1", fix_gamma=False), act_type="relu")
    return mx.sym.FullyConnected(net, num_hidden=classes, name="fc1")


def pixels():
    """Scores for every pixel."""
    net = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=4, name="conv1")
    return mx.sym.Convolution(net, kernel=(1, 1), num_filter=3, name="score")


LABEL = mx.sym.var("answer")  # no softmax_label


def rows():
    return mx.sym.Reshape(body(6), shape=(0, 2, 3))


def head(make, kind="SoftmaxOutput", label=LABEL, **more):
    return lambda: getattr(mx.sym, kind)(make(), label, name="out", **more)


def grouped():
    scores = body()
    return mx.sym.Group([mx.sym.SoftmaxOutput(scores, LABEL, name="out"), mx.sym.BlockGrad(scores)])


MODULE_HEADS = {
    "softmax": (head(body), (8,)),
    "softmax of pixels": (head(pixels, multi_output=True), (8, 6, 6)),
    "softmax of the last axis": (head(rows, preserve_shape="true"), (8, 2)),
    "softmax of a sample": (head(rows), (8, 2)),
    "label through a Reshape": (head(body, label=mx.sym.Reshape(LABEL, shape=(-1,))), (8, 1)),
    "linear": (head(body, "LinearRegressionOutput"), (8, 3)),
    "logistic": (head(body, "LogisticRegressionOutput"), (8, 3)),
    "mae": (head(body, "MAERegressionOutput"), (8, 3)),
    "svm": (head(body, "SVMOutput"), (8,)),
    "grouped with features": (grouped, (8,)),
}


def trained_module(symbol, x, labels, path, label_names=("answer",)):
    """A Module that was fitted for an epoch and saved as epoch 2; what it predicts from `x`."""
    batches = mx.io.NDArrayIter({"data": x}, dict(zip(label_names, labels)), batch_size=4)
    module = mx.mod.Module(symbol, label_names=label_names)
    module.fit(batches, eval_metric=mx.metric.Loss(), num_epoch=1, initializer=mx.init.Normal(0.3))
    module.save_checkpoint(str(path), 2)
    batches.reset()
    found = module.predict(batches)
    return found if isinstance(found, list) else [found]


@pytest.mark.parametrize("name", MODULE_HEADS)
def test_a_module_is_served_without_its_label(name, tmp_path):
    """T117."""
    make, label_shape = MODULE_HEADS[name]
    x = batch(8, 2, 8, 8).asnumpy()
    symbol = make()
    expected = trained_module(symbol, x, [mx.nd.ones(label_shape).asnumpy()], tmp_path / "net")
    assert (tmp_path / "net-0002.params").exists()
    block = load_exported(tmp_path / "net")
    received = block(mx.nd.array(x))
    received = received if isinstance(received, list) else [received]
    with Kind(True).switches():
        outputs = load_exported(tmp_path / "net")(mx.np.array(x))
        assert all(map(Kind(True).holds, outputs if isinstance(outputs, list) else [outputs]))
        assert bits(outputs) == bits(received)
    assert [one.shape for one in received] == [one.shape for one in expected]
    exact = name in ("linear", "logistic", "mae", "svm")  # the last bits of a softmax differ
    # by Module's batches: without AVX-512, the last bits of a sum depend on the size of the batch
    halves = [block(mx.nd.array(part)) for part in np.split(x, 2)]
    halves = list(zip(*halves)) if isinstance(halves[0], list) else [halves]
    for ours, theirs in zip(halves, expected):
        assert abs(mx.nd.concat(*ours, dim=0) - theirs).max().asscalar() <= (0 if exact else 2e-7)
    # what was read is served from files of its own, too
    export(block, tmp_path / "again")
    again = load_exported(tmp_path / "again")(mx.nd.array(x))
    assert bits(again) == bits(received)


def test_two_heads_and_a_label_that_the_net_reads(tmp_path):
    """T117."""
    hint, answer = mx.sym.var("hint"), mx.sym.var("answer")
    scores = body()
    told = mx.sym.FullyConnected(mx.sym.Concat(scores, hint, dim=1), num_hidden=2, name="fc2")
    symbol = mx.sym.Group([mx.sym.SoftmaxOutput(scores, answer, name="a"), mx.sym.LinearRegressionOutput(told, hint)])
    x, labels = batch(8, 2, 8, 8).asnumpy(), [mx.nd.ones((8,)).asnumpy(), batch(8, 2).asnumpy()]
    expected = trained_module(symbol, x, labels, tmp_path / "net", label_names=("answer", "hint"))
    received = load_exported(tmp_path / "net", inputs=["data", "hint"])(mx.nd.array(x), mx.nd.array(labels[1]))
    for ours, theirs in zip(received, expected):
        assert abs(ours - theirs).max().asscalar() <= 2e-7


def test_an_input_that_is_called_like_a_label_leaves_under_its_name(tmp_path):
    graph = dense(2) * mx.sym.var("softmax_label")
    saved(tmp_path, graph, fc_weight=mx.nd.ones((2, 3)), fc_bias=mx.nd.zeros(2))
    x, y = mx.nd.random.normal(shape=(4, 3)), mx.nd.random.normal(shape=(4, 2))
    export(tmp_path / "net", tmp_path / "out", inputs={"softmax_label": y, "data": x})
    found = load_exported(tmp_path / "out", inputs=["softmax_label", "data"])(y, x)
    np.testing.assert_allclose(found.asnumpy(), (x.sum(axis=1, keepdims=True) * y).asnumpy(), rtol=1e-5)


def test_the_loss_trains_what_was_a_module_and_not_its_old_head(tmp_path):
    """T117."""
    files = saved(tmp_path, mx.sym.SoftmaxOutput(dense(), name="softmax"), fc_weight=batch(3, 4), fc_bias=batch(3))
    block, x = load_exported(files), batch(2, 4)
    weight, bias = (block.collect_params()[name] for name in ("fc_weight", "fc_bias"))
    by_hand = weight.data().copy()
    by_hand.attach_grad()
    for function in (block, lambda x: mx.nd.softmax(mx.nd.dot(x, by_hand.T) + bias.data())):
        with mx.autograd.record():
            loss = (function(x) ** 2).sum()
        loss.backward()
    received = weight.grad().asnumpy()
    np.testing.assert_allclose(received, by_hand.grad.asnumpy(), atol=1e-6)
    assert abs(received).max() > 1e-3


def test_weights_that_the_file_lacks_are_no_inputs(tmp_path):
    symbol = mx.sym.broadcast_mul(dense(), mx.sym.var("class_weight"))  # an input, whatever its name ends in
    with pytest.raises(CheckpointError, match="nothing in the file alone, arg:fc_bias in the graph alone"):
        load_exported(saved(tmp_path, symbol, fc_weight=batch(3, 4)))
    path = saved(tmp_path, symbol, fc_weight=batch(3, 4), fc_bias=batch(3))
    block = load_exported(path, inputs=["data", "class_weight"])
    assert block(mx.nd.ones((2, 4)), mx.nd.ones((1, 3))).shape == (2, 3)


# -- graphs that are no graphs ----------------------------------------------------------------------------------


def graph_of(tmp_path):
    layers = nn.Conv2D(4, 3, in_channels=3), nn.BatchNorm(in_channels=4), nn.GroupNorm(2)
    net = ready(*layers, nn.HybridLambda(halves_joined))
    files = export(net, tmp_path / "net")
    graph = json.loads(files.files["symbol"].read_text())
    del graph["attrs"]["mxkit_sha256"]
    return files.files["symbol"], graph


def node(graph, op):
    return next(one for one in graph["nodes"] if one["op"] == op)


def at(op, /, **changes):
    """Change the attributes of the first node of an operator."""
    return lambda graph: node(graph, op)["attrs"].update(changes)


def replaced(op, /, **fields):
    return lambda graph: node(graph, op).update(fields)


BROKEN = {
    "shape": (lambda graph: graph["nodes"][1]["attrs"].update(__shape__="(5, 3, 3, 3)"), "the shape of its array"),
    "nothing": (lambda graph: graph.clear(), "nodes"),
    "unknown field": (lambda graph: graph.update(more=1), "a dict of"),
    "nodes": (lambda graph: graph.update(nodes={}), "a list of nodes"),
    "no nodes": (lambda graph: graph.update(nodes=[]), "a list of nodes"),
    "subgraphs": (replaced("Concat", subgraphs=[{"nodes": []}]), "a dict of op"),
    "operator": (replaced("Concat", op="Concatt"), "did you mean 'concat'"),
    "address": (replaced("Concat", op="_Native", attrs={"info": "1234"}), "could harm"),
    "file": (replaced("Concat", op="_cvimread", attrs={"filename": "x"}), "could harm"),
    "backward": (replaced("Concat", op="_backward_copy"), "could harm"),
    "name": (replaced("Concat", name=7), "an operator and a name"),
    "two of a name": (lambda graph: graph["nodes"][1].update(name="data"), "variables with different names"),
    "number as attribute": (at("Concat", dim=1), "attributes of text"),
    "zero byte": (at("Concat", dim="1\0"), "attributes of text"),
    "own input": (lambda graph: node(graph, "Concat").update(inputs=[[len(graph["nodes"]) - 1, 0, 0]] * 2), "below"),
    "later input": (lambda graph: graph["nodes"][3]["inputs"][0].__setitem__(0, 99), "number of a node below 3"),
    "negative input": (lambda graph: graph["nodes"][3]["inputs"][0].__setitem__(0, -1), "number of a node below 3"),
    # T58: one flipped bit, and MXNet reads what lies behind its outputs
    "output": (lambda graph: node(graph, "Concat")["inputs"][0].__setitem__(1, 8), "number of an output it has"),
    "hidden output": (lambda graph: graph["heads"][0].__setitem__(1, 1), "number of an output it has"),
    "head": (lambda graph: graph["heads"][0].__setitem__(0, 99), "number of a node below"),
    "no head": (lambda graph: graph.update(heads=[]), "a list of heads"),
    "missing input": (lambda graph: node(graph, "Convolution")["inputs"].pop(), "3 inputs of Convolution"),
    "more inputs": (lambda graph: node(graph, "Convolution")["inputs"].append([0, 0, 0]), "3 inputs of Conv"),
    "input of variable": (lambda graph: graph["nodes"][1].update(inputs=[[0, 0, 0]]), "0 inputs of null"),
    "attribute": (at("Concat", colour="blue"), "MXNet refuses Concat"),
    "value": (at("Convolution", kernel="wide"), "MXNet refuses Convolution"),
    # these end the process by a division (SIGFPE)
    "groups": (at("Convolution", num_group="0"), "num_group of at least 1"),
    "norm groups": (at("GroupNorm", num_groups="0"), "at least 1"),
    "reshape": (replaced("Concat", op="Reshape", attrs={"shape": "(-4, 0, -1)"}, inputs=[[0, 0, 0]]), "no axis into 0"),
    # these fill the memory
    "many outputs": (at("SliceChannel", num_outputs="99999999"), "at most"),
    "many inputs": (at("Concat", num_args="99999999"), "at most|num_args"),
    "huge number": (at("Concat", dim="9" * 5000), "numbers up to"),
    "new": (lambda graph: graph["attrs"].update(mxnet_version=["int", 20000]), "a version of MXNet"),
    "no version": (lambda graph: graph["attrs"].clear(), 'attrs with "mxnet_version"'),
    "digest": (lambda graph: graph["attrs"].update(mxkit_sha256=["str", "0" * 64]), "does not match its digest"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_graphs_are_refused(name, tmp_path):
    change, text = BROKEN[name]
    file, graph = graph_of(tmp_path)
    change(graph)
    file.write_text(json.dumps(graph))
    with pytest.raises(CheckpointError, match=text) as caught:
        load_exported(tmp_path / "net")
    assert str(file) in str(caught.value)
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"[]", b"null", b'{"nodes": 1e999}'])
def test_what_is_no_json_is_refused(content, tmp_path):
    file, _ = graph_of(tmp_path)
    file.write_bytes(content)
    with pytest.raises(CheckpointError):
        read_symbol(file)


def test_a_file_without_digest_is_read_and_one_with_another_is_not(tmp_path):
    file, graph = graph_of(tmp_path)
    for content in (graph, sealed(graph)):
        file.write_text(json.dumps(content, indent=7))
        assert load_exported(tmp_path / "net")(mx.nd.ones((1, 3, 6, 6))).shape == (1, 4, 4, 4)
    node(content, "Convolution")["attrs"]["dilate"] = "(2, 2)"
    file.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="digest"):
        load_exported(tmp_path / "net")


def test_parameters_of_another_net_are_refused(tmp_path):
    for name, width, prefix in (("a", 3, "same_"), ("b", 4, "same_"), ("c", 3, "other_")):
        net = ready(nn.Dense(2, in_units=width, prefix=prefix))
        export(net, tmp_path / name)
    for other, text in (("c", "arg:other_weight"), ("b", r"with the shape of its array, \(2, 4\)")):
        (tmp_path / "a-0000.params").write_bytes((tmp_path / f"{other}-0000.params").read_bytes())
        with pytest.raises(CheckpointError, match=text):
            load_exported(tmp_path / "a")
    content = bytearray((tmp_path / "b-0000.params").read_bytes())
    content[30] ^= 1
    (tmp_path / "b-0000.params").write_bytes(content)
    with pytest.raises(CheckpointError):
        load_exported(tmp_path / "b")


OPERATORS = sorted(mx.operator.get_all_registered_operators())
VALUES = ["0", "-1", "()", "(0, 0)", "(-1, -1)", "None", "True", "nan", "1e30", "2147483647", "(65536, 65536)", ""]


def flipped_bits(text, choose):
    content = bytearray(text.encode())
    for _ in range(choose.choice([1, 1, 1, 3])):
        content[choose.randrange(len(content))] ^= 1 << choose.randrange(8)
    return bytes(content)


def other_digit(text, choose):
    place = choose.choice([place for place, one in enumerate(text) if one.isdigit()])
    new = choose.choice(["0", "9", "-1", "99", "00", "1e9", "2147483647", "4294967296", ""])
    return (text[:place] + new + text[place + 1 :]).encode()


def other_structure(text, choose):
    graph = json.loads(text)
    graph["attrs"].pop("mxkit_sha256", None)
    node, kind = choose.choice(graph["nodes"]), choose.randrange(8)
    if kind == 0 and node.get("attrs"):
        node["attrs"][choose.choice(list(node["attrs"]))] = choose.choice(VALUES)
    elif kind == 1 and node["inputs"]:
        choose.choice(node["inputs"])[choose.randrange(3)] = choose.choice([0, 1, 2, 5, 50, -1, 2**31, 2**40, None])
    elif kind == 2 and node["inputs"]:
        node["inputs"].pop(choose.randrange(len(node["inputs"])))
    elif kind == 3:
        node["inputs"].append([choose.randrange(len(graph["nodes"])), choose.randrange(3), 0])
    elif kind == 4:
        graph["heads"] = [[choose.randrange(-1, len(graph["nodes"]) + 2), choose.randrange(3), 0]]
    elif kind == 5:
        choose.shuffle(graph["nodes"])
    elif kind == 6:
        node["op"] = choose.choice(OPERATORS)
    else:
        node["name"] = choose.choice([one["name"] for one in graph["nodes"]] + ["", "x" * 1000])
    if choose.random() < 0.5:
        graph["arg_nodes"] = [number for number, one in enumerate(graph["nodes"]) if one["op"] == "null"]
    return json.dumps(graph).encode()


def halves_joined(F, x):
    return F.concat(*F.split(x, axis=1, num_outputs=2), dim=1)


def numpy_operators(F, x):
    x = F.np.concatenate(F.np.split(x, 2, axis=1), axis=1)
    x = F.np.transpose(F.np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (0, 1, 3, 2))
    x = F.npx.reshape(x, (-2, -2, -5)) * F.np.arange(49)
    x = F.npx.reshape(x, (-2, -2, 7, -1))
    return F.np.where(x > 0, x, F.np.tile(F.np.mean(x, axis=1, keepdims=True), (1, 4, 1, 1)))


def mutate(path, count, numpy, first=0):
    """In a process of its own: read many mutations of a graph, each after its number was printed."""
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    file, x = Path(f"{path}-symbol.json"), Kind(numpy).of(mx.nd.ones((2, 3, 8, 8)))
    if numpy:
        npx.set_np()
    text, whole = file.read_text(), load_exported(path)(x).asnumpy()
    found = {"refused": 0, "same": 0, "different": 0, "no forward": 0}
    for number in range(first, count):
        print(number, flush=True)  # noqa: T201
        choose = random.Random(number)
        file.write_bytes(choose.choice([flipped_bits, other_digit, other_structure])(text, choose))
        try:
            out = load_exported(path)(x).asnumpy()
            found["same" if out.shape == whole.shape and (out == whole).all() else "different"] += 1
        except CheckpointError:
            found["refused"] += 1
        except mx.MXNetError:
            found["no forward"] += 1
    print(json.dumps(found), flush=True)  # noqa: T201


@pytest.mark.parametrize("count", [45, long(700)])
@pytest.mark.parametrize(("digest", "numpy"), [(True, False), (False, False), (False, True)])
def test_mutated_graphs_neither_crash_nor_hang(digest, numpy, count, tmp_path, forks):
    with Kind(numpy).switches():
        net = nn.HybridSequential(prefix="net_")  # names of fixed length, whatever was made before
        with net.name_scope():
            net.add(nn.Conv2D(4, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(2))
            net.add(nn.Conv2DTranspose(4, 2), nn.LayerNorm() if numpy else nn.GroupNorm(2), nn.LayerNorm())
            net.add(nn.HybridLambda(numpy_operators if numpy else halves_joined))
            net.add(nn.GlobalAvgPool2D(), nn.Dense(5, activation="tanh"), nn.Dropout(0.5))
        net.initialize()
        file = export(net, tmp_path / "net", input_shape=(1, 3, 8, 8)).files["symbol"]
    if not digest:
        graph = json.loads(file.read_text())
        del graph["attrs"]["mxkit_sha256"]
        file.write_text(json.dumps(graph, indent=2))
    done = forks.run("test_symbol_files:mutate", str(tmp_path / "net"), count, numpy, timeout=300)
    assert done.returncode == 0, (done.stdout[-200:], done.stderr[-2000:])
    found = json.loads(done.stdout.splitlines()[-1])
    assert sum(found.values()) == count
    assert found["refused"] >= count * 2 // 3
    # with a digest, a mutation of bits and digits is harmless or refused; only `other_structure` removes the digest
    assert not digest or found["different"] + found["no forward"] <= count // 20


def test_a_module_without_its_softmax_to_be_trained_further(tmp_path):
    path = saved(tmp_path, mx.sym.SoftmaxOutput(dense(), name="softmax"), fc_weight=batch(3, 4), fc_bias=batch(3))
    rows, labels = mx.nd.random.uniform(shape=(2, 4)), mx.nd.array([0, 2])
    plain, served = load_exported(path, scores=True), load_exported(path)
    np.testing.assert_allclose(plain(rows).softmax().asnumpy(), served(rows).asnumpy(), atol=2e-7)
    found = mxkit.evaluate(plain, [(rows, labels)], loss="softmax_ce")["loss"]
    assert found == pytest.approx(-np.log(served(rows).asnumpy()[[0, 1], [0, 2]]).mean(), rel=1e-5)
    saved(tmp_path, dense(), fc_weight=batch(3, 4), fc_bias=batch(3))
    with pytest.raises(ValueError, match="scores=True leaves out the softmax or sigmoid of a loss head"):
        load_exported(path, scores=True)


@pytest.mark.parametrize("name", ["self", "output"])
def test_an_input_with_an_awkward_name(name, tmp_path):
    """`output` is no output of an ONNX file; MXNet cannot pass `self`."""
    x, weight = batch(2, 5), batch(3, 5)
    path = saved(tmp_path, dense(data=name), fc_weight=weight, fc_bias=mx.nd.ones(3))
    if name == "self":
        with pytest.raises(CheckpointError, match="'self'"):
            load_exported(path)
        return
    pytest.importorskip("onnxruntime", reason="mxkit[onnx] is not installed")
    export(path, tmp_path / "other", format="onnx", input_shape=(1, 5))
    expected = x.asnumpy() @ weight.asnumpy().T + 1
    np.testing.assert_allclose(load_exported(tmp_path / "other.onnx")(x).asnumpy(), expected, rtol=1e-5, atol=1e-6)


def test_an_executor_for_prediction_loses_an_operator(tmp_path):
    """T196."""
    scores = dense()
    graph = mx.sym.Group([mx.sym.softmax(scores), mx.sym.square(scores)])
    weight, bias, x = batch(3, 5), batch(3), batch(2, 5)
    saved(tmp_path, graph, fc_weight=weight, fc_bias=bias)
    expected = (x.asnumpy() @ weight.asnumpy().T + bias.asnumpy()) ** 2
    np.testing.assert_allclose(load_exported(tmp_path / "net")(x)[1].asnumpy(), expected, rtol=1e-5)
    exported = export(tmp_path / "net", tmp_path / "same", input_shape=(1, 5))
    assert exported.proof.worst.relative == 0
    executor = graph.bind(mx.cpu(), {"data": x, "fc_weight": weight, "fc_bias": bias}, grad_req="null")
    assert abs(executor.forward(is_train=False)[1].asnumpy() - expected).max() > 0.01
