"""The callbacks that come with mxkit, through the real `fit`."""

import csv
import json
import sys
from types import SimpleNamespace

import mxkit
from mxkit.errors import CheckpointError, DataError, UnknownNameError
from mxkit.training.callbacks import EarlyStopping, Freeze, LambdaCallback, TimeLimit
from mxkit.training.callbacks.callback import Callback
from mxkit.training.callbacks.ema import EMA
from mxkit.training.callbacks.logs import CSVLog, TensorBoardLog
from mxkit.training.history import History
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np
from oracle import make_batches, make_net, replicas, requests, weights
import pytest

# batches of three on two devices
pytestmark = pytest.mark.filterwarnings("ignore:a device got a batch of one sample")

BATCHES = make_batches([8, 8, 3])
VALID = make_batches([5, 4], seed=1)
DEVICES = ["cpu", "cpu:2"]


def run(net, *callbacks, data=BATCHES, **changes):
    arguments = {"loss": "softmax_ce", "trainer": ("sgd", {"learning_rate": 0.1, "momentum": 0.9}), "epochs": 3}
    return mxkit.fit(net, data, callbacks=callbacks, progress=False, **{**arguments, **changes})


def norm_net(devices):
    """A net whose BatchNorm gives each replica statistics of its own."""
    net = nn.HybridSequential()
    net.add(nn.Dense(6, in_units=5), nn.BatchNorm(in_channels=6), nn.Dense(3, in_units=6))
    mxkit.initialize(net, devices=devices)
    return net


def scripted(values, column="valid_loss"):
    return [{"epoch": epoch, column: value} for epoch, value in enumerate(values, 1)]


class State(SimpleNamespace):
    """As much of a FitState as scripted rows need."""

    def __init__(self):
        super().__init__(stop_reason=None, epoch=1, updates=0, history=History())

    def stop(self, reason):
        self.stop_reason = reason

    def check_monitor(self, monitor, watcher):
        pass


class Failing(Exception):
    pass


def fail(*_):
    raise Failing


class Score(Callback):
    """Puts scripted scores into the rows, as validation would."""

    def __init__(self, values):
        self.values = values

    def on_epoch(self, state, row):
        row["valid_loss"] = self.values[row["epoch"] - 1]


# the list


def test_list_order_is_call_order():
    calls = []

    def tracer(name):
        def note(hook):
            return lambda *_: calls.append(f"{hook} {name}")

        return LambdaCallback(**{hook: note(hook) for hook in ["on_fit_begin", "on_update", "on_epoch", "on_fit_end"]})

    run(make_net(), tracer("b"), tracer("a"), data=BATCHES[:1], epochs=1)
    assert calls == [
        f"{hook} {name}" for hook in ["on_fit_begin", "on_update", "on_epoch", "on_fit_end"] for name in "ba"
    ]


def test_lambda_gets_what_the_methods_get():
    seen = {}
    hooks = LambdaCallback(
        on_fit_begin=lambda state: seen.update(begin=state.epoch),
        on_update=lambda state, update: seen.update(step=update.step),
        on_epoch=lambda state, row: seen.update(row=row["updates"]),
        on_fit_end=lambda state, error: seen.update(error=error),
    )
    run(make_net(), hooks, epochs=2)
    assert seen == {"begin": 1, "step": 6, "row": 6, "error": None}
    with pytest.raises(TypeError, match="LambdaCallback: on_epoch must be a function or None; received 3"):
        LambdaCallback(on_epoch=3)


# early stopping


def test_early_stopping_stops_when_patience_is_used_up():
    scores = [10.0, 9.0, 8.0, 9.0, 8.9, 8.8, 8.7]
    history = run(make_net(), Score(scores), EarlyStopping("valid_loss", "min", patience=2), epochs=7)
    assert len(history) == 5
    assert history.stopped == "valid_loss (min) has not become better for 2 epochs: best was 8 in epoch 3"


def test_early_stopping_on_nan_alone():
    history = run(make_net(), Score([float("nan")] * 3), EarlyStopping("valid_loss", "max", patience=2))
    assert history.stopped == "valid_loss (max) has not become better for 2 epochs: no value was a number"


