"""Small copies of published graphs of Module, in the formats of their files: `GRAPHS[name]()`, `write`, `outputs`."""

import json
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional, Tuple

from files_of_old_mxnet import file_bytes
import mxnet as mx
import numpy as np

Shapes = Dict[str, Tuple[int, ...]]


class PublicGraph(NamedTuple):
    """A graph as it was trained.

    Attributes:
        symbol: All of it.
        shapes: Of the inputs that a user passes, in the order of the file, for a batch of 2.
        version: Of MXNet, which wrote the JSON; None before 0.9, which wrote no version and no auxiliary states.
        labels: Shapes of the inputs that training alone needs.
        cut: Name of the output that is served, where a label is read by more than a loss head.
        files: Names of both files.
        weights: Shapes of parameters that neither the JSON nor a layer tells.
    """

    symbol: Any
    shapes: Shapes
    version: Optional[int] = 10901
    labels: Shapes = {}
    cut: Optional[str] = None
    files: Tuple[str, str] = ("net-symbol.json", "net-0003.params")
    weights: Shapes = {}


def served(graph: PublicGraph) -> Any:
    """The part of the graph that is served."""
    return graph.symbol.get_internals()[graph.cut] if graph.cut else graph.symbol


def arrays(graph: PublicGraph) -> Dict[str, Any]:
    """Values of the whole graph's parameters as NumPy's, by `arg:` or `aux:` and name."""
    random, found = np.random.RandomState(0), {}
    given = {**graph.shapes, **graph.labels}
    shapes, _, states = graph.symbol.infer_shape(**given, **graph.weights)
    first = "_minus_scalar" not in graph.symbol.tojson()  # images of 0 to 255 are not scaled in the graph
    for name, shape in zip(graph.symbol.list_arguments(), shapes):
        if name not in given:
            width = int(np.prod(shape[1:])) or 1
            value = random.uniform(-1, 1, shape) / np.sqrt(width) / (128 if first else 1)
            first = False
            found[f"arg:{name}"] = (value + 1 if name.endswith(("gamma", "scale")) else value).astype("float32")
    for name, shape in zip(graph.symbol.list_auxiliary_states(), states):
        found[f"aux:{name}"] = random.uniform(0.5, 1, shape).astype("float32")
    return found


def write(graph: PublicGraph, folder: Any) -> Any:
    """Write both files; what `load_exported` takes: their common beginning, or both paths."""
    symbol, parameters = (Path(folder) / name for name in graph.files)
    symbol.write_text(json_of(graph.symbol, graph.version))
    parameters.write_bytes(file_bytes("V2" if (graph.version or 0) >= 10000 else "oldest", arrays(graph)))
    same = str(symbol)[: -len("-symbol.json")]
    return Path(same) if parameters.name.startswith(f"{Path(same).name}-") else (symbol, parameters)


def json_of(symbol: Any, version: Optional[int]) -> str:
    """The JSON of a graph as a version of MXNet wrote it; None before 0.9."""
    graph = json.loads(symbol.tojson())
    if version is not None:
        graph["attrs"]["mxnet_version"] = ["int", version]
        if version < 10000:
            for node in graph["nodes"]:
                if "attrs" in node:
                    node["attr"] = node.pop("attrs")
        return json.dumps(graph, indent=2)
    states, numbers, nodes = set(symbol.list_auxiliary_states()), {}, []
    for number, node in enumerate(graph["nodes"]):
        if node["name"] in states:
            continue
        numbers[number] = len(nodes)
        own = {key: value for key, value in node.get("attrs", {}).items() if not key.startswith("__")}
        hidden = {"lr_mult": "2"} if node["op"] == "null" else {"weight_lr_mult": "2", "bias_wd_mult": "0"}
        inputs = [[numbers[one], output] for one, output, _ in node["inputs"] if one in numbers]
        old = {"op": node["op"], "param": own, "name": node["name"], "inputs": inputs, "backward_source_id": -1}
        nodes.append({**old, "attr": hidden} if node["op"] in ("null", "Convolution") else old)
    variables = [number for number, node in enumerate(nodes) if node["op"] == "null"]
    heads = [[numbers[one], output] for one, output, _ in graph["heads"]]
    return json.dumps({"nodes": nodes, "arg_nodes": variables, "heads": heads}, indent=2)


