"""ArrayLoader: whole batches, in an order that depends on (seed, epoch) and on nothing else."""

from batches import assert_same, read
import mxkit
from mxkit.data import ArrayLoader, PairLoader, channel_statistics
from mxkit.errors import DataError, TrapWarning
import mxnet as mx
import numpy as np
import pytest

X = np.random.RandomState(0).randint(0, 256, (11, 1, 2, 3)).astype("uint8")
Y = np.arange(11)


@pytest.mark.parametrize("kind", ["image", "video", "lengths", "masks", "table", "one-hot"])
def test_bytes_are_divided_by_255_only_where_they_are_images(kind):
    shape = {"image": (6, 3, 4, 4), "video": (6, 3, 2, 4, 4), "lengths": (6,), "masks": (6, 5), "table": (6, 5)}
    most = 2 if kind in ("masks", "one-hot") else 256
    x = np.random.RandomState(1).randint(0, most, shape.get(kind, (6, 5, 3))).astype("uint8")
    expected = x * np.float32(1 / 255 if x.ndim > 3 else 1)
    assert ArrayLoader(x, None, 4).x is x  # it stays uint8 in memory
    image = np.zeros((6, 1, 2, 2), "uint8")
    net = mx.gluon.nn.HybridLambda("identity")
    found = [
        np.concatenate([batch[1].asnumpy() for (batch,) in ArrayLoader((image, x), None, 4)]),
        np.concatenate([batch[1].unpacked().asnumpy() for (batch,) in ArrayLoader((image, x), None, 4).packed()]),
        next(iter(ArrayLoader(x, Y[:6], 6, transform=lambda x, y, rng: (x, y))))[0].asnumpy(),
        mxkit.predict(net, x).asnumpy(),
    ]
    for one in found:
        assert one.dtype == np.float32
        np.testing.assert_array_equal(one, expected)
    ((one, _), _), *_ = loader = PairLoader(x, Y[:6] % 2, 6, seed=0)
    np.testing.assert_array_equal(one.asnumpy(), expected[loader.order(0)[:, 0]])
    np.testing.assert_array_equal(next(iter(ArrayLoader(x, None, 6, scale=0.5)))[0].asnumpy(), x * np.float32(0.5))
    if x.ndim > 1:
        axes = (0, *range(2, x.ndim))
        np.testing.assert_allclose(channel_statistics(x)[0], expected.astype("float64").mean(axis=axes), rtol=1e-6)


def test_grey_images_without_the_axis_of_channels_are_pointed_out():
    grey = np.full((6, 4, 4), 200, "uint8")
    with pytest.warns(TrapWarning, match=r"uint8 of shape \(6, 4, 4\) is not divided by 255: pass x\[:, None\]"):
        ArrayLoader(grey, None, 4)
    ArrayLoader(grey, None, 4, scale=1 / 255)  # warns of nothing


@pytest.mark.parametrize("given_dtype", ["float64", "int64", "bool", "float32", "int32"])
def test_dtypes_of_labels_and_inputs(given_dtype):
    """T14."""
    array, kept = np.array([0, 1, 1], given_dtype), "int32" if "int" in given_dtype else "float32"
    loader = ArrayLoader(array, np.ma.masked_equal(array, 99), 2)  # no value is masked
    parts = [loader.x, loader.y, *(part for batch in loader for part in batch)]
    assert {np.dtype(part.dtype) for part in parts} == {np.dtype(kept)}


def test_ndarrays_and_inputs_alone(kind):
    images = mx.nd.array(X.transpose(0, 2, 3, 1), dtype="uint8")
    ((x,),) = ArrayLoader(kind.of(images), None, 20)
    expected = mx.gluon.data.vision.transforms.ToTensor()(images)
    np.testing.assert_allclose(x.transpose((0, 3, 1, 2)).asnumpy(), expected.asnumpy(), rtol=2e-7)


def mix(x, y, rng):
    x += rng.random(x.shape, np.float32)  # free to be changed
    return x, np.stack([y, y + rng.integers(0, 2**20, y.shape)], 1)


