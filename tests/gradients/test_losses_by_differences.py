"""Gradients of every loss against differences, also where those of tutorials give NaN or 0."""

from functools import partial

import mxkit
from mxkit.losses.named_losses import LOSSES, get_loss
from mxnet import autograd, gluon, nd
import numpy as np
import pytest
from sharing import pairs

B, C = 5, 4
RANDOM = np.random.RandomState(0)
# MXNet's CTC knows only float32
COARSE = {"dtype": "float32", "eps": 1e-2, "rtol": 1e-2, "atol": 1e-3}


array = partial(nd.array, dtype="float64")


def random(*shape):
    return array(RANDOM.randn(*shape))


def shares():
    return RANDOM.dirichlet(np.ones(C), B)


CLASSES = nd.array([0, 3, 1, 2, 0], dtype="int32")  # both ends of the range
SAME = array([1, 0, 1, 0, 1])
SIGNS = array(np.sign(RANDOM.randn(B, C)))
X, ZEROS = random(B, C), array(np.zeros((B, C)))
UNIT = array(np.eye(C)[[1] * B])
RIGHT = array(np.eye(C)[CLASSES.asnumpy()])

# Name, the arrays of one random point, and which of them have gradients.
POINTS = {
    "batch_hard_triplet": ((X, CLASSES), 0),
    "contrastive": (([X, random(B, C)], SAME), 0),
    "cosine_embedding": ((X, random(B, C), array([1, -1, 1, 1, -1])), (0, 1)),
    "ctc": ((random(B, 6, C), array([[0, 1], [1, 1], [0, 0], [1, 2], [2, 0]])), 0),
    "distillation": ((X, random(B, C), CLASSES), 0),
    "focal": ((X, CLASSES), 0),
    "hinge": ((X, SIGNS), 0),
    "huber": ((X, random(B, C)), (0, 1)),
    "kl_div": ((array(np.log(shares())), array(shares())), 0),
    "l1": ((X, random(B, C)), (0, 1)),
    "l2": ((X, random(B, C)), (0, 1)),
    "label_smoothing": ((X, CLASSES), 0),
    "logistic": ((X, SIGNS), 0),
    "poisson_nll": ((X, (SIGNS + 1) * 3), 0),
    "sigmoid_bce": ((X, (SIGNS + 1) / 2), 0),
    "softmax_ce": ((X, CLASSES), 0),
    "squared_hinge": ((X, SIGNS), 0),
    "triplet": ((X, random(B, C), random(B, C)), (0, 1, 2)),
}
ZERO_WEIGHTS = array(np.zeros((B, 1)))


def check(loss, *arrays, wrt=0, hybridize=False, **settings):
    """`check_gradient` of a loss; a list in front is one group of outputs, all of which are checked."""
    loss = get_loss(loss)
    loss.hybridize(hybridize)
    if isinstance(arrays[0], list):
        count, rest = len(arrays[0]), arrays[1:]
        return mxkit.gradients.check_gradient(
            lambda *group: loss(list(group), *rest), *arrays[0], wrt=range(count), **settings
        )
    return mxkit.gradients.check_gradient(loss, *arrays, wrt=wrt, **settings)


def gradient(function, x):
    x = x.copy()
    x.attach_grad()
    with autograd.record():
        value = function(x)
    value.backward()
    return x.grad.asnumpy()


@pytest.mark.parametrize(("name", "hybridize"), pairs(sorted(LOSSES), [False, True]))
def test_every_loss_at_a_random_point(name, hybridize):
    arrays, wrt = POINTS[name]
    found = check(name, *arrays, wrt=wrt, hybridize=hybridize, **(COARSE if name == "ctc" else {}))
    assert found.compared >= B * C
    assert found.kinks == 0


@pytest.mark.parametrize(("name", "hybridize"), pairs(sorted(set(LOSSES) - {"triplet"}), [False, True]))
def test_every_loss_with_weights_of_0(name, hybridize):  # Gluon's triplet takes no weights
    arrays, _ = POINTS[name]
    loss, dtype = get_loss((name, {"weight": 3.0})), "float32" if name == "ctc" else "float64"
    loss.hybridize(hybridize)
    group = [one.astype(dtype) for one in (arrays[0] if isinstance(arrays[0], list) else arrays[:1])]
    weights = nd.zeros((B,) if name == "ctc" else (B, 1), dtype=dtype)
    lengths = [nd.full((B,), size) for size in (group[0].shape[1], 2)] if name == "ctc" else []

    def weighed(x):
        return loss([x, *group[1:]] if len(group) > 1 else x, *arrays[1:], *lengths, weights)

    assert not gradient(weighed, group[0]).any()


def far_scores(scale):
    """Losses, and scores that are all right (a large scale), all wrong (a negative one), or undecided (0)."""
    right, signs, both = RIGHT * scale, SIGNS * scale, (SIGNS + 1) / 2
    for loss in ("softmax_ce", "focal", ("focal", {"gamma": 0.5}), ("focal", {"gamma": 0}), "label_smoothing"):
        yield from ((loss, right, CLASSES), (loss, right, CLASSES, ZERO_WEIGHTS))
    for loss in ("distillation", ("distillation", {"temperature": 1, "hard_weight": 0})):
        yield from ((loss, right, X, CLASSES), (loss, X, right, CLASSES))
    yield from (("logistic", signs, SIGNS), ("sigmoid_bce", signs, both))
    yield "sigmoid_bce", signs, both, ZERO_WEIGHTS + 1, array(np.full((1, C), 3.0))
    for label in (array(shares()), RIGHT):
        yield ("kl_div", {"from_logits": False}), right, label


