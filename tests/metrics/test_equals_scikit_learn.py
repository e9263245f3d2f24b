"""Every metric by name equals scikit-learn's or NumPy's over the whole part: any cut, devices, resumed epochs."""

from functools import partial
import json
import warnings

import hypothesis
from hypothesis import given, settings
from hypothesis import strategies as st
import mxkit
from mxkit.core.arrays import of_kind, switches
from mxkit.losses.named_losses import get_loss
from mxkit.metrics import METRICS, get_metric
import mxnet as mx
import numpy as np
import pytest
from sharing import examples
from sklearn import metrics as sk

SOFTMAX = "softmax_ce"
DENSE = ("softmax_ce", {"sparse_label": False})
FROM_LOGS = ("softmax_ce", {"from_logits": True})
BCE, LOGISTIC = "sigmoid_bce", "logistic"
FROM_SIGMOID = ("sigmoid_bce", {"from_sigmoid": True})


def softmax(x, axis=-1):
    e = np.exp(x.astype(np.float64) - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x.astype(np.float64)))


def classes(random, n):
    return random.randn(n, 4).astype("float32"), random.randint(0, 4, n)


def columns(random, n):
    x, y = classes(random, n)
    return x, y[:, None].astype("uint8")


def dense(random, n):
    x, y = classes(random, n)
    return x, np.eye(4, dtype="float32")[y] * 0.8 + 0.05


def logs(random, n):
    x, y = classes(random, n)
    return np.log(softmax(x)).astype("float32"), y


def shares(random, n):
    x, y = classes(random, n)
    return softmax(x).astype("float32"), y


def tokens(random, n):
    return random.randn(n, 3, 4).astype("float32"), random.randint(0, 4, (n, 3))


def pixels(random, n):
    return random.randn(n, 4, 2, 3).astype("float32"), random.randint(0, 4, (n, 2, 3))


def binary(random, n):
    return random.randn(n, 1).astype("float32"), random.randint(0, 2, n)


def binary_column(random, n):
    return random.randn(n).astype("float32"), random.randint(0, 2, (n, 1)).astype("float32")


def signed(random, n):
    return random.randn(n, 1).astype("float32"), random.randint(0, 2, n) * 2 - 1


def probability(random, n):
    x, y = binary(random, n)
    return sigmoid(x).astype("float32"), y


def several(random, n):
    return random.randn(n, 3).astype("float32"), random.randint(0, 2, (n, 3)).astype("float32")


def quantity(random, n):
    y = (random.randn(n) * 3 + 1000).astype("float32")
    return (y + random.randn(n)).astype("float32").reshape(n, 1), y


def quantities(random, n):
    y = (random.randn(n, 2) * [1, 50] + [5, -300]).astype("float32")
    return (y * 0.9 + random.randn(n, 2)).astype("float32"), y


def read(x, y, axis=1):
    """Flat class numbers of labels and outputs of a net of classes."""
    return np.ravel(y), np.ravel(x.argmax(axis=axis))


def by_classes(function, **kwargs):
    return lambda x, y: function(*read(x, y), **kwargs)


def by_sign(function, threshold=0.0, **kwargs):
    def oracle(x, y):
        truth, guess = (y.reshape(x.shape) > 0.5).astype(int), (x > threshold).astype(int)
        if x.ndim == 1 or x.shape[1] == 1:
            truth, guess = truth.ravel(), guess.ravel()
        return function(truth, guess, **kwargs)

    return oracle


def log_loss(x, y):
    return sk.log_loss(y, softmax(x), labels=range(4))


def token_log_loss(x, y):
    return -np.log(np.take_along_axis(softmax(x), y[..., None], axis=-1)).mean()


def binary_log_loss(x, y):
    p, y = sigmoid(x), (y.reshape(x.shape) > 0.5).astype(float)
    return -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean()


def without_zero(function):
    """Of tokens whose label is not 0."""

    def oracle(x, y):
        kept = y != 0
        return function(x[kept], y[kept])

    return oracle