def pixels(graph: PublicGraph) -> Dict[str, Any]:
    """Inputs from 0 to 255 as NumPy's; states of recurrent layers, which have no images' axes, from 0 to 1."""
    random = np.random.RandomState(1)
    drawn = {name: random.randint(0, 256, shape).astype("float32") for name, shape in graph.shapes.items()}
    return {name: array if array.ndim > 2 else array / 255 for name, array in drawn.items()}


def outputs(graph: PublicGraph, inputs: Dict[str, Any]) -> Any:
    """What a plain executor computes for the served part, as NumPy's arrays."""
    part = served(graph)
    given = {name: mx.nd.array(array) for name, array in inputs.items()}
    given.update({name: mx.nd.zeros(shape) for name, shape in graph.labels.items()})
    values = {name.partition(":")[2]: mx.nd.array(array) for name, array in arrays(graph).items()}
    values.update(given)
    bound = part.bind(
        mx.cpu(),
        {name: values[name] for name in part.list_arguments()},
        aux_states={name: values[name] for name in part.list_auxiliary_states()},
        grad_req="null",
    )
    return [one.asnumpy() for one in bound.forward(is_train=False)]


# -- layers -----------------------------------------------------------------------------------------------------


def var(name, **attributes):
    return mx.sym.var(name, **attributes)


def conv(data, name, filters, kernel=3, **attributes):
    return mx.sym.Convolution(data, kernel=(kernel, kernel), num_filter=filters, name=name, **attributes)


def prelu(data, name):
    return mx.sym.LeakyReLU(data, act_type="prelu", name=name)


def pooled(data, name, **attributes):
    attributes = {"kernel": (2, 2), "stride": (2, 2), "pooling_convention": "full", **attributes}
    return mx.sym.Pooling(data, pool_type="max", name=name, **attributes)


def dense(data, name, units, **attributes):
    return mx.sym.FullyConnected(data, num_hidden=units, name=name, **attributes)


def normed(data, name, filters, **attributes):
    data = conv(data, f"{name}_conv2d", filters, no_bias=True, **attributes)
    data = mx.sym.BatchNorm(data, fix_gamma=False, eps=1e-3, name=f"{name}_batchnorm")
    return mx.sym.Activation(data, act_type="relu", name=f"{name}_relu")


def scaled(data):
    """Images as the faces' nets take them."""
    return (data - 127.5) * 0.0078125


# -- graphs -----------------------------------------------------------------------------------------------------


def det1():
    """MTCNN's PNet: as large as its image, two outputs."""
    net = prelu(conv(var("data"), "conv1", 4), "prelu1")
    net = prelu(conv(pooled(net, "pool1"), "conv2", 6), "prelu2")
    net = prelu(conv(net, "conv3", 8), "prelu3")
    scores = conv(net, "conv4_1", 2, 1)
    boxes = conv(net, "conv4_2", 4, 1)
    symbol = mx.sym.Group([boxes, mx.sym.SoftmaxActivation(scores, mode="channel", name="prob1")])
    return PublicGraph(symbol, {"data": (2, 3, 18, 14)}, None)


def det2():
    """MTCNN's RNet: layers over all numbers of a sample, one of them with its own slopes."""
    net = pooled(prelu(conv(var("data"), "conv1", 4), "prelu1"), "pool1", kernel=(3, 3))
    net = prelu(conv(net, "conv2", 6, 2), "prelu2")
    net = prelu(dense(net, "conv4", 8), "prelu4")
    scores = mx.sym.SoftmaxOutput(dense(net, "conv5_1", 2), name="prob1")
    return PublicGraph(
        mx.sym.Group([dense(net, "conv5_2", 4), scores]), {"data": (2, 3, 12, 12)}, None, {"prob1_label": (2,)}
    )


def genderage():
    """InsightFace's gender-age: the image's scale in the graph, two kinds of answers in one array."""
    net = normed(scaled(mx.sym.identity(var("data"), name="id")), "conv_1", 4, pad=(1, 1), stride=(2, 2))
    net = normed(net, "conv_2_dw", 4, num_group=4, pad=(1, 1))
    net = mx.sym.BatchNorm(net, fix_gamma=True, eps=2e-5, momentum=0.9, name="bn1")
    net = mx.sym.Pooling(prelu(net, "relu1"), global_pool=True, pool_type="avg", kernel=(7, 7), name="pool1")
    return PublicGraph(dense(net, "fc1", 12), {"data": (2, 3, 12, 12)}, 10300)


