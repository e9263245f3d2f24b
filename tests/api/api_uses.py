"""Longer uses of single classes, for calls/*.txt."""

import gzip
import json
import logging
import struct

import api_parts
from api_parts import began, folder, of, pictures, ramp
import numpy as np


def added(block, *children):
    for child in children:
        block.add(child)
    return block


def parameter(one):
    """What a Parameter or a Constant tells, and its gradient."""
    import mxnet as mx

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
    import mxnet as mx

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
    import mxnet as mx

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
    import mxnet.gluon.data.vision.datasets as datasets

    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin", "train.bin", "test.bin"]
    labels = (1,) if classes == 10 else (4, 1)
    place = folder()
    for name in names:
        (place / name).write_bytes(b"".join(bytes(labels) + bytes(n % 251 for n in range(3072)) for _ in range(3)))
    datasets.check_sha1 = lambda *arguments: True
    return str(place)


def mnist(dataset):
    """The dataset of four pictures, from files as the class reads them, without downloading."""
    import mxnet.gluon.data.vision.datasets as datasets

    place = folder()
    for path, content in zip(("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"), _IDX):
        with gzip.open(str(place / path), "wb") as file:
            file.write(content)
    datasets.download = lambda url, path, sha1_hash: str(place / url.rpartition("/")[2])
    return dataset(str(place), train=False)


# Four pictures and their labels, as MNIST's files have them.
_IDX = (
    struct.pack(">IIII", 2051, 4, 28, 28) + bytes(range(196)) * 16,
    struct.pack(">II", 2049, 4) + bytes([3, 4, 9, 0]),
)


def classes():
    place = pictures()
    for kind, numbers in (("cats", "01"), ("dogs", "23")):
        (place / kind).mkdir()
        for number in numbers:
            (place / f"{number}.png").rename(place / kind / f"{number}.png")
    return place


def hooked(handle):
    """A hook that a layer calls until it is detached."""
    import mxnet as mx

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


class _Heard(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = 0

    def emit(self, record):
        self.lines += 1


def estimated(handler=None, **named):
    """Two epochs of MXNet's Estimator with one more handler."""
    import mxnet as mx
    from mxnet.gluon.contrib.estimator import Estimator

    x, y = ramp(12, 1, 8, 8), np.arange(12, dtype="float32") % 3
    loader = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(x, y), 4)
    net = api_parts.small_net()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    one = Estimator(net, loss, train_metrics=mx.metric.Accuracy(), trainer=trainer, **named)
    one.loader, heard = loader, _Heard()
    one.logger.handlers, one.logger.propagate = [heard], False
    one.fit(loader, val_data=loader, epochs=2, event_handlers=[handler(one)] if handler else None)
    one.evaluate(loader)
    weights = [value.data() for value in net.collect_params().values()]
    return [[metric.get() for metric in one.train_metrics + one.val_metrics], weights, heard.lines]


def module(make):
    """Scores and predictions of a Module after two epochs."""
    import mxnet as mx

    out = mx.sym.LinearRegressionOutput(
        mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1), mx.sym.var("lin_label")
    )
    iterator = mx.io.NDArrayIter(ramp(4, 2), ramp(4), 2, label_name="lin_label")
    one = make(out)
    one.fit(iterator, num_epoch=2, eval_metric="mse", optimizer_params=(("learning_rate", np.float64(0.01)),))
    return [one.score(iterator, "mse"), sorted(one.get_params()[0].items())]


def calibrated(quantize):
    """Outputs of a net in 8 bits, by each way of calibration."""
    import mxnet as mx

    x = ramp(8, 1, 8, 8)
    loader = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(x, np.arange(8) % 3), 4)

    def outputs(mode):
        return quantize(api_parts.small_net(), calib_mode=mode, calib_data=loader, logger=logging.getLogger("quiet"))(
            of(x)
        )

    return [outputs(mode) for mode in ("naive", "entropy")]


def exported():
    """A small net's graph, arguments and auxiliary states."""
    import mxnet as mx

    path = str(folder() / "net")
    api_parts.small_net().export(path)
    return mx.model.load_checkpoint(path, 0)


