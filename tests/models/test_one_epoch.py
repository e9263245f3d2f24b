"""Every net of mxkit.models learns in one epoch of real digits, at the smallest size that it takes.

That a trained net is exported, described and rebuilt at that size is in `test_nets.py`. Nets that would take more than
some seconds are in `heavy_epochs.py`, which `make zoo` runs.
"""

import mxkit
from mxkit.models import get_model, linear_regression
import mxnet as mx
import numpy as np
import pytest
from sharing import long
from test_nets import SMALLEST

HEAVY = [
    ("alexnet", {}),
    ("alexnet", {"small": True}),
    ("vgg11", {}),
    ("vgg13", {}),
    ("vgg16", {}),
    ("vgg19", {}),
    ("nin", {}),
    ("nin", {"small": True}),
    ("googlenet", {}),
    ("googlenet", {"small": True}),
    ("resnet18", {}),
    ("resnet18", {"tutorial": True}),
    ("resnet34", {}),
    ("resnet50", {}),
    ("densenet121", {}),
    ("densenet121", {"small": True}),
    ("densenet121", {"tutorial": True}),
    ("densenet121", {"tutorial": True, "small": True}),
]
LIGHT = [one for one in SMALLEST if one[:2] not in HEAVY]
# Those that take seconds.
SLOW = [("lenet5", {}), ("resnet18", {"small": True})]
# Of which 320 and batches of 16 leave the loss where it was, or nearly.
SAMPLES = {"lenet5": 1354, "nin": 640, "vgg19": 640, "resnet50": 1354}
BATCHES = {"lenet5": 8, "resnet50": 32}
RATES = {"softmax_regression": 1e-2, "lenet5": 1e-2, "alexnet": 3e-4, "vgg": 1e-4, "nin": 3e-4}


def epoch_of(name, arguments, channels, least):
    """An epoch of a net at its smallest size: the net, and the loss of each update as the weights move."""
    # the scans have 8 pixels a side, and a single one tells nothing of a digit
    size = least if least > 1 else 8
    mxkit.seed_all(0)
    net = get_model(name, **arguments)
    # a sigmoid passes on a quarter of what a ReLU does: LeNet-5 would stay on its plateau for more than an epoch
    magnitude = 24 if name == "lenet5" else 2
    mxkit.initialize(net, ("xavier", {"magnitude": magnitude, "factor_type": "in", "rnd_type": "gaussian"}))
    net.hybridize(static_alloc=True)
    x, y = digits_of(size, channels, samples=SAMPLES.get(name, 320))
    rate = next((rate for start, rate in RATES.items() if name.startswith(start)), 1e-3)
    return net, losses_of(net, x, y, "softmax_ce", rate, BATCHES.get(name, 16))


def digits_of(size, channels, samples):
    """Digits, normalized and resized; below 8 pixels a side they are averaged."""
    digits = mxkit.data.digits()
    x = mx.nd.array((digits.train.x[:samples] - digits.mean) / digits.std)
    if size < 8:
        x = mx.nd.contrib.AdaptiveAvgPooling2D(x, output_size=size)
    else:
        x = mx.nd.contrib.BilinearResize2D(x, height=size, width=size)
    return x.repeat(channels, axis=1), digits.train.y[:samples]


def losses_of(net, x, y, loss, rate, batch_size=16):
    losses = []
    mxkit.fit(
        net,
        mxkit.data.ArrayLoader(x, y, batch_size, shuffle=True, seed=0),
        loss=loss,
        trainer=("adam", {"learning_rate": rate}),
        epochs=1,
        callbacks=[mxkit.callbacks.LambdaCallback(on_update=lambda state, update: losses.append(update.loss))],
        seed=0,
        progress=False,
    )
    assert len(losses) == -(-len(x) // batch_size)
    return losses


def share_left(losses):
    """Mean loss of the last quarter of an epoch, as a share of that of its first three updates."""
    return np.mean(losses[-len(losses) // 4 :]) / np.mean(losses[:3])


@pytest.mark.parametrize(
    ("name", "arguments", "channels", "least"), [long(*one) if one[:2] in SLOW else one for one in LIGHT]
)
def test_one_epoch_of_digits_lowers_the_loss(name, arguments, channels, least):
    _, losses = epoch_of(name, arguments, channels, least)
    assert share_left(losses) < 0.9


def test_one_epoch_of_digits_lowers_the_loss_of_linear_regression():
    net = linear_regression()
    mxkit.initialize(net)
    x, y = digits_of(8, 1, 320)
    losses = losses_of(net, x, y.astype("float32")[:, None] / 9, "l2", 1e-2)
    assert share_left(losses) < 0.5


def test_every_net_is_light_or_heavy():
    known = [one[:2] for one in SMALLEST]
    assert all(one in known for one in HEAVY)
    assert len(LIGHT) + len(HEAVY) == len(SMALLEST)
