"""Datasets in memory: splits that nobody may change without noticing, from files in the genuine formats."""

import gzip
import hashlib
from pathlib import Path

from genuine_files import binary_bytes, cifar_arrays, idx_bytes, mnist_files, tar_bytes
import mxkit
from mxkit.data import datasets
from mxkit.data.datasets import (
    CIFAR10_FILES,
    CIFAR100_COARSE,
    CIFAR100_FILES,
    CIFAR100_FINE,
    cifar10,
    cifar100,
    fashion_mnist,
    mnist,
    upsample,
)
from mxkit.data.splits import channel_statistics, chosen_part, three_parts
from mxkit.errors import DataError, DownloadError
import mxnet as mx
import numpy as np
import pytest
from sharing import text_of


@pytest.fixture(scope="module")
def digits():
    return mxkit.data.digits()


def test_shapes_dtypes_and_statistics(digits):
    assert [len(split.x) for split in digits[:3]] == [1354, 147, 296]
    for split in digits[:3]:
        assert (split.x.shape, split.y.dtype) == ((len(split.y), 1, 8, 8), np.int32)
        assert (split.x * 16 == np.round(split.x * 16)).all()
    assert digits.classes == list("0123456789")
    assert digits.mean == (pytest.approx(digits.train.x.mean(dtype="float64"), rel=1e-12),)
    assert digits.std == (pytest.approx(digits.train.x.std(dtype="float64"), rel=1e-12),)
    assert repr(digits) == "Splits(train 1354, valid 147, test 296 samples of shape (1, 8, 8) float32, 10 classes)"
    np.testing.assert_array_equal(mxkit.data.digits(28).valid.x, upsample(digits.valid.x, 28))


def test_the_split_is_fixed(digits):
    found = {
        name: hashlib.sha256(split.y.tobytes() + (split.x * 16).astype("uint8").tobytes()).hexdigest()[:16]
        for name, split in zip(("train", "valid", "test"), digits)
    }
    assert found == SPLITS  # seen when the table was equal to scikit-learn's
    folder = Path(datasets.__file__).parent
    assert (folder / "digits.csv.gz").stat().st_size < 60_000
    assert "BSD 3-Clause License" in (folder / "digits.LICENSE").read_text()


SPLITS = {"train": "f3546226c918b406", "valid": "9d599eadd2d283f7", "test": "c174030003801b62"}


@pytest.mark.parametrize(("size", "factor", "border"), [(28, 3, 2), (32, 4, 0), (12, 1, 2), (8, 1, 0), (224, 28, 0)])
def test_upsampling_is_exact(size, factor, border):
    x = np.random.RandomState(0).rand(3, 2, 8, 8).astype("float32")
    large = upsample(x, size)
    assert large.shape == (3, 2, size, size)
    inner = large[:, :, border : size - border, border : size - border]
    for down in range(factor):
        for right in range(factor):
            np.testing.assert_array_equal(inner[:, :, down::factor, right::factor], x)
    assert large.sum(dtype="float64") == pytest.approx(x.sum(dtype="float64") * factor**2, rel=1e-12)


# Cutting parts off


def test_a_part_is_random_but_always_the_same_and_of_each_class_its_share():
    y = np.repeat([3, 5, 9], [50, 30, 21])
    chosen = chosen_part(y, 101, 10, "valid")
    assert chosen.sum() == 10
    assert [int(chosen[y == label].sum()) for label in (3, 5, 9)] == [5, 3, 2]
    # frozen: another rule would move samples between parts of data that people have trained on
    assert np.flatnonzero(chosen).tolist() == [27, 30, 35, 37, 49, 50, 58, 77, 94, 98]
    np.testing.assert_array_equal(chosen, chosen_part(y, 101, 0.1, "valid"))
    assert not np.array_equal(chosen, chosen_part(y, 101, 10, "valid", seed=1))


def test_a_part_does_not_follow_from_values_that_were_made_with_the_same_seed():
    values = np.random.RandomState(0).random_sample(200)
    ranks = values.argsort().argsort()[chosen_part(None, 200, 20, "test")]
    assert ranks.max() > 150  # drawn from the same stream the part would be the 20 smallest values
    assert 60 < ranks.mean() < 140


