"""Siamese nets: losses against NumPy and central differences, mining against a loop, a net on held-out classes."""

import mxkit
from mxkit.data.loader import PairLoader
from mxkit.errors import DataError
from mxkit.gradients.functions import check_gradient
from mxkit.losses.own_losses import Agreement, ContrastiveLoss, TripletLoss, pair_accuracy, triplet_accuracy
from mxkit.models.networks import Siamese
import mxnet as mx
from mxnet import autograd, gluon, nd
import numpy as np
import pytest

B, D = 7, 3
RANDOM = np.random.RandomState(0)
A, P, N = (RANDOM.randn(B, D) * 0.6 for _ in range(3))
SAME = np.array([1, 0, 1, 0, 0, 1, 0])
CLASSES = np.array([0, 1, 0, 2, 1, 0, 3])  # 2 and 3 have no positive


def contrastive_by_numpy(a, b, same, margin=1.0):
    apart = np.linalg.norm(a - b, axis=1)
    return np.where(same, apart**2, np.maximum(margin - apart, 0) ** 2)


def batch_hard_by_loops(x, classes, margin=1.0):
    found = []
    for i in range(len(x)):
        apart = np.linalg.norm(x - x[i], axis=1)
        positives = [apart[j] for j in range(len(x)) if classes[j] == classes[i] and j != i]
        negatives = [apart[j] for j in range(len(x)) if classes[j] != classes[i]]
        found.append(max(max(positives) - min(negatives) + margin, 0) if positives and negatives else 0)
    return np.array(found)


def array(values, dtype="float64"):
    return mx.nd.array(values, dtype=dtype)


def gradients(function, *arrays):
    for one in arrays:
        one.attach_grad()
    with autograd.record():
        values = function(*arrays)
    values.backward()
    return [one.grad.asnumpy() for one in arrays]


@pytest.fixture(params=[False, True], ids=["eager", "hybridized"])
def hybridized(request):
    def make(loss):
        loss.hybridize(request.param)
        return loss

    return make


def seeds_loss(l_o, r_o, y):
    """As the seed wrote it."""
    margin = 1.0
    d = nd.norm(l_o - r_o, axis=1)
    dd = nd.relu(margin - d)
    return y * d * d + (1 - y) * dd * dd


class TestContrastive:
    def test_value_and_gradient(self, hybridized):
        loss = hybridized(ContrastiveLoss(1.2))
        found = loss([array(A), array(P)], array(SAME, "int32"))
        assert found.shape == (B,)
        np.testing.assert_allclose(found.asnumpy(), contrastive_by_numpy(A, P, SAME, 1.2), rtol=1e-9)
        check_gradient(lambda a, b: loss([a, b], array(SAME, "int32")), A, P)

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    def test_the_gradient_at_distance_0_is_finite(self, hybridized, dtype):
        same = array([1, 0], dtype)
        assert np.isnan(gradients(lambda a, b: seeds_loss(a, b, same), array(A[:2], dtype), array(A[:2], dtype))).any()
        loss = hybridized(ContrastiveLoss())
        values = loss([array(A[:2], dtype), array(A[:2], dtype)], same).asnumpy()
        np.testing.assert_allclose(values, [0, 1], atol=1e-5)
        for gradient in gradients(lambda a, b: loss([a, b], same), array(A[:2], dtype), array(A[:2], dtype)):
            np.testing.assert_array_equal(gradient, 0)

    @pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "float64"])
    @pytest.mark.parametrize("shape", [(B,), (B, 1)])
    def test_labels_of_any_dtype_and_of_two_axes(self, hybridized, dtype, shape):
        column = array(SAME.reshape(-1, 1), "float32")
        assert seeds_loss(array(A, "float32"), array(P, "float32"), column).shape == (B, B)
        found = hybridized(ContrastiveLoss())(
            [array(A, "float32"), array(P, "float32")], array(SAME, dtype).reshape(shape)
        )
        assert found.shape == (B,)
        np.testing.assert_allclose(found.asnumpy(), contrastive_by_numpy(A, P, SAME), rtol=1e-4)

    @pytest.mark.parametrize("labels", [SAME, SAME * 2 - 1], ids=["0", "-1"])
    @pytest.mark.parametrize("shape", [(B,), (B, 1)])
    def test_weights_and_both_forms_of_labels(self, hybridized, shape, labels):
        weights = array(np.arange(B), "int32").reshape(shape)
        found = hybridized(ContrastiveLoss(weight=2))([array(A), array(P)], array(labels), weights)
        np.testing.assert_allclose(found.asnumpy(), contrastive_by_numpy(A, P, SAME) * 2 * np.arange(B), rtol=1e-9)


