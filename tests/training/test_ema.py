"""`EMA` against NumPy's average in float64: on every replica, around validation, after a resume."""

from types import SimpleNamespace

from callback_runs import VALID, Failing, fail, norm_net, run
import mxkit
from mxkit.errors import CheckpointError
from mxkit.training.callbacks import EMA, Freeze, LambdaCallback
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np
from oracle import make_net, replicas, weights
import pytest

# batches of three on two devices
pytestmark = pytest.mark.filterwarnings("ignore:a device got a batch of one sample")


class Average(mxkit.Callback):
    """What EMA shall compute, in NumPy and float64, for every replica."""

    def __init__(self, decay, warmup):
        self.decay, self.warmup, self.done, self.values = decay, warmup, 0, None

    def on_update(self, state, update):
        now = [value.astype("float64") for value in replicas(state.net)]
        decay = min(self.decay, (1 + self.done) / (10 + self.done)) if self.warmup else self.decay
        if self.values is None:
            self.values = now
        else:
            self.values = [decay * value + (1 - decay) * new for value, new in zip(self.values, now)]
        self.done += 1


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize(("devices", "warmup"), [("cpu", True), ("cpu:3", False)])
def test_ema_equals_numpys_average_on_every_replica(devices, warmup):
    net, ema, average = make_net(devices), EMA(0.9, warmup), Average(0.9, warmup)
    run(net, ema, average, accumulate=2)
    trained = replicas(net)
    with ema.applied(net):
        averaged = replicas(net)
    assert ema.updates == average.done == 6
    for found, expected, last in zip(averaged, average.values, trained):
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-7)
        assert abs(found - last).max() > 1e-3
    for now, before in zip(replicas(net), trained):
        np.testing.assert_array_equal(now, before)


def test_ema_waits_for_nothing(monkeypatch):
    net, ema = make_net("cpu:2"), EMA()
    run(net, ema)
    state = SimpleNamespace(net=net)
    ema.on_fit_begin(SimpleNamespace(net=net, trainer=gluon.Trainer(net.collect_params(), "sgd")))
    for name in ("asnumpy", "asscalar", "wait_to_read"):
        monkeypatch.setattr(mx.nd.NDArray, name, fail)
    monkeypatch.setattr(mx.nd, "waitall", fail)
    for _ in range(3):
        ema.on_update(state, None)
    with ema.around_validation(state):
        pass
    assert ema.updates == 3


def test_ema_of_more_parameters_than_one_operator_takes_some_of_them_shared():
    net = nn.HybridSequential()
    net.add(*[nn.Dense(5, in_units=5) for _ in range(25)])
    net.add(nn.Dense(5, in_units=5, params=net[0].params))
    mxkit.initialize(net)
    ema, average = EMA(0.9), Average(0.9, True)
    run(net, ema, average)
    assert len(ema.state_arrays()) == 50
    with ema.applied(net):
        np.testing.assert_allclose(weights(net), average.values[0], rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(("dtype", "kept", "rtol"), [("float16", "float32", 2e-6), ("float64", "float64", 2e-7)])
def test_ema_of_other_dtypes_loses_no_digits(dtype, kept, rtol):
    net = make_net("cpu:2", dtype=dtype)  # on the CPU no float16 layer runs: the updates are scripted
    ema, average = EMA(0.999, warmup=False), Average(0.999, False)
    state = SimpleNamespace(net=net, trainer=gluon.Trainer(net.collect_params(), "sgd"))
    ema.on_fit_begin(state)
    for _ in range(50):
        for parameter in net.collect_params().values():
            parameter.set_data(mx.nd.array(np.random.rand(*parameter.shape), dtype=dtype))
        ema.on_update(state, None)
        average.on_update(state, None)
    found = np.concatenate([array.asnumpy().ravel() for array in ema.state_arrays().values()])
    assert found.dtype == kept
    np.testing.assert_allclose(found, average.values[0], rtol=rtol)
    before = weights(net)
    with ema.applied(net):
        np.testing.assert_array_equal(weights(net), found.astype(dtype))
    np.testing.assert_array_equal(weights(net), before)


def test_ema_leaves_the_average_of_a_constant_as_it_is_and_running_statistics_alone():
    net, ema = norm_net("cpu"), EMA(0.7)
    before = weights(net)
    run(net, ema, trainer=("sgd", {"learning_rate": 0.0}))
    assert not [path for path in ema.state_arrays() if "running" in path]
    for path, average in ema.state_arrays().items():
        np.testing.assert_array_equal(average.asnumpy(), mxkit.parameters(net)[path].data().asnumpy())
    assert not np.array_equal(weights(net), before)  # the statistics moved


def test_ema_restores_after_an_error_and_when_nested():
    net, ema = make_net("cpu:2"), EMA(0.5)
    run(net, ema)
    trained = weights(net)
    with ema.applied(net):
        averaged = weights(net)
        with pytest.raises(Failing), ema.applied(net):
            fail()
        np.testing.assert_array_equal(weights(net), averaged)
    assert not np.array_equal(averaged, trained)
    with pytest.raises(Failing), ema.applied(net):
        fail()
    np.testing.assert_array_equal(weights(net), trained)


def test_ema_fits_another_net_with_the_same_paths():
    net, ema = make_net("cpu:2"), EMA(0.5)
    run(net, ema)
    with ema.applied(net):
        averaged = weights(net)
    other = make_net("cpu:3", seed=9)
    with ema.applied(other):
        np.testing.assert_array_equal(weights(other), averaged)
    text = "pass the trained net; this one has no parameter 0.weight, 0.bias, 1.weight, 1.bias"
    with pytest.raises(ValueError, match=text), ema.applied(nn.Dense(3)):
        pass


def test_ema_of_frozen_parameters_starts_when_they_are_trained():
    net, ema, seen = make_net(), EMA(0.5), []
    frozen = weights(net)[: 7 * 5]
    look = LambdaCallback(on_epoch=lambda *_: seen.append(sorted(ema.state_arrays())))
    run(net, Freeze("0.*", until="1 epoch"), ema, look, epochs=2)
    assert seen == [["1.bias", "1.weight"], ["0.bias", "0.weight", "1.bias", "1.weight"]]
    assert not np.array_equal(ema.state_arrays()["0.weight"].asnumpy().ravel(), frozen)


@pytest.mark.usefixtures("switched")
def test_validation_in_fit_sees_the_average_and_training_does_not():
    net, other, ema, expected = make_net("cpu:2"), make_net("cpu:2"), EMA(0.9), []

    def look(state, row):
        with ema.applied(net):
            expected.append(mxkit.evaluate(net, VALID, loss="softmax_ce")["loss"])

    history = run(net, ema, LambdaCallback(on_epoch=look), valid=VALID)
    assert history.column("valid_loss") == expected
    run(other)
    np.testing.assert_array_equal(weights(net), weights(other))


def test_ema_refuses_a_state_that_does_not_fit():
    ema = EMA()
    run(make_net(), ema)
    for path in ("9.weight", "0.weight"):
        ema.load_state_arrays({path: mx.nd.zeros((2, 3))})
        ema.resumed = True
        with pytest.raises(CheckpointError, match=rf"the net trains no '{path}' of shape \(2, 3\)"):
            run(make_net(), ema)


def test_ema_has_nothing_to_apply_before_fit():
    net = make_net()
    with EMA().around_validation(SimpleNamespace(net=net)):
        np.testing.assert_array_equal(weights(net), weights(make_net()))