@pytest.mark.parametrize(("prefetch", "skipped"), [(0, 2), (1, 0), (2, 3), (5, 2)])
def test_skip_prefetch_and_transform_change_no_batch(prefetch, skipped):
    options = {"shuffle": True, "seed": 4, "transform": mix}
    whole = ArrayLoader(X, Y, 4, prefetch=0, **options)
    loader = ArrayLoader(X, Y, 4, prefetch=prefetch, **options)
    kept = X.copy()
    for left_out in (skipped, 0):
        loader.skip(left_out)
        assert_same(read(loader), read(whole)[left_out:])
    np.testing.assert_array_equal(X, kept)


def test_the_transform_of_a_batch_gets_numbers_of_its_own():
    drawn = []
    loader = ArrayLoader(X, None, 4, seed=6, transform=lambda x, y, rng: (x, drawn.append((y, rng.random()))))
    for epoch in range(2):
        assert [len(batch) for batch in loader] == [1, 1, 1]
        expected = [np.random.Generator(np.random.PCG64([6, epoch, number])).random() for number in range(3)]
        assert drawn == [(None, number) for number in expected]
        drawn.clear()


def test_several_arrays_in_either_place():
    loader = ArrayLoader((X, Y * 0.5), (Y, Y + 1, Y * 1.5), 4, shuffle=True, seed=1)
    order = loader.order(0)
    for start, ((image, half), labels) in zip(range(0, 11, 4), loader):
        rows = order[start : start + 4]
        np.testing.assert_array_equal(image.asnumpy(), X[rows] * np.float32(1 / 255))
        np.testing.assert_array_equal(half.asnumpy(), rows * 0.5)
        assert [label.dtype for label in labels] == [np.int32, np.int32, np.float32]
        np.testing.assert_array_equal(labels[1].asnumpy(), rows + 1)
    text = "ArrayLoader(x ((11, 1, 2, 3), (11,)) uint8, y ((11,), (11,), (11,)), batch_size=4, 3 batches, shuffle=True"
    assert repr(loader) == f"{text}, seed=1)"


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64", "int64", ">i4", "uint16"])
def test_files_on_disk_stay_there(tmp_path, dtype):
    values = np.arange(66).reshape(11, 6).astype(dtype)
    np.save(tmp_path / "x.npy", values)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    loader = ArrayLoader(mapped, mapped[:, 0], 4, shuffle=True, seed=1, scale=1.0)
    assert np.shares_memory(loader.x, mapped)
    order = loader.order(0)
    batches = read(loader)
    np.testing.assert_array_equal(np.concatenate([x for x, _ in batches]), values[order])
    assert_same(batches, read(ArrayLoader(values, values[:, 0], 4, shuffle=True, seed=1, scale=1.0)))


def test_whole_numbers_on_disk_that_int32_cannot_hold_are_refused_when_they_are_read(tmp_path):
    np.save(tmp_path / "y.npy", np.array([1, 2**40]))
    batches = iter(ArrayLoader(np.zeros(2), np.load(tmp_path / "y.npy", mmap_mode="r"), 1))
    next(batches)
    with pytest.raises(DataError, match="int64 becomes int32, which cannot hold 1099511627776"):
        next(batches)


@pytest.mark.parametrize("dtype", ["float16", "float32", "uint8", "int8", "int32", "<i2", ">f4", "float64", "bool"])
def test_batches_of_every_type_and_layout(dtype):
    values = np.arange(24).reshape(4, 3, 2).astype(dtype)
    for x in (values, np.asfortranarray(values), values[:, ::-1], values[::-1]):
        ((_, got),) = ArrayLoader(Y[:4], x, 4)
        np.testing.assert_array_equal(got.asnumpy(), x)


def test_batches_do_not_share_memory():
    one, other = (x for x, _ in ArrayLoader(X[:8], Y[:8], 4))
    before = other.asnumpy()
    one[:] = -1
    np.testing.assert_array_equal(other.asnumpy(), before)


def test_large_batches_are_made_ahead():
    assert ArrayLoader(X, Y, 4).prefetch == 0
    assert ArrayLoader(X, Y, 4, transform=mix).prefetch == 2
    assert ArrayLoader(np.zeros((64, 3, 80, 80), np.uint8), None, 64).prefetch == 2
    assert ArrayLoader(np.zeros((64, 3, 80, 80), np.uint8), None, 32).prefetch == 0
