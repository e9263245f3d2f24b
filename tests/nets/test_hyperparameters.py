"""What is set on parameters and optimizers that exist, measured on the weights they give."""

from built_nets import make_norms, ready
import mxkit
from mxkit.core.arrays import switches
from mxkit.core.blocks import parameters_by_path
from mxkit.errors import UnknownNameError
from mxkit.nets import settings
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn
import numpy as np
import pytest

PLACES = [("cpu", None), ("cpu:2", False), ("cpu:2", True)]
PLACE_IDS = ["one device", "two devices", "on kvstore"]


class Line(nn.HybridBlock):
    """y = sum(a * x) + sum(b * x): the gradients of a and b are x, whatever their values."""

    def __init__(self):
        super().__init__()
        self.a = self.params.get("a", shape=(1, 3), init=mx.init.One())
        self.b = self.params.get("b", shape=(1, 3), init=mx.init.One())

    def hybrid_forward(self, F, x, a, b):
        return (F.broadcast_mul(x, a) + F.broadcast_mul(x, b)).sum(axis=1)


def make_line(place, optimizer="sgd", **arguments):
    net = ready(Line(), devices=place[0])
    net.hybridize()
    arguments = {"learning_rate": 0.5, **arguments}
    return net, gluon.Trainer(net.collect_params(), optimizer, arguments, update_on_kvstore=place[1])


def step(net, trainer):
    """One update whose averaged gradient is 1 for all of `a` and `b`."""
    devices = net.a.list_ctx()
    with autograd.record():
        losses = [net(mx.nd.ones((2, 3), ctx=device)) for device in devices]
    autograd.backward(losses)
    trainer.step(2 * len(devices))


def value(parameter):
    """The number that all elements of all replicas are."""
    numbers = np.unique(np.concatenate([data.asnumpy().ravel() for data in parameter.list_data()]))
    assert len(numbers) == 1, numbers
    return float(numbers[0])


@pytest.mark.parametrize("place", PLACES, ids=PLACE_IDS)
def test_rate_and_decay_reach_the_next_update(place):
    net, trainer = make_line(place)
    step(net, trainer)
    assert value(net.a) == 0.5
    settings.set_hyperparameters(trainer, learning_rate=0.25, wd=0.5)
    step(net, trainer)
    assert value(net.a) == 0.5 - 0.25 * (1 + 0.5 * 0.5)


@pytest.mark.parametrize(
    ("place", "optimizer"), [(PLACES[0], "nag"), (PLACES[1], "signum"), *((place, "sgd") for place in PLACES)]
)
def test_momentum_that_begins_late_equals_a_trainer_that_begins_there(place, optimizer):
    net, trainer = make_line(place, optimizer, momentum=0.0)
    step(net, trainer)
    settings.set_hyperparameters(trainer, momentum=0.5)
    other, theirs = make_line(place, optimizer, momentum=0.5)
    other.a.set_data(net.a.data(mx.cpu(0)))
    for _ in range(3):
        step(net, trainer)
        step(other, theirs)
    assert value(net.a) == value(other.a)


def test_momentum_taken_away_and_given_back_starts_from_no_velocity():
    net, trainer = make_line(PLACES[0], momentum=0.5)
    step(net, trainer)  # 1 - 0.5, velocity -0.5
    settings.set_hyperparameters(trainer, momentum=0)
    step(net, trainer)  # 0.5 - 0.5
    assert value(net.a) == 0
    settings.set_hyperparameters(trainer, momentum=0.5)
    step(net, trainer)
    assert value(net.a) == -0.5
    step(net, trainer)
    assert value(net.a) == -1.25


def test_every_number_of_an_optimizer():
    _, trainer = make_line(PLACES[0], "adam")
    settings.set_hyperparameters(trainer, beta1=0.5, epsilon=1e-3, clip_gradient=2)
    assert (trainer.optimizer.beta1, trainer.optimizer.epsilon, trainer.optimizer.clip_gradient) == (0.5, 1e-3, 2)
    settings.set_hyperparameters(trainer, clip_gradient=None)
    assert trainer.optimizer.clip_gradient is None


SCHEDULED = {"lr_scheduler": mx.lr_scheduler.FactorScheduler(5, base_lr=0.5)}
NO_NUMBER = "expected a finite number.* Nothing was changed"


