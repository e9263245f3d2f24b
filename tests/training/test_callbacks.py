"""The callbacks through the real `fit`: those that stop a run, write logs, average weights, or watch a column."""

import csv
import json
from types import SimpleNamespace

from built_nets import ready
from callback_runs import BATCHES, VALID, Failing, fail, norm_net, run
import mxkit
from mxkit.errors import CheckpointError
from mxkit.training.callbacks import EMA, CSVLog, EarlyStopping, Freeze, LambdaCallback, Plateau, TimeLimit
from mxkit.training.history import Monitor
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np
from oracle import Scores, fit, make_net, replicas, weights
import pytest

# batches of three on two devices
pytestmark = pytest.mark.filterwarnings("ignore:a device got a batch of one sample")


# early stopping


@pytest.mark.parametrize(
    ("scores", "mode", "epochs", "reason"),
    [
        ([10.0, 9.0, 8.0, 9.0, 8.9, 8.8, 8.7], "min", 5, "best was 8 in epoch 3"),
        ([float("nan")] * 3, "max", 2, "no value was a number"),
    ],
)
def test_early_stopping_stops_when_patience_is_used_up(scores, mode, epochs, reason):
    history = run(make_net(), Scores(scores), EarlyStopping("valid_loss", mode, patience=2), epochs=len(scores))
    assert len(history) == epochs
    assert history.stopped == f"valid_loss ({mode}) has not become better for 2 epochs: {reason}"


@pytest.mark.parametrize(("devices", "broken"), [("cpu", False), ("cpu:2", True)])
def test_restore_best_brings_back_every_replica_bit_for_bit(devices, broken):
    net, kept = norm_net(devices), {}
    keep = LambdaCallback(on_epoch=lambda state, row: kept.update({row["epoch"]: replicas(net)}))
    bad = LambdaCallback(on_epoch=lambda state, row: fail() if broken and row["epoch"] == 4 else None)
    stopper = EarlyStopping("valid_loss", "min", patience=9, restore_best=True)
    try:
        run(net, Scores([3.0, 1.0, 2.0, 2.0]), keep, stopper, bad, epochs=4)
    except Failing:
        assert broken
    for now, best, last in zip(replicas(net), kept[2], kept[4]):
        np.testing.assert_array_equal(now, best)
        assert not np.array_equal(now, last)
    if devices == "cpu:2":
        assert not np.array_equal(*kept[2])  # the running statistics do differ


def test_early_stopping_starts_anew_in_the_next_fit():
    stopper = EarlyStopping("valid_loss", "min", patience=2, restore_best=True)
    run(make_net(), Scores([1.0, 2.0, 3.0]), stopper)
    net, other = make_net(), make_net()
    assert len(run(net, Scores([9.0, 8.0, 7.0]), stopper)) == 3
    run(other)
    np.testing.assert_array_equal(weights(net), weights(other))


def test_restore_best_resumed_brings_back_the_best_of_the_first_part():
    net, best, saved = norm_net("cpu:2"), [], {}
    stopper = EarlyStopping("valid_loss", "min", patience=9, restore_best=True)

    def look(state, row):
        if row["epoch"] == 1:
            best.extend(replicas(net))
        saved.update(state=stopper.state_dict(), arrays=stopper.state_arrays())

    run(net, Scores([1.0, 2.0]), stopper, LambdaCallback(on_epoch=look), epochs=2)
    second = resumed(EarlyStopping("valid_loss", "min", patience=9, restore_best=True), **saved)
    run(net, Scores([3.0, 2.0]), second, epochs=2)
    np.testing.assert_array_equal(replicas(net), best)
    assert second.monitor.best_epoch == 1
    with pytest.raises(CheckpointError, match="had epoch 1, the best, but its checkpoint holds no parameters"):
        run(net, Scores([3.0] * 3), resumed(second, saved["state"]))


# time


class Clock:
    """Ten seconds pass with each update."""

    now = 1000.0

    def __init__(self):
        self.ticking = LambdaCallback(on_update=self.tick)

    def tick(self, *_):
        self.now += 10

    def __call__(self):
        return self.now


def resumed(callback, state, arrays=None):
    """The callback with the state of another one, as a checkpoint keeps it."""
    callback.load_state_dict(json.loads(json.dumps(state)))
    if arrays is not None:
        callback.load_state_arrays(arrays)
    callback.resumed = True
    return callback


