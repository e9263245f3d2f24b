"""Focal, smoothed and distilling losses equal NumPy, differences, and each other."""

from mxkit.data.augment import smooth_labels
from mxkit.errors import DataError
from mxkit.gradients.functions import check_gradient
from mxkit.losses.own_losses import FocalLoss, KnowledgeDistillation, LabelSmoothing
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np
import pytest

B, C = 6, 4
RANDOM = np.random.RandomState(0)
SCORES = RANDOM.randn(B, C) * 2
TEACHER = RANDOM.randn(B, C) * 2
LABELS = np.array([0, 1, 2, 3, 1, 0])
SOFT = RANDOM.dirichlet(np.ones(C), B)
CASES = {
    "focal": (FocalLoss, {}, (LABELS,)),
    "focal without gamma": (FocalLoss, {"gamma": 0}, (LABELS,)),
    "focal of a gamma below 1": (FocalLoss, {"gamma": 0.5}, (LABELS,)),
    "smoothed": (LabelSmoothing, {"epsilon": 0.2}, (LABELS,)),
    "soft": (LabelSmoothing, {"epsilon": 0, "sparse_label": False}, (SOFT,)),
    "distillation": (KnowledgeDistillation, {"temperature": 3, "hard_weight": 0.3}, (TEACHER, LABELS)),
}


def log_softmax(scores):
    shifted = scores - scores.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def by_numpy(name):
    logs, chosen = log_softmax(SCORES), log_softmax(SCORES)[np.arange(B), LABELS]
    if name.startswith("focal"):
        gamma = {"focal": 2, "focal without gamma": 0, "focal of a gamma below 1": 0.5}[name]
        return -((1 - np.exp(chosen)) ** gamma) * chosen
    if name == "smoothed":
        return -(0.8 * chosen + 0.2 * logs.mean(-1))
    if name == "soft":
        return -(SOFT * logs).sum(-1)
    wanted, given = log_softmax(TEACHER / 3), log_softmax(SCORES / 3)
    return 0.7 * 9 * (np.exp(wanted) * (wanted - given)).sum(-1) - 0.3 * chosen


def arrays(values, dtype="float64"):
    return [mx.nd.array(one, dtype="int32" if one.dtype.kind == "i" else dtype) for one in values]


@pytest.mark.parametrize("hybridize", [False, True], ids=["eager", "hybridized"])
@pytest.mark.parametrize("name", CASES)
class TestEach:
    def make(self, name, hybridize, **more):
        kind, options, labels = CASES[name]
        loss = kind(**options, **more)
        loss.hybridize(hybridize)
        return loss, arrays(labels)

    def test_value_and_gradient(self, name, hybridize):
        loss, labels = self.make(name, hybridize)
        found = loss(mx.nd.array(SCORES, dtype="float64"), *labels)
        assert found.shape == (B,)
        np.testing.assert_allclose(found.asnumpy(), by_numpy(name), rtol=1e-10)
        check_gradient(lambda scores: loss(scores, *labels), SCORES)

    def test_labels_of_one_more_axis_and_of_any_dtype_give_the_same(self, name, hybridize):
        loss, labels = self.make(name, hybridize)
        scores = mx.nd.array(SCORES, dtype="float32")
        for dtype in ("float32", "int64", "uint8"):
            column = [*labels[:-1], labels[-1] if name == "soft" else labels[-1].astype(dtype).reshape((-1, 1))]
            found = loss(scores, *column)
            assert found.shape == (B,)
            np.testing.assert_allclose(found.asnumpy(), by_numpy(name), rtol=2e-5)

    def test_weights(self, name, hybridize):
        loss, labels = self.make(name, hybridize, weight=3.0)
        scores = mx.nd.array(SCORES, dtype="float64")
        for shape in ((B,), (B, 1)):
            weights = mx.nd.array(np.arange(B), dtype="int32").reshape(shape)
            found = loss(scores, *labels, weights)
            assert found.shape == (B,)
            np.testing.assert_allclose(found.asnumpy(), by_numpy(name) * np.arange(B) * 3, rtol=1e-10)

    @pytest.mark.parametrize("dtype", ["float32", "float16"])
    def test_far_scores_have_finite_gradients(self, name, hybridize, dtype):
        loss, labels = self.make(name, hybridize)
        right = np.eye(C)[LABELS]
        for scores in (right * 200, -right * 200, np.zeros((B, C))):
            x = mx.nd.array(scores, dtype=dtype)
            x.attach_grad()
            with autograd.record():
                found = loss(x, *labels)
            found.backward()
            assert np.isfinite(found.asnumpy()).all()
            assert np.isfinite(x.grad.asnumpy()).all()

    def test_wrong_shapes(self, name, hybridize):
        loss, labels = self.make(name, hybridize)
        scores = mx.nd.array(SCORES)
        with pytest.raises(DataError, match=rf"{type(loss).__name__}: labels?: expected .*shape .*; received \(6, 3\)"):
            loss(scores, *labels[:-1], mx.nd.zeros((B, 3)))
        with pytest.raises(DataError, match=r"labels?: expected .*shape .*; received \(1,\)"):
            loss(scores, *labels[:-1], mx.nd.zeros(1))
        with pytest.raises(DataError, match=r"sample_weight: expected shape \(6,\) or \(6, 1\); received \(1, 6\)"):
            loss(scores, *labels, mx.nd.zeros((1, B)))