class TestTriplet:
    def test_value_gradient_and_weights_of_triplets(self, hybridized):
        loss, triplet = hybridized(TripletLoss(0.8)), [array(A), array(P), array(N)]
        expected = np.maximum(np.linalg.norm(A - P, axis=1) - np.linalg.norm(A - N, axis=1) + 0.8, 0)
        found = loss(triplet)
        assert found.shape == (B,)
        np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-9)
        check_gradient(lambda *three: loss(list(three)), A, P, N)
        weighed = hybridized(TripletLoss(0.8))(triplet, array(np.arange(B), "int32"))
        np.testing.assert_allclose(weighed.asnumpy(), expected * np.arange(B), rtol=1e-9)

    @pytest.mark.parametrize("offset", [0, 100])
    def test_value_and_gradient_of_a_mined_batch(self, hybridized, offset):
        loss = hybridized(TripletLoss())
        found = loss(array(A + offset), array(CLASSES, "int64"))
        np.testing.assert_allclose(found.asnumpy(), batch_hard_by_loops(A, CLASSES), rtol=1e-8)
        assert (found.asnumpy() == 0)[[3, 6]].all()
        assert (found.asnumpy() > 0).sum() >= 3
        check_gradient(lambda x: loss(x, array(CLASSES, "int64")), A)

    def test_mining_of_many_batches(self, hybridized):
        loss = hybridized(TripletLoss(0.3))
        for seed in range(20):
            random = np.random.RandomState(seed)
            far = 5000 * (seed % 2)  # float32 must find the right samples there too
            x, classes = (random.randn(12, 4) + far).astype("float32"), random.randint(0, 4, 12)
            found = loss(mx.nd.array(x), mx.nd.array(classes, dtype="int32").reshape((-1, 1)))
            expected = batch_hard_by_loops(x.astype("float64"), classes, 0.3)
            np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-4, atol=1e-4)

    def test_class_numbers_beyond_float32_are_told_apart(self, hybridized):
        classes = np.array([2**24, 2**24 + 1, 2**24, 2**24 + 1])
        found = hybridized(TripletLoss())(array(A[:4], "float32"), mx.nd.array(classes, dtype="int64"))
        np.testing.assert_allclose(found.asnumpy(), batch_hard_by_loops(A[:4], classes), rtol=1e-5)

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    def test_equal_embeddings_have_finite_gradients(self, hybridized, dtype):
        loss, triplets = hybridized(TripletLoss()), hybridized(TripletLoss())
        equal = np.ones((4, D))
        triplet = gradients(lambda *three: triplets(list(three)), *(array(equal, dtype) for _ in range(3)))
        mined = gradients(lambda x: loss(x, array([0, 0, 1, 1])), array(equal, dtype))
        for gradient in [*triplet, *mined]:
            np.testing.assert_array_equal(gradient, 0)
        np.testing.assert_allclose(loss(array(equal, dtype), array([0, 0, 1, 1])).asnumpy(), 1, rtol=1e-5)

    def test_one_class_only_gives_0(self, hybridized):
        found = hybridized(TripletLoss())(array(A), array(np.zeros(B)))
        np.testing.assert_array_equal(found.asnumpy(), 0)


PAIR, COLUMN = [array(A), array(P)], array(SAME).reshape((1, B))


