"""What a metric reads in outputs and labels: known from the loss and the shapes, or refused with what to pass."""

import json

from built_nets import ready
import made_tables
import mxkit
from mxkit.core.arrays import legacy, switches
from mxkit.errors import DataError, LabelError, TrapWarning, UnknownNameError
from mxkit.losses.named_losses import get_loss
from mxkit.metrics import Mean, get_metric, get_metrics
import mxnet as mx
from mxnet.gluon import nn
import numpy as np
import pytest

RANDOM = np.random.RandomState(3)
X = RANDOM.randn(300, 5).astype("float32")
Y = (X[:, 0] + 0.5 * X[:, 1] > 0.3).astype("float32")


def dense(outputs=1):
    return ready(nn.Dense(outputs, in_units=5))


def loader(y, batch_size=32):
    return mxkit.data.ArrayLoader(X, y, batch_size=batch_size)


@pytest.mark.parametrize(("loss", "devices"), [("sigmoid_bce", "cpu:2"), ("hinge", "cpu")])
def test_one_output_two_classes(loss, devices):
    y = Y if loss == "sigmoid_bce" else 2 * Y - 1
    net, names = nn.Dense(1), ["accuracy", "f1", "confusion"]
    mxkit.initialize(net, "xavier", devices=devices)
    net.hybridize()
    how = {"loss": loss, "metrics": names}
    history = mxkit.fit(net, loader(y), trainer=("adam", {"learning_rate": 0.1}), epochs=8, progress=False, **how)
    scores = mxkit.evaluate(net, loader(y, 50), **how)
    right = ((mxkit.predict(net, X).asnumpy()[:, 0] > 0) == (Y > 0.5)).mean()
    assert scores["accuracy"] == pytest.approx(right, abs=1e-12)
    assert [sum(row) for row in scores["confusion"]] == [(Y == 0).sum(), (Y == 1).sum()]
    assert min(scores["accuracy"], scores["f1"], history[-1]["train_accuracy"]) > 0.9


ONE = mx.nd.array([[1.5], [-2.0], [0.5]])
THREE = mx.nd.array(RANDOM.randn(3, 4))
BCE = "sigmoid_bce"
REFUSED = [
    ("accuracy", "l2", ONE, [1, 2, 3], "'accuracy' is for classes, but L2Loss is a loss for quantities"),
    ("f1", "huber", ONE, [1, 2, 3], "Use mae, mse, rmse, r2 or pearsonr"),
    ("accuracy", "triplet", THREE, [1, 2, 3], "under TripletLoss the net gives embeddings"),
    ("accuracy", "batch_hard_triplet", THREE, [0, 1, 2], "under TripletLoss the net gives embeddings"),
    ("accuracy", "contrastive", THREE, [0, 1, 0], "under ContrastiveLoss the net gives embeddings"),
    ("accuracy", "ctc", THREE, [1, 2, 3], "under CTCLoss the net gives sequences"),
    ("mse", "softmax_ce", THREE, [1, 2, 3], "'mse' is for quantities, but under SoftmaxCrossEntropyLoss"),
    ("r2", BCE, ONE, [1, 0, 1], "Use accuracy, f1, precision, recall, mcc, confusion or cross-entropy"),
    ("accuracy", None, ONE, [1, 0, 1], r"one output per sample, shape \(3, 1\), which may be a score or a probability"),
    ("cross-entropy", None, ONE, [1, 0, 1], r"pass loss=, or \('cross-entropy', {'outputs': 'scores'}\)"),
    ("accuracy", None, THREE, np.eye(4)[:3], "For several labels per sample pass loss='sigmoid_bce'"),
    ("accuracy", BCE, ONE, [[1, 0]] * 3, r"expected a label for each output, shape \(3, 1\); received \(3, 2\)"),
    ("accuracy", BCE, THREE, [1, 0, 1], r"several labels per sample need as many outputs"),
    ("accuracy", "softmax_ce", THREE, np.eye(4)[:3], r"expected one label per sample, shape \(3,\); received \(3, 4\)"),
    (("accuracy", {"threshold": 0.5}), "softmax_ce", THREE, [0, 1, 2], "leave threshold out"),
    ("accuracy", None, mx.nd.ones((3, 4, 4)), np.zeros((3, 4)), "may have their classes on axis 1 or 2"),
    ("mcc", BCE, THREE, np.zeros((3, 4)), "needs one class per sample; for several labels use 'f1'"),
    ("top_k", BCE, ONE, [0, 1, 1], "needs a score for each of several classes"),
    ("top_k", None, THREE, [0, 1, 2], r"top_5_accuracy: expected at least 5 outputs per sample; received \(3, 4\)"),
    (("f1", {"average": "binary"}), "softmax_ce", THREE, [0, 1, 2], "average='binary' needs two classes"),
    (("f1", {"positive": 4}), "softmax_ce", THREE, [0, 1, 2], "expected a class from 0 to 3"),
    ("cross-entropy", "hinge", ONE, [1, -1, 1], "needs probabilities, which HingeLoss does not train"),
    ("cross-entropy", None, THREE, [0, 1, 2], "the net's outputs are no probabilities: they range from"),
    ("perplexity", None, THREE, [0, 1, 2], "For scores before a softmax or a sigmoid pass the loss too"),
    ("mse", None, mx.nd.ones((3, 2, 3)), np.ones((3, 3, 2)), r"of one shape; received \(3, 3, 2\) and \(3, 2, 3\)"),
    ("mae", "l1", mx.nd.ones((3, 2)), [1, 2, 3], r"of one size; received \(3,\) and \(3, 2\)"),
]
WRONG_LABELS = [
    ("accuracy", None, THREE, [1, 2, 4], "whole numbers from 0 to 3, because the net has 4 outputs; received 4"),
    ("confusion", "softmax_ce", THREE, [0.5, 1, 2], "whole numbers from 0 to 3.* received 0.5"),
    ("f1", "softmax_ce", THREE, [np.nan, 1, 2], "received nan"),
    ("accuracy", BCE, ONE, [0, 9, 1], "labels must be from 0 to 1, or -1 and 1; received 9"),
    ("accuracy", "logistic", ONE, [-1, 0, 1], "labels must be from 0 to 1, or -1 and 1; received 0"),
]
REFUSED = [*((*row, DataError) for row in REFUSED), *((*row, LabelError) for row in WRONG_LABELS)]