def arcface():
    """InsightFace's training graph: the margin reads the label, and the weight is normalized before its layer."""
    classes, scale, label = 5, 64.0, var("softmax_label")
    net = prelu(conv(scaled(var("data")), "conv0", 4, stride=(2, 2), pad=(1, 1)), "relu0")
    net = mx.sym.BatchNorm(net, fix_gamma=False, eps=2e-5, name="bn1")
    embedding = dense(mx.sym.Dropout(net, p=0.4), "pre_fc1", 6)
    embedding = mx.sym.BatchNorm(embedding, fix_gamma=True, eps=2e-5, name="fc1")
    weight = mx.sym.L2Normalization(var("fc7_weight", shape=(classes, 6), lr_mult=1.0), mode="instance")
    features = mx.sym.L2Normalization(embedding, mode="instance", name="fc1n") * scale
    fc7 = mx.sym.FullyConnected(features, weight, no_bias=True, num_hidden=classes, name="fc7")
    cosine = mx.sym.pick(fc7, label, axis=1) / scale
    margin = mx.sym.cos(mx.sym.arccos(cosine) + 0.5) * scale - mx.sym.pick(fc7, label, axis=1)
    body = mx.sym.one_hot(label, depth=classes, on_value=1.0, off_value=0.0)
    fc7 = fc7 + mx.sym.broadcast_mul(body, mx.sym.expand_dims(margin, 1))
    symbol = mx.sym.Group([mx.sym.BlockGrad(embedding), mx.sym.SoftmaxOutput(fc7, label, name="softmax")])
    return PublicGraph(symbol, {"data": (2, 3, 8, 8)}, 10200, {"softmax_label": (2,)}, "fc1_output")


def arcface_head():
    """The part behind an embedding, whose weight is normalized before its layer: it has no label."""
    weight = mx.sym.L2Normalization(var("fc7_weight"), mode="instance")
    fc7 = mx.sym.FullyConnected(scaled(var("data")), weight, no_bias=True, num_hidden=5, name="fc7")
    turned = mx.sym.transpose(var("turned_weight"))
    symbol = mx.sym.FullyConnected(fc7, turned, no_bias=True, num_hidden=3)
    return PublicGraph(symbol, {"data": (2, 6)}, weights={"fc7_weight": (5, 6), "turned_weight": (5, 3)})


def lffd():
    """LFFD: two files without a common beginning, two outputs for each of two scales."""
    net, found = scaled(var("data")), []
    for number in (1, 2):
        net = mx.sym.Activation(conv(net, f"conv{number}", 4, stride=(2, 2)), act_type="relu")
        scores = mx.sym.softmax(conv(net, f"conv{number}_score", 2, 1), axis=1)
        score = mx.sym.slice_axis(scores, axis=1, begin=0, end=1, name=f"score_{number}")
        found += [score, conv(net, f"bbox_{number}", 4, 1)]
    files = ("symbol_10_320_20L_5scales_v2_deploy.json", "train_10_320_20L_5scales_v2_iter_1800000.params")
    return PublicGraph(mx.sym.Group(found), {"data": (2, 3, 17, 17)}, 10401, files=files)


