"""What tests of training share: small runs of `fit`, nets, and an error."""

from built_nets import ready
import mxkit
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np
from oracle import CLASSES, FEATURES, make_batches, make_net
import pytest

BATCHES = make_batches([8, 8, 3])
VALID = make_batches([5, 4], seed=1)


def run(net, *callbacks, data=BATCHES, **changes):
    arguments = {"loss": "softmax_ce", "trainer": ("sgd", {"learning_rate": 0.1, "momentum": 0.9}), "epochs": 3}
    return mxkit.fit(net, data, callbacks=callbacks, progress=False, **{**arguments, **changes})


def norm_net(devices):
    """A net whose BatchNorm gives each replica statistics of its own."""
    layers = nn.Dense(6, in_units=FEATURES), nn.BatchNorm(in_channels=6), nn.Dense(CLASSES, in_units=6)
    return ready(*layers, devices=devices)


class Named(gluon.Block):
    """Returns `form(scores)`."""

    def __init__(self, form):
        super().__init__()
        self.net, self.form = make_net(), form

    def forward(self, x):
        return self.form(self.net(x))


class Killed(BaseException):
    """Stands for a death that no handler of mxkit's sees: nothing is written after it."""


def killed_after(step):
    """A callback."""

    def die(_, update):
        if update.step == step:
            raise Killed

    return mxkit.callbacks.LambdaCallback(on_update=die)


def check_killed_runs(run, folder, steps):
    """The net of `run(folder, callback)` has the same bits if the run was killed and resumed."""
    whole = run(folder / "whole", killed_after(None))
    for step in steps:
        with pytest.raises(Killed):
            run(folder / str(step), killed_after(step))
        assert largest_difference(whole, run(folder / str(step), killed_after(None))) == 0


def values(net):
    return {name: one.data().asnumpy() for name, one in net._collect_params_with_prefix().items()}


def largest_difference(one, other):
    """Over the parameters of the first net: gluoncv's Faster R-CNN has two constants more after training (T270)."""
    first, second = values(one), values(other)
    return max(float(np.abs(first[name] - second[name]).max()) for name in first)


class Failing(Exception):
    """Raised by `fail`."""


def fail(*_):
    raise Failing