def test_early_stopping_on_a_real_column_and_a_missing_one():
    assert run(make_net(), EarlyStopping("train_loss", "min", patience=3), valid=VALID).stopped is None
    with pytest.raises(UnknownNameError, match="unknown column of the history 'valid_accuracy'"):
        run(make_net(), EarlyStopping("valid_accuracy", "max", patience=3), valid=VALID)
    with pytest.raises(ValueError, match="patience: expected a whole number, at least 1; received 0"):
        EarlyStopping("train_loss", "min", patience=0)


WATCHERS = {
    "EarlyStopping": lambda column: {"callbacks": [EarlyStopping(column, "max", patience=3)]},
    "Plateau": lambda column: {"callbacks": [mxkit.callbacks.Plateau(column, mode="max")]},
    "keep_best": lambda column: {"checkpoint": mxkit.Checkpoints("never", keep_best=(column, "max"))},
}


@pytest.mark.parametrize("watcher", list(WATCHERS))
@pytest.mark.parametrize(
    ("column", "validated", "hint"),
    [
        ("val_acc", True, "did you mean 'valid_accuracy'"),
        ("val_loss", True, "did you mean 'valid_loss'"),
        ("accuracy", True, "did you mean 'train_accuracy'"),
        ("val_loss", False, r"nothing is validated without fit\(valid=...\). Known: epoch"),
        ("valid_accuracy", False, "nothing is validated without fit"),
    ],
)
def test_a_column_that_the_history_will_not_have_is_refused_before_training(watcher, column, validated, hint, tmp_path):
    net, before = make_net(), weights(make_net())
    arguments = WATCHERS[watcher](column)
    if "checkpoint" in arguments:
        arguments["checkpoint"].directory = tmp_path / "run"
    with pytest.raises(UnknownNameError, match=f"unknown column of the history '{column}': {hint}"):
        mxkit.fit(
            net,
            BATCHES,
            valid=VALID if validated else None,
            metrics=["accuracy"],
            loss="softmax_ce",
            trainer="sgd",
            epochs=1,
            progress=False,
            **arguments,
        )
    np.testing.assert_array_equal(weights(net), before)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("watcher", list(WATCHERS))
def test_a_column_of_lists_is_refused_before_training(watcher, tmp_path):
    for metric, column, way in [
        ("confusion", "valid_confusion", "Watch another column"),
        (("f1", {"average": "none"}), "train_f1", "Take average='macro'"),
    ]:
        arguments = WATCHERS[watcher](column)
        if "checkpoint" in arguments:
            arguments["checkpoint"].directory = tmp_path / "run"
        net, before = make_net(), weights(make_net())
        with pytest.raises(TypeError, match=f"column '{column}' holds a list of numbers in each epoch, .*{way}"):
            mxkit.fit(
                net, BATCHES, valid=VALID, metrics=[metric], loss="softmax_ce", trainer="sgd", epochs=1, **arguments
            )
        np.testing.assert_array_equal(weights(net), before)


def test_metrics_that_give_lists_are_shown_and_logged(tmp_path, capsys):
    metrics = ["confusion", ("f1", {"average": "none"}), ("recall", {"average": "none"})]
    texts = []
    log = LambdaCallback(on_epoch=lambda state, row: texts.append(repr(state.history)))
    csv_log = CSVLog(tmp_path / "log.csv")
    net = make_net()
    how = {"loss": "softmax_ce", "trainer": "sgd", "epochs": 3, "valid": VALID, "validate_every": 2}
    history = mxkit.fit(net, BATCHES, metrics=metrics, callbacks=[log, csv_log], **how)
    row = history[-1]
    f1 = ", ".join(f"{value:.4g}" for value in row["valid_f1"])
    assert f"valid_confusion=(3, 3), valid_f1=[{f1}], valid_recall=[" in repr(history)
    assert "valid_loss=None, valid_confusion=None" in texts[0]
    assert "(3, 3)" in history.table().splitlines()[-1]
    with (tmp_path / "log.csv").open() as file:
        assert json.loads(list(csv.DictReader(file))[-1]["valid_confusion"]) == row["valid_confusion"]
    assert [axes.get_title() for axes in history.plot().axes] == ["loss"]
    assert "train_loss" in capsys.readouterr().err


