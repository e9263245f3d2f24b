"""PairLoader: pairs and triplets that are what they are said to be, drawn as a function of (seed, epoch)."""

import warnings

from hypothesis import given, settings
from hypothesis import strategies as st
import mxkit
from mxkit.data.loader import PairLoader
from mxkit.errors import TrapWarning
import mxnet as mx
import numpy as np
import pytest
from sharing import examples

Y = np.repeat([3, 1, 7], [4, 6, 2])
X = np.arange(12.0)  # each sample is its own number


def read(loader):
    """Columns of sample numbers, and the labels, of an epoch over `X`."""
    batches = list(loader)
    columns = [np.concatenate(column) for column in zip(*[[part.asnumpy() for part in batch[0]] for batch in batches])]
    labels = np.concatenate([batch[1].asnumpy() for batch in batches]) if len(batches[0]) == 2 else None
    return np.stack(columns, axis=1).astype(int), labels


@settings(max_examples=examples(80))
@given(
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=5).filter(lambda sizes: max(sizes) > 1),
    length=st.one_of(st.none(), st.integers(1, 50)), batch_size=st.integers(1, 20), seed=st.integers(0, 99),
    same=st.sampled_from([0.0, 0.3, 0.5, 1.0]), kind=st.sampled_from(["pairs", "triplets"]), balanced=st.booleans(),
)  # fmt: skip
def test_pairs_and_triplets_are_what_they_are_said_to_be(sizes, length, batch_size, seed, same, kind, balanced):
    y = np.random.RandomState(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    x = np.arange(len(y), dtype="float32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrapWarning)  # of classes with one sample
        loader = PairLoader(x, y, batch_size, kind=kind, same=same, length=length, seed=seed, balanced=balanced)
    drawn, labels = read(loader)
    assert len(drawn) == (length or len(y))
    anchors = drawn[:, 0]
    if kind == "pairs":
        np.testing.assert_array_equal(labels, y[anchors] == y[drawn[:, 1]])
        assert labels.dtype == np.float32
        assert labels.sum() == round(same * len(drawn))
        assert (anchors != drawn[:, 1]).all()
    else:
        np.testing.assert_array_equal(y[anchors], y[drawn[:, 1]])
        assert (anchors != drawn[:, 1]).all()
        assert (y[anchors] != y[drawn[:, 2]]).all()
    if kind == "triplets" or same:
        assert (np.array(sizes)[y[anchors]] > 1).all()
    counts = np.bincount(y[anchors] if balanced else anchors)
    assert np.ptp(counts[counts > 0]) <= 1


def test_all_partners_are_drawn_and_none_more_often():
    loader = PairLoader(X, Y, 600, length=60000, seed=1)
    drawn, same = read(loader)
    table = np.zeros((2, 12, 12))
    np.add.at(table, (same.astype(int), drawn[:, 0], drawn[:, 1]), 1)
    alike = Y[:, None] == Y[None]
    for kind, possible in ((1, alike & ~np.eye(12, dtype=bool)), (0, ~alike)):
        expected = 30000 / 12 * possible / possible.sum(axis=1, keepdims=True)
        assert (table[kind][~possible] == 0).all()
        np.testing.assert_allclose(table[kind], expected, atol=6 * np.sqrt(expected.max()))


def test_balanced_pairs_take_classes_equally_often():
    drawn, _ = read(PairLoader(X, Y, 600, length=60000, seed=1, kind="triplets", balanced=True))
    assert np.bincount(Y[drawn[:, 0]]).tolist() == [0, 20000, 0, 20000, 0, 0, 0, 20000]
    for label in (1, 3, 7):  # the two other classes are equally likely, whatever their sizes
        negatives = np.bincount(Y[drawn[Y[drawn[:, 0]] == label, 2]], minlength=8)[[1, 3, 7]]
        np.testing.assert_allclose(negatives[negatives > 0], 10000, atol=600)
    assert len(np.unique(drawn[:, 0])) == 12


def test_batches_are_cut_as_array_loader_cuts_them():
    x = np.random.RandomState(0).randint(0, 256, (12, 1, 2, 3)).astype("uint8")
    loader = PairLoader(x, Y, 5, seed=1)
    assert loader.x is x
    order = loader.order(0)
    (a, b), same = next(iter(loader))
    for part, rows in ((a, order[:5, 0]), (b, order[:5, 1])):
        (whole,) = next(iter(mxkit.data.ArrayLoader(x[rows], None, 5)))
        np.testing.assert_array_equal(part.asnumpy(), whole.asnumpy())
    assert (a.shape, same.shape) == ((5, 1, 2, 3), (5,))
    ((a, _), _), *_ = PairLoader(x, Y, 5, seed=1, scale=1.0)
    np.testing.assert_array_equal(a.asnumpy(), x[order[:5, 0]])
    assert [len(batch[0][0]) for batch in PairLoader(mx.nd.array(X), mx.nd.array(Y), 5, drop_last=True)] == [5, 5]


def test_without_shuffle_each_epoch_is_epoch_0():
    loader = PairLoader(X, Y, 5, seed=1, shuffle=False)
    np.testing.assert_array_equal(loader.order(2), PairLoader(X, Y, 5, seed=1).order(0))


def test_a_class_with_one_sample_is_told_and_never_an_anchor():
    y = [*"aabbc"]
    with pytest.warns(TrapWarning, match="1 of 3 classes have a single sample: it is never an anchor"):
        loader = PairLoader(X[:5], y, 100, length=300, kind="triplets", seed=1)
    drawn, _ = read(loader)
    assert 4 not in drawn[:, :2]
    assert 4 in drawn[:, 2]
    assert "300 triplets an epoch, of 5 samples () float32 in 3 classes, batch_size" in repr(loader)
    drawn, _ = read(PairLoader(X[:5], y, 100, length=300, same=0, seed=1))  # unlike ones need no partner
    assert 4 in drawn[:, 0]


def test_one_class_gives_alike_pairs_and_a_class_a_sample_unlike_ones():
    PairLoader(X, np.zeros(12), 4, same=1)
    PairLoader(X, np.arange(12), 4, same=0)