@pytest.mark.parametrize(
    ("kind", "arrays", "text"),
    [
        (ContrastiveLoss, (PAIR, COLUMN), r"same: expected shape \(7,\) or \(7, 1\); received \(1, 7\)"),
        (ContrastiveLoss, (PAIR, array(SAME), COLUMN), r"sample_weight: expected shape"),
        (ContrastiveLoss, ([array(A), array(P[:1])], array(SAME)), r"a pair \[a, b\], each of shape \(B, D\)"),
        (ContrastiveLoss, (array(A), array(SAME)), r"expected a pair"),
        (ContrastiveLoss, ([array(A[:, 0]), array(P[:, 0])], array(SAME)), r"expected a pair"),
        (TripletLoss, (PAIR,), r"expected a triplet \[anchor, positive, negative\], each of shape"),
        (TripletLoss, (array(A), array(CLASSES[:6])), r"label: expected shape \(7,\) or \(7, 1\); received \(6,\)"),
        (TripletLoss, (array(A),), r"or embeddings and labels"),
        (TripletLoss, (array(A[:, 0]), array(CLASSES)), r"expected embeddings, .*received shapes \[\(7,\)\]"),
    ],
)
def test_wrong_shapes(kind, arrays, text, hybridized):
    with pytest.raises(DataError, match=text):
        hybridized(kind())(*arrays)


class TestSiamese:
    def test_every_batch_and_both_inputs_share_the_branch(self):
        branch = gluon.nn.Dense(2)
        net = Siamese(branch)
        mxkit.initialize(net, devices="cpu")
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

    def test_a_branch_that_is_no_hybrid_block(self):
        with pytest.raises(TypeError, match="Siamese: branch: expected a HybridBlock; received Sequential"):
            Siamese(gluon.nn.Sequential())


class TestAccuracies:
    def test_the_threshold_is_the_best_of_all(self):
        for seed in range(30):
            random = np.random.RandomState(seed)
            a, b = random.randint(0, 5, (20, 1)).astype(float), np.zeros((20, 1))
            same = random.randint(0, 2, 20)
            found = pair_accuracy(a, b, same)
            apart = np.abs(a - b)[:, 0]
            best = max(np.mean((apart < cut) == same) for cut in np.arange(-0.5, 6))
            assert found.accuracy == pytest.approx(best)
            assert pair_accuracy(a, b, same, threshold=found.threshold).accuracy == found.accuracy

    def test_arrays_of_either_kind(self):
        same = mx.nd.array(SAME).reshape((-1, 1))
        assert pair_accuracy(array(A), array(P), same) == pair_accuracy(A, P, SAME)
        assert pair_accuracy(A, A + 1, np.ones(B)).accuracy == 1
        assert pair_accuracy(A, A, np.zeros(B)) == Agreement(1.0, -0.5)

    def test_triplets(self):
        assert triplet_accuracy(array(A), array(A), array(P)) == 1
        assert triplet_accuracy(A, A, A) == 0

    def test_wrong_arrays(self):
        with pytest.raises(DataError, match=r"embeddings of one shape \(N, D\); received \(7, 3\) and \(1, 3\)"):
            pair_accuracy(A, P[:1], SAME)
        with pytest.raises(DataError, match=r"same: expected one value for each of 7 pairs; received shape \(2,\)"):
            pair_accuracy(A, P, SAME[:2])
        broken = A.copy()
        broken[0] = np.nan
        with pytest.raises(DataError, match="triplet_accuracy: embeddings hold NaN or infinity"):
            triplet_accuracy(broken, P, N)


@pytest.mark.parametrize("kind", [ContrastiveLoss, TripletLoss])
def test_wrong_margins(kind):
    with pytest.raises(ValueError, match=rf"{kind.__name__}: margin: expected a finite number of at least 0"):
        kind(-0.1)


def branch():
    net = gluon.nn.HybridSequential()
    for channels, size in ((16, 5), (32, 3)):
        net.add(gluon.nn.Conv2D(channels, size, activation="relu"), gluon.nn.MaxPool2D(2))
    net.add(gluon.nn.Dense(64, activation="relu"), gluon.nn.Dense(16))
    return net


def test_mining_trains_on_several_devices():
    splits = mxkit.data.digits(28)
    net = branch()
    mxkit.initialize(net, devices="cpu:2")
    net.hybridize()
    loader = mxkit.data.ArrayLoader(splits.train.x, splits.train.y, 64, shuffle=True, seed=0)
    trainer = ("adam", {"learning_rate": 1e-4})
    mxkit.fit(net, loader, loss="batch_hard_triplet", trainer=trainer, epochs=2, progress=False)
    triplets = [batch[0] for batch in PairLoader(splits.test.x, splits.test.y, 64, kind="triplets", seed=0)]
    three = [mxkit.predict(net, mx.nd.concat(*part, dim=0)) for part in zip(*triplets)]
    assert triplet_accuracy(*three) > 0.9
