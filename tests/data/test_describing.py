"""describe: exact numbers, duplicates, and one test for each warning."""

import mxkit
from mxkit.data.datasets import digits
from mxkit.data.describing import describe
from mxkit.data.image_files import image_folder
from mxkit.data.loader import ArrayLoader
from mxkit.data.splits import Split, Splits
from mxkit.errors import DataError, EmptyDataError
from mxkit.plots.data_plots import show_data
import mxnet as mx
from mxnet import gluon
import numpy as np
from oracle import in_batches
import pytest
from sharing import Kind

N = 23
X = np.random.RandomState(0).rand(N, 3, 6, 5).astype(np.float32)
Y = np.arange(N, dtype=np.int32) % 4


def batches(x=X, y=Y, size=5):
    return in_batches(x, y, size)


def about(data, test=None, **arguments):
    return describe(data, test, **arguments).warnings


def test_statistics_are_those_of_all_samples_at_once(monkeypatch):
    monkeypatch.setattr("mxkit.data.describing._CHUNK", 100)
    x = X * np.array([1, 50, 1000], np.float32).reshape(1, 3, 1, 1) - 7
    x[3, 0, 1, 1], x[4, 2, 0, 0], x[20, 2] = np.nan, np.inf, -np.inf
    (part,) = describe(batches(x)).parts.values()
    (inputs,), (labels,) = part.inputs, part.labels
    finite = np.where(np.isfinite(x), x, np.nan).astype(np.float64)
    np.testing.assert_allclose(inputs.mean, np.nanmean(finite, axis=(0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(inputs.std, np.nanstd(finite, axis=(0, 2, 3)), rtol=1e-12)
    assert (inputs.low, inputs.high) == (np.nanmin(finite), np.nanmax(finite))
    assert (inputs.nan, inputs.infinite) == (1, 31)
    assert (inputs.shapes, inputs.dtypes, inputs.whole) == ({(3, 6, 5)}, {"float32"}, False)
    assert labels.classes == {0: 6, 1: 6, 2: 6, 3: 5}
    assert (part.samples, part.batches, part.batch_sizes) == (23, 5, (3, 5, 3))


SOURCES = {
    "list": lambda: batches(),
    "function": lambda: lambda: iter(batches()),
    "NDArrays": lambda: Kind(False).of(batches()),
    "mx.np": lambda: Kind(True).of(batches()),
    "Split of mx.np": lambda: Split(Kind(True).of(X), Kind(True).of(Y)),
    "ArrayLoader": lambda: ArrayLoader(X, Y, 5),
    "shuffling": lambda: ArrayLoader(X, Y, 5, shuffle=True, seed=1),
    "gluon": lambda: gluon.data.DataLoader(gluon.data.ArrayDataset(X, Y), 5),
    "DataIter": lambda: mx.io.NDArrayIter(X, Y, 5),
    "Split": lambda: Split(X, Y),
    "Dataset": lambda: gluon.data.ArrayDataset(X, Y),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_of_data_is_read(kind):
    data = SOURCES[kind]()
    part = describe(data).parts["data"]
    assert part.samples == N
    np.testing.assert_allclose(part.inputs[0].mean, X.mean(axis=(0, 2, 3)), rtol=1e-5)
    assert part.labels[0].classes == {0: 6, 1: 6, 2: 6, 3: 5}
    hashes = describe(Split(X, Y)).parts["data"].hashes
    assert sorted(part.hashes) == sorted(hashes)
    assert f"{N} samples" in str(part)
    if kind == "DataIter":
        assert len(list(data)) == 5
    again = describe(data).parts["data"]  # and is still whole
    np.testing.assert_array_equal(again.hashes, part.hashes)


def test_a_look_changes_nothing():
    loader = ArrayLoader(X, Y, 5, shuffle=True, seed=1)
    loader.epoch = 3
    describe(loader)
    assert loader.epoch == 3
    theirs = gluon.data.DataLoader(gluon.data.ArrayDataset(X, Y), 5, shuffle=True)
    mxkit.seed_all(5)
    expected = [y.asnumpy().tolist() for _, y in theirs]
    mxkit.seed_all(5)
    describe(theirs)
    assert [y.asnumpy().tolist() for _, y in theirs] == expected


def test_several_inputs_labels_and_none():
    several = describe([((X, X[:, 0]), (Y, Y * 0.5))]).parts["data"]
    assert [one.shape for one in several.inputs] == [(3, 6, 5), (6, 5)]
    assert [one.classes is None for one in several.labels] == [False, True]
    assert "x1  (6, 5)" in str(several)
    assert "y1  () float64, 0 to 1.5" in str(several)
    assert describe([X]).parts["data"].labels == []
    soft = describe([(X, np.full((N, 4), 0.25, np.float32))])
    assert (soft.parts["data"].labels[0].classes, soft.warnings) == (None, [])


def test_a_part_of_the_data():
    for kind, samples in (("list", 10), ("ArrayLoader", 10), ("Split", 23), ("Dataset", 23)):
        part = describe(SOURCES[kind](), limit_batches=2).parts["data"]
        whole = samples == N
        assert (part.samples, part.whole, "the first of more" in str(part)) == (samples, whole, not whole)
    x = np.zeros((600, 1), np.float32)
    assert describe(Split(x, x[:, 0]), limit_batches=2).parts["data"].samples == 512
    with pytest.raises(ValueError, match="limit_batches"):
        describe(batches(), limit_batches=0)


def test_splits_are_described_with_their_classes():
    splits = digits()
    found = describe(splits)
    assert list(found.parts) == ["train", "valid", "test"]
    assert found.warnings == []
    text = repr(found)
    assert "train: Split, 1354 samples\n  x  (1, 8, 8) float32, 0 to 1, mean 0.30" in text
    assert "y  () int32, 0 to 9, 10 classes of 131 to 138 samples" in text
    for missing in (None, Split(splits.train.x[:0], splits.train.y[:0])):
        assert list(describe(Splits(splits.train, missing, splits.test, [])).parts) == ["train", "test"]


def test_image_files_of_all_sizes(tmp_path):
    from PIL import Image

    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for number in range(6):
            Image.new("RGB", (10 + number, 12), (40 * number, 0, 0)).save(tmp_path / label / f"{number}.png")
    found = describe(image_folder(tmp_path, valid=0, test=0))
    assert (found.parts["train"].samples, found.classes) == (12, ["cat", "dog"])
    assert len(found.parts["train"].inputs[0].shapes) == 6
    assert found.warnings == ["train: 6 samples are there more than once"]
    assert len(show_data(found).axes[0].images) == 12


def test_duplicates_are_found_and_told_by_their_numbers():
    test = X[10:20].copy()
    test[[2, 5]] = X[[7, 3]]
    test[[0, 1, 3, 4, 6, 7, 8, 9], 0, 0, 0] += 0.5
    train = ArrayLoader(X, Y, 4, shuffle=True, seed=0)
    train.epoch = 2
    found = describe(train, ArrayLoader(test, Y[:10], 4))
    (pair,) = found.duplicates
    assert (pair.first, pair.second, pair.samples) == ("train", "test", 2)
    assert set(pair.examples) == {(7, 2), (3, 5)}
    assert "2 samples of test are in train too: train[7] = test[2], train[3] = test[5]" in repr(found)
    assert "2 samples of test (20.00%) are in train too" in found.warnings
    # of both inputs all bytes must be equal
    first, second = [((X, X[:, 0]), Y)], [((X, X[::-1, 0]), Y)]
    assert describe(first, second).duplicates[0].samples == 1


def test_show_data_draws_samples_of_each_part(tmp_path):
    found = describe({"a": batches(), "b": batches(X * 255), "c": batches(X - 5)}, classes=list("wxyz"))
    figure = show_data(found, path=tmp_path / "p.png")
    assert (tmp_path / "p.png").stat().st_size > 1000
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts[:5] == ["a: w", "a: x", "a: y", "a: z", "a: w"]
    assert len(texts) == 3 * 16
    images = [np.asarray(image.get_array()) for image in figure.axes[0].images]
    np.testing.assert_allclose(images[0], X[0].transpose(1, 2, 0), atol=1e-6)
    np.testing.assert_allclose(images[16], images[0], atol=1e-6)  # each part in its own unit
    stretched = (X[0] - X.min()) / (X.max() - X.min())
    np.testing.assert_allclose(images[32], stretched.transpose(1, 2, 0), atol=1e-5)
    put_back = show_data(describe(batches((X - 0.5) / 0.25)), mean=0.5, std=0.25)
    np.testing.assert_allclose(put_back.axes[0].images[0].get_array(), X[0].transpose(1, 2, 0), atol=1e-6)
    with pytest.raises(DataError, match=r"shape \(4,\); expected images"):
        show_data(describe([np.zeros((2, 4))]))


BYTES = (X * 255).round()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([(BYTES.astype("uint8"), Y)], "no uint8: cast it in the loader, .* / 255.*T14"),
        ([(BYTES, Y)], "images hold whole numbers up to 255: divide by 255"),
        ([(X.astype("float64"), Y)], "float64.*T14"),
        ([(X.transpose(0, 2, 3, 1), Y)], r"\(N, 6, 5, 3\) look like NHWC, but nets read NCHW.*T13"),
        ([(np.where(X > 0.99, np.nan, X), Y)], "values are NaN and 0 infinite.*T25"),
        ([(np.where(X > 0.99, np.inf, X), Y)], "0 values are NaN and .* infinite"),
        ([(X * 0 + 3, Y)], "every value is 3"),
        ([(X, Y.astype("float32"))], "whole numbers of float32; class numbers are int32"),
        ([(X, Y[:, None])], r"shape \(N, 1\).*T11"),
        ([(X, Y + 1)], "labels begin with 1.*T10"),
        ([(X, Y - 1)], "labels go from -1 to 2.*T10"),
        ([(X, Y * 0)], "all labels are 0"),
        ([(X, np.where(Y == 2, 3, Y))], r"classes \[2\] of 0 to 3 have no sample"),
        ([(X, (np.arange(N) == 4).astype("int32"))], "class 0 has 22 samples, class 1 has 1"),
        ([(X, np.where(Y == 2, np.nan, Y))], "5 labels are NaN|6 labels are NaN"),
        (batches(size=22), "the last batch is a batch of one sample.*T18"),
        ([(X[[0, 1, 1, 2]], Y[:4])], "1 samples are there more than once"),
        ((batch for batch in batches()), "generator can be read only once.*T62"),
    ],
)
def test_each_trap_is_told(data, words):
    import re

    assert [line for line in about(data) if re.search(words, line)], about(batches())


def test_data_without_a_fault_has_no_warning():
    assert about(ArrayLoader(X, Y, 6, shuffle=True), ArrayLoader(X + 0.001, Y, 6)) == []
    # loaders will cast it
    assert about(Split(BYTES.astype("uint8"), Y)) == []
    assert about(Split(X.astype("float64"), Y.astype("int64"))) == []


def test_classes_that_are_named():
    line = "data: labels go from 0 to 3 for 3 classes from 0 on; the loss would clip them (T10)"
    assert about(batches(), classes=["a", "b", "c"]) == [line]
    assert about(batches(), classes=list("abcdef")) == ["data: classes [4, 5] of 0 to 5 have no sample"]
    assert about([(X, np.arange(N) * 100_000)]) == []  # numbers, but not of classes


OTHER = X + 0.001
DATASET = gluon.data.ArrayDataset(OTHER, Y)


@pytest.mark.parametrize(
    ("test", "words"),
    [
        (batches(OTHER * 255), "standard deviations apart: were both scaled alike?"),
        (batches(OTHER[:, :, :4]), "samples have shape (3, 6, 5) in train, (3, 4, 5) in test"),
        (batches(OTHER, Y + 1), "test has classes that train has not: [4]"),
        ([OTHER], "different numbers of inputs or labels"),
        (ArrayLoader(OTHER, Y, 5, shuffle=True), "test: it shuffles"),
        (ArrayLoader(OTHER, Y, 5, drop_last=True), "test: it leaves out the last short batch"),
        (gluon.data.DataLoader(DATASET, 5, shuffle=True), "test: it shuffles"),
        (gluon.data.DataLoader(DATASET, 5, last_batch="discard"), "test: it leaves out"),
    ],
)
def test_two_parts_that_do_not_fit(test, words):
    assert any(words in line for line in about(batches(), test)), about(batches(), test)


def test_a_test_that_is_the_training_data():
    dataset = gluon.data.ArrayDataset(X, Y)
    for train, test in [
        (ArrayLoader(X, Y, 5, shuffle=True), ArrayLoader(X, Y, 7)),
        (gluon.data.DataLoader(dataset, 5, shuffle=True), gluon.data.DataLoader(dataset, 5)),
    ]:
        found = about(train, test)
        assert "train and test are the same data: the scores would be too good" in found
        assert "every sample of test is in train too: the scores would be too good" in found


@pytest.mark.parametrize(
    ("data", "error", "match"),
    [
        ([], EmptyDataError, "describe: data gave no batch"),
        ([(X, Y[:3])], DataError, "data: axis 0 of all arrays of a batch must be equal"),
        ([np.array(["a"])], DataError, "expected arrays of numbers"),
        (3, DataError, "expected an iterable of batches"),
        ({"train": batches()}, ValueError, "all parts in a dict"),
    ],
)
def test_what_is_no_data(data, error, match):
    with pytest.raises(error, match=match):
        describe(data, batches() if isinstance(data, dict) else None)
