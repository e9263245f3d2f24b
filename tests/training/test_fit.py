"""What surrounds the updates of `fit`: history, callbacks, and what it leaves alone."""

import csv

import mxkit
from mxkit.errors import UnknownNameError
import mxnet as mx
import numpy as np
from oracle import FEATURES, SOFTMAX, make_batches, make_net, weights
import pytest

BATCHES = make_batches([8, 8, 3])


def run(net=None, data=BATCHES, **changes):
    arguments = {"loss": "softmax_ce", "trainer": ("sgd", {"learning_rate": 0.1}), "metrics": ["accuracy"], **changes}
    return mxkit.fit(net or make_net(), data, **{"epochs": 3, "progress": False, **arguments})


# history


def test_rows_hold_what_the_docstring_says():
    history = run(valid=BATCHES[:1])
    expected = "epoch updates samples seconds samples_per_second learning_rate train_loss train_accuracy valid_loss "
    assert " ".join(history.columns) == expected + "valid_accuracy"
    assert history.column("epoch") == [1, 2, 3]
    assert history.column("updates") == [3, 6, 9]
    assert history.column("samples") == [19, 19, 19]
    assert history.column("learning_rate") == [0.1, 0.1, 0.1]
    assert all(row["samples_per_second"] == row["samples"] / row["seconds"] for row in history)
    assert history.stopped is None
    with pytest.raises(UnknownNameError, match="unknown column of the history 'trian_loss': did you mean 'train_loss'"):
        history.column("trian_loss")


@pytest.mark.parametrize("accumulate", [1, 2])
def test_train_numbers_are_means_over_samples_as_the_weights_moved(accumulate):
    net, metric = make_net(), mxkit.metrics.get_metric("accuracy")
    stream = mxkit.updates(
        net, BATCHES, loss=SOFTMAX, trainer=("sgd", {"learning_rate": 0.1}), metrics=[metric], accumulate=accumulate
    )
    expected = sum(update.loss * update.samples for update in stream) / 19
    (row,) = run(epochs=1, accumulate=accumulate)
    assert row["train_loss"] == pytest.approx(expected, rel=1e-12)
    assert row["train_accuracy"] == metric.get()