def padded(data, label):
    """The same, with a third of the labels replaced by padding."""

    def made(random, n):
        x, y = data(random, n)
        padding = random.rand(*y.shape) < 0.3
        padding.flat[0] = False
        return x, np.where(padding, label, y).astype(y.dtype)

    made.__name__ = f"padded_{data.__name__}"
    return made


def left(function, label, axis=-1, **arguments):
    """Of the labels that are no padding, flat."""

    def oracle(x, y):
        kept = y.reshape(x.shape if x.ndim == y.ndim or x.shape[1] == 1 else y.shape) != label
        if kept.shape == x.shape:
            return function(y.reshape(x.shape)[kept] > 0.5, x[kept] > 0)
        return function(y[kept], x.argmax(axis)[kept], **arguments)

    return oracle


def correlation(x, y):
    return np.corrcoef(y.ravel().astype(float), x.ravel().astype(float))[0, 1]


def some_left(x, y):
    """Samples of which all labels that are left are right, among those that have any."""
    kept = y != 9
    right = ((x > 0) == (y > 0.5)) | ~kept
    return right.all(axis=1)[kept.any(axis=1)].mean()


ZERO = {"zero_division": 0}
# name, arguments, loss, data, what it must equal
CASES = [
    ("accuracy", {}, SOFTMAX, classes, by_classes(sk.accuracy_score)),
    ("accuracy", {}, None, classes, by_classes(sk.accuracy_score)),
    ("accuracy", {}, SOFTMAX, columns, by_classes(sk.accuracy_score)),
    ("accuracy", {}, DENSE, dense, lambda x, y: sk.accuracy_score(*read(x, y.argmax(axis=1)))),
    ("accuracy", {}, SOFTMAX, tokens, lambda x, y: (x.argmax(-1) == y).mean()),
    ("accuracy", {}, None, tokens, lambda x, y: (x.argmax(-1) == y).mean()),
    ("accuracy", {"ignore_label": 0}, SOFTMAX, tokens, without_zero(lambda x, y: (x.argmax(-1) == y).mean())),
    ("accuracy", {}, ("softmax_ce", {"axis": 1}), pixels, lambda x, y: (x.argmax(1) == y).mean()),
    ("accuracy", {}, None, pixels, lambda x, y: (x.argmax(1) == y).mean()),
    ("accuracy", {}, BCE, binary, by_sign(sk.accuracy_score)),
    ("accuracy", {}, BCE, binary_column, by_sign(sk.accuracy_score)),
    ("accuracy", {}, LOGISTIC, signed, by_sign(sk.accuracy_score)),
    ("accuracy", {}, "hinge", signed, by_sign(sk.accuracy_score)),
    ("accuracy", {}, FROM_SIGMOID, probability, by_sign(sk.accuracy_score, 0.5)),
    ("accuracy", {"threshold": 0.3}, None, probability, by_sign(sk.accuracy_score, 0.3)),
    ("accuracy", {}, BCE, several, lambda x, y: ((x > 0) == y).mean()),
    ("subset_accuracy", {}, BCE, several, by_sign(sk.accuracy_score)),
    ("subset_accuracy", {}, SOFTMAX, classes, by_classes(sk.accuracy_score)),
    ("top_k", {"k": 2}, SOFTMAX, classes, lambda x, y: sk.top_k_accuracy_score(y, x, k=2, labels=range(4))),
    ("confusion", {}, SOFTMAX, classes, by_classes(sk.confusion_matrix, labels=range(4))),
    ("confusion", {}, BCE, binary, by_sign(sk.confusion_matrix, labels=[0, 1])),
    ("confusion", {}, BCE, several, by_sign(sk.multilabel_confusion_matrix)),
    ("f1", {}, SOFTMAX, classes, by_classes(sk.f1_score, average="macro", **ZERO)),
    ("f1", {"average": "micro"}, SOFTMAX, classes, by_classes(sk.f1_score, average="micro", **ZERO)),
    ("f1", {"average": "weighted"}, SOFTMAX, classes, by_classes(sk.f1_score, average="weighted", **ZERO)),
    ("f1", {"average": "none"}, SOFTMAX, classes, by_classes(sk.f1_score, average=None, labels=range(4), **ZERO)),
    ("f1", {}, BCE, binary, by_sign(sk.f1_score, **ZERO)),
    ("f1", {"average": "macro"}, BCE, binary, by_sign(sk.f1_score, average="macro", **ZERO)),
    ("f1", {}, BCE, several, by_sign(sk.f1_score, average="macro", **ZERO)),
    ("f1", {"average": "micro"}, BCE, several, by_sign(sk.f1_score, average="micro", **ZERO)),
    ("f1", {"average": "weighted"}, BCE, several, by_sign(sk.f1_score, average="weighted", **ZERO)),
    ("precision", {}, SOFTMAX, classes, by_classes(sk.precision_score, average="macro", **ZERO)),
    ("precision", {}, BCE, binary, by_sign(sk.precision_score, **ZERO)),
    ("recall", {}, BCE, binary, by_sign(sk.recall_score, **ZERO)),
    ("recall", {}, BCE, several, by_sign(sk.recall_score, average="macro", **ZERO)),
    ("mcc", {}, SOFTMAX, classes, by_classes(sk.matthews_corrcoef)),
    ("mcc", {}, LOGISTIC, signed, by_sign(sk.matthews_corrcoef)),
    ("cross-entropy", {}, SOFTMAX, classes, log_loss),
    ("cross-entropy", {}, FROM_LOGS, logs, log_loss),
    ("cross-entropy", {}, None, shares, lambda x, y: sk.log_loss(y, x.astype(float), labels=range(4))),
    ("cross-entropy", {"outputs": "scores"}, None, classes, log_loss),
    ("cross-entropy", {}, DENSE, dense, lambda x, y: -(y * np.log(softmax(x))).sum(axis=1).mean()),
    ("cross-entropy", {}, BCE, binary, binary_log_loss),
    ("cross-entropy", {}, BCE, several, binary_log_loss),
    ("cross-entropy", {"outputs": "scores"}, None, binary, binary_log_loss),
    ("perplexity", {}, SOFTMAX, tokens, lambda x, y: np.exp(token_log_loss(x, y))),
    ("perplexity", {"ignore_label": 0}, SOFTMAX, tokens, lambda x, y: np.exp(without_zero(token_log_loss)(x, y))),
    ("accuracy", {"ignore_label": 255}, BCE, padded(several, 255), left(sk.accuracy_score, 255)),
    ("accuracy", {"ignore_label": -1}, BCE, padded(binary, -1), left(sk.accuracy_score, -1)),
    ("accuracy", {"ignore_label": 9}, ("softmax_ce", {"axis": 1}), padded(pixels, 9), left(sk.accuracy_score, 9, 1)),
    ("f1", {"ignore_label": 9}, SOFTMAX, padded(tokens, 9), left(partial(sk.f1_score, average="macro", **ZERO), 9)),
    ("f1", {"ignore_label": 9}, BCE, padded(binary, 9), left(partial(sk.f1_score, **ZERO), 9)),
    ("mcc", {"ignore_label": -1}, SOFTMAX, padded(tokens, -1), left(sk.matthews_corrcoef, -1)),
    ("confusion", {"ignore_label": 9}, SOFTMAX, padded(tokens, 9), left(sk.confusion_matrix, 9, labels=range(4))),
    ("subset_accuracy", {"ignore_label": 9}, BCE, padded(several, 9), some_left),
    ("mae", {}, "l1", quantity, lambda x, y: sk.mean_absolute_error(y.astype(float), x)),
    ("mse", {}, "l2", quantities, lambda x, y: sk.mean_squared_error(y.astype(float), x.astype(float))),
    ("rmse", {}, "l2", quantity, lambda x, y: sk.mean_squared_error(y.astype(float), x.astype(float)) ** 0.5),
    ("r2", {}, "l2", quantity, lambda x, y: sk.r2_score(y.astype(float), x.astype(float))),
    ("r2", {}, None, quantities, lambda x, y: sk.r2_score(y.astype(float), x.astype(float))),
    ("pearsonr", {}, "huber", quantity, correlation),
    ("pearsonr", {}, "l2", quantities, correlation),
]


