"""BucketLoader: each sequence once, padded as little as its bucket allows, in an order of (seed, epoch)."""

from batches import read
from gluoncv.data.batchify import Pad
from hypothesis import given, settings
from hypothesis import strategies as st
import mxkit
from mxkit.data.buckets import BucketLoader
from mxkit.errors import DataError, EmptyDataError
import mxnet as mx
from mxnet import gluon
import numpy as np
import pytest
from sharing import examples


def sequences(lengths, shape=(), dtype="float32"):
    """Sequence i holds i + 1 throughout."""
    return [np.full((length, *shape), number + 1, dtype) for number, length in enumerate(lengths)]


@settings(max_examples=examples(80))
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=50), batch_size=st.integers(1, 12),
    buckets=st.one_of(st.integers(1, 12), st.sampled_from([(30,), (5, 10, 30), (29, 30, 31)])),
    pad_to=st.sampled_from(["bucket", "longest"]), shuffle=st.booleans(), drop_last=st.booleans(),
    epoch=st.integers(0, 1000),
)  # fmt: skip
def test_each_epoch_holds_every_sequence_once(lengths, batch_size, buckets, pad_to, shuffle, drop_last, epoch):
    options = {"buckets": buckets, "pad": -1, "pad_to": pad_to, "shuffle": shuffle, "seed": 3, "drop_last": drop_last}
    numbers = np.arange(len(lengths))
    try:
        loader = BucketLoader(sequences(lengths), numbers, batch_size, **options)
    except EmptyDataError:
        assert drop_last
        assert len(lengths) < batch_size * (buckets if isinstance(buckets, int) else len(buckets))
        return
    loader.epoch = epoch
    batches = read(loader)
    assert len(batches) == len(loader)
    seen = np.concatenate([y for _, _, y in batches])
    np.testing.assert_array_equal(seen, loader.order(epoch))
    if drop_last:
        assert {len(y) for _, _, y in batches} == {batch_size}
        assert len(set(seen.tolist())) == len(seen)
    else:
        np.testing.assert_array_equal(np.sort(seen), numbers)
    for x, told, y in batches:
        assert told.dtype == np.float32
        np.testing.assert_array_equal(told, np.array(lengths)[y])
        mask = np.arange(x.shape[1]) < told[:, None]
        np.testing.assert_array_equal(x, np.where(mask, y[:, None] + 1, -1))
        limit = min(limit for limit in loader.limits if limit >= told.max())
        assert x.shape[1] == (limit if pad_to == "bucket" else told.max())
        assert told.min() > max([below for below in loader.limits if below < limit], default=0)


def test_padding_equals_gluoncvs():
    given_sequences = [np.random.RandomState(n).randn(n, 3).astype("float32") for n in (4, 2, 5)]
    (((x, lengths),),) = BucketLoader(given_sequences, None, 3, buckets=1)
    np.testing.assert_array_equal(lengths.asnumpy(), [4, 2, 5])
    np.testing.assert_array_equal(x.asnumpy(), Pad()([mx.nd.array(one) for one in given_sequences]).asnumpy())


def test_predict_refuses_the_order_of_lengths_and_names_the_way_back():
    lengths = [3, 1, 2, 5, 4]
    given_sequences = [np.full(n, n, "float32") for n in lengths]

    def longest(x, _):
        return x.max(axis=1)

    net = gluon.nn.Lambda(longest)
    loader = BucketLoader(given_sequences, None, 2, buckets=[2, 5])
    with pytest.raises(DataError, match="predict: the loader sorts by length, .* Pass buckets=1"):
        mxkit.predict(net, loader)
    outputs = mxkit.predict(net, list(loader)).asnumpy()
    assert outputs[loader.order(loader.epoch - 1).argsort()].tolist() == lengths
    assert mxkit.predict(net, BucketLoader(given_sequences, None, 2, buckets=1)).asnumpy().tolist() == lengths


def test_shuffled_batches_are_mixed_over_the_buckets_and_sequences_within():
    lengths = np.random.RandomState(0).randint(1, 41, 400)
    loader = BucketLoader(sequences(lengths), np.arange(400), 10, buckets=4, shuffle=True, seed=3)
    epochs = [[y.tolist() for _, _, y in read(loader)] for _ in range(3)]
    together = [{frozenset(batch) for batch in epoch} for epoch in epochs]
    assert len(together[0] & together[1]) == 0
    for epoch in epochs:
        buckets = [int(np.searchsorted(loader.limits, lengths[batch].max())) for batch in epoch]
        assert {0, 1, 2, 3} == set(buckets[:12])
        assert sum(one != other for one, other in zip(buckets, buckets[1:])) > 20
    plain = BucketLoader(sequences(lengths), np.arange(400), 10, buckets=4)
    widths = [x.shape[1] for x, _, _ in read(plain)]
    assert widths == sorted(widths)


def test_limits_are_quantiles_and_sizes_about_equal():
    lengths = np.random.RandomState(0).permutation(np.arange(1, 101))
    assert BucketLoader(sequences(lengths), None, 10, buckets=4).limits == [25, 50, 75, 100]
    assert BucketLoader(sequences([3, 3, 3, 9]), None, 10, buckets=4).limits == [3, 9]
    assert BucketLoader(sequences([3, 3, 3, 9]), None, 10, buckets=np.array([1, 4, 6, 12])).limits == [4, 12]


def test_types():
    """T14."""
    for dtype, kept in (("float64", "float32"), ("int64", "int32"), ("uint8", "uint8"), ("float16", "float16")):
        (((x, _), y),) = BucketLoader(sequences([2, 3], (4,), dtype), np.array([0, 1], dtype), 2, buckets=1)
        assert (x.dtype, y.dtype, x.shape) == (np.dtype(kept), np.dtype(kept), (2, 3, 4))


def test_lists_ndarrays_and_labels_of_any_shape(kind):
    (((x, _), y),) = BucketLoader([[1, 2], [2.5]], [[1, 2], [3, 4]], 2, buckets=1)
    assert x.asnumpy().tolist() == [[1, 2], [2.5, 0]]
    assert y.asnumpy().tolist() == [[1, 2], [3, 4]]
    (((x, _), y),) = BucketLoader(kind.of([np.ones(2), np.ones(1)]), kind.of(np.array([1, 0])), 2, buckets=1)
    assert (x.shape, y.shape) == ((2, 2), (2,))
