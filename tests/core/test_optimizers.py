"""Optimizers and Trainers by name, on one device and on several."""

from built_nets import ready
import mxkit
from mxkit.core.trainers import get_trainer, optimizer_names
from mxkit.errors import DeviceError, NotInitializedError, UnknownNameError
import mxnet as mx
from mxnet import gluon
import numpy as np
import pytest


def make_net(devices="cpu"):
    mxkit.seed_all(1)
    return ready(gluon.nn.Dense(3, in_units=5), devices=devices)


# groupadagrad wants a learning rate for rows; test is MXNet's own test double
@pytest.mark.parametrize("name", sorted(set(optimizer_names()) - {"groupadagrad", "test"}))
def test_replicas_of_every_optimizer_stay_equal_and_move(name, kind):
    """T24."""
    net = kind.net(lambda: make_net("cpu:3"))
    before = net.weight.data(mx.cpu(0)).asnumpy()
    assert kind.holds(net.weight.data(mx.cpu(0)))
    random = np.random.RandomState(0)
    data = [(random.randn(size, 5), random.randint(0, 3, size)) for size in (4, 1, 7, 2)]
    list(mxkit.updates(net, data, loss="softmax_ce", trainer=name))
    first, *others = [weight.asnumpy() for weight in net.weight.list_data()]
    for other in others:
        np.testing.assert_array_equal(other, first)
    assert (first != before).any()


@pytest.mark.parametrize(
    "spec", ["adam", "Adam", ("adam", {"learning_rate": 0.25}), ["adam", {"learning_rate": 0.25}], mx.optimizer.Adam()]
)
def test_specs(spec):
    net = make_net()
    trainer = get_trainer(net, spec)
    assert isinstance(trainer.optimizer, mx.optimizer.Adam)
    assert trainer.learning_rate == (0.25 if isinstance(spec, (tuple, list)) else 0.001)
    assert {parameter.name for parameter in trainer._params} == set(net.collect_params())
    assert get_trainer(net, trainer) is trainer


WRONG = [
    ("adm", UnknownNameError, "unknown optimizer 'adm': did you mean 'adam'"),
    (0.1, TypeError, r"trainer: expected one Trainer, a name, \(name, arguments\) or an optimizer"),
    (("sgd", {"lr": 0.1}), TypeError, r"optimizer 'sgd' refuses its arguments {'lr': 0.1}: .*'lr'"),
    (("sgd", {"momentun": 0.9, "wd": 0}), TypeError, "accepted: .*momentum.*; momentun: did you mean 'momentum'"),
    # T26: numbers are checked before training
    (("adam", {"learning_rate": "0.01"}), ValueError, "'adam': learning_rate: .*finite number, .*received '0.01'"),
    (("adam", {"learning_rate": -0.1}), ValueError, "'adam': learning_rate: expected .*, at least 0;.*-0.1"),
    (("sgd", {"learning_rate": float("nan")}), ValueError, "learning_rate: .*received nan"),
    (("sgd", {"momentum": "0.9"}), ValueError, "'sgd': momentum: expected .*, at least 0; received '0.9'"),
    (("sgd", {"wd": -1e-4}), ValueError, "'sgd': wd: expected .*, at least 0; received -0.0001"),
    (("adam", {"learning_rate": None}), ValueError, "expected a number; received None. Leave it out for 0.001"),
    (("adam", {"beta1": "0.9"}), ValueError, "'adam': beta1: expected a finite number; received '0.9'"),
    (("adam", {"epsilon": float("nan")}), ValueError, "'adam': epsilon: expected a finite number; received nan"),
    (mx.optimizer.SGD(learning_rate=-0.1), ValueError, "SGD: learning_rate: .*received -0.1"),
]


@pytest.mark.parametrize(("spec", "error", "text"), WRONG)
def test_wrong_specs(spec, error, text):
    with pytest.raises(error, match=text):
        get_trainer(make_net(), spec)


def test_a_net_without_values_has_no_trainer():
    with pytest.raises(NotInitializedError, match="parameter 'weight' has no value"):
        get_trainer(gluon.nn.Dense(3, in_units=5), "sgd")


def test_a_trainer_of_other_devices():
    """T20."""
    net = make_net("cpu:2")
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    net.collect_params().reset_ctx(mx.cpu(0))
    with pytest.raises(DeviceError, match="make the Trainer after the net is where it stays"):
        get_trainer(net, trainer)


def test_numbers_of_a_trainer_that_exists_are_checked():
    """T26."""
    net = make_net()
    for name, value in [("learning_rate", "0.1"), ("learning_rate", -0.1), ("momentum", "0.9")]:
        trainer = gluon.Trainer(net.collect_params(), "sgd", {name: value})
        with pytest.raises(ValueError, match=f"the Trainer's SGD: {name}: expected a finite number.*{value!r}"):
            get_trainer(net, trainer)
    schedule = mx.lr_scheduler.FactorScheduler(5, base_lr=0.5)
    for arguments in ({"lr_scheduler": schedule}, {"lr_scheduler": lambda updates: 0.1}):
        assert get_trainer(net, ("sgd", arguments)).optimizer.lr_scheduler
        get_trainer(net, gluon.Trainer(net.collect_params(), "sgd", arguments))
    schedule.base_lr = "0.5"
    with pytest.raises(ValueError, match="'sgd': base_lr of its lr_scheduler: .*received '0.5'"):
        get_trainer(net, ("sgd", {"lr_scheduler": schedule}))
