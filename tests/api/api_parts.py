"""What the expressions of calls/*.txt are made of: inputs, and the obvious use of each kind of class."""

import json
import logging
from pathlib import Path
import tempfile

import cv2
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn, rnn  # noqa: F401
import numpy as np

T, nd, nd_ones = gluon.data.vision.transforms, mx.nd.array, mx.nd.ones
QUIET = logging.getLogger("quiet")
QUIET.addHandler(logging.NullHandler())
QUIET.propagate = False
SCORES = np.float32([[0.3, 0.7], [0.2, 0.8], [0.6, 0.4]])
BOXES01 = np.float32([[0, 0.1, 0.2, 0.6, 0.7], [1, 0.3, 0.3, 0.9, 0.8]])


def ramp(*shape, dtype="float32"):
    """Numbers between -1 and 1 without a pattern, the same at each call."""
    size = int(np.prod(shape))
    return (((np.arange(size) * 37 + 11) % 101 / 50.0) - 1).reshape(shape).astype(dtype)


def picture(height=24, width=32, dtype="uint8"):
    return (np.arange(height * width * 3) * 7 % 251).reshape((height, width, 3)).astype(dtype)


#: Images of expressions, of which each call gets new arrays.
IMAGES = {
    "X": picture(),
    "BIG": picture(48, 64),
    "F": picture(dtype="float32"),
    "CHW": picture(dtype="float32").transpose((2, 0, 1)).copy(),
}
#: Images with 2, 1 and 3 boxes (x, y, x, y, class).
BOXES = [
    np.array([[5, 4, 20, 18, 0], [10, 6, 30, 22, 1]], "float32"),
    np.array([[1, 2, 9, 8, 1]], "float32"),
    np.array([[0, 0, 9, 9, 0], [3, 3, 8, 20, 1], [12, 2, 30, 20, 0]], "float32"),
]


def folder(files=()):
    """A new folder with files of texts, bytes, or arrays as pictures, by name."""
    place = Path(tempfile.mkdtemp(prefix="api"))
    for name, content in dict(files).items():
        content = cv2.imencode(name[-4:], content)[1].tobytes() if isinstance(content, np.ndarray) else content
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return place


def pictures(names=("0", "1", "2", "3")):
    """A folder of PNG files."""
    return folder({f"{name}.png": picture(40 + number, 48) for number, name in enumerate(names)})


def text_file(content, name="file.txt"):
    return str(folder({name: content}) / name)


def each(function, *values):
    """The result of a call for each value, or the error that refused it."""

    def result(value):
        try:
            return function(value)
        except Exception as error:
            return error

    return [result(value) for value in values]


def began(block):
    """A block with weights, drawn by Xavier's rule where the shape allows it."""

    class Xavier(mx.init.Xavier):
        def _init_weight(self, name, arr):
            super()._init_weight(name, arr) if arr.ndim > 1 else arr.__setitem__(slice(None), 0.25)

        _init_default = _init_weight

    block.initialize(Xavier())
    return block


def flat(values):
    if isinstance(values, (list, tuple)):
        return [one for value in values for one in flat(value)]
    return [values]


def of(values):
    """Arrays of `mx.nd` from NumPy's, in lists and tuples too."""
    if isinstance(values, (list, tuple)) and not all(isinstance(one, int) for one in values):
        return type(values)(map(of, values))
    if isinstance(values, tuple):  # a shape
        return mx.nd.array(ramp(*values))
    return mx.nd.array(values, dtype=values.dtype) if isinstance(values, np.ndarray) else values


def layer(block, *inputs, learns=True):
    """Outputs of a block, gradients of inputs and weights, and the outputs of its graph.

    Args:
        inputs: Shapes, arrays, or lists of them.
    """
    began(block)
    arrays = [of(one) for one in inputs]
    leaves = [one for one in flat(arrays) if getattr(one, "dtype", None) in (np.float32,)] if learns else []
    for one in leaves:
        one.attach_grad()
    with mx.autograd.record(train_mode=True):
        outputs = [one for one in flat(block(*arrays)) if one is not None]
        total = sum((one.astype("float32") ** 2).sum() for one in outputs)
    if learns:
        total.backward()
    found = [outputs, [one.grad for one in leaves]]
    if learns:
        found.append([one.grad() for one in block.collect_params().values() if one.grad_req != "null"])
    found.append(flat(block(*arrays)))
    if isinstance(block, mx.gluon.HybridBlock):
        block.hybridize()
        found += each(lambda one: flat(one(*arrays)), block)  # some have no graph
    return [*found, repr(block)]