def hook(name):
    return type("Mine", (Callback,), {name: fail})()


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (hook("on_epoch_end"), UnknownNameError, "Mine has a method 'on_epoch_end', which fit never.* mean 'on_epoch'"),
        (hook("on_batch_end"), UnknownNameError, "'on_batch_end', which fit never calls: did you mean 'on_update'"),
        (hook("on_train_begin"), UnknownNameError, "did you mean 'on_fit_begin'"),
        (hook("on_updates"), UnknownNameError, "did you mean 'on_update'"),
        (hook("on_full_moon"), UnknownNameError, "give it another name, like _on_full_moon. Called are on_fit_begin, "),
        (EarlyStopping, TypeError, r"received the class EarlyStopping. Pass an object: EarlyStopping\(...\)"),
        (
            mx.callback.Speedometer(8),
            TypeError,
            r"received Speedometer. Pass mxkit.callbacks.LambdaCallback\(on_epoch=...\)",
        ),
        (3, TypeError, "expected objects of mxkit.Callback; received int"),
    ],
)
def test_what_fit_would_never_call_is_refused_before_training(wrong, error, text):
    net, before = make_net(), weights(make_net())
    with pytest.raises(error, match=text):
        run(net, TimeLimit(5), wrong)
    with pytest.raises(TypeError, match=r"callbacks: expected a list; received TimeLimit. Pass callbacks=\[...\]"):
        mxkit.fit(net, BATCHES, loss="l2", trainer="sgd", epochs=1, callbacks=TimeLimit(5), progress=False)
    np.testing.assert_array_equal(weights(net), before)


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("broken", [False, True])
def test_restore_best_brings_back_every_replica_bit_for_bit(devices, broken):
    net, kept = norm_net(devices), {}
    keep = LambdaCallback(on_epoch=lambda state, row: kept.update({row["epoch"]: replicas(net)}))
    bad = LambdaCallback(on_epoch=lambda state, row: fail() if broken and row["epoch"] == 4 else None)
    stopper = EarlyStopping("valid_loss", "min", patience=9, restore_best=True)
    try:
        run(net, Score([3.0, 1.0, 2.0, 2.0]), keep, stopper, bad, epochs=4)
    except Failing:
        assert broken
    for now, best, last in zip(replicas(net), kept[2], kept[4]):
        np.testing.assert_array_equal(now, best)
        assert not np.array_equal(now, last)
    if devices == "cpu:2":
        assert not np.array_equal(*kept[2])  # the running statistics do differ


def test_early_stopping_starts_anew_in_the_next_fit():
    stopper = EarlyStopping("valid_loss", "min", patience=2, restore_best=True)
    run(make_net(), Score([1.0, 2.0, 3.0]), stopper)
    net = make_net()
    assert len(run(net, Score([9.0, 8.0, 7.0]), stopper)) == 3
    np.testing.assert_array_equal(weights(net), weights(reference(epochs=3)))


def reference(*callbacks, devices="cpu", **changes):
    net = make_net(devices)
    run(net, *callbacks, **changes)
    return net


@pytest.mark.parametrize("cut", range(1, 6))
def test_early_stopping_resumed_behaves_like_the_uninterrupted_one(cut):
    script = scripted([5.0, 4.0, 4.5, 4.2, 4.1, 4.3])

    def play(stopper, rows):
        state = State()
        stopper.on_fit_begin(state)
        for row in rows:
            stopper.on_epoch(state, row)
            if state.stop_reason:
                return row["epoch"], state.stop_reason
        return None

    def new():
        return EarlyStopping("valid_loss", "min", patience=3)

    first, second = new(), new()
    expected = play(new(), script)
    assert expected[0] == 5
    done = play(first, script[:cut])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert (done or play(second, script[cut:])) == expected


def test_restore_best_resumed_brings_back_the_best_of_the_first_part():
    net, best, saved = norm_net("cpu:2"), [], {}
    stopper = EarlyStopping("valid_loss", "min", patience=9, restore_best=True)

    def look(state, row):
        if row["epoch"] == 1:
            best.extend(replicas(net))
        saved.update(state=json.loads(json.dumps(stopper.state_dict())), arrays=stopper.state_arrays())

    run(net, Score([1.0, 2.0]), stopper, LambdaCallback(on_epoch=look), epochs=2)
    second = EarlyStopping("valid_loss", "min", patience=9, restore_best=True)
    second.load_state_dict(saved["state"])
    second.load_state_arrays(saved["arrays"])
    run(net, Score([3.0, 2.0]), second, epochs=2)
    for now, then in zip(replicas(net), best):
        np.testing.assert_array_equal(now, then)
    assert second.monitor.best_epoch == 1
    third = EarlyStopping("valid_loss", "min", patience=9, restore_best=True)
    third.load_state_dict(saved["state"])
    with pytest.raises(CheckpointError, match="best in epoch 1, but its checkpoint holds no parameters of that epoch"):
        run(net, Score([3.0] * 3), third)