def ssd():
    """SSD's training graph: the targets read the label, and a scale belongs to no layer."""
    label = var("label")
    net = mx.sym.Activation(conv(var("data"), "conv4_3", 4, pad=(1, 1)), act_type="relu")
    scale = var("relu4_3_scale", shape=(1, 4, 1, 1), init=mx.init.Constant(20))
    first = mx.sym.broadcast_mul(scale, mx.sym.L2Normalization(net, mode="channel", name="relu4_3_norm"))
    second = mx.sym.Activation(conv(pooled(net, "pool4"), "conv5", 4, pad=(1, 1)), act_type="relu")
    classes, boxes, anchors = [], [], []
    for number, layer in enumerate((first, second)):
        one = mx.sym.transpose(conv(layer, f"cls_{number}", 6, pad=(1, 1)), axes=(0, 2, 3, 1))
        classes.append(mx.sym.Flatten(one))
        two = mx.sym.transpose(conv(layer, f"loc_{number}", 8, pad=(1, 1)), axes=(0, 2, 3, 1))
        boxes.append(mx.sym.Flatten(two))
        anchors.append(mx.sym.contrib.MultiBoxPrior(layer, sizes="(.2,.4)", ratios="(1,)", clip=False))
    scores = mx.sym.transpose(mx.sym.Reshape(mx.sym.Concat(*classes, dim=1), shape=(0, -1, 3)), axes=(0, 2, 1))
    places, anchors = mx.sym.Concat(*boxes, dim=1), mx.sym.Concat(*anchors, dim=1)
    target = mx.sym.contrib.MultiBoxTarget(
        anchors, label, scores, overlap_threshold=0.5, ignore_label=-1, negative_mining_ratio=3, name="target"
    )
    probabilities = mx.sym.SoftmaxOutput(
        scores, target[2], ignore_label=-1, use_ignore=True, multi_output=True, normalization="valid", name="cls_prob"
    )
    loss = mx.sym.smooth_l1(target[1] * (places - target[0]), scalar=1.0)
    found = mx.sym.contrib.MultiBoxDetection(probabilities, places, anchors, nms_threshold=0.5, name="detection")
    symbol = mx.sym.Group([
        probabilities, mx.sym.MakeLoss(loss, normalization="valid", name="loc_loss"),
        mx.sym.BlockGrad(target[2], name="cls_label"), mx.sym.BlockGrad(found, name="det_out"),
    ])  # fmt: skip
    return PublicGraph(symbol, {"data": (2, 3, 8, 8)}, 10000, {"label": (2, 2, 5)}, "det_out_output")


def lstm_ocr():
    """An LSTM that was unrolled over the columns of an image, with its first states as inputs and a CTC loss."""
    width, hidden, label = 4, 3, var("label")
    columns = mx.sym.SliceChannel(var("data"), num_outputs=width, axis=3, name="columns")
    state, cell = var("l0_init_h"), var("l0_init_c")
    weights = [var(f"l0_{name}") for name in ("i2h_weight", "i2h_bias", "h2h_weight", "h2h_bias")]
    found = []
    for time in range(width):
        gates = mx.sym.FullyConnected(
            mx.sym.Flatten(columns[time]), *weights[:2], num_hidden=4 * hidden, name=f"t{time}_l0_i2h"
        ) + mx.sym.FullyConnected(state, *weights[2:], num_hidden=4 * hidden, name=f"t{time}_l0_h2h")
        parts = mx.sym.SliceChannel(gates, num_outputs=4, name=f"t{time}_l0_slice")
        kept = mx.sym.Activation(parts[2], act_type="sigmoid") * cell
        cell = kept + mx.sym.Activation(parts[0], act_type="sigmoid") * mx.sym.Activation(parts[1], act_type="tanh")
        state = mx.sym.Activation(parts[3], act_type="sigmoid") * mx.sym.Activation(cell, act_type="tanh")
        found.append(state)
    scores = dense(mx.sym.concat(*found, dim=0), "pred_fc", 6)
    loss = mx.sym.ctc_loss(mx.sym.Reshape(scores, shape=(-4, width, -1, 0)), label)
    softmax = mx.sym.MakeLoss(mx.sym.SoftmaxActivation(scores, name="softmax"), name="kept")
    symbol = mx.sym.Group([mx.sym.BlockGrad(softmax, name="pred"), mx.sym.MakeLoss(loss, name="ctc")])
    shapes = {"data": (2, 1, 5, width), "l0_init_h": (2, hidden), "l0_init_c": (2, hidden)}
    return PublicGraph(symbol, shapes, 10100, {"label": (2, 2)}, "pred_output")


def recommender():
    """Matrix factorization, whose graph comes to `item` before `user`; an input is read twice."""
    user, item = var("user"), var("item")
    both = dense(item, "item_fc", 4, no_bias=True) * dense(user, "user_fc", 4, no_bias=True)
    symbol = mx.sym.sum(both, axis=1, name="score") + 3 * mx.sym.sum(user, axis=1)
    return PublicGraph(symbol, {"item": (2, 3), "user": (2, 3)})


GRAPHS = {
    make.__name__: make
    for make in (
        det1, det2, genderage, arcface, arcface_head, lffd, ssd, lstm_ocr, recommender
    )
}  # fmt: skip
