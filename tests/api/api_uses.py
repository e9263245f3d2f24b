"""Longer uses of single names of MXNet, for calls/*.txt."""

import collections
import gzip
import json
from logging.handlers import BufferingHandler
from pathlib import Path
import struct

import api_parts
from api_parts import QUIET, began, copied, folder, of, pictures, ramp
import cv2
import mxnet as mx
from mxnet.contrib.text.vocab import Vocabulary
from mxnet.gluon.contrib.estimator import Estimator
from mxnet.gluon.data.vision import datasets
import numpy as np


def added(block, *children):
    for child in children:
        block.add(child)
    return block


def parameter(one):
    """What a Parameter or a Constant tells, and its gradient."""
    one.initialize(mx.init.Xavier())
    with mx.autograd.record():
        total = (one.data() ** 2 * 3).sum()
    grad = None
    if one.grad_req != "null":
        total.backward()
        grad = one.grad().copy()
    one.cast("float16")
    return [total, grad, one.data(), repr(one), one.list_ctx()[0].device_type, one.var().name]


def shared(parameters):
    """Parameters by name, made, found again, saved and loaded."""
    weight = parameters.get("w", shape=(2, 0), dtype=np.float32)
    weight.shape = (2, np.int64(3))
    parameters.get_constant("c", [[1, 2]])
    parameters.initialize(mx.init.Xavier())
    path = str(folder() / "a.params")
    parameters.save(path)
    before = weight.data().copy()
    parameters.zero_grad()
    parameters.setattr("grad_req", "write")
    parameters.load(path)
    return [before, weight.data(), sorted(parameters.keys()), repr(parameters)]


def trained(trainer):
    """Weights after three updates, with states saved and loaded in between."""
    net, path = began(mx.gluon.nn.Dense(np.int64(2), in_units=3)), str(folder() / "states")
    one = trainer(net.collect_params(), "adam", {"learning_rate": np.float32(0.1), "wd": np.float64(0.01)})
    for _ in range(3):
        with mx.autograd.record():
            loss = (net(of((4, 3))) ** 2).sum()
        loss.backward()
        one.step(np.int64(4))
        one.save_states(path)
        one.load_states(path)
    one.set_learning_rate(np.float64(0.5))
    return [net.weight.data(), net.bias.data(), one.learning_rate]


def cifar(classes):
    """A folder with CIFAR's files of three pictures each, as the class reads them without downloading."""
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin", "train.bin", "test.bin"]
    labels = (1,) if classes == 10 else (4, 1)
    datasets.check_sha1 = lambda *arguments: True
    return str(folder(dict.fromkeys(names, (bytes(labels) + bytes(n % 251 for n in range(3072))) * 3)))


def mnist(dataset):
    """The dataset of four pictures, from files as the class reads them, without downloading."""
    names = "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"
    place = folder(zip(names, map(gzip.compress, _IDX)))
    datasets.download = lambda url, path, sha1_hash: str(place / url.rpartition("/")[2])
    return dataset(str(place), train=False)


# Four pictures and their labels, as MNIST's files have them.
_IDX = (struct.pack(">4I", 2051, 4, 28, 28) + bytes(range(196)) * 16, struct.pack(">2I", 2049, 4) + bytes([3, 4, 9, 0]))


def classes():
    return pictures(("cats/0", "cats/1", "dogs/2", "dogs/3"))


def hooked(handle):
    """A hook that a layer calls until it is detached."""
    layer, seen = began(mx.gluon.nn.Dense(2, in_units=3)), []
    with layer.register_forward_hook(lambda block, inputs, output: seen.append(output.shape)) as hook:
        layer(of((4, 3)))
    layer(of((5, 3)))
    return [seen, isinstance(hook, handle)]


def clipped(clip):
    arrays = [of((2, 3)), of((4,)) * 3]
    norm = clip(arrays, np.float32(0.5))
    nothing = clip([of((2, 3)) * np.nan], 1.0, check_isfinite=False)
    return [norm, arrays, nothing]


