"""The list of callbacks, and those that stop a run, write logs or freeze, through the real `fit`."""

import csv
import json
from types import SimpleNamespace

from callback_runs import BATCHES, VALID, Failing, fail, norm_net, run
import mxkit
from mxkit.errors import CheckpointError
from mxkit.training.callbacks import CSVLog, EarlyStopping, LambdaCallback, TimeLimit
import numpy as np
from oracle import make_net, replicas, weights
import pytest

# batches of three on two devices
pytestmark = pytest.mark.filterwarnings("ignore:a device got a batch of one sample")


class Score(mxkit.Callback):
    """Puts scripted scores into the rows, as validation would."""

    def __init__(self, values):
        self.values = values

    def on_epoch(self, state, row):
        row["valid_loss"] = self.values[row["epoch"] - 1]


# the list


# early stopping


@pytest.mark.parametrize(
    ("scores", "mode", "epochs", "reason"),
    [
        ([10.0, 9.0, 8.0, 9.0, 8.9, 8.8, 8.7], "min", 5, "best was 8 in epoch 3"),
        ([float("nan")] * 3, "max", 2, "no value was a number"),
    ],
)
def test_early_stopping_stops_when_patience_is_used_up(scores, mode, epochs, reason):
    history = run(make_net(), Score(scores), EarlyStopping("valid_loss", mode, patience=2), epochs=len(scores))
    assert len(history) == epochs
    assert history.stopped == f"valid_loss ({mode}) has not become better for 2 epochs: {reason}"


@pytest.mark.parametrize(("devices", "broken"), [("cpu", False), ("cpu:2", True)])
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
    net, other = make_net(), make_net()
    assert len(run(net, Score([9.0, 8.0, 7.0]), stopper)) == 3
    run(other)
    np.testing.assert_array_equal(weights(net), weights(other))


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
    second.resumed = True
    run(net, Score([3.0, 2.0]), second, epochs=2)
    for now, then in zip(replicas(net), best):
        np.testing.assert_array_equal(now, then)
    assert second.monitor.best_epoch == 1
    second.load_state_dict(saved["state"])
    second.resumed = True
    with pytest.raises(CheckpointError, match="had epoch 1, the best, but its checkpoint holds no parameters"):
        run(net, Score([3.0] * 3), second)


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
    second = TimeLimit(45, clock=clock)
    second.load_state_dict(json.loads(json.dumps(limit.state_dict())))
    second.resumed = True
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
    assert [axes.get_title() for axes in history.plot().axes] == ["loss"]
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
        return json.loads(json.dumps(log.state_dict()))

    first, second = CSVLog(path, append=append), CSVLog(path, append=append)
    saved = play(first, [], rows[:2])  # killed after epoch 2, with a checkpoint of epoch 1
    second.load_state_dict(saved)
    second.resumed = True
    play(second, rows[:1], rows[1:])
    earlier = "7,1.5\n" if append else ""
    assert path.read_text() == f"epoch,valid_loss\n{earlier}1,3.0\n2,2.0\n3,1.0\n"


@pytest.mark.parametrize("text", [b"a,b\n1,2,3\n", b"a,b\n1\n", b"a,a\n1,2\n", b"a\n\xff"])
def test_csv_log_appends_to_nothing_but_csv(tmp_path, text):
    path = tmp_path / "log.csv"
    path.write_bytes(text)
    with pytest.raises(ValueError, match="CSVLog: nothing can be appended to .*log.csv|codec"):
        run(make_net(), CSVLog(path, append=True))
    assert path.read_bytes() == text