def test_history_files_keep_all_digits(tmp_path):
    history = run(valid=BATCHES[:1])
    history.stopped = "for a reason"
    history.to_json(tmp_path / "history.json")
    again = mxkit.History.from_json(tmp_path / "history.json")
    assert list(again) == list(history)
    assert again.stopped == "for a reason"
    history.to_csv(str(tmp_path / "history.csv"))
    with (tmp_path / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [{name: float(value) for name, value in row.items()} for row in rows] == list(history)
    assert (tmp_path / "history.csv").read_text().count("\n") == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["history.csv", "history.json"]


def test_a_row_is_copied_in():
    row = {"epoch": 1, "train_loss": 0.5}
    history = mxkit.History([row])
    history.append(row)
    row["train_loss"] = 9.0
    assert history.column("train_loss") == [0.5, 0.5]
    assert repr(history) == "History(2 epochs; last: train_loss=0.5)"
    assert repr(mxkit.History()) == "History(0 epochs; last: empty)"


def test_the_picture_has_a_panel_for_each_quantity(tmp_path):
    from matplotlib.figure import Figure

    history = run(valid=BATCHES[:1])
    figure = history.plot(tmp_path / "history.png")
    assert isinstance(figure, Figure)
    assert [axes.get_title() for axes in figure.axes] == ["loss", "accuracy"]
    for axes, quantity in zip(figure.axes, ["loss", "accuracy"]):
        for line, part in zip(axes.lines, ["train", "valid"]):
            assert list(line.get_xdata()) == [1, 2, 3]
            assert list(line.get_ydata()) == history.column(f"{part}_{quantity}")
    assert (tmp_path / "history.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


# callbacks


class Recorder(mxkit.Callback):
    """Writes down what is called, under a name."""

    def __init__(self, name, calls, stop_at=None, fail_in=None):
        self.name, self.calls, self.stop_at, self.fail_in = name, calls, stop_at, fail_in

    def note(self, hook, *details):
        self.calls.append((self.name, hook, *details))
        if self.fail_in == hook:
            raise LookupError(f"broken {hook}")

    def on_fit_begin(self, state):
        self.note("begin", state.epochs, state.updates_per_epoch)

    def on_update(self, state, update):
        self.note("update", state.epoch, update.step)
        if update.step == self.stop_at:
            state.stop(f"{self.name} had enough")

    def on_epoch(self, state, row):
        self.note("epoch", row["epoch"], len(state.history), "valid_loss" in row)

    def on_fit_end(self, state, error):
        self.note("end", type(error).__name__, state.history.stopped)


def test_callbacks_are_called_in_the_order_of_the_docstring():
    calls = []
    run(data=BATCHES[:2], epochs=2, valid=BATCHES, callbacks=[Recorder("a", calls), Recorder("b", calls)])
    hooks = [
        ("begin", 2, 2),
        ("update", 1, 1),
        ("update", 1, 2),
        ("epoch", 1, 1, True),
        ("update", 2, 3),
        ("update", 2, 4),
        ("epoch", 2, 2, True),
        ("end", "NoneType", None),
    ]
    assert calls == [(name, *hook) for hook in hooks for name in "ab"]


def test_a_stop_ends_after_its_update_and_tells_why():
    calls = []
    net = make_net()
    history = run(net, epochs=5, callbacks=[Recorder("a", calls, stop_at=5), Recorder("b", calls, stop_at=5)])
    assert history.stopped == "a had enough"  # the first reason
    assert history.column("updates") == [3, 5]
    assert history.column("samples") == [19, 16]
    assert ("b", "update", 2, 5) in calls
    assert calls[-2:] == [("a", "end", "NoneType", "a had enough"), ("b", "end", "NoneType", "a had enough")]
    expected = make_net()
    run(expected, epochs=1)
    run(expected, data=BATCHES[:2], epochs=1)
    np.testing.assert_array_equal(weights(net), weights(expected))


@pytest.mark.parametrize("hook", ["begin", "update", "epoch", "end"])
def test_every_on_fit_end_is_called_and_gets_the_error_of_a_callback(hook, capsys):
    calls, error = [], "NoneType" if hook == "end" else "LookupError"
    with pytest.raises(LookupError, match=f"broken {hook}"):
        run(callbacks=[Recorder("a", calls, fail_in=hook), Recorder("b", calls)], progress=True)
    assert calls[-2:] == [("a", "end", error, None), ("b", "end", error, None)]


def test_updates_per_epoch_is_rounded_up_and_unknown_for_generators():
    seen = []
    look = mxkit.callbacks.LambdaCallback(on_fit_begin=lambda state: seen.append(state.updates_per_epoch))
    for data in (BATCHES, lambda: iter(BATCHES), mxkit.data.ArrayLoader(np.zeros((10, FEATURES)), np.zeros(10), 2)):
        run(data=data, epochs=1, accumulate=2, callbacks=[look])
    assert seen == [2, None, 3]


# what fit leaves alone


def test_the_users_metrics_are_not_changed():
    mine, theirs = mxkit.metrics.get_metric("accuracy"), mx.metric.TopKAccuracy(top_k=2)
    mine.add(mx.nd.array([1, 1, 1, 0]))
    theirs.update([mx.nd.array([0])], [mx.nd.array([[1, 2, 3]])])
    before = theirs.get()
    history = run(metrics=[mine, theirs], valid=BATCHES[:])
    assert mine.get() == 0.75
    assert theirs.get() == before
    assert 0 < history[-1]["valid_top_k_accuracy_2"] < 1
    assert history[-1]["valid_top_k_accuracy_2"] >= history[-1]["valid_accuracy"]


def test_without_a_seed_the_generators_are_left_alone():
    net = make_net()
    mxkit.seed_all(5)
    expected = np.random.rand(), mx.nd.random.uniform().asscalar()
    mxkit.seed_all(5)
    run(net)
    assert (np.random.rand(), mx.nd.random.uniform().asscalar()) == expected


def test_a_scheduler_of_the_optimizer_shows_in_the_history():
    schedule = mx.lr_scheduler.FactorScheduler(step=3, factor=0.5, base_lr=0.4)
    history = run(trainer=("sgd", {"learning_rate": 0.4, "lr_scheduler": schedule}))
    assert history.column("learning_rate") == [0.4, 0.2, 0.1]


# the history in other forms


def test_a_history_as_a_dataframe_and_as_a_table():
    history = run(valid=BATCHES[:1], validate_every=2)
    frame = history.to_dataframe()
    assert list(frame.index) == [1, 2, 3]
    assert frame["train_loss"].tolist() == history.column("train_loss")
    assert frame["valid_loss"].isna().tolist() == [True, False, False]
    lines = history.table().splitlines()
    assert " ".join(lines[0].split()) == "epoch learning_rate train_loss train_accuracy valid_loss valid_accuracy"
    assert {len(line) for line in lines[2:]} == {len(lines[0])}  # line 1 ends with empty cells
    assert lines[3].split()[2] == f"{history[2]['train_loss']:.5g}"