def voc(year=2007):
    """A folder with one picture and its boxes as PASCAL VOC has it."""
    import cv2

    root = folder()
    for part in ("Annotations", "JPEGImages", "ImageSets/Main", "ImageSets/Segmentation", "SegmentationClass"):
        (root / f"VOC{year}" / part).mkdir(parents=True)
    place = root / f"VOC{year}"
    cv2.imwrite(str(place / "JPEGImages/1.jpg"), api_parts.picture(48, 64))
    cv2.imwrite(str(place / "SegmentationClass/1.png"), np.arange(48 * 64).reshape(48, 64).astype("uint8") % 21)
    for kind in ("Main", "Segmentation"):
        for split in ("train", "val", "trainval"):
            (place / "ImageSets" / kind / f"{split}.txt").write_text("1\n")
    thing = (
        "<object><name>cat</name><difficult>0</difficult><bndbox><xmin>5</xmin><ymin>4</ymin><xmax>20</xmax>"
        "<ymax>18</ymax></bndbox></object>"
    )
    size = "<size><width>64</width><height>48</height></size>"
    (place / "Annotations/1.xml").write_text(f"<annotation>{size}{thing}{thing.replace('cat', 'dog')}</annotation>")
    return str(root)


def listed():
    """A list of one picture with two boxes, as gluoncv's `LstDetection` reads it; its path and the folder."""
    place = pictures(1)
    (place / "a.lst").write_text("0\t4\t5\t48\t40\t0\t0.1\t0.2\t0.6\t0.7\t1\t0.3\t0.3\t0.9\t0.8\t0.png\n")
    return str(place / "a.lst"), str(place)


def drawn(axes):
    """What stands in a picture of Matplotlib."""
    import matplotlib.pyplot as plt

    found = [len(axes.patches), [text.get_text() for text in axes.texts], [one.get_array() for one in axes.images]]
    plt.close("all")
    return found


def graph(symbol):
    """Operators of a graph, in order."""
    return [node["op"] for node in json.loads(symbol.tojson())["nodes"]]


def mnist_files():
    """Files of four pictures and their labels."""
    place = folder()
    (place / "images").write_bytes(_IDX[0])
    (place / "labels").write_bytes(_IDX[1])
    return str(place / "images"), str(place / "labels")


def png():
    import cv2

    return cv2.imencode(".png", api_parts.picture())[1].tobytes()


def vectors():
    return api_parts.text_file("a 0.1 0.2\nb 0.3 0.4\n")


def vocabulary():
    return vocabulary_of(None)[-1]


def vocabulary_of(kind):
    """A vocabulary of two words, and the numbers of words."""
    import collections

    from mxnet.contrib import text

    words = collections.Counter(["a", "b", "b", "c", "c"])
    one = (kind or text.vocab.Vocabulary)(words, most_freq_count=np.int64(2), reserved_tokens=["<pad>"])
    return [one.to_indices(["a", "b", "z"]), one.to_tokens([0, 1, 2]), len(one), one]


def embedded(embedding):
    embedding.update_token_vectors("b", of(np.array([7.0, 8], "float32")))
    return [embedding.idx_to_vec, embedding.get_vecs_by_tokens(["a", "B"], lower_case_backup=True), len(embedding)]


def registered(register, base, create, *arguments):
    """A class of one's own, found by its name."""
    register(type("OwnOne", (base,), {"__init__": lambda self: base.__init__(self, *arguments)}))
    return type(create("ownone")).__name__


def alias_of(alias):
    import mxnet as mx

    @mx.metric.register
    @alias("another_name")
    class OwnMetric(mx.metric.EvalMetric):
        def __init__(self):
            super().__init__("own")

    return type(mx.metric.create("another_name")).__name__


def scoped(scope):
    import mxnet as mx

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
    found = [
        [api_parts.copied(batch.data), api_parts.copied(batch.label), batch.pad]
        for _, batch in zip(range(count), iterator)
    ]
    return [found, iterator.label_shape, list(iterator.provide_label)]
