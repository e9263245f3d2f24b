"""Losses of mxkit's own: values against NumPy, gradients against differences, mining against a loop, siamese nets."""

from functools import partial

from built_nets import ready
import mxkit
from mxkit.data.augment import smooth_labels
from mxkit.data.loader import PairLoader
from mxkit.errors import DataError
from mxkit.gradients.functions import check_gradient
from mxkit.losses.own_losses import (
    Agreement,
    ContrastiveLoss,
    FocalLoss,
    KnowledgeDistillation,
    LabelSmoothing,
    TripletLoss,
    pair_accuracy,
    triplet_accuracy,
)
from mxkit.models.networks import Siamese
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np
from oracle import fit
import pytest

B, C, D = 6, 4, 3
RANDOM = np.random.RandomState(0)
SCORES, TEACHER = RANDOM.randn(B, C) * 2, RANDOM.randn(B, C) * 2
A, P, N = (RANDOM.randn(B, D) * 0.6 for _ in range(3))
LABELS = np.array([0, 1, 2, 3, 1, 0])  # of 2 and 3 there is no positive
SAME = np.array([1, 0, 1, 0, 0, 1])
SOFT = RANDOM.dirichlet(np.ones(C), B)
# A loss, its outputs, and its labels; margins that float16 holds
CASES = {
    "focal": (FocalLoss, [SCORES], [LABELS]),
    "focal without gamma": (partial(FocalLoss, 0), [SCORES], [LABELS]),
    "focal of a gamma below 1": (partial(FocalLoss, 0.5), [SCORES], [LABELS]),
    "smoothed": (partial(LabelSmoothing, 0.2), [SCORES], [LABELS]),
    "soft": (partial(LabelSmoothing, 0, sparse_label=False), [SCORES], [SOFT]),
    "distillation": (partial(KnowledgeDistillation, 3, hard_weight=0.3), [SCORES], [TEACHER, LABELS]),
    "contrastive": (partial(ContrastiveLoss, 1.25), [A, P], [SAME]),
    "contrastive of signs": (partial(ContrastiveLoss, 1.25), [A, P], [SAME * 2 - 1]),
    "triplet": (partial(TripletLoss, 0.75), [A, P, N], []),
    "mined": (TripletLoss, [A], [LABELS]),
    "mined far from 0": (TripletLoss, [A + 100], [LABELS]),
}
OF_SCORES = [name for name in CASES if CASES[name][1][0] is SCORES]
OF_EMBEDDINGS = [name for name in CASES if name not in OF_SCORES]


def log_softmax(scores):
    shifted = scores - scores.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def mined_by_loops(x, classes, margin=1.0):
    found = []
    for i in range(len(x)):
        apart = np.linalg.norm(x - x[i], axis=1)
        positives = [apart[j] for j in range(len(x)) if classes[j] == classes[i] and j != i]
        negatives = [apart[j] for j in range(len(x)) if classes[j] != classes[i]]
        found.append(max(max(positives) - min(negatives) + margin, 0) if positives and negatives else 0)
    return np.array(found)


def by_numpy(name, outputs):
    if name.startswith("mined"):
        return mined_by_loops(outputs[0], LABELS)
    if name == "triplet":
        near, far = (np.linalg.norm(outputs[0] - other, axis=1) for other in outputs[1:])
        return np.maximum(near - far + 0.75, 0)
    if name.startswith("contrastive"):
        apart = np.linalg.norm(outputs[0] - outputs[1], axis=1)
        return np.where(SAME, apart**2, np.maximum(1.25 - apart, 0) ** 2)
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


@pytest.fixture(params=[False, True], ids=["eager", "hybridized"])
def made(request):
    """Makes the loss of a case as a function of its outputs, labels and weights; and its outputs and labels."""

    def make(name, dtype="float64", **more):
        kind, outputs, labels = CASES[name]
        loss = kind(**more)
        loss.hybridize(request.param)
        several = len(outputs) > 1
        return (lambda out, *rest: loss(out if several else out[0], *rest), arrays(outputs, dtype), arrays(labels))

    return make


@pytest.mark.parametrize("name", CASES)
class TestEach:
    def test_value_and_gradient(self, name, made):
        loss, outputs, labels = made(name)
        found = loss(outputs, *labels)
        assert found.shape == (B,)
        np.testing.assert_allclose(
            found.asnumpy(), by_numpy(name, CASES[name][1]), rtol=1e-8 if "mined" in name else 1e-10
        )
        check_gradient(lambda *given: loss(given, *labels), *CASES[name][1])

    def test_labels_of_one_more_axis_and_of_any_dtype_give_the_same(self, name, made):
        loss, outputs, labels = made(name, "float32")
        for dtype in ("float32", "float64", "int32", "int64", "uint8"):
            fixed = "signs" in name or name == "soft"
            column = [*labels[:-1], *(one if fixed else one.astype(dtype).reshape((-1, 1)) for one in labels[-1:])]
            found = loss(outputs, *column)
            assert found.shape == (B,)
            tolerance = 2e-5 if name in OF_SCORES else 1e-4
            np.testing.assert_allclose(found.asnumpy(), by_numpy(name, CASES[name][1]), rtol=tolerance)

    def test_weights(self, name, made):
        loss, outputs, labels = made(name, weight=3.0)
        expected = by_numpy(name, CASES[name][1]) * np.arange(B) * 3
        for shape in ((B,), (B, 1)):
            found = loss(outputs, *labels, mx.nd.array(np.arange(B), dtype="int32").reshape(shape))
            assert found.shape == (B,)
            np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-8 if "mined" in name else 1e-9)


