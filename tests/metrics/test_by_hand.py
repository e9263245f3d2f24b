"""Metrics against NumPy, over batches of unequal size and several devices."""

from hypothesis import given, settings
from hypothesis import strategies as st
import mxkit
from mxkit.errors import DataError, UnknownNameError
from mxkit.metrics import get_metric
import mxnet as mx
import numpy as np
import pytest
from sharing import examples


@settings(max_examples=examples(25))
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    devices=st.integers(1, 3),
    dtype=st.sampled_from(["int32", "int64", "float32", "uint8"]),
    column=st.booleans(),
)
def test_t16_accuracy_equals_numpys_over_all_samples(sizes, devices, dtype, column):
    random = np.random.RandomState(sum(sizes))
    metric, right = get_metric("accuracy"), 0
    for number, size in enumerate(sizes):
        scores, labels = random.randn(size, 3).astype("float32"), random.randint(0, 3, size)
        right += (scores.argmax(axis=1) == labels).sum()
        device = mx.cpu(number % devices)
        given_labels = labels[:, None] if column else labels
        metric.update([mx.nd.array(given_labels, ctx=device, dtype=dtype)], mx.nd.array(scores, ctx=device))
    assert metric.get() == right / sum(sizes)


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
    assert (copy.get(), mine.get()) == (0.0, 1.0)
    theirs = mx.metric.Accuracy()
    wrapped = get_metric(theirs)
    wrapped.update([mx.nd.array([0])], mx.nd.array([[1, 0]]))
    assert wrapped.get() == 1.0
    assert np.isnan(theirs.get()[1])


@pytest.mark.parametrize(
    ("spec", "error", "text"),
    [
        ("acc_uracy", UnknownNameError, "unknown metric 'acc_uracy': did you mean 'accuracy'"),
        (5, TypeError, r"metric: expected a name, \(name, arguments\) or a metric; received 5"),
        (
            ("f1", {"pos_label": 1}),
            TypeError,
            r"'f1' takes no argument 'pos_label'; did you mean 'positive'\? It takes",
        ),
        (
            ("own", {"esp": 1}),
            TypeError,
            r"metric 'own' takes no argument 'esp'; did you mean 'eps'\? It takes name, eps",
        ),
    ],
)
def test_wrong_specs(spec, error, text, monkeypatch):
    class OwnMetric(mx.metric.EvalMetric):
        def __init__(self, name="own", eps=1):
            super().__init__(name)

    monkeypatch.setattr("mxkit.metrics.named_metrics.own_metrics", lambda: {"own": OwnMetric})
    with pytest.raises(error, match=text):
        get_metric(spec)


def test_names_and_metrics_of_nothing():
    assert get_metric(("top_k", {"k": 2})).name == "top_2_accuracy"
    assert [get_metric(name).get() for name in ("accuracy", "f1", "confusion")] == [0.0, 0.0, []]


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
        ({"output": 1}, r"the batch has 2 labels: choose one, .'accuracy', {'output': 1, 'label': 1}."),
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