@pytest.mark.parametrize(
    ("limit", "validates", "updates", "text"),
    [(45, False, [3, 5], "50.0 s, in epoch 2, after update 5"), (35, True, [3], "40.0 s, in epoch 1, after update 3")],
)
def test_time_limit_stops_after_the_update_or_validation_that_passes_it(limit, validates, updates, text):
    clock = Clock()
    validation = [LambdaCallback(on_epoch=clock.tick)] * validates
    history = run(make_net(), clock.ticking, *validation, TimeLimit(limit, clock=clock), epochs=9)
    assert history.column("updates") == updates
    assert history.stopped == f"time limit of {limit} s passed after {text}"


def test_time_limit_begins_with_each_fit_and_goes_on_when_resumed():
    clock = Clock()
    limit = TimeLimit(45, clock=clock)
    for _ in range(2):
        assert run(make_net(), clock.ticking, limit, epochs=1).stopped is None
        assert limit.elapsed == 30
    clock.now += 1e6  # between the runs
    second = resumed(TimeLimit(45, clock=clock), limit.state_dict())
    history = run(make_net(), clock.ticking, second, epochs=9)
    assert history.column("updates") == [2]


# logs


def lines(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_metrics_that_give_lists_are_shown_and_logged(tmp_path, capsys):
    metrics = ["confusion", ("f1", {"average": "none"}), ("recall", {"average": "none"})]
    texts, csv_log = [], CSVLog(tmp_path / "log.csv")
    log = LambdaCallback(on_epoch=lambda state, row: texts.append(repr(state.history)))
    how = {"loss": "softmax_ce", "trainer": "sgd", "epochs": 3, "valid": VALID, "validate_every": 2}
    history = mxkit.fit(make_net(), BATCHES, metrics=metrics, callbacks=[log, csv_log], **how)
    row = history[-1]
    f1 = ", ".join(f"{value:.4g}" for value in row["valid_f1"])
    assert f"valid_confusion=(3, 3), valid_f1=[{f1}], valid_recall=[" in repr(history)
    assert "valid_loss=None, valid_confusion=None" in texts[0]
    assert "(3, 3)" in history.table().splitlines()[-1]
    assert json.loads(lines(csv_log.path)[-1]["valid_confusion"]) == row["valid_confusion"]
    figure = history.plot(tmp_path / "history.png")
    assert [axes.get_title() for axes in figure.axes] == ["loss"]
    assert (tmp_path / "history.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert "train_loss" in capsys.readouterr().err


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
    rows = [{"epoch": epoch, "valid_loss": 4.0 - epoch} for epoch in (1, 2, 3)]

    def play(log, before, after):
        state = SimpleNamespace(history=mxkit.History(before))
        log.on_fit_begin(state)
        for row in after:
            state.history.append(row)
            log.on_epoch(state, row)
        return log.state_dict()

    saved = play(CSVLog(path, append=append), [], rows[:2])  # killed after epoch 2, with a checkpoint of epoch 1
    play(resumed(CSVLog(path, append=append), saved), rows[:1], rows[1:])
    earlier = "7,1.5\n" if append else ""
    assert path.read_text() == f"epoch,valid_loss\n{earlier}1,3.0\n2,2.0\n3,1.0\n"


@pytest.mark.parametrize("text", [b"a,b\n1,2,3\n", b"a,b\n1\n", b"a,a\n1,2\n", b"a\n\xff"])
def test_csv_log_appends_to_nothing_but_csv(tmp_path, text):
    path = tmp_path / "log.csv"
    path.write_bytes(text)
    with pytest.raises(ValueError, match="CSVLog: nothing can be appended to .*log.csv|codec"):
        run(make_net(), CSVLog(path, append=True))
    assert path.read_bytes() == text


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
    np.testing.assert_array_equal(replicas(net), trained)


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
    layers = [nn.Dense(5, in_units=5) for _ in range(25)]
    net = ready(*layers, nn.Dense(5, in_units=5, params=layers[0].params))
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


def test_ema_restores_after_an_error_and_when_nested_and_fits_another_net():
    net, ema = make_net("cpu:2"), EMA(0.5)
    with ema.around_validation(SimpleNamespace(net=net)):  # there is nothing to apply before fit
        np.testing.assert_array_equal(weights(net), weights(make_net()))
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
    other = make_net("cpu:3", seed=9)  # of the same paths
    with ema.applied(other):
        np.testing.assert_array_equal(weights(other), averaged)
    with pytest.raises(KeyError, match="0.weight"), ema.applied(nn.Dense(3)):
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


NAN = float("nan")


def rows(values):
    return [{"epoch": epoch, "valid_loss": value} for epoch, value in enumerate(values, 1)]


@pytest.mark.parametrize(
    ("mode", "min_delta", "values", "better", "best", "best_epoch", "since"),
    [
        ("min", 0.0, [10.0, 9.0, 8.0, 9.0, 8.9, 8.0], [1, 1, 1, 0, 0, 0], 8.0, 3, 3),
        ("max", 0.0, [0.1, 0.3, 0.2, 0.3, 0.4], [1, 1, 0, 0, 1], 0.4, 5, 0),
        ("min", 0.5, [10.0, 9.6, 9.4, 9.0, 8.8], [1, 0, 1, 0, 1], 8.8, 5, 0),
        ("max", 0.5, [1.0, 1.5, 1.6], [1, 0, 1], 1.6, 3, 0),
        ("min", 0.0, [NAN, 3.0, NAN, 4.0], [0, 1, 0, 0], 3.0, 2, 2),
        ("max", 0.0, [NAN, NAN], [0, 0], None, None, 2),
        ("min", 0.0, [2.0, None, None, 3.0], [1, 0, 0, 0], 2.0, 1, 1),
        ("max", 0.0, [-3, -2, -5], [1, 1, 0], -2.0, 2, 1),
    ],
)
def test_scripted_scores(mode, min_delta, values, better, best, best_epoch, since):
    monitor = Monitor("valid_loss", mode, min_delta)
    assert [monitor.update(row) for row in rows(values)] == [bool(one) for one in better]
    assert (monitor.best, monitor.best_epoch, monitor.epochs_since) == (best, best_epoch, since)


class Distance(mxkit.metrics.Mean):
    """A metric of a user's, which says itself that smaller is better."""

    better = "min"


def watched(*callbacks, keep_best=None, folder=None):
    own = [Distance(lambda labels, output: output.mean(axis=1), name="distance")]
    own.append(mxkit.metrics.Mean(lambda labels, output: output.mean(axis=1), name="own"))
    data, other = ([(np.full((4, 3), value), np.array([0, 1, 0, 1]))] for value in (1.0, 2.0))
    metrics = ["accuracy", "cross-entropy", mx.metric.TopKAccuracy(2), *own]
    writer = keep_best and mxkit.Checkpoints(folder, keep_best=keep_best)
    how = {"valid": other, "metrics": metrics, "callbacks": callbacks, "checkpoint": writer}
    return fit(ready(mxkit.models.softmax_regression(2)), data, epochs=2, **how)


@pytest.mark.parametrize(
    ("column", "mode"),
    [
        ("train_loss", "min"),
        ("valid_loss", "min"),
        ("valid_accuracy", "max"),
        ("train_cross-entropy", "min"),
        ("valid_top_k_accuracy_2", "max"),
        ("valid_distance", "min"),
    ],
)
def test_the_metric_of_a_column_says_which_way_is_better(column, mode, tmp_path):
    """T23."""
    stopper, plateau = EarlyStopping(column, patience=9), Plateau(column, patience=9)
    watched(stopper, plateau, keep_best=column, folder=tmp_path / "run")
    assert (stopper.monitor.mode, plateau._monitor.mode) == (mode, mode)
    scores = [json.loads(path.read_text()).get("score") for path in (tmp_path / "run").glob("*/run.json")]
    assert {score["mode"] for score in scores if score} == {mode}


@pytest.mark.parametrize("make", [lambda: EarlyStopping("valid_own", patience=2), lambda: Plateau("valid_own")])
def test_a_metric_that_does_not_say_it_needs_a_mode(make):
    """T23."""
    with pytest.raises(ValueError, match="mode of 'valid_own': expected 'min'"):
        watched(make())
    assert watched(EarlyStopping("valid_own", "max", patience=2))


@pytest.mark.parametrize("cut", [1, 4])
def test_state_round_trip_behaves_like_the_uninterrupted_one(cut):
    script = [*rows([NAN, 5.0, 4.0, 4.5, None, 3.0, 3.5]), {"epoch": 8}]
    whole, first, second = (Monitor("valid_loss", "min", 0.1) for _ in range(3))
    expected = [whole.update(row) for row in script]
    found = [first.update(row) for row in script[:cut]]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    found += [second.update(row) for row in script[cut:]]
    assert found == expected
    assert second.state_dict() == whole.state_dict()