@pytest.mark.parametrize(("spec", "loss", "output", "labels", "text", "error"), REFUSED)
def test_outputs_and_labels_that_a_metric_cannot_read_are_refused(spec, loss, output, labels, text, error):
    metric = get_metric(spec, loss=None if loss is None else get_loss(loss))
    with pytest.raises(error, match=text):
        metric.update([mx.nd.array(labels)], output)


def test_scores_under_distillation_are_those_of_a_softmax():
    labels = [THREE + 1, mx.nd.array([0, 3, 1])]
    for name in ("cross-entropy", "accuracy"):
        taught = get_metric((name, {"label": 1}), loss=get_loss("distillation"))
        plain = get_metric(name, loss=get_loss("softmax_ce"))
        taught.update(labels, THREE)
        plain.update(labels[1:], THREE)
        assert taught.get() == plain.get()


@pytest.mark.parametrize("name", ["confusion", "f1", "mcc"])
def test_no_sample_is_lost_in_a_later_batch(name):
    metric = get_metric(name)
    metric.update([mx.nd.array([0, 1])], THREE[:2])
    metric.update([mx.nd.array([7, 1])], THREE[:2])
    with pytest.raises(LabelError, match="1 of 4 labels are no class that the net has an output for"):
        metric.get()


def test_class_numbers_above_2048_in_16_bits():
    """T127."""
    scores = np.full((2, 4000), -1, "float16")
    scores[0, 3001] = scores[1, 2049] = 1
    metric = get_metric("accuracy")
    metric.update([mx.nd.array([3001, 2049], dtype="int32")], mx.nd.array(scores, dtype="float16"))
    assert metric.get() == 1.0


def test_nan_in_one_label_is_nan_in_every_figure():
    labels = mx.nd.array([1.0, np.nan, 3.0])
    for name in ("r2", "mse", "rmse", "mae", "pearsonr"):
        metric = get_metric(name)
        metric.update([labels], mx.nd.array([1.0, 2.0, 3.0]))
        assert np.isnan(metric.get()), name


# metrics of users


def test_a_metric_of_ones_own_gives_one_value_a_sample(kind):
    """T11."""
    net, batches = kind.net(dense), [(X[:8], Y[:8])]
    for function, text in (
        (lambda labels, output: abs(output - labels[0]), r"of shape \(8, 8\). Arrays of shape \(n, 1\)"),
        (
            lambda labels, output: abs(output[:, 0] - labels[0]).mean(),
            r"shape \(1?,?\). It is a mean or a sum already: return one value per sample",
        ),
        (lambda labels, output: 0.5, "expected shape .8,.; received a float.* It is a mean or a sum already"),
        (lambda labels, output: mx.nd.ones((8, 3)), r"values.reshape\(\(len\(values\), -1\)\).mean\(axis=1\)"),
    ):
        with pytest.raises(DataError, match=text):
            mxkit.evaluate(net, batches, metrics=[Mean(function, name="own")])
    error = np.abs(mxkit.predict(net, X[:8]).asnumpy()[:, 0] - Y[:8]).mean()
    for right in (
        lambda labels, output: abs(output[:, 0] - labels[0]),
        lambda labels, output: abs(legacy(output)[:, 0] - legacy(labels)[0]),
        lambda labels, output: np.abs(output.asnumpy()[:, 0] - labels[0].asnumpy()),
    ):
        found = mxkit.evaluate(net, batches, metrics=[Mean(right, name="own")])
        assert found["own"] == pytest.approx(error, rel=1e-6)


