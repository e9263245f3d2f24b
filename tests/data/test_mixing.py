"""Soft labels: sums, weights and areas, exactly."""

from mxkit.data.augment import cutmix, mixup, smooth_labels
import numpy as np
import pytest

N, CLASSES = 8, 5
X = np.random.RandomState(0).rand(N, 3, 12, 10).astype(np.float32)
Y = np.arange(N) % CLASSES


def generator(*key):
    return np.random.Generator(np.random.PCG64(list(key)))


@pytest.mark.parametrize("seed", range(6))
def test_mixup_is_the_mean_of_two_samples_and_of_their_labels(seed):
    x, soft = mixup(X, Y, generator(seed), classes=CLASSES, alpha=1.0)
    rng = generator(seed)
    weight, order = rng.beta(1.0, 1.0), rng.permutation(N)
    np.testing.assert_allclose(x, weight * X + (1 - weight) * X[order], atol=1e-6)
    one_hot = np.eye(CLASSES)[Y]
    np.testing.assert_allclose(soft, weight * one_hot + (1 - weight) * one_hot[order], atol=1e-6)
    np.testing.assert_allclose(soft.sum(axis=1), 1, atol=1e-6)
    assert (x.dtype, soft.dtype) == (np.float32, np.float32)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_cutmix_counts_the_pixels_that_came_from_the_partner(seed, dtype):
    # each image is its own number everywhere, so every pixel tells where it came from
    images = np.broadcast_to(np.arange(N, dtype=dtype)[:, None, None, None], X.shape)
    labels = np.arange(N)
    x, soft = cutmix(images, labels, generator(seed), classes=N)
    assert x.dtype == dtype
    for row in range(N):
        shares = np.bincount(x[row, 0].astype(int).ravel(), minlength=N) / x[row, 0].size
        np.testing.assert_allclose(soft[row], shares, atol=1e-6)
        assert (x[row] == x[row, :1]).all()
        rows, columns = np.nonzero(x[row, 0] != row)
        if len(rows):  # one rectangle
            assert len(rows) == (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
    np.testing.assert_array_equal(images[:, 0, 0, 0], labels)


def test_cutmix_draws_shares_of_all_sizes_and_places():
    images, labels = zip(*(cutmix(X, Y, generator(seed), classes=CLASSES) for seed in range(200)))
    shares = [soft.max() for soft in labels]
    assert min(shares) < 0.55
    assert max(shares) == 1
    assert (np.array([(x != X).any(axis=(0, 1)) for x in images]).sum(axis=0) > 0).all()


def test_smoothed_labels():
    x, soft = smooth_labels(X, Y, classes=CLASSES, epsilon=0.1)
    assert x is X
    np.testing.assert_allclose(soft, np.eye(CLASSES)[Y] * 0.9 + 0.02, atol=1e-7)
    _, again = smooth_labels(X, soft, classes=CLASSES, epsilon=0.1)
    np.testing.assert_allclose(again, soft * 0.9 + 0.02, atol=1e-7)


@pytest.mark.parametrize("mix", [mixup, cutmix])
def test_arrays_keep_their_kind_and_nothing_given_is_changed(mix, kind):
    x, y = kind.of(X), kind.of(Y.astype("int32"))
    found, soft = mix(x, y, generator(1), classes=CLASSES)
    expected = mix(X.copy(), Y, generator(1), classes=CLASSES)
    assert kind.holds(found)
    assert kind.holds(soft)
    np.testing.assert_array_equal(found.asnumpy(), expected[0])
    np.testing.assert_array_equal(soft.asnumpy(), expected[1])
    np.testing.assert_array_equal(x.asnumpy(), X)
    np.testing.assert_array_equal(y.asnumpy(), Y)


def test_several_inputs_are_mixed_alike():
    (first, second), soft = mixup((X, X[:, :, 0]), Y, generator(2), classes=CLASSES)
    np.testing.assert_array_equal(first[:, :, 0], second)
    assert soft.shape == (N, CLASSES)