def value_and_gradients(loss, outputs, labels):
    for one in outputs:
        one.attach_grad()
    with autograd.record():
        found = loss(outputs, *labels)
    found.backward()
    return found.asnumpy(), [one.grad.asnumpy() for one in outputs]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", OF_SCORES)
def test_far_scores_have_finite_gradients(name, made, dtype):
    loss, _, labels = made(name)
    for scores in (np.eye(C)[LABELS] * 200, np.eye(C)[LABELS] * -200, np.zeros((B, C))):
        value, (gradient,) = value_and_gradients(loss, arrays([scores], dtype), labels)
        assert np.isfinite(value).all()
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", OF_EMBEDDINGS)
def test_equal_embeddings_have_gradients_of_0(name, made, dtype):
    loss, outputs, labels = made(name, dtype)
    equal = [np.ones((B, D))] * len(outputs)
    value, gradients = value_and_gradients(loss, arrays(equal, dtype), labels)
    np.testing.assert_allclose(value, by_numpy(name, equal), rtol=1e-5, atol=1e-5)
    for gradient in gradients:
        np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("hybridize", [False, True])
def test_mining_of_many_batches(hybridize):
    loss = TripletLoss(0.3)
    loss.hybridize(hybridize)
    for seed in range(20):
        random = np.random.RandomState(seed)
        far = 5000 * (seed % 2)  # float32 must find the right samples there too
        x, classes = (random.randn(12, 4) + far).astype("float32"), random.randint(0, 1 + seed % 5, 12)
        found = loss(mx.nd.array(x), mx.nd.array(classes, dtype="int32").reshape((-1, 1)))
        expected = mined_by_loops(x.astype("float64"), classes, 0.3)
        np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-4, atol=1e-4)
        assert expected.any() == (seed % 5 > 0)  # of one class there is nothing to learn
    classes = np.array([2**24, 2**24 + 1, 2**24, 2**24 + 1])  # beyond float32
    found = loss(mx.nd.array(A[:4]), mx.nd.array(classes, dtype="int64"))
    np.testing.assert_allclose(found.asnumpy(), mined_by_loops(A[:4], classes, 0.3), rtol=1e-5)


def test_pixels():
    scores, labels = RANDOM.randn(2, 3, 4, 5), RANDOM.randint(0, 3, (2, 4, 5))
    flat = np.moveaxis(scores, 1, -1).reshape(-1, 3), labels.reshape(-1)
    for kind in (FocalLoss, LabelSmoothing):
        found = kind(axis=1)(*arrays((scores, labels)))
        expected = kind()(*arrays(flat)).asnumpy().reshape(2, -1).mean(1)
        np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-10)


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


ROW = np.zeros((1, B))
WRONG = [
    ("contrastive", ([A, P], ROW), r"same: expected shape \(6,\) or \(6, 1\); received \(1, 6\)"),
    ("contrastive", ([A, P], SAME, ROW), r"sample_weight: expected shape \(6,\) or \(6, 1\); received \(1, 6\)"),
    ("contrastive", ([A, P[:1]], SAME), r"a pair \[a, b\], each of shape \(B, D\)"),
    ("contrastive", (A, SAME), "expected a pair"),
    ("contrastive", ([A[:, 0], P[:, 0]], SAME), "expected a pair"),
    ("triplet", ([A, P],), r"expected a triplet \[anchor, positive, negative\], each of shape"),
    ("triplet", (A, LABELS[:5]), r"label: expected shape \(6,\) or \(6, 1\); received \(5,\)"),
    ("triplet", (A,), "or embeddings and labels"),
    ("triplet", (A[:, 0], LABELS), r"expected embeddings, .*received shapes \[\(6,\)\]"),
    *(
        (name, (SCORES, *CASES[name][2][:-1], *wrong), text)
        for name in ("focal", "smoothed", "soft", "distillation")
        for wrong, text in (
            ([np.zeros((B, 3))], r"(Loss|Smoothing|Distillation): labels?: expected .*shape .*; received \(6, 3\)"),
            ([np.zeros(1)], r"labels?: expected .*shape .*; received \(1,\)"),
            ([CASES[name][2][-1], ROW], r"sample_weight: expected shape \(6,\) or \(6, 1\); received \(1, 6\)"),
        )
    ),
    ("focal", (SCORES[:, 0], LABELS), r"FocalLoss: scores: expected shape \(B, ...\).*received \(6,\)"),
    ("distillation", (SCORES[:, 0],) * 3, r"KnowledgeDistillation: scores: expected shape \(B, C\)"),
]