@pytest.mark.parametrize("switch", [False, True])
def test_users_metrics_get_arrays_of_the_nets_kind_under_its_switches(kind, switch):
    def check(labels, output):
        assert all(map(kind.holds, [*labels, output]))
        assert mx.util.is_np_array() == kind.numpy

    class Summed(mxkit.Metric):
        name = "summed"

        def update(self, labels, output):
            check(labels, output)
            self.add_total(abs(output).sum(), len(output))

    class Added(mxkit.Metric):
        name = "added"

        def update(self, labels, output):
            check(labels, output)
            self.add(abs(output)[:, 0])

    class Theirs(mx.metric.EvalMetric):
        def update(self, labels, preds):
            check(labels, preds[0])
            self.sum_metric += abs(preds[0]).sum()  # an array
            self.num_inst += len(preds[0])

    net = kind.net(dense)
    batches = [(X[:4], Y[:4]), (X[4:8], Y[4:8])]
    expected = np.abs(mxkit.predict(net, X[:8]).asnumpy()).mean()
    with switches(switch):
        found = mxkit.evaluate(net, batches, metrics=[Summed(), Added(), Theirs("theirs")])
    assert found == dict.fromkeys(["summed", "added", "theirs"], pytest.approx(expected, rel=1e-6))
    right = Added()
    right.counts = True
    for dtype in ("bool", "int8", "float16"):  # comparisons of mx.np are bool
        right.reset()
        right.add(kind.of(np.ones(300, dtype)))
        assert right.get() == 1.0
    first, second = get_metric(Theirs("theirs")), get_metric(Theirs("theirs"))
    with kind.switches():
        first.update(kind.of([Y[:4]]), kind.of(X[:4]))
    numbers, _ = first.state()
    second.load_state(json.loads(json.dumps(numbers)), {}, [mx.cpu()])
    assert second.get() == first.get()


class Registered(mx.metric.EvalMetric):
    def __init__(self, name="own", eps=1):
        super().__init__(name)


WAY = r"Of a class make an object, of a function .*mxkit.metrics.Mean\(function\)"


NO_METRICS = [
    (lambda labels, output: output, TypeError, WAY),
    (mxkit.metrics.Accuracy, TypeError, WAY),
    (5, TypeError, r"metric: expected a name, \(name, arguments\) or a metric; received 5"),
    (("f1", {"pos_label": 1}), TypeError, r"no argument 'pos_label'; did you mean 'positive'\? It takes"),
    (("own", {"esp": 1}), TypeError, r"metric 'own' takes no argument 'esp'; did you mean 'eps'\? It takes name, e"),
    (mx.metric.Loss(), ValueError, "'loss' is the column of the loss"),
    (("f1", {"average": "samples"}), ValueError, "average: expected binary, macro, .*none; received 'samples'"),
    ("acc_uracy", UnknownNameError, "unknown metric 'acc_uracy': did you mean 'accuracy'"),
    ("acc", UnknownNameError, "Known: accuracy"),
    ("auc", UnknownNameError, "follows from the order of all scores.*roc_auc_score"),
    *(
        (name, UnknownNameError, f"unknown metric '{name}'")
        for name in ("torch", "caffe", "custommetric", "composite", "loss")
    ),
]


@pytest.mark.parametrize(("spec", "error", "text"), NO_METRICS)
def test_what_is_no_metric(spec, error, text, monkeypatch):
    monkeypatch.setattr("mxkit.metrics.named_metrics.own_metrics", lambda: {"own": Registered})
    with pytest.raises(error, match=text):
        get_metrics([spec])


class OfItsOwn(mxkit.Metric):
    name = "own"

    def __init__(self, figure=float, **choice):
        super().__init__(**choice)
        self._figure = figure

    def update(self, labels, output):
        if not isinstance(self, Heedless):
            labels, output = self.chosen(labels, output)
        self.add_total(output.sum() + 0 * len(labels), 1)

    def figure(self, total):
        return self._figure(total[0])


class Heedless(OfItsOwn):
    """Never asks `chosen`."""


def test_an_update_of_ones_own_heeds_output_and_label_or_is_refused():
    first, second = mx.nd.ones((3, 2)), mx.nd.ones((3, 5))
    labels = [mx.nd.zeros(3)] * 2
    metric = OfItsOwn(output=1, label=0)
    metric.update(labels, (first, second))
    assert metric.get() == 15
    with pytest.raises(DataError, match="measures output 0 against label 5; the net returned 1 outputs"):
        OfItsOwn(label=5).update(labels, first)
    with pytest.raises(DataError, match=r"output=0, label=5, but its own update takes no notice.*self.chosen\("):
        Heedless(label=5).update(labels, first)
    Heedless().update(labels, first)