def unrolled(cell, shape=(2, 3, 4), begin=None, merge=True):
    """Outputs and states of a cell over three steps, and the gradients of its weights."""
    began(cell)
    x = of(shape)
    x.attach_grad()
    with mx.autograd.record():
        outputs, states = cell.unroll(np.int64(3), x, begin_state=begin, layout="NTC", merge_outputs=merge)
        total = sum((one**2).sum() for one in flat([outputs]))
    total.backward()
    return [outputs, states, x.grad, [one.grad() for one in cell.collect_params().values()], repr(cell)]


def measured(metric, *batches):
    """What a metric says after each batch, over all, and after `reset`; with the types of its sums."""
    said = []
    for labels, scores in batches:
        metric.update(of(labels), of(scores))
        said.append(metric.get())
    found = [said, metric.get_name_value(), str(metric)]
    if hasattr(metric, "get_global"):
        found.append(metric.get_global())
    metric.reset()
    return [*found, metric.get()]


def optimized(optimizer, steps=3, shape=(3, 4)):
    """Weights and states after some updates, in float32, in float16 with a copy in float32, and by NumPy's scalars."""
    found = []
    for dtype in ("float32", "float16"):
        weight, gradient = of(ramp(*shape, dtype=dtype)), of(ramp(*shape[::-1], dtype=dtype).T.copy())
        optimizer.multi_precision = dtype == "float16"
        state = optimizer.create_state_multi_precision(0, weight)
        for _ in range(steps):
            optimizer.update_multi_precision(0, weight, gradient, state)
        found += [weight, state]
    updater = mx.optimizer.get_updater(optimizer)
    weight = of(shape)
    updater(np.int64(1), of(shape), weight)
    return [*found, weight, optimizer.learning_rate]


def read(iterator, count=3):
    """The first batches of an iterator, and of its second epoch."""
    found = []
    for _ in range(2):
        iterator.reset()
        for _, batch in zip(range(count), iterator):
            found.append([copied(batch.data), copied(batch.label), batch.pad, batch.index])
    return [found, [tuple(one) for one in (iterator.provide_data or ())], iterator.batch_size]


def copied(arrays):
    """Copies made at once, because iterators in C++ write the next batch into the same arrays."""
    copies = [one.copy() for one in arrays or ()]
    for one in copies:
        one.wait_to_read()
    return copies


def items(values, count=3):
    return [one for _, one in zip(range(count), values)]


def augmented(augmenter, *extra, times=3):
    """What an augmenter of images gives, a few times, and how it shows itself."""
    image = of(picture(dtype="float32"))
    found = [augmenter(image, *[one.copy() for one in extra]) for _ in range(times)]
    return [found, json.loads(augmenter.dumps()) if isinstance(augmenter.dumps(), str) else augmenter.dumps()]


def small_net():
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Conv2D(4, 3, activation="relu"), nn.MaxPool2D(), nn.BatchNorm(), nn.Flatten(), nn.Dense(3))
    began(net)(of((2, 1, 8, 8)))
    net.hybridize()
    net(of((2, 1, 8, 8)))
    return net


def records(boxes=False):
    """Path of a file of records with four images, and a label of several numbers each."""
    path = str(folder() / "a.rec")
    writer = mx.recordio.MXIndexedRecordIO(path[:-3] + "idx", path, "w")
    for number in range(4):
        label = [4, 5, 48, 40, number % 2, 0.1, 0.2, 0.6, 0.7] if boxes else [number, 0.5, np.float32(0.25)]
        header = mx.recordio.IRHeader(0, label, number, 0)
        writer.write_idx(number, mx.recordio.pack_img(header, picture(40, 48), quality=9, img_fmt=".png"))
    writer.close()
    return path