# time


class Clock:
    """Ten seconds pass with each update."""

    def __init__(self):
        self.now = 1000.0
        self.ticking = LambdaCallback(on_update=self.tick)

    def tick(self, *_):
        self.now += 10

    def __call__(self):
        return self.now


def test_time_limit_stops_after_the_update_that_passes_it():
    clock = Clock()
    history = run(make_net(), clock.ticking, TimeLimit(45, clock=clock), epochs=9)
    assert history.column("updates") == [3, 5]
    assert history.stopped == "time limit of 45 s passed after 50.0 s, in epoch 2, after update 5"


def test_time_limit_counts_validation_and_begins_no_further_epoch():
    clock = Clock()
    slow = LambdaCallback(on_epoch=clock.tick)
    history = run(make_net(), clock.ticking, slow, TimeLimit(35, clock=clock), epochs=9)
    assert history.column("updates") == [3]
    assert history.stopped == "time limit of 35 s passed after 40.0 s, in epoch 1, after update 3"


def test_time_limit_leaves_another_reason_alone():
    clock = Clock()
    stop = LambdaCallback(on_update=lambda state, update: state.stop("enough"))
    assert run(make_net(), clock.ticking, stop, TimeLimit(1, clock=clock)).stopped == "enough"


def test_time_limit_begins_with_each_fit_and_goes_on_when_resumed():
    clock = Clock()
    limit = TimeLimit(45, clock=clock)
    for _ in range(2):
        assert run(make_net(), clock.ticking, limit, epochs=1).stopped is None
        assert limit.elapsed == 30
    clock.now += 1e6  # between the runs
    second = TimeLimit(45, clock=clock)
    second.load_state_dict(json.loads(json.dumps(limit.state_dict())))
    history = run(make_net(), clock.ticking, second, epochs=9)
    assert history.column("updates") == [2]


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_time_limit_is_above_zero(seconds):
    with pytest.raises(
        ValueError, match="TimeLimit: limit: expected a length like '30 seconds', '5 minutes' or '8 hours', or a number"
    ):
        TimeLimit(seconds)


# freezing


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("static", [False, True])
def test_freeze_equals_freezing_by_hand(devices, accumulate, static):
    nets = [make_net(devices), make_net(devices)]
    optimizer = ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01})
    trainers = [gluon.Trainer(net.collect_params(), *optimizer) for net in nets]
    for net in nets:
        net.hybridize(static_alloc=static, static_shape=static)
    first = [net[0].weight for net in nets]
    before, seen = first[0].list_data()[0].asnumpy(), {}

    def look(state, row):
        seen[row["epoch"]] = np.array_equal(first[0].list_data()[0].asnumpy(), before)

    history = run(
        nets[0],
        LambdaCallback(on_epoch=look),
        Freeze("0.*", until="2 epochs"),
        trainer=trainers[0],
        epochs=4,
        accumulate=accumulate,
    )
    assert seen == {1: True, 2: True, 3: False, 4: False}
    assert len(history) == 4

    nets[1][0].collect_params().setattr("grad_req", "null")
    run(nets[1], trainer=trainers[1], epochs=2, accumulate=accumulate)
    nets[1][0].collect_params().setattr("grad_req", "write")
    run(nets[1], trainer=trainers[1], epochs=2, accumulate=accumulate)
    np.testing.assert_array_equal(weights(nets[0]), weights(nets[1]))
    assert requests(nets[0]) == dict.fromkeys(requests(nets[0]), "write")


def test_freeze_restores_after_an_error_and_leaves_the_frozen_alone():
    net = norm_net("cpu")
    net[2].collect_params().setattr("grad_req", "null")
    before, seen = requests(net), {}
    with pytest.raises(Failing):
        run(
            net,
            Freeze("[02].*", until="4 epochs"),
            LambdaCallback(on_update=lambda state, update: seen.update(requests(net))),
            LambdaCallback(on_epoch=fail),
        )
    assert seen["0.weight"] == seen["0.bias"] == "null"
    assert seen["1.gamma"] == "write"
    assert requests(net) == before
    assert before["2.weight"] == before["1.running_mean"] == "null"