@pytest.mark.parametrize("total", [1, 7, 100])
@pytest.mark.parametrize(("valid", "test"), [(0, 0), (0.1, 0.2), (2, 0.3), (0.5, 0.49), (0, 3)])
def test_three_parts_share_nothing_and_lose_nothing(total, valid, test):
    counts = [part if isinstance(part, int) else round(part * total) for part in (valid, test)]
    y = np.arange(total) % 3
    if sum(counts) >= total:
        with pytest.raises(ValueError, match="expected a number below"):
            three_parts(y, total, valid, test)
        return
    parts = three_parts(y, total, valid, test)
    assert sorted(np.concatenate(parts).tolist()) == list(range(total))
    assert [len(part) for part in parts] == [total - sum(counts), *counts]
    assert all((np.diff(part) > 0).all() for part in parts)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_channel_statistics_against_numpy(dtype, kind):
    x = np.random.RandomState(0).randint(0, 256, (20, 3, 5, 4)).astype(dtype)
    scaled = x / 255 if dtype == "uint8" else x.astype("float64")
    mean, std = channel_statistics(x)
    assert channel_statistics(kind.of(x)) == (mean, std)
    np.testing.assert_allclose(mean, scaled.mean(axis=(0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, scaled.std(axis=(0, 2, 3)), rtol=1e-12)
    constant = np.full((3, 1), 0.1)
    assert constant.std() > 0  # a rounding error, by which nothing should be divided
    assert channel_statistics(constant)[1] == (0.0,)


# MNIST and Fashion-MNIST


def put(folder, files, unzip=False):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / (name[:-3] if unzip else name)).write_bytes(gzip.decompress(content) if unzip else content)
    return folder


@pytest.mark.parametrize(("inner", "unzip"), [("", False), ("mnist", True), ("raw", False), ("MNIST/raw", True)])
def test_mnist_from_a_folder(tmp_path, inner, unzip):
    files = mnist_files()
    put(tmp_path / inner, files, unzip)
    data = mnist(str(tmp_path), valid=12, offline=True)
    x = np.frombuffer(gzip.decompress(files["train-images-idx3-ubyte.gz"])[16:], "u1").reshape(60, 1, 28, 28)
    y = np.frombuffer(gzip.decompress(files["train-labels-idx1-ubyte.gz"])[8:], "u1")
    chosen = chosen_part(y, 60, 12, "valid")
    np.testing.assert_array_equal(data.train.x, x[~chosen])
    np.testing.assert_array_equal(data.valid.x, x[chosen])
    np.testing.assert_array_equal(data.train.y, y[~chosen])
    np.testing.assert_array_equal(data.valid.y, y[chosen])
    assert data.test.x.shape == (40, 1, 28, 28)
    assert {part.x.dtype.name for part in data[:3]} == {"uint8"}
    assert {part.y.dtype.name for part in data[:3]} == {"int32"}
    assert data.classes == list("0123456789")
    np.testing.assert_allclose(data.mean, [(data.train.x / 255).mean()], rtol=1e-12)


def test_mnist_is_read_as_gluon_reads_it(tmp_path, monkeypatch):
    put(tmp_path, mnist_files())
    datasets = mx.gluon.data.vision.datasets
    # gluon would fetch the genuine files anew, because these are shorter
    monkeypatch.setattr(datasets, "download", lambda url, path, sha1_hash: f"{path}/{url.rsplit('/', 1)[-1]}")
    oracle = mx.gluon.data.vision.MNIST(str(tmp_path), train=False)
    found = mnist(tmp_path, valid=0, offline=True)
    assert found.valid.x.shape == (0, 1, 28, 28)
    np.testing.assert_array_equal(found.test.x.transpose(0, 2, 3, 1), oracle._data.asnumpy())
    np.testing.assert_array_equal(found.test.y, oracle._label)
    assert found.test.y.dtype == oracle._label.dtype


def test_files_that_are_missing_are_listed_with_their_place(tmp_path, monkeypatch):
    monkeypatch.setenv("MXNET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, dataset in (("mnist", mnist), ("fashion-mnist", fashion_mnist), ("cifar10", cifar10)):
        assert f"into {tmp_path / 'home' / 'datasets' / name}" in text_of(DownloadError, dataset, offline=True)
    with pytest.raises(DownloadError, match=f"into {tmp_path / 'own'}"):
        cifar100(tmp_path / "own", offline=True)
    # what lies in a folder of one's own is neither listed nor replaced
    put(tmp_path / "own", dict(list(mnist_files().items())[:3]))
    with pytest.raises(DownloadError, match=r"1 file\(s\) could not be downloaded[^|]*\n  t10k-labels-idx1-ubyte.gz\n"):
        mnist(tmp_path / "own", offline=True)


def test_the_cache_takes_only_genuine_files(tmp_path, monkeypatch):
    monkeypatch.setenv("MXNET_HOME", str(tmp_path))
    folder = put(tmp_path / "datasets/mnist", mnist_files())
    with pytest.raises(DownloadError, match="the file there has another content"):
        mnist(offline=True)
    put(folder, mnist_files(), unzip=True)
    with pytest.raises(DataError, match=r"expected the \(60000, 10000\) samples.*received \(60, 40\).*root="):
        mnist(valid=0.1, offline=True)
    put(tmp_path / "datasets/cifar10", cifar_files(CIFAR10_FILES)[0])  # as MXNet unpacks it
    with pytest.raises(DataError, match=r"expected the \(50000, 10000\) samples"):
        cifar10(offline=True)


def test_files_that_do_not_belong_together(tmp_path):
    files = mnist_files()
    files["train-labels-idx1-ubyte.gz"] = gzip.compress(idx_bytes(np.zeros(59, "u1")))
    put(tmp_path, files)
    with pytest.raises(DataError, match=r"N labels; received \(60, 28, 28\) of uint8 and \(59,\)"):
        mnist(tmp_path, valid=0.1, offline=True)
    fashion = fashion_mnist(put(tmp_path / "own/FashionMNIST/raw", mnist_files()).parents[1], offline=True, valid=0)
    assert (fashion.classes[0], fashion.classes[9]) == ("T-shirt/top", "Ankle boot")
    put(tmp_path, mnist_files(classes=47))
    with pytest.raises(DataError, match="labels 0 to 46; expected 0 to 9"):
        mnist(tmp_path, valid=0.1, offline=True)


# CIFAR


def cifar_files(layout):
    """Contents by name, and what they hold: images and labels of training and test."""
    classes = layout.labels.values()
    train = [cifar_arrays(10, classes, seed) for seed in range(len(layout.train))]
    test = cifar_arrays(8, classes, 99)
    files = {name: binary_bytes(x, y) for name, (x, y) in zip(layout.train + layout.test, [*train, test])}
    return files, [np.concatenate(arrays) for arrays in zip(*train)], test


@pytest.mark.parametrize("layout", [CIFAR10_FILES, CIFAR100_FILES], ids=["10", "100"])
@pytest.mark.parametrize("place", ["folder of an archive", "named archive", "files", "unpacked folder"])
def test_cifar_wherever_it_lies(tmp_path, layout, place):
    files, (x, y), test = cifar_files(layout)
    root = tmp_path
    if place.endswith("archive"):
        archive = tmp_path / layout.archive
        archive.write_bytes(tar_bytes([(f"{layout.folder}/{name}", content) for name, content in files.items()]))
        root = archive if place == "named archive" else tmp_path
    else:
        put(tmp_path / (layout.folder if place == "unpacked folder" else ""), files)
    load = cifar10 if layout is CIFAR10_FILES else cifar100
    data = load(root, valid=0, offline=True)
    np.testing.assert_array_equal(data.train.x.reshape(-1, 3072), x)
    np.testing.assert_array_equal(data.train.y, y[:, -1])
    np.testing.assert_array_equal(data.test.x.reshape(-1, 3072), test[0])
    np.testing.assert_array_equal(data.test.y, test[1][:, -1])
    assert data.train.x.shape[1:] == (3, 32, 32)
    assert len(data.mean) == 3
    if load is cifar100:
        coarse = cifar100(root, coarse=True, valid=0, offline=True)
        np.testing.assert_array_equal(coarse.train.y, y[:, 0])
        assert coarse.classes == CIFAR100_COARSE
        assert data.classes == CIFAR100_FINE
    assert sorted(path for path in tmp_path.rglob("*") if path.is_dir()) == (
        [tmp_path / layout.folder] if place == "unpacked folder" else []
    )


def test_classes_of_cifar_are_the_published_ones():
    # https://www.cs.toronto.edu/~kriz/cifar.html
    for names, size, some in (
        (CIFAR100_FINE, 100, ("apple", "mountain", "worm")),
        (CIFAR100_COARSE, 20, ("aquatic_mammals", "large_natural_outdoor_scenes", "vehicles_2")),
    ):
        assert len(names) == size
        assert list(names) == sorted(names)
        assert (names[0], names[size // 2 - (size == 100)], names[-1]) == some