@pytest.mark.parametrize(("scale", "hybridize"), pairs([200, -200, 0], [False, True]))
def test_far_scores(scale, hybridize):
    for case in far_scores(scale):
        check(*case, hybridize=hybridize)


@pytest.mark.parametrize("name", ["sigmoid_bce", "logistic"])
def test_scores_of_exactly_0_are_wrong_in_gluon(name):
    """A last layer that starts at 0: nothing is learnt of class 0, and twice as much of class 1."""
    theirs = {"sigmoid_bce": gluon.loss.SigmoidBCELoss(), "logistic": gluon.loss.LogisticLoss(label_format="binary")}
    ours = get_loss((name, {} if name == "sigmoid_bce" else {"label_format": "binary"}))
    scores, label = nd.zeros((2, 1)), nd.array([[0], [1]])
    np.testing.assert_allclose(gradient(lambda x: ours(x, label), scores), [[0.5], [-0.5]], rtol=1e-6)
    for dtype in ("float16", "float32", "float64"):
        values = [loss(X.astype(dtype), SIGNS.astype(dtype)).asnumpy() for loss in (ours, theirs[name])]
        np.testing.assert_array_equal(*values)
        found = gradient(lambda x: ours(x, x + 1), nd.zeros((1, 1), dtype=dtype))
        np.testing.assert_allclose(found, [[-0.5]], rtol=1e-6)  # the label's own share is -score, 0
    if name == "sigmoid_bce":
        half = nd.array([[0.0, 0.5]])
        np.testing.assert_array_equal(
            *(kind(from_sigmoid=True)(half, half).asnumpy() for kind in (type(ours), gluon.loss.SigmoidBCELoss))
        )


def test_an_embedding_of_zeros_gives_nan_in_gluons_cosine_loss():
    other, label = nd.array([[3, 4], [3, 4]]), nd.array([1, -1])
    ours, zeros = get_loss("cosine_embedding"), nd.zeros((2, 2))
    np.testing.assert_array_equal(ours(zeros, other, label).asnumpy(), [[1], [0]])
    np.testing.assert_allclose(gradient(lambda x: ours(x, other, label), zeros), [[-0.6, -0.8], [0, 0]], rtol=1e-6)
    check(ours, zeros.astype("float64"), other.astype("float64"), label.astype("float64"), wrt=1)
    check(ours, UNIT, UNIT, array([1, -1, 1, -1, 1]), wrt=(0, 1))
    assert np.isfinite(gradient(lambda x: ours(x, x, label), zeros)).all()


@pytest.mark.parametrize("hybridize", [False, True], ids=["eager", "hybridized"])
def test_cosine_has_gluons_values(hybridize):
    draws = (RANDOM.randn(B, C), RANDOM.randn(B, C), [1, -1, 1, 0, -1], RANDOM.rand(B, 1))
    x, y, label, weight = (nd.array(one, dtype="float32") for one in draws)
    for margin in (0, 0.3):
        arguments = {"margin": margin, "weight": 2.0}
        ours, theirs = get_loss(("cosine_embedding", arguments)), gluon.loss.CosineEmbeddingLoss(**arguments)
        ours.hybridize(hybridize)
        for more in ((), (weight,)):
            found, expected = ours(x, y, label, *more), theirs(x, y, label, *more)
            np.testing.assert_allclose(found.asnumpy(), expected.asnumpy(), rtol=1e-5, atol=1e-6)
            ours.hybridize(hybridize)  # another number of arguments is another graph


SKIPPED = {"skip_kinks": True}
# Distances of 0, or exactly of the margin.
MARGINS = [
    *(("contrastive", (pair, SAME, *more), {}) for pair in ([X, X], [UNIT, ZEROS]) for more in ((), (ZERO_WEIGHTS,))),
    (("contrastive", {"margin": 0}), ([X, X], SAME), {}),
    *(("batch_hard_triplet", (three,), SKIPPED) for three in ([X, X, X], [UNIT, UNIT, ZEROS], [UNIT, ZEROS, ZEROS])),
    ("batch_hard_triplet", ([X, X, X], ZERO_WEIGHTS), {}),
    *(("batch_hard_triplet", (batch, labels), {}) for batch in (X, UNIT, ZEROS) for labels in (CLASSES, CLASSES * 0)),
    *(("triplet", (X, X, negative), {"wrt": (0, 1, 2), **SKIPPED}) for negative in (X, X + UNIT)),
    *((name, (X, X), {}) for name in ("l1", "l2", "huber")),
    ("huber", (X + 1, X), {}),
    ("squared_hinge", (SIGNS, SIGNS), {}),
]


@pytest.mark.parametrize("hybridize", [False, True], ids=["eager", "hybridized"])
def test_distances_of_0_and_of_the_margin(hybridize):
    for loss, arrays, how in MARGINS:
        check(loss, *arrays, hybridize=hybridize, **how)
    assert check("hinge", SIGNS, SIGNS, hybridize=hybridize, skip_kinks=True).kinks == B * C


def test_reversed_twice_is_forward():
    def twice(x):
        return mxkit.gradients.gradient_reversal(mxkit.gradients.gradient_reversal(x, scale=2), scale=0.5)

    mxkit.gradients.check_gradient(twice, X)
    with pytest.raises(ArithmeticError, match="20 of 20 elements differ"):
        mxkit.gradients.check_gradient(mxkit.gradients.gradient_reversal, X)
    np.testing.assert_array_equal(gradient(mxkit.gradients.gradient_reversal, X), np.full((B, C), -1))
