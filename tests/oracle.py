"""What the tests of training compare with: hand-written Gluon loops, one big batch, NumPy."""

import warnings

from built_nets import ready
import mxkit
from mxkit.core.arrays import is_numpy, legacy, of_kind
from mxkit.errors import TrapWarning
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn
import numpy as np

FEATURES, CLASSES = 5, 3
SOFTMAX = gluon.loss.SoftmaxCrossEntropyLoss()
STATIC = {"static_alloc": True, "static_shape": True}
OPTIMIZERS = [
    ("sgd", {"learning_rate": 0.3}),
    ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}),
    ("adam", {"learning_rate": 0.02}),
]
OPTIMIZER_IDS = ["sgd", "momentum", "adam"]


def array(values, **how):
    """An array of the kind that MXNet's switches say."""
    return of_kind(mx.nd.array(values, **how), mx.util.is_np_array())


def make_batches(sizes, seed=0, dtype="float32"):
    """One batch `(x, y)` of arrays for each size."""
    random = np.random.RandomState(seed)
    return [
        (array(random.randn(size, FEATURES), dtype=dtype), array(random.randint(0, CLASSES, size), dtype="int32"))
        for size in sizes
    ]


def in_batches(x, y, size):
    """Samples in a list of batches; the last one holds what is left."""
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


def drawn_boxes(counts, smallest, seed=0):
    """Rows `(x, y, x, y, class, difficult)` of images of 64 pixels, padded with -1; `counts` has the boxes of each."""
    rng, boxes = np.random.default_rng(seed), np.full((len(counts), 3, 6), -1, np.float32)
    for number, count in enumerate(counts):
        for row in range(count):
            x, y, width, height = *rng.uniform(0, 38, 2), *rng.uniform(smallest, 25, 2)
            boxes[number, row] = [x, y, x + width, y + height, rng.integers(3), 0]
    return boxes


def joined(batches, every=None):
    """The big batches that windows of `every` batches amount to."""
    every = every or len(batches)
    windows = [batches[i : i + every] for i in range(0, len(batches), every)]
    big = [tuple(mx.nd.concat(*legacy(column), dim=0) for column in zip(*window)) for window in windows]
    return of_kind(big, is_numpy(batches))


def make_net(devices="cpu", seed=3, dropout=0.0, hybridize=False, dtype="float32"):
    """A small smooth net, with the same first values for the same seed on any devices."""
    mxkit.seed_all(seed)
    net = nn.HybridSequential()
    net.add(nn.Dense(7, in_units=FEATURES, activation="tanh"))
    if dropout:
        net.add(nn.Dropout(dropout))
    net.add(nn.Dense(CLASSES, in_units=7))
    net.cast(dtype)
    mxkit.initialize(net, devices=devices)
    if hybridize:
        net.hybridize()
    return net


def convolutions(flags=STATIC, devices="cpu"):
    """For images of 12 x 12: statistics that a forward pass leaves, and random numbers that it draws.

    `flags` go to `hybridize`; None leaves the net as it is.
    """
    mxkit.seed_all(5)
    first = nn.Conv2D(16, 3, in_channels=1), nn.BatchNorm(in_channels=16), nn.Activation("relu"), nn.MaxPool2D(2)
    net = ready(*first, nn.Dropout(0.3), nn.Dense(3, in_units=400), devices=devices)
    if flags is not None:
        net.hybridize(**flags)
    return net


def replicas(net):
    """Values of all parameters joined into one vector, one for each device."""
    parameters = list(net._collect_params_with_prefix().values())
    devices = parameters[0].list_ctx()
    return [np.concatenate([p.data(device).asnumpy().ravel() for p in parameters]) for device in devices]


def weights(net):
    """The vector of all parameters, after checking that every replica holds the same bits."""
    first, *others = replicas(net)
    for other in others:
        np.testing.assert_array_equal(other, first)
    return first


def values(net):
    """The value of each parameter on each device, by path and device."""
    named = mxkit.parameters(net).items()
    return {(path, device): one.data(device).asnumpy() for path, one in named for device in one.list_ctx()}


def same(ours, theirs):
    """Whether two results of `values` hold the same bits."""
    return ours.keys() == theirs.keys() and all((ours[key] == theirs[key]).all() for key in ours)


class Scores(mxkit.Callback):
    """Writes chosen values of valid_loss into the rows, as validation would."""

    def __init__(self, scores):
        self.scores = scores

    def on_epoch(self, state, row):
        row["valid_loss"] = self.scores[row["epoch"] - 1]


def fit(net, data, **changes):
    """`mxkit.fit` for one silent epoch by softmax cross-entropy and SGD, but for `changes`."""
    return mxkit.fit(net, data, **{"loss": "softmax_ce", "trainer": "sgd", "epochs": 1, "progress": False, **changes})


def traps(function):
    """Texts of the `TrapWarning`s of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return [str(warning.message) for warning in caught if issubclass(warning.category, TrapWarning)]


def recorded(net, x, *labels, loss=SOFTMAX):
    """The losses of a batch, recorded."""
    with autograd.record():
        return loss(net(x), *labels)


def train_by_hand(net, batches, optimizer=None, epochs=1, trainer=None, loss=SOFTMAX, count=None, note=None):
    """Gluon's own loop on one device; returns the Trainer.

    It divides by the number of samples, or by `count(x, *labels)`, and calls `note(output, losses)` after each step.
    """
    if trainer is None:
        trainer = gluon.Trainer(net.collect_params(), optimizer[0], dict(optimizer[1]))
    for _ in range(epochs):
        for x, *labels in batches:
            with autograd.record():
                output = net(x)
                losses = loss(output, *labels)
            losses.backward()
            trainer.step(count(x, *labels) if count else x.shape[0])
            if note:
                note(output, losses)
    return trainer


def make_trainer(net, optimizer=("sgd", {}), on_kvstore=None):
    """A Trainer that steps on a kvstore, or on the devices; None is the default."""
    # by name, MXNet makes no kvstore for one device and then refuses update_on_kvstore=True
    kvstore = mx.kv.create("device") if on_kvstore else "device"
    return gluon.Trainer(net.collect_params(), *optimizer, kvstore=kvstore, update_on_kvstore=on_kvstore)


def assert_replicas_close(net, expected, tolerance=1e-6):
    """Every replica lies within `tolerance` of the largest weight of `expected`, and all hold the same bits."""
    target = weights(expected)
    assert np.abs(weights(net) - target).max() <= tolerance * np.abs(target).max()


def mean_gradient(net, batch):
    """Gradient of the mean loss over `batch`, as one vector, on a net of one device."""
    recorded(net, *batch).backward()
    parameters = net._collect_params_with_prefix().values()
    return np.concatenate([p.grad().asnumpy().ravel() for p in parameters]) / batch[0].shape[0]


def requests(net):
    """`grad_req` of each parameter by its path."""
    return {path: parameter.grad_req for path, parameter in net._collect_params_with_prefix().items()}