def test_freeze_restores_where_a_later_callback_refuses_to_begin():
    net = make_net()
    with pytest.raises(Failing):
        run(net, Freeze("0.*", until="1 epoch"), LambdaCallback(on_fit_begin=fail))
    assert set(requests(net).values()) == {"write"}


def test_freeze_counts_the_updates_before_the_running_epoch():
    def state(epoch, updates, running=0):
        running = SimpleNamespace(updates=running)
        return SimpleNamespace(
            net=net, trainer=SimpleNamespace(_params=()), epoch=epoch, updates=updates, running=running
        )

    def frozen(**place):
        callback.on_fit_begin(state(**place))
        found = requests(net)["0.weight"] == "null"
        callback.on_fit_end(None, None)
        return found

    net = make_net()
    callback = Freeze(["0.*"], until="2 epochs")
    assert [frozen(epoch=epoch, updates=9) for epoch in (1, 2, 3)] == [True, True, False]
    callback = Freeze("0.*", until="5 updates")
    assert [frozen(epoch=1, updates=done) for done in (0, 4, 5)] == [True, True, False]
    assert frozen(epoch=2, updates=6, running=3)  # this epoch began after 3 updates
    seen = []
    run(net, Freeze("0.*", until="5 updates"), LambdaCallback(on_update=lambda *_: seen.append(frozen_now(net))))
    assert seen == [True] * 6 + [False] * 3
    assert set(requests(net).values()) == {"write"}


def frozen_now(net):
    return requests(net)["0.weight"] == "null"


def test_freeze_refuses_what_cannot_be_meant():
    with pytest.raises(UnknownNameError, match=r"no parameter fits '0.weigth': did you mean '0.we"):
        run(make_net(), Freeze("0.weigth", until="1 epoch"))
    with pytest.raises(ValueError, match=r"Freeze: \* freezes every parameter that is trained, so that epoch 1"):
        run(make_net(), Freeze("*", until="1 epoch"))
    for wrong in ("0 epochs", 2, "5 minutes", None):
        with pytest.raises(ValueError, match="Freeze: until: expected a length like '2 epochs' or '500 updates'; rec"):
            Freeze("0.*", until=wrong)
    with pytest.raises(ValueError, match="the weight of this Dense layer is frozen, its bias is not"):
        run(make_net(), Freeze("0.weight", until="1 epoch"))


# the average


class Average(Callback):
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


@pytest.mark.parametrize("devices", ["cpu", "cpu:2", "cpu:3"])
@pytest.mark.parametrize("warmup", [True, False])
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


@pytest.mark.parametrize("devices", DEVICES)
def test_ema_does_not_disturb_training(devices):
    net = reference(EMA(), devices=devices)
    np.testing.assert_array_equal(weights(net), weights(reference(devices=devices)))


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


def test_ema_of_more_parameters_than_one_operator_takes():
    net = nn.HybridSequential()
    for _ in range(25):
        net.add(nn.Dense(5, in_units=5))
    mxkit.initialize(net)
    ema, average = EMA(0.9), Average(0.9, True)
    run(net, ema, average)
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


def test_ema_leaves_the_average_of_a_constant_as_it_is():
    net, ema = make_net(), EMA(0.7)
    run(net, ema, trainer=("sgd", {"learning_rate": 0.0}))
    with ema.applied(net):
        np.testing.assert_array_equal(weights(net), weights(make_net()))


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
    text = "the net has no parameter '0.weight', '0.bias', '1.weight', '1.bias', of which an average was kept"
    with pytest.raises(ValueError, match=text), ema.applied(nn.Dense(3)):
        pass


def test_ema_of_frozen_parameters_starts_when_they_are_trained():
    net, ema = make_net(), EMA(0.5)
    frozen = weights(net)[: 7 * 5]
    seen = {}
    look = LambdaCallback(on_epoch=lambda state, row: seen.update({row["epoch"]: sorted(ema.state_arrays())}))
    run(net, Freeze("0.*", until="1 epoch"), ema, look, epochs=2)
    assert seen[1] == ["1.bias", "1.weight"]
    assert seen[2] == ["0.bias", "0.weight", "1.bias", "1.weight"]
    assert not np.array_equal(ema.state_arrays()["0.weight"].asnumpy().ravel(), frozen)


