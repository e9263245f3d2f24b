"""The best value and how long ago it was, on scripted scores."""

import json

import mxkit
from mxkit.training.callbacks import EarlyStopping, Plateau
from mxkit.training.history import Monitor
import mxnet as mx
import numpy as np
import pytest

NAN = float("nan")


def rows(values, column="valid_loss"):
    return [{"epoch": epoch, column: value} for epoch, value in enumerate(values, 1)]


def follow(monitor, values):
    return [monitor.update(row) for row in rows(values, monitor.column)]


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
    assert follow(monitor, values) == [bool(one) for one in better]
    assert (monitor.best, monitor.best_epoch, monitor.epochs_since) == (best, best_epoch, since)


@pytest.mark.parametrize("mode", ["auto", None])
def test_mode_is_never_guessed(mode):
    """T23."""
    with pytest.raises(ValueError, match=r"mode of 'valid_loss': expected 'min' .* or 'max' .* Nothing is gu"):
        follow(Monitor("valid_loss", mode), [1.0])


class Distance(mxkit.metrics.Mean):
    """A metric of a user's, which says itself that smaller is better."""

    better = "min"


def watched(*callbacks, keep_best=None, folder=None):
    net = mxkit.models.softmax_regression(2)
    mxkit.initialize(net)
    own = [Distance(lambda labels, output: output.mean(axis=1), name="distance")]
    own.append(mxkit.metrics.Mean(lambda labels, output: output.mean(axis=1), name="own"))
    data, other = ([(np.full((4, 3), value), np.array([0, 1, 0, 1]))] for value in (1.0, 2.0))
    metrics = ["accuracy", "cross-entropy", mx.metric.TopKAccuracy(2), *own]
    writer = keep_best and mxkit.Checkpoints(folder, keep_best=keep_best)
    return mxkit.fit(
        net, data, loss="softmax_ce", trainer="sgd", epochs=2, valid=other, metrics=metrics, callbacks=callbacks,
        progress=False, checkpoint=writer,
    )  # fmt: skip


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
