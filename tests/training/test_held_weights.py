"""What holds weights and puts them back leaves a training on two devices, with a kvstore, as it was."""

from built_nets import ready
from callback_runs import norm_net
import mxkit
from mxkit.core.trainers import HeldWeights
from mxkit.errors import CheckpointError
from mxkit.training.callbacks import EMA, EarlyStopping, LambdaCallback
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np
import oracle
from oracle import values
import pytest

RANDOM = np.random.RandomState(0)
BATCHES = [(RANDOM.randn(6, 5).astype("float32"), np.arange(6) % 3) for _ in range(4)]


def make():
    mxkit.seed_all(0)
    net = norm_net("cpu:2")
    return net, gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, update_on_kvstore=True)


def fit(net, trainer, epochs=1, callbacks=()):
    oracle.fit(net, BATCHES, trainer=trainer, epochs=epochs, callbacks=callbacks)


def early_stopping(net, trainer, folder):
    score = LambdaCallback(on_epoch=lambda state, row: row.update(valid_loss=row["epoch"]))
    fit(net, trainer, 3, [score, EarlyStopping("valid_loss", "min", patience=9, restore_best=True)])


def average(net, trainer, folder):
    ema = EMA(0.5)
    fit(net, trainer, 1, [ema])
    before = values(net)
    with ema.applied(net):
        assert any((array != before[name]).any() for name, array in values(net).items())
        mxkit.evaluate(net, BATCHES, loss="softmax_ce")


def search(net, trainer, folder):
    fit(net, trainer)
    mxkit.find_learning_rate(net, BATCHES, loss="softmax_ce", trainer=trainer, updates=10, end=0.5)


def checkpoint_that_does_not_fit(net, trainer, folder):
    other = make()[0]
    adam = gluon.Trainer(other.collect_params(), "adam")
    fit(other, adam)
    mxkit.save_checkpoint(folder, other, adam, step=1)
    fit(net, trainer)
    with pytest.raises(CheckpointError, match="another optimizer"):
        mxkit.load_checkpoint(folder, net, trainer)


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize("hold", [early_stopping, average, search, checkpoint_that_does_not_fit])
def test_the_next_updates_are_those_of_a_run_that_nobody_touched(hold, tmp_path):
    """T47."""
    net, trainer = make()
    hold(net, trainer, tmp_path)
    same, untouched = make()
    fit(same, untouched)
    for _ in range(2):
        now, expected = values(net), values(same)
        assert any((array != expected[path, mx.cpu(1)]).any() for (path, _), array in expected.items())
        for where, array in expected.items():
            np.testing.assert_array_equal(now[where], array, err_msg=str(where))
        fit(net, trainer)
        fit(same, untouched)


def test_a_shared_parameter_is_held_once_and_one_without_values_not_at_all():
    first = nn.Dense(2, in_units=2, use_bias=False)
    net = ready(first, nn.Dense(2, in_units=2, use_bias=False, params=first.params), nn.Dense(2, use_bias=False))
    held = HeldWeights(net._collect_params_with_prefix())
    assert list(held.arrays) == ["0.weight"]
    before = net[0].weight.data().asnumpy()
    with held:
        net[1].weight.set_data(mx.nd.zeros((2, 2)))
    np.testing.assert_array_equal(net[0].weight.data().asnumpy(), before)