def case_name(case):
    name, arguments, loss, data, _ = case
    return "-".join([name, *map(str, arguments.values()), str(loss), data.__name__])


def test_every_name_is_among_the_cases():
    others = {name for name, kind in METRICS.items() if kind.__module__ == "mxkit.metrics.detection"}
    assert {case[0] for case in CASES} == set(METRICS) - others


@pytest.mark.parametrize("case", CASES, ids=case_name)
@settings(max_examples=examples(6))
@given(
    sizes=st.lists(st.integers(1, 13), min_size=1, max_size=6),
    devices=st.integers(1, 3),
    resumed=st.booleans(),
    numpy=st.booleans(),
    seed=st.integers(0, 2**20),
)
@hypothesis.example(sizes=[1] * 9 + [31], devices=3, resumed=True, numpy=True, seed=0)
def test_a_metric_equals_its_oracle_for_any_cut(case, sizes, devices, resumed, numpy, seed):
    """T16."""
    name, arguments, loss, data, oracle = case
    x, y = data(np.random.RandomState(seed), sum(sizes))
    if len(x) < 2 and name in ("r2", "pearsonr"):
        return
    metric = get_metric((name, arguments), loss=None if loss is None else get_loss(loss))
    where = mxkit.devices(f"cpu:{devices}")

    def resume():
        numbers, arrays = metric.state()
        new = get_metric((name, arguments), loss=metric.loss)
        new.load_state(json.loads(json.dumps(numbers)), arrays, where)
        return new

    begin = 0
    for number, size in enumerate(sizes):
        if resumed and number == len(sizes) // 2:
            metric = resume()
        device, part = where[number % devices], slice(begin, begin + size)
        arrays = mx.nd.array(y[part], ctx=device, dtype=y.dtype), mx.nd.array(x[part], ctx=device)
        label, output = of_kind(arrays, numpy)
        with switches(numpy and seed % 2 == 0):
            metric.update([label], output)
        begin += size
    if resumed:  # after the last batch too
        metric = resume()
    with warnings.catch_warnings():  # scikit-learn warns of classes that do not occur
        warnings.simplefilter("ignore")
        expected = oracle(x, y)
    np.testing.assert_allclose(metric.get(), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["accuracy", "r2", "f1"])
