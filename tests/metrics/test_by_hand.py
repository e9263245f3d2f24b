"""Metrics against NumPy, over batches of unequal size and several devices."""

import mxkit
from mxkit.errors import CheckpointError, DataError
from mxkit.metrics import get_metric
import mxnet as mx
from mxnet.gluon import nn
import numpy as np
import pytest


def test_counts_stay_exact_where_float32_stops_counting():
    metric = get_metric("accuracy")
    metric._sums, metric._samples = {mx.cpu(): mx.nd.array([2.0**24], dtype="float64")}, 2**24
    metric.add(mx.nd.array([1.0]))
    assert metric.get() == 1.0
    metric.add(mx.nd.array([0.0]))
    assert metric.get() == (2**24 + 1) / (2**24 + 2)


def test_metrics_of_mxnet_count_samples_too():
    metric = get_metric(mx.metric.TopKAccuracy(top_k=2))
    assert metric.name == "top_k_accuracy_2"
    metric.update([mx.nd.array([0, 1])], mx.nd.array([[3, 2, 1], [3, 1, 2]]))
    metric.update([mx.nd.array([2])], [mx.nd.array([[3, 1, 2]])])
    assert metric.get() == pytest.approx(2 / 3)
    metric.reset()
    assert np.isnan(metric.get())


def test_a_metric_of_ones_own():
    class Confidence(mxkit.Metric):
        name = "confidence"

        def per_sample(self, labels, output):
            return output.softmax().max(axis=1)

    with pytest.raises(NotImplementedError):
        mxkit.Metric().update([], mx.nd.ones(1))
    scores = np.random.randn(7, 3).astype("float32")
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    found = mxkit.evaluate(mx.gluon.nn.Flatten(), [(scores[:4],), (scores[4:],)], metrics=[Confidence()])
    assert found == {"confidence": pytest.approx(shares.max(axis=1).mean(), rel=1e-6)}


def test_objects_are_copied():
    mine = get_metric("accuracy")
    mine.add(mx.nd.array([1]))
    copy = get_metric(mine)
    assert np.isnan(copy.get())
    assert mine.get() == 1.0
    theirs = mx.metric.Accuracy()
    wrapped = get_metric(theirs)
    wrapped.update([mx.nd.array([0])], mx.nd.array([[1, 0]]))
    assert wrapped.get() == 1.0
    assert np.isnan(theirs.get()[1])


def test_names_and_metrics_of_nothing():
    assert get_metric(("top_k", {"k": 2})).name == "top_2_accuracy"
    assert np.isnan([get_metric(name).get() for name in ("accuracy", "f1")]).all()
    assert get_metric("confusion").get() == []


def test_metrics_of_several_outputs_and_labels():
    random = np.random.RandomState(5)
    y, scores = random.randint(0, 4, 20), random.randn(20, 4).astype("float32")
    labels, outputs = [mx.nd.array(y), mx.nd.array((y + 1) % 4)], (mx.nd.array(np.eye(4)[y]), mx.nd.array(scores))
    metric = get_metric(("accuracy", {"output": 0, "label": 0, "name": "first"}))
    metric.update(labels, outputs)
    assert (metric.name, metric.get()) == ("first", 1.0)
    metric = get_metric(("accuracy", {"output": 1, "label": 1}))
    metric.update(labels, outputs)
    assert metric.get() == pytest.approx(np.mean(scores.argmax(axis=1) == (y + 1) % 4))
    for options, text in (
        ({"output": 2}, "'accuracy' measures output 2"),
        ({"output": 1}, r"measures output 1 against label [?].* choose one of each"),
    ):
        with pytest.raises(DataError, match=text):
            get_metric(("accuracy", options)).update(labels, outputs)
    with pytest.raises(DataError, match=r"BatchLoss\(forward=...\) gives only losses: return \(losses, output\)"):
        get_metric("accuracy").update(labels[:1], None)


@pytest.mark.parametrize("sizes", [[3, 2], [3, 2, 4]])
def test_sums_of_different_lengths_are_refused(sizes):
    metric = mxkit.Metric()
    for size in sizes:
        metric.add_total(mx.nd.ones(size), 1)
    with pytest.raises(DataError, match=r"'metric': batches give \[2, 3.*\] sums: the shapes of their outputs differ"):
        metric.get()


NOTHING = [
    *((name, "softmax_ce", {"ignore_label": 0}) for name in ("accuracy", "cross-entropy", "f1", "mcc", "perplexity")),
    *((name, "sigmoid_bce", {"ignore_label": 0}) for name in ("accuracy", "subset_accuracy", "precision", "recall")),
    *(("f1", "softmax_ce", {"ignore_label": 0, "average": way}) for way in ("micro", "weighted", "none")),
    ("r2", "l2", {}),
    ("pearsonr", "l2", {}),
]


@pytest.mark.parametrize(("name", "loss", "arguments"), NOTHING)
def test_a_ratio_over_nothing_is_nan_and_never_the_best(name, loss, arguments, tmp_path):
    net = nn.Dense(3 if loss == "softmax_ce" else 1, in_units=2)
    net.initialize()
    x, column = np.ones((4, 2), "float32"), f"valid_{name}"
    nothing = [(x[:1], np.zeros(1, "float32"))] if loss == "l2" else [(x, np.zeros(4, "float32"))]
    metric = (name, arguments)
    assert np.isnan(mxkit.evaluate(net, nothing, loss=loss, metrics=[metric])[name]).all()
    if arguments.get("average") == "none":
        return
    stop = mxkit.callbacks.EarlyStopping(column, "min", patience=2, restore_best=True)
    saved = mxkit.Checkpoints(tmp_path, keep_best=(column, "min"))
    plateau = mxkit.callbacks.Plateau(column, "max", patience=1, factor=0.5)
    train = [(x, np.arange(4, dtype="float32") % 2)]
    history = mxkit.fit(
        net, train, loss=loss, trainer="sgd", epochs=3, valid=nothing, metrics=[metric], progress=False,
        callbacks=[plateau, stop], checkpoint=saved,
    )  # fmt: skip
    assert "no value was a number" in history.stopped
    assert history.column("learning_rate") == [0.01, 0.005]
    with pytest.raises(CheckpointError):
        mxkit.load_checkpoint(tmp_path, net, which="best")


@pytest.mark.parametrize(
    "metric",
    [mx.metric.MCC(average="micro"), mx.metric.F1(average="micro"), mx.metric.PCC(), mx.metric.Accuracy()],
    ids=lambda metric: metric.name,
)
def test_labels_in_a_column_count_as_a_row_in_metrics_of_mxnet(metric):
    """T256."""
    random = np.random.RandomState(0)
    x, y = random.randn(60, 2).astype("float32"), random.randint(0, 2, 60)
    ours = [mxkit.evaluate(nn.HybridLambda("identity"), [(x, some)], metrics=[metric]) for some in (y, y[:, None])]
    metric.update([mx.nd.array(y)], [mx.nd.array(x)])
    assert [list(one.values()) for one in ours] == [[metric.get()[1]]] * 2