@pytest.mark.parametrize(
    ("optimizer", "made", "arguments", "text"),
    [
        ("adam", {}, {"beta": 0.9}, "unknown hyper-parameter of Adam 'beta': did you mean 'beta"),
        *(
            ("adam", {}, {name: 1}, f"unknown hyper-parameter of Adam '{name}'")
            for name in ("momentum", "rescale_grad", "multi_precision", "lazy_update", "num_update", "sym")
        ),
        *(
            ("adam", {}, {name: value}, f"{name}: {NO_NUMBER}")
            for name, value in [("learning_rate", "0.1"), ("learning_rate", -1), ("epsilon", None), ("beta1", True)]
        ),
        ("adam", {}, {"beta2": float("nan")}, f"beta2: {NO_NUMBER}"),
        ("sgd", SCHEDULED, {"learning_rate": 0.1}, "has a FactorScheduler of its own, which decides the learning ra"),
        ("adadelta", {}, {"learning_rate": 0.1}, "AdaDelta ignores the learning rate"),
        *(
            (name, {}, {"learning_rate": 0}, "divides by it, or draws noise of its size.*above 0")
            for name in ("ftml", "ftrl", "sgld")
        ),
        ("sgd", {"multi_precision": True}, {"momentum": 0.9}, r"float16 weights .* Make a new Trainer .* Nothing was"),
    ],
)
def test_values_that_are_refused_change_nothing(optimizer, made, arguments, text):
    """T21, T26."""
    net, trainer = make_line(PLACES[0], optimizer, **made)
    if made == {"multi_precision": True}:
        net.cast("float16")
    before = dict(vars(trainer.optimizer))
    with pytest.raises((ValueError, UnknownNameError), match=text):
        settings.set_hyperparameters(trainer, wd=0.5, **arguments)
    assert vars(trainer.optimizer) == before


@pytest.mark.parametrize(
    "name", sorted(set(mx.optimizer.Optimizer.opt_registry) - {"adadelta", "groupadagrad", "test"})
)
def test_every_other_optimizer_obeys_the_rate(name):
    """T21."""
    moved = []
    for rate in (0.5, 0.25):
        mxkit.seed_all(0)
        net, trainer = make_line(PLACES[0], name)
        settings.set_hyperparameters(trainer, learning_rate=rate)
        step(net, trainer)
        moved.append(net.a.data().asnumpy())
    assert (moved[0] != moved[1]).all()


def test_servers_hold_a_copy_that_no_change_reaches():
    net, trainer = make_line(PLACES[0])
    trainer._kvstore_params = {"kvstore": "dist_sync", "update_on_kvstore": None}
    with pytest.raises(ValueError, match="steps on the servers of kvstore 'dist_sync', .* update_on_kvstore=False"):
        settings.set_hyperparameters(trainer, wd=0.1)
    net.a._trainer = trainer
    with pytest.raises(ValueError, match="without multipliers"):
        settings.set_multipliers(net, {"*": {"lr": 0.1}})
    assert net.a.lr_mult == 1
    trainer._kvstore_params["update_on_kvstore"] = False
    settings.set_hyperparameters(trainer, wd=0.1)
    trainer._kv_initialized, trainer._distributed, trainer._update_on_kvstore = True, True, True
    with pytest.raises(ValueError, match="steps on the servers"):
        settings.set_hyperparameters(trainer, learning_rate=0.1)


@pytest.mark.parametrize("place", PLACES, ids=PLACE_IDS)
@pytest.mark.parametrize("first", [True, False], ids=["before the first update", "later"])
def test_multipliers_reach_the_update(place, first):
    net, trainer = make_line(place, wd=0.5)
    if not first:
        step(net, trainer)
    before = value(net.a)
    settings.set_multipliers(net, {"*": {"lr": 0.5}, "b": {"wd": 0, "lr": 0.25}})
    step(net, trainer)
    assert value(net.a) == before - 0.25 * (1 + 0.5 * before)
    assert value(net.b) == before - 0.125


def test_wrong_multipliers_change_nothing():
    net = mxkit.models.mlp(hidden=[8])
    with pytest.raises(UnknownNameError, match="unknown multiplier 'rate'.*Known: lr, wd"):
        settings.set_multipliers(net, {"*": {"lr": 0.5}, "2.*": {"rate": 1}})
    with pytest.raises(ValueError, match=r"'2\.\*': wd: expected a finite number, at least 0; received '0'"):
        settings.set_multipliers(net, {"*": {"lr": 0.5}, "2.*": {"wd": "0"}})
    with pytest.raises(TypeError, match=r"one path or glob as text, like 'features\.\*'; received \['0\.\*'\]"):
        mxkit.freeze(net, ["0.*"])
    with pytest.raises(UnknownNameError, match=r"no parameter fits '2\.wieght': did you mean '2\.weight'\? Paths"):
        settings.set_multipliers(net, {"*": {"lr": 0.5}, "2.wieght": {"wd": 0}})
    assert {one.lr_mult for one in parameters_by_path(net).values()} == {1.0}