def estimated(handler=None, **named):
    """Two epochs of MXNet's Estimator with one more handler."""
    x, y = ramp(12, 1, 8, 8), np.arange(12, dtype="float32") % 3
    loader = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(x, y), 4)
    net = api_parts.small_net()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    one = Estimator(net, loss, train_metrics=mx.metric.Accuracy(), trainer=trainer, **named)
    one.loader, heard = loader, BufferingHandler(10**6)
    one.logger.handlers, one.logger.propagate = [heard], False
    one.fit(loader, val_data=loader, epochs=2, event_handlers=[handler(one)] if handler else None)
    one.evaluate(loader)
    weights = [value.data() for value in net.collect_params().values()]
    return [[metric.get() for metric in one.train_metrics + one.val_metrics], weights, len(heard.buffer)]


def module(make):
    """Scores and predictions of a Module after two epochs."""
    y = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1), mx.sym.var("lin_label"))
    iterator = mx.io.NDArrayIter(ramp(4, 2), ramp(4), 2, label_name="lin_label")
    one = make(y)
    one.fit(iterator, num_epoch=2, eval_metric="mse", optimizer_params=(("learning_rate", np.float64(0.01)),))
    return [one.score(iterator, "mse"), sorted(one.get_params()[0].items())]


def calibrated(quantize):
    """Outputs of a net in 8 bits, by each way of calibration."""
    x = ramp(8, 1, 8, 8)
    loader = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(x, np.arange(8) % 3), 4)

    def outputs(mode):
        return quantize(api_parts.small_net(), calib_mode=mode, calib_data=loader, logger=QUIET)(of(x))

    return [outputs(mode) for mode in ("naive", "entropy")]


def exported():
    """A small net's graph, arguments and auxiliary states."""
    path = str(folder() / "net")
    api_parts.small_net().export(path)
    return mx.model.load_checkpoint(path, 0)


def voc(year=2007):
    """A folder with one picture and its boxes as PASCAL VOC has it."""
    thing = (
        "<object><name>cat</name><difficult>0</difficult><bndbox><xmin>5</xmin><ymin>4</ymin><xmax>20</xmax>"
        "<ymax>18</ymax></bndbox></object>"
    )
    size = "<size><width>64</width><height>48</height></size>"
    files = {
        "Annotations/1.xml": f"<annotation>{size}{thing}{thing.replace('cat', 'dog')}</annotation>",
        "JPEGImages/1.jpg": api_parts.picture(48, 64),
        "SegmentationClass/1.png": np.arange(48 * 64).reshape(48, 64).astype("uint8") % 21,
    }
    for split in ("train", "val", "trainval"):
        files.update({f"ImageSets/{kind}/{split}.txt": "1\n" for kind in ("Main", "Segmentation")})
    return str(folder({f"VOC{year}/{name}": content for name, content in files.items()}))


def listed():
    """A list of one picture with two boxes, as gluoncv's `LstDetection` reads it; its path and the folder."""
    line = "0\t4\t5\t48\t40\t0\t0.1\t0.2\t0.6\t0.7\t1\t0.3\t0.3\t0.9\t0.8\t0.png\n"
    place = folder({"0.png": api_parts.picture(40, 48), "a.lst": line})
    return str(place / "a.lst"), str(place)


def graph(symbol):
    """Operators of a graph, in order."""
    return [node["op"] for node in json.loads(symbol.tojson())["nodes"]]


def mnist_files():
    """Files of four pictures and their labels."""
    place = folder(zip(("images", "labels"), _IDX))
    return str(place / "images"), str(place / "labels")


def png():
    return cv2.imencode(".png", api_parts.picture())[1].tobytes()


def vectors():
    return api_parts.text_file("a 0.1 0.2\nb 0.3 0.4\n")


def vocabulary():
    return vocabulary_of(None)[-1]