def test_ema_leaves_running_statistics_alone_and_averages_a_shared_parameter_once():
    net, ema = norm_net("cpu"), EMA(0.5)
    run(net, ema)
    assert not [path for path in ema.state_arrays() if "running" in path]
    shared = nn.HybridSequential()
    shared.add(nn.Dense(5, in_units=5))
    shared.add(nn.Dense(5, in_units=5, params=shared[0].params))
    mxkit.initialize(shared)
    average = Average(0.5, True)
    run(shared, ema, average)
    assert sorted(ema.state_arrays()) == ["0.bias", "0.weight"]
    with ema.applied(shared):
        np.testing.assert_allclose(weights(shared), average.values[0], rtol=2e-6, atol=1e-7)


def test_ema_swaps_around_validation():
    net, ema = make_net("cpu:2"), EMA(0.5)
    state = SimpleNamespace(net=net)
    before = weights(net)
    with ema.around_validation(state):  # nothing averaged yet: nothing to swap
        np.testing.assert_array_equal(weights(net), before)
    run(net, ema)
    trained = weights(net)
    with ema.applied(net):
        averaged = weights(net)
    with ema.around_validation(state):
        np.testing.assert_array_equal(weights(net), averaged)
    np.testing.assert_array_equal(weights(net), trained)
    with pytest.raises(Failing), ema.around_validation(state):
        raise Failing
    np.testing.assert_array_equal(weights(net), trained)


@pytest.mark.parametrize("devices", DEVICES)
def test_validation_in_fit_sees_the_average(devices):
    net, ema = make_net(devices), EMA(0.9)
    expected = []

    def look(state, row):
        with ema.applied(net):
            expected.append(mxkit.evaluate(net, VALID, loss="softmax_ce")["loss"])

    history = run(net, ema, LambdaCallback(on_epoch=look), valid=VALID)
    assert history.column("valid_loss") == expected
    np.testing.assert_array_equal(weights(net), weights(reference(devices=devices)))


@pytest.mark.parametrize("devices", DEVICES)
def test_ema_resumed_equals_the_uninterrupted_one_bit_for_bit(devices):
    whole, first, second = EMA(0.9), EMA(0.9), EMA(0.9)
    optimizer = ("sgd", {"learning_rate": 0.1})  # without momentum, two fits equal one
    run(make_net(devices), whole, trainer=optimizer, epochs=4)
    net = make_net(devices)
    run(net, first, trainer=optimizer, epochs=2)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    second.load_state_arrays(first.state_arrays())
    run(net, second, trainer=optimizer, epochs=2)
    assert second.updates == whole.updates == 12
    for path, array in whole.state_arrays().items():
        np.testing.assert_array_equal(second.state_arrays()[path].asnumpy(), array.asnumpy())
    run(net, second, epochs=1)
    assert second.updates == 3  # the next fit starts anew


def test_ema_refuses_a_state_that_does_not_fit():
    ema = EMA()
    run(make_net(), ema)
    third = EMA()
    third.load_state_dict(ema.state_dict())
    with pytest.raises(CheckpointError, match="had averaged 9 updates, but its checkpoint holds 0 averages"):
        run(make_net(), third)
    third.load_state_dict(ema.state_dict())
    third.load_state_arrays({"9.weight": mx.nd.zeros((2, 3))})
    with pytest.raises(CheckpointError, match=r"'9.weight', shape \(2, 3\); the net trains no such parameter"):
        run(make_net(), third)
    third.load_state_dict(ema.state_dict())
    third.load_state_arrays({"0.weight": mx.nd.zeros((2, 3))})
    with pytest.raises(CheckpointError, match=r"'0.weight', shape \(2, 3\); the net trains one of shape \(7, 5\)"):
        run(make_net(), third)


@pytest.mark.parametrize("decay", [-0.1, 1, float("nan")])
def test_ema_refuses_a_decay_out_of_range(decay):
    with pytest.raises(ValueError, match="EMA: decay must be at least 0 and below 1; received"):
        EMA(decay)


def test_ema_has_nothing_to_apply_before_fit():
    with pytest.raises(ValueError, match="there is no average yet. Pass the callback to fit first"), EMA().applied(
        None
    ):
        pass


# logs


