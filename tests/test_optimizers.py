"""Optimizers and Trainers by name, on one device and on several."""

import mxkit
from mxkit.errors import DeviceError, NotInitializedError, UnknownNameError
from mxkit.optimizers import get_trainer, optimizer_names
import mxnet as mx
from mxnet import gluon
import numpy as np
import pytest


def make_net(devices="cpu"):
    mxkit.seed_all(1)
    net = gluon.nn.Dense(3, in_units=5)
    mxkit.initialize(net, devices=devices)
    return net


# groupadagrad wants a learning rate for rows; test is MXNet's own test double
@pytest.mark.parametrize("name", sorted(set(optimizer_names()) - {"groupadagrad", "test"}))
def test_t24_replicas_of_every_optimizer_stay_equal_and_move(name):
    net = make_net("cpu:3")
    before = net.weight.data(mx.cpu(0)).asnumpy()
    random = np.random.RandomState(0)
    data = [(random.randn(size, 5), random.randint(0, 3, size)) for size in (4, 1, 7, 2)]
    list(mxkit.updates(net, data, loss="softmax_ce", trainer=name))
    first, *others = [weight.asnumpy() for weight in net.weight.list_data()]
    for other in others:
        np.testing.assert_array_equal(other, first)
    assert (first != before).any()


def test_a_trainer_is_returned_as_it_is():
    net = make_net()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    assert get_trainer(net, trainer) is trainer


@pytest.mark.parametrize(
    "spec", ["adam", "Adam", ("adam", {"learning_rate": 0.25}), ["adam", {"learning_rate": 0.25}], mx.optimizer.Adam()]
)
def test_specs(spec):
    net = make_net()
    trainer = get_trainer(net, spec)
    assert isinstance(trainer.optimizer, mx.optimizer.Adam)
    assert trainer.learning_rate == (0.25 if isinstance(spec, (tuple, list)) else 0.001)
    assert {parameter.name for parameter in trainer._params} == set(net.collect_params())


def test_a_spec_of_the_caller_is_not_changed():
    arguments = {"learning_rate": 0.25}
    get_trainer(make_net(), ("sgd", arguments))
    assert arguments == {"learning_rate": 0.25}


def test_wrong_specs():
    with pytest.raises(UnknownNameError, match="unknown optimizer 'adm': did you mean 'adam'"):
        get_trainer(make_net(), "adm")
    with pytest.raises(TypeError, match=r"trainer: expected a Trainer, a name, \(name, arguments\) or an optimizer"):
        get_trainer(make_net(), 0.1)
    with pytest.raises(TypeError, match=r"optimizer 'sgd' refuses its arguments {'lr': 0.1}: .*'lr'"):
        get_trainer(make_net(), ("sgd", {"lr": 0.1}))
    hints = "accepted: .*momentum.*; weight_decay: did you mean 'wd'.*; momentun: did you mean 'momentum'"
    with pytest.raises(TypeError, match=hints):
        get_trainer(make_net(), ("sgd", {"weight_decay": 0.1, "momentun": 0.9, "wd": 0}))
    with pytest.raises(NotInitializedError, match="parameter 'weight' has no value"):
        get_trainer(gluon.nn.Dense(3, in_units=5), "sgd")


def test_t20_a_trainer_of_other_devices():
    net = make_net("cpu:2")
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    net.collect_params().reset_ctx(mx.cpu(0))
    with pytest.raises(DeviceError, match="make the Trainer after the net is where it stays"):
        get_trainer(net, trainer)