def test_a_figure_is_of_the_types_of_json():
    def got(figure):
        metric = OfItsOwn(figure)
        metric.update([], mx.nd.ones((2, 2)))
        return metric.get()

    for figure in (np.float32, lambda total: np.array([total, total]), lambda total: mx.nd.array([total])):
        assert json.loads(json.dumps(got(figure))) in (4, [4, 4], [4])
    with pytest.raises(DataError, match="metric 'own': figure must return a number, an array.*received a complex"):
        got(complex)


# metrics of MXNet


def test_a_composite_has_a_column_for_each_of_its_metrics():
    composite = mx.metric.CompositeEvalMetric([mx.metric.Accuracy(), mx.metric.TopKAccuracy(top_k=2)])
    net = ready(nn.Dense(3))
    scores = mxkit.evaluate(net, loader(Y), metrics=[composite, ("accuracy", {"name": "exact"})])
    assert scores["accuracy"] == pytest.approx(scores["exact"])
    assert scores["top_k_accuracy_2"] > scores["accuracy"]

    class Both(mx.metric.EvalMetric):
        def update(self, labels, preds):
            self.num_inst += preds[0].shape[0]
            self.sum_metric += preds[0].sum().asscalar()

        def get(self):
            return ["sum", "count"], [self.sum_metric, self.num_inst]

    assert mxkit.evaluate(net, loader(Y), metrics=[Both("both")])["count"] == 300


@pytest.mark.parametrize(
    ("metric", "exact"),
    [
        (mx.metric.RMSE(), "Use 'rmse', which is exact"),
        (mx.metric.MAE(), "Use 'mae', which is exact"),
        (mx.metric.PearsonCorrelation(), "Use 'pearsonr', which is exact"),
        (mx.metric.np(lambda label, pred: float(np.abs(label - pred).max())), r"mxkit.metrics.Mean\(function\)"),
    ],
)
def test_a_metric_that_depends_on_the_cut_is_used_with_one_warning(metric, exact):
    """T128."""
    net = ready(nn.Dense(1))
    with pytest.warns(TrapWarning, match=f"depends on how samples are cut into batches.*{exact}") as seen:
        scores = mxkit.evaluate(net, loader(Y[:, None]), loss="l2", metrics=[metric])
    assert len(seen) == 1
    theirs = type(metric)() if type(metric) is not mx.metric.CustomMetric else metric
    for x, y in loader(Y[:, None]):
        theirs.update([y], [net(x)])
    assert scores[theirs.name] == pytest.approx(theirs.get()[1])


def test_a_metric_that_takes_no_part_of_a_batch():
    """T128."""

    class Whole(mx.metric.EvalMetric):
        def update(self, labels, preds):
            if len(preds[0]) < 12:
                raise ValueError("too few")
            self.num_inst += len(preds[0])

    net = ready(nn.Dense(1))
    with pytest.warns(TrapWarning, match="'whole' .*raises ValueError for 10 of 32 samples: too few"):
        mxkit.evaluate(net, [(X[:32], Y[:32])], metrics=[Whole("whole")])


@pytest.mark.parametrize("metric", [mx.metric.Accuracy(), mx.metric.TopKAccuracy(top_k=2), mx.metric.PCC()])
def test_a_metric_that_does_not_depend_on_the_cut_is_used_in_silence(metric, kind):
    net = kind.net(lambda: dense(3))
    assert np.isfinite(mxkit.evaluate(net, loader(Y), metrics=[metric])[metric.name])


def test_cross_entropy_of_scores_is_reported():
    """T128."""
    net = ready(nn.Dense(3), initializer="zeros")
    with pytest.warns(TrapWarning, match="takes probabilities, and the net's outputs are none.*'cross-entropy'"):
        mxkit.evaluate(net, loader(Y), metrics=[mx.metric.CrossEntropy()])


def test_mxnets_accuracy_reads_one_output_as_class_0():
    """T129."""
    net = ready(nn.Dense(1))
    with pytest.raises(DataError, match="needs scores of two classes or more.*takes a threshold from the loss"):
        mxkit.evaluate(net, loader(Y), metrics=[mx.metric.Accuracy()])
    with pytest.raises(DataError, match="needs scores of two classes or more"):
        mxkit.evaluate(net, loader(Y[:, None]), metrics=[mx.metric.Accuracy()])


def test_the_page_of_metrics_is_what_evaluate_does():
    """If not: python tests/made_tables.py metrics"""
    _, text, new = made_tables.made("metrics")
    assert new == text