def test_globs_fit_structural_paths():
    """T37."""
    net = gluon.model_zoo.vision.squeezenet1_0()
    assert len(settings.match_parameters(net, "*")) == len(parameters_by_path(net)) > 8
    assert list(settings.match_parameters(net, "features.0.*")) == ["features.0.weight", "features.0.bias"]
    with pytest.raises(UnknownNameError, match=r"'features': did you mean 'features\.\*'\? .* and \d+ more"):
        settings.match_parameters(net, "features")
    with pytest.raises(UnknownNameError, match="no parameter fits 'squeezenet0_conv0_weight'"):
        settings.match_parameters(net, "squeezenet0_conv0_weight")


def test_biases_and_norms_do_not_decay_and_shapes_may_be_unknown():
    """T21."""
    net = make_norms()
    flat = ["0.bias", "1.gamma", "1.beta", "2.alpha", "3.gamma", "3.beta", "4.bias"]
    assert settings.no_weight_decay(net) == flat
    mults = {path: parameter.wd_mult for path, parameter in parameters_by_path(net).items()}
    assert mults["0.weight"] == mults["4.weight"] == 1
    assert all(mults[path] == 0 for path in flat)
    lstm = gluon.rnn.LSTM(4, input_size=3)
    assert [path.split(".")[-1] for path in settings.no_weight_decay(lstm)] == ["i2h_bias", "h2h_bias"]


@pytest.mark.parametrize("place", PLACES, ids=PLACE_IDS)
def test_frozen_parameters_stand_still_and_go_on_afterwards(place):
    net, trainer = make_line(place, wd=0.5)
    step(net, trainer)
    before = value(net.a)
    assert settings.freeze(net, "a") == ["a"]
    assert settings.freeze(net, "a") == []
    step(net, trainer)
    assert value(net.a) == before
    assert value(net.b) < before
    assert settings.unfreeze(net) == ["a"]
    step(net, trainer)
    assert value(net.a) == before - 0.5 * (1 + 0.5 * before)


@pytest.mark.parametrize("switch", [False, True])
def test_gradients_after_unfreezing_have_the_kind_of_the_values(kind, switch):
    """T167."""
    with kind.switches():
        net = ready(nn.Dense(2, in_units=3), devices="cpu:2")
    with switches(switch):
        settings.freeze(net)
        settings.unfreeze(net)
        assert all(map(kind.holds, [*net.weight.list_grad(), *net.weight.list_data()]))


def test_what_has_no_gradient_is_never_unfrozen():
    net = make_norms()
    with net.name_scope():
        net.constant = gluon.Constant("c", mx.nd.ones(2))
    before = {path: parameter.grad_req for path, parameter in parameters_by_path(net).items()}
    settings.freeze(net)
    assert {parameter.grad_req for parameter in parameters_by_path(net).values()} == {"null"}
    settings.unfreeze(net)
    assert {path: parameter.grad_req for path, parameter in parameters_by_path(net).items()} == before
    assert before["1.running_mean"] == before["3.gamma"] == before["constant"] == "null"
    with pytest.raises(ValueError, match=r"nothing that fits '\*running\*' can be trained"):
        settings.unfreeze(net, "*running*")


def test_statistics_in_a_graph_are_never_unfrozen(kind):
    x = mx.sym.var("x", dtype="float32")
    net = gluon.SymbolBlock(kind.of(mx.sym.BatchNorm(x, name="norm")), kind.of(x))
    settings.freeze(net)
    assert settings.unfreeze(net) == ["gamma", "beta"]
    assert [one.grad_req for one in net.collect_params().values()] == ["write", "write", "null", "null"]


def test_unfreezing_inside_a_window_is_refused():
    net, trainer = make_line(PLACES[0])
    settings.freeze(net, "a")
    with mxkit.Accumulator(trainer, every=2), pytest.raises(ValueError, match="grad_req of 'b' is 'add'.*on_epoch"):
        settings.unfreeze(net)
    assert settings.unfreeze(net) == ["a"]
