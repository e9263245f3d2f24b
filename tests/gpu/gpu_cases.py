"""Nets, data and comparisons of the GPU checks."""

import os

import mxkit
import mxnet as mx
from mxnet.gluon import nn
import numpy as np

CPU = mx.cpu(0)


class Killed(BaseException):
    """Stands for a death that no handler sees: nothing is written after it."""


def data(samples=96, shape=(6,), batch_size=16, **arguments):
    random = np.random.RandomState(0)
    x = random.randn(samples, *shape).astype("float32")
    y = np.arange(samples) % 3
    x.reshape(samples, -1)[np.arange(samples), y] += 2
    return mxkit.data.ArrayLoader(x, y, batch_size, **arguments)


def _made(devices, hybridize, *layers):
    mxkit.seed_all(3)
    net = nn.HybridSequential()
    net.add(*layers)
    mxkit.initialize(net, devices=devices)
    if hybridize:
        net.hybridize()
    return net


def dense(devices, hybridize=True):
    return _made(devices, hybridize, nn.Dense(8, in_units=6, activation="tanh"), nn.Dense(3, in_units=8))


def dropout(devices):
    layers = nn.Dense(8, in_units=6, activation="tanh"), nn.Dropout(0.5), nn.Dense(3, in_units=8)
    return _made(devices, True, *layers)


def convolutional(devices):
    # no bias: BatchNorm takes it away again, so that its gradient would be rounding errors alone
    layers = nn.Conv2D(8, 3, in_channels=2, use_bias=False), nn.BatchNorm(in_channels=8), nn.Activation("relu")
    layers = *layers, nn.MaxPool2D(2), nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(3, in_units=8)
    return _made(devices, True, *layers)


# What a batch of each net looks like, without its first axis.
SHAPES = {dense: (6,), dropout: (6,), convolutional: (2, 9, 9)}


def values(net):
    """Parameters by path as NumPy, after checking that what is trained is the same on every device."""
    found = {}
    for path, parameter in net._collect_params_with_prefix().items():
        first, *others = (array.asnumpy() for array in parameter.list_data())
        if parameter.grad_req != "null":  # BatchNorm's statistics are each device's own (T71)
            for other in others:
                np.testing.assert_array_equal(other, first, err_msg=path)
        found[path] = first
    return found


def statistics(net):
    """BatchNorm's running statistics on every device."""
    running = (one for path, one in net._collect_params_with_prefix().items() if "running_" in path)
    return [array.asnumpy() for parameter in running for array in parameter.list_data()]


def assert_close(found, expected, rtol, variance=None):
    """Compare values by name; `variance` is the tolerance of running variances, cuDNN's being those of N-1 samples."""
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        allowed = variance if variance and path.endswith("running_var") else rtol
        np.testing.assert_allclose(found[path], value, rtol=allowed, atol=allowed * np.abs(value).max(), err_msg=path)


def equal(found, expected):
    """Whether values by name are equal to the bit."""
    return found.keys() == expected.keys() and all(np.array_equal(found[path], expected[path]) for path in expected)


def has_tf32(on_gpu):
    """Whether products of float32 may be computed with 10 bits of digits, as on sm_80 and newer."""
    return on_gpu and os.environ.get("NVIDIA_TF32_OVERRIDE") != "0"


def digits(on_gpu):
    """Relative tolerance of trained values and of scores."""
    return 1e-3 if has_tf32(on_gpu) else 1e-4


def resumed(make, devices, folder, **arguments):
    """Train for two epochs of 24 updates, whole, and once killed after update 20 and resumed from update 16.

    Returns:
        Values and history of the whole run, and of the resumed one.
    """

    def run(name, dies=None, resume=False):
        steps = []

        def watch(state, update):
            steps.append(update.step)
            if update.step == dies:
                raise Killed

        net = make(devices)
        history = mxkit.fit(
            net,
            data(96, SHAPES[make], 4, shuffle=True, seed=2),
            **{"loss": "softmax_ce", "trainer": ("adam", {"learning_rate": 0.01}), "seed": 7, "epochs": 2, **arguments},
            checkpoint=mxkit.Checkpoints(folder / name, every="16 updates"),
            callbacks=[mxkit.callbacks.LambdaCallback(on_update=watch)],
            resume=resume,
            progress=False,
        )
        assert not resume or steps[0] == 17
        return values(net), history

    whole = run("whole")
    try:
        run("parts", dies=20)
    except Killed:
        return (*whole, *run("parts", resume=True))
    raise AssertionError("the run was not killed")