def lines(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_csv_log_holds_each_epoch_as_soon_as_it_ends(tmp_path):
    path, seen = tmp_path / "new" / "log.csv", []
    look = LambdaCallback(on_epoch=lambda state, row: seen.append(len(lines(path))))
    history = run(make_net(), CSVLog(path), look, valid=VALID, metrics=["accuracy"])
    assert seen == [1, 2, 3]
    assert [{name: float(text) for name, text in line.items()} for line in lines(path)] == list(history)
    assert [file.name for file in path.parent.iterdir()] == ["log.csv"]
    run(make_net(), CSVLog(path), epochs=2)
    assert [line["epoch"] for line in lines(path)] == ["1", "2"]


def test_csv_log_appends_below_other_columns(tmp_path):
    path = tmp_path / "log.csv"
    run(make_net(), CSVLog(path, append=True), epochs=2)
    first = lines(path)
    run(make_net(), CSVLog(path, append=True), epochs=1, valid=VALID)
    assert [line["epoch"] for line in lines(path)] == ["1", "2", "1"]
    assert lines(path)[:2] == [{**line, "valid_loss": ""} for line in first]
    assert float(lines(path)[2]["valid_loss"]) > 0


@pytest.mark.parametrize("append", [False, True])
def test_csv_log_resumed_equals_the_uninterrupted_one(tmp_path, append):
    path = tmp_path / "log.csv"
    path.write_text("epoch,valid_loss\n7,1.5\n")
    script = scripted([3.0, 2.0, 1.0])

    def play(log, before, rows):
        state = State()
        for row in before:
            state.history.append(row)
        log.on_fit_begin(state)
        for row in rows:
            state.history.append(row)
            log.on_epoch(state, row)
        return json.loads(json.dumps(log.state_dict()))

    first, second = CSVLog(path, append=append), CSVLog(path, append=append)
    saved = play(first, [], script[:2])  # killed after epoch 2, whose checkpoint is of epoch 1
    second.load_state_dict(saved)
    play(second, script[:1], script[1:])
    earlier = "7,1.5\n" if append else ""
    assert path.read_text() == f"epoch,valid_loss\n{earlier}1,3.0\n2,2.0\n3,1.0\n"


@pytest.mark.parametrize("text", [b"a,b\n1,2,3\n", b"a,b\n1\n", b"a,a\n1,2\n", b'a\n"1', b"a\n\xff"])
def test_csv_log_appends_to_nothing_but_csv(tmp_path, text):
    path = tmp_path / "log.csv"
    path.write_bytes(text)
    with pytest.raises(
        DataError, match="CSVLog: nothing can be appended to .*log.csv: expected a CSV file with a line"
    ):
        run(make_net(), CSVLog(path, append=True))
    assert path.read_bytes() == text


def test_csv_log_refuses_a_directory(tmp_path):
    with pytest.raises(IsADirectoryError, match="CSVLog: expected the path of a file; .* is a directory"):
        run(make_net(), CSVLog(tmp_path))


class Writer:
    """Stands for tensorboardX's SummaryWriter."""

    def __init__(self, logdir, purge_step):
        self.logdir, self.purge_step, self.scalars, self.calls = logdir, purge_step, [], []
        Writer.last = self

    def add_scalar(self, name, value, step):
        self.scalars.append((name, value, step))

    def flush(self):
        self.calls.append("flush")

    def close(self):
        self.calls.append("close")


def test_tensorboard_log_writes_each_number_over_epochs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=Writer))
    history = run(make_net(), TensorBoardLog(tmp_path), valid=VALID, epochs=2)
    writer = Writer.last
    assert (writer.logdir, writer.purge_step, writer.calls) == (str(tmp_path), None, ["flush", "flush", "close"])
    assert writer.scalars == [
        (name, value, row["epoch"]) for row in history for name, value in row.items() if name != "epoch"
    ]
    TensorBoardLog(tmp_path).on_fit_begin(SimpleNamespace(epoch=5))
    assert Writer.last.purge_step == 5


def test_tensorboard_log_closes_after_an_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=Writer))
    with pytest.raises(Failing):
        run(make_net(), TensorBoardLog(tmp_path), LambdaCallback(on_update=fail))
    assert Writer.last.calls == ["close"]


def test_tensorboard_log_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ImportError, match="Install it with: pip install tensorboardX"):
        run(make_net(), TensorBoardLog(tmp_path))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of protobuf's generated code
def test_tensorboard_log_writes_a_real_file(tmp_path):
    pytest.importorskip("tensorboardX")
    run(make_net(), TensorBoardLog(tmp_path / "run"), epochs=2)
    (file,) = (tmp_path / "run").iterdir()
    assert b"train_loss" in file.read_bytes()