@pytest.mark.parametrize(("name", "given", "text"), WRONG)
def test_wrong_shapes(name, given, text):
    for hybridize in (False, True):
        loss = CASES[name][0]()
        loss.hybridize(hybridize)
        with pytest.raises(DataError, match=text):
            loss(*(arrays(one) if isinstance(one, list) else arrays([one])[0] for one in given))


REFUSED = [
    (partial(ContrastiveLoss, -0.1), ValueError, "ContrastiveLoss: margin: expected a finite number of at least 0"),
    (partial(TripletLoss, -0.1), ValueError, "TripletLoss: margin: expected a finite number of at least 0"),
    (partial(FocalLoss, -1), ValueError, "FocalLoss: gamma: expected a finite number of at least 0; received -1"),
    (partial(FocalLoss, float("nan")), ValueError, "received nan"),
    (partial(LabelSmoothing, 1.5), ValueError, "epsilon: expected a finite number from 0 to 1; received 1.5"),
    (partial(KnowledgeDistillation, 0), ValueError, "KnowledgeDistillation: temperature"),
    (partial(KnowledgeDistillation, hard_weight="1"), ValueError, "Distillation: hard_weight.*received '1'"),
    (partial(Siamese, gluon.nn.Sequential()), TypeError, "branch: expected a HybridBlock; received Sequential"),
    (partial(pair_accuracy, A, P[:1], SAME), DataError, r"one shape \(N, D\); received \(6, 3\) and \(1, 3\)"),
    (partial(pair_accuracy, A, P, SAME[:2]), DataError, r"same: .* for each of 6 pairs; received shape \(2,\)"),
    (partial(triplet_accuracy, A * np.nan, P, N), DataError, "triplet_accuracy: embeddings hold NaN or infinity"),
]


@pytest.mark.parametrize(("call", "error", "text"), REFUSED)
def test_wrong_arguments(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_every_batch_and_both_inputs_of_a_siamese_net_share_the_branch():
    branch = gluon.nn.Dense(2)
    net = ready(Siamese(branch))
    for hybridize in (False, True):
        net.hybridize(hybridize)
        for size in (4, 3):
            one, other = mx.nd.array(RANDOM.randn(size, 5)), mx.nd.array(RANDOM.randn(size, 5))
            first, second = net(one, other)
            np.testing.assert_array_equal(first.asnumpy(), branch(one).asnumpy())
            np.testing.assert_array_equal(second.asnumpy(), branch(other).asnumpy())
    net.hybridize()
    assert len(net(one, other, one)) == 3
    assert list(mxkit.parameters(net)) == ["branch.weight", "branch.bias"]


def test_the_threshold_of_pairs_is_the_best_of_all():
    for seed in range(30):
        random = np.random.RandomState(seed)
        a, b = random.randint(0, 5, (20, 1)).astype(float), np.zeros((20, 1))
        same = random.randint(0, 2, 20)
        found = pair_accuracy(a, b, same)
        apart = np.abs(a - b)[:, 0]
        best = max(np.mean((apart < cut) == same) for cut in np.arange(-0.5, 6))
        assert found.accuracy == pytest.approx(best)
        assert pair_accuracy(a, b, same, threshold=found.threshold).accuracy == found.accuracy


def test_accuracies_of_arrays_of_either_kind():
    a, p, same = arrays([A, P, SAME])
    assert pair_accuracy(a, p, same.reshape((-1, 1))) == pair_accuracy(A, P, SAME)
    assert pair_accuracy(A, A + 1, np.ones(B)).accuracy == 1
    assert pair_accuracy(A, A, np.zeros(B)) == Agreement(1.0, -0.5)
    assert triplet_accuracy(a, a, p) == 1
    assert triplet_accuracy(A, A, A) == 0


def test_mining_trains_on_several_devices():
    splits = mxkit.data.digits()
    net = ready(gluon.nn.Dense(64, activation="relu"), gluon.nn.Dense(16), devices="cpu:2")
    net.hybridize()
    loader = mxkit.data.ArrayLoader(splits.train.x, splits.train.y, 64, shuffle=True, seed=0)
    fit(net, loader, loss="batch_hard_triplet", trainer=("adam", {"learning_rate": 1e-3}), epochs=2)
    triplets = [batch[0] for batch in PairLoader(splits.test.x, splits.test.y, 64, kind="triplets", seed=0)]
    three = [mxkit.predict(net, mx.nd.concat(*part, dim=0)) for part in zip(*triplets)]
    assert triplet_accuracy(*three) > 0.9