def vocabulary_of(kind):
    """A vocabulary of two words, and the numbers of words."""
    words = collections.Counter(["a", "b", "b", "c", "c"])
    one = (kind or Vocabulary)(words, most_freq_count=np.int64(2), reserved_tokens=["<pad>"])
    return [one.to_indices(["a", "b", "z"]), one.to_tokens([0, 1, 2]), len(one), one]


def embedded(embedding):
    embedding.update_token_vectors("b", of(np.array([7.0, 8], "float32")))
    return [embedding.idx_to_vec, embedding.get_vecs_by_tokens(["a", "B"], lower_case_backup=True), len(embedding)]


def registered(register, base, create, *arguments):
    """A class of one's own, found by its name."""
    register(type("OwnOne", (base,), {"__init__": lambda self: base.__init__(self, *arguments)}))
    return type(create("ownone")).__name__


def alias_of(alias):
    @mx.metric.register
    @alias("another_name")
    class OwnMetric(mx.metric.EvalMetric):
        def __init__(self):
            super().__init__("own")

    return type(mx.metric.create("another_name")).__name__


def scoped(scope):
    with scope:
        inside = mx.autograd.is_training(), mx.autograd.is_recording()
    return [inside, mx.autograd.is_training()]


def marked(old, backward):
    """A gradient by the old names of autograd."""
    x, gradient = of((2, 3)), of(np.zeros((2, 3), "float32"))
    old.mark_variables([x], [gradient])
    with old.train_section():
        y = x * x * np.float32(2)
    backward([y])
    return gradient


def items_of(iterator, count=3):
    """Batches of an iterator of boxes, whose labels have several lengths."""
    found = [[copied(batch.data), copied(batch.label), batch.pad] for _, batch in zip(range(count), iterator)]
    return [found, iterator.label_shape, list(iterator.provide_label)]


def csr(dtype="float32"):
    """A sparse matrix, the graph of three nodes."""
    return mx.nd.sparse.csr_matrix(np.array([[0, 1, 2], [3, 0, 0], [0, 4, 0]], dtype), dtype=dtype)


def multi(operator, arrays, weights, **named):
    """An operator that updates several weights, which `mx.nd` writes to `out`.

    Args:
        weights: Places of the weights; None if the first argument is a list of them.
    """
    if "symbol" in operator.__module__:
        return operator(*arrays, **named)
    return operator(*arrays, out=arrays[0] if weights is None else [arrays[place] for place in weights], **named)


def rsp():
    return mx.nd.sparse.row_sparse_array(np.float32([[1, 2], [0, 0], [3, 4]]))


def switched(function):
    """The switches of `mx.np` after a call, which are put back."""
    function()
    found = mx.util.is_np_array(), mx.util.is_np_shape()
    mx.npx.reset_np()
    return found


def put(array, key, value):
    array[key] = value
    return array


def gradient(array):
    x = array(ramp(2, 3))
    x.attach_grad()
    with mx.autograd.record():
        y = x * x * np.float32(2)
    y.backward()
    return x.grad


def zoo(make):
    """Names, shapes of parameters and the outputs' shape of a net of MXNet's zoo."""
    net = make(classes=np.int64(7))
    side = 299 if "inception" in make.__name__.lower() else 224
    data = mx.nd.zeros((1, 3, side, side))
    net.infer_shape(data)
    shapes = [parameter.shape for parameter in net.collect_params().values()]
    return [len(shapes), sorted(shapes)[-20:], net(mx.sym.var("data")).infer_shape(data=data.shape)[1]]


def saved(function, library=mx.nd, arrays=mx.nd, buffer=False, saves=False):
    """What `load`, `load_frombuffer` or `save` makes of arrays or of a graph."""
    path = str(folder() / "file")
    if "symbol" in function.__module__:
        (mx.sym.var("x") * 2).save(path)
        return function(path).list_arguments()
    (function if saves else library.save)(path, {"a": arrays.array(ramp(2, 3)), "b": arrays.array(ramp(4))})
    loaded = function(Path(path).read_bytes()) if buffer else (library.load if saves else function)(path)
    return sorted(loaded.items())