def test_more_batches_than_are_queued_at_once(name):
    data = quantity if name == "r2" else classes
    loss = get_loss("l2" if name == "r2" else SOFTMAX)
    x, y = data(np.random.RandomState(1), 300)
    metric, whole = get_metric(name, loss=loss), get_metric(name, loss=loss)
    for i in range(300):
        metric.update([mx.nd.array(y[i : i + 1])], mx.nd.array(x[i : i + 1]))
    whole.update([mx.nd.array(y)], mx.nd.array(x))
    assert metric.get() == pytest.approx(whole.get(), rel=1e-9)


def test_r2_and_pearson_of_labels_far_from_zero_lose_no_digits():
    random = np.random.RandomState(0)
    y = (1e6 + random.randn(300)).astype("float32")
    x = (y + random.randn(300)).astype("float32")
    for name, expected in (("r2", sk.r2_score(y.astype(float), x.astype(float))), ("pearsonr", correlation(x, y))):
        metric = get_metric(name)
        for part in np.array_split(np.arange(300), 7):
            metric.update([mx.nd.array(y[part])], mx.nd.array(x[part]))
        assert metric.get() == pytest.approx(expected, rel=1e-6)


def test_labels_that_do_not_vary():
    for labels, output, expected in (([2, 2, 2], [2, 2, 2], 1.0), ([2, 2, 2], [1, 2, 3], 0.0)):
        metric = get_metric("r2")
        metric.update([mx.nd.array(labels)], mx.nd.array(output))
        assert metric.get() == expected == sk.r2_score(labels, output)
    metric = get_metric("pearsonr")
    metric.update([mx.nd.array([2, 2, 2])], mx.nd.array([1, 2, 3]))
    assert np.isnan(metric.get())
    metric = get_metric("mcc", loss=get_loss(BCE))
    metric.update([mx.nd.array([1, 1])], mx.nd.array([3, 4]))
    assert metric.get() == 0.0