def test_pixels():
    scores, labels = RANDOM.randn(2, 3, 4, 5), RANDOM.randint(0, 3, (2, 4, 5))
    flat = np.moveaxis(scores, 1, -1).reshape(-1, 3), labels.reshape(-1)
    for kind in (FocalLoss, LabelSmoothing):
        found = kind(axis=1)(*arrays((scores, labels)))
        expected = kind()(*arrays(flat)).asnumpy().reshape(2, -1).mean(1)
        np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-10)
        with pytest.raises(DataError, match=r"expected class numbers of shape \(2, 4, 5\).*received \(2, 20\)"):
            kind(axis=1)(mx.nd.array(scores), mx.nd.zeros((2, 20)))


def test_a_gamma_of_0_and_an_epsilon_of_0_are_gluons_cross_entropy():
    scores, labels = arrays((SCORES, LABELS))
    expected = gluon.loss.SoftmaxCrossEntropyLoss()(scores, labels).asnumpy()
    for loss in (FocalLoss(0), LabelSmoothing(0), KnowledgeDistillation(hard_weight=1)):
        given = (scores, labels) if loss.__class__ is KnowledgeDistillation else (labels,)
        np.testing.assert_allclose(loss(scores, *given).asnumpy(), expected, rtol=1e-10)


def test_smoothing_is_what_smooth_labels_makes():
    soft = smooth_labels(None, LABELS, classes=C, epsilon=0.1)[1]
    scores, labels, soft = arrays((SCORES, LABELS, soft))
    expected = gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=False)(scores, soft)
    np.testing.assert_allclose(LabelSmoothing(0.1)(scores, labels).asnumpy(), expected.asnumpy(), rtol=1e-6)


def test_the_teacher_gets_no_gradient():
    teacher = mx.nd.array(TEACHER)
    teacher.attach_grad()
    with autograd.record():
        loss = KnowledgeDistillation()(mx.nd.array(SCORES), teacher, mx.nd.array(LABELS))
    loss.backward()
    assert not teacher.grad.asnumpy().any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FocalLoss(-1), r"FocalLoss: gamma: expected a finite number of at least 0; received -1"),
        (lambda: FocalLoss(float("nan")), r"received nan"),
        (lambda: LabelSmoothing(1.5), r"LabelSmoothing: epsilon: expected a finite number from 0 to 1; received 1.5"),
        (lambda: KnowledgeDistillation(0), r"KnowledgeDistillation: temperature"),
        (lambda: KnowledgeDistillation(hard_weight="1"), r"KnowledgeDistillation: hard_weight.*received '1'"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_scores_without_classes():
    with pytest.raises(DataError, match=r"FocalLoss: scores: expected shape \(B, ...\).*received \(6,\)"):
        FocalLoss()(mx.nd.zeros(6), mx.nd.zeros(6))
    with pytest.raises(DataError, match=r"KnowledgeDistillation: scores: expected shape \(B, C\)"):
        KnowledgeDistillation()(mx.nd.zeros(6), mx.nd.zeros(6), mx.nd.zeros(6))
