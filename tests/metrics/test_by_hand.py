"""Metrics against NumPy, over batches of unequal size and several devices."""

from hypothesis import given, settings
from hypothesis import strategies as st
import mxkit
from mxkit.errors import DataError, UnknownNameError
from mxkit.metrics import get_metric, get_metrics
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


def test_values_of_several_axes_are_averaged_in_a_sample():
    metric = get_metric("mse")
    output, labels = np.random.rand(5, 2, 3), np.random.rand(5, 2, 3)
    metric.update([mx.nd.array(labels)], mx.nd.array(output))
    assert metric.get() == pytest.approx(np.square(output - labels).mean(), rel=1e-6)


def test_counts_stay_exact_where_float32_stops_counting():
    metric = get_metric("accuracy")
    metric._sums, metric._samples = {mx.cpu(): mx.nd.array([2.0**24], dtype="float64")}, 2**24
    metric.add(mx.nd.array([1.0]))
    assert metric.get() == 1.0
    metric.add(mx.nd.array([0.0]))
    assert metric.get() == (2**24 + 1) / (2**24 + 2)


def test_reset_forgets():
    metric = get_metric("accuracy")
    assert metric.get() == 0.0
    metric.add(mx.nd.array([1, 1]))
    metric.reset()
    metric.add(mx.nd.array([1, 0]))
    assert metric.get() == 0.5


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


def test_wrong_labels():
    with pytest.raises(DataError, match=r"'accuracy': expected one label a sample, shape \(4,\); received \(4, 3\)"):
        get_metric("accuracy").update([mx.nd.ones((4, 3))], mx.nd.ones((4, 3)))
    with pytest.raises(
        DataError, match=r"'mse': expected labels and outputs of one size; received \(4,\) and \(4, 3\)"
    ):
        get_metric("mse").update([mx.nd.ones(4)], mx.nd.ones((4, 3)))


def test_wrong_specs():
    with pytest.raises(UnknownNameError, match="unknown metric 'acc_uracy': did you mean 'accuracy'"):
        get_metric("acc_uracy")
    with pytest.raises(TypeError, match=r"metric: expected a name, \(name, arguments\) or a metric; received 5"):
        get_metric(5)
    with pytest.raises(ValueError, match="metrics: names must differ"):
        get_metrics(["mse", "mse"])


# more than one number or output


def classified(samples=200, classes=4):
    random = np.random.RandomState(5)
    return random.randint(0, classes, samples), random.randn(samples, classes).astype("float32")


def measured(metric, labels, scores, size=33):
    devices = mxkit.devices("cpu:2")
    for number, start in enumerate(range(0, len(labels), size)):
        device = devices[number % len(devices)]
        part = slice(start, start + size)
        metric.update([mx.nd.array(labels[part], ctx=device)], mx.nd.array(scores[part], ctx=device))
    return metric.get()


def test_the_name_of_top_k_has_k_and_metrics_of_nothing_are_empty():
    assert get_metric(("top_k", {"k": 2})).name == "top_2_accuracy"
    with pytest.raises(DataError, match=r"top_5_accuracy: expected at least 5 outputs .*\(33, 4\)"):
        measured(get_metric("top_k"), *classified())
    assert (get_metric("f1").get(), get_metric("confusion").get()) == (0.0, [])


def test_a_class_that_never_occurs_does_not_count_in_f1():
    labels, scores = np.array([0, 1, 0]), np.eye(5, dtype="float32")[[0, 1, 1]]
    assert measured(get_metric("f1"), labels, scores) == pytest.approx((2 / 3 + 2 / 3) / 2)


def test_metrics_of_several_outputs_and_labels():
    labels, scores = classified(20)
    first = mx.nd.array(np.eye(4)[labels])
    second = mx.nd.array(scores)
    both = [mx.nd.array(labels), mx.nd.array((labels + 1) % 4)]
    metric = get_metric(("accuracy", {"output": 0, "label": 0, "name": "first"}))
    metric.update(both, (first, second))
    assert (metric.name, metric.get()) == ("first", 1.0)
    metric = get_metric(("accuracy", {"output": 1, "label": 1}))
    metric.update(both, (first, second))
    assert metric.get() == pytest.approx(np.mean(scores.argmax(axis=1) == (labels + 1) % 4))
    with pytest.raises(DataError, match="'accuracy' measures output 2"):
        get_metric(("accuracy", {"output": 2})).update(both, (first, second))


def test_the_mean_of_a_function_keeps_its_name_in_a_history():
    net = mxkit.models.softmax_regression(3)
    mxkit.initialize(net)
    confidence = mxkit.metrics.Mean(lambda labels, output: output.softmax().max(axis=1), name="confidence")
    batches = [(np.random.rand(6, 4), np.arange(6) % 3)] * 2
    scores = mxkit.evaluate(net, batches, metrics=[confidence, "confusion"])
    assert 1 / 3 <= scores["confidence"] <= 1
    assert np.sum(scores["confusion"]) == 12


def test_arguments_that_a_metric_does_not_take(monkeypatch):
    class OwnMetric(mx.metric.EvalMetric):
        def __init__(self, name="own", eps=1):
            super().__init__(name)

    monkeypatch.setattr("mxkit.metrics.by_name.own_metrics", lambda: {"own": OwnMetric})
    for spec, text in [
        (
            ("f1", {"pos_label": 1}),
            r"metric 'f1' takes no argument 'pos_label'; did you mean 'positive'\? It takes",
        ),
        (("own", {"esp": 1}), r"metric 'own' takes no argument 'esp'; did you mean 'eps'\? It takes name, eps"),
    ]:
        with pytest.raises(TypeError, match=text):
            get_metric(spec)
