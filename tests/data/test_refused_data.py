"""What loaders, soft labels and datasets refuse: the class of the error, and the words that lead out."""

import mxkit
from mxkit.data import ArrayLoader, BucketLoader, DatasetLoader, PairLoader, StreamLoader, class_weights, from_lines
from mxkit.data.augment import cutmix, mixup, smooth_labels
from mxkit.data.download import fetch
from mxkit.data.image_files import ImageFiles
from mxkit.data.splits import chosen_part
from mxkit.errors import DataError, EmptyDataError, LabelError
import numpy as np
import pytest

X = np.zeros((11, 1, 2, 3), "uint8")
Y = np.arange(11)
V = np.arange(12.0)
CLASSES = np.repeat([3, 1, 7], [4, 6, 2])
SEQUENCES = [np.full(length, 1.0) for length in (2, 9, 12)]
NAMES = np.array(["cat", "dog", "cat"])
WHOLE, LIMITS = "expected a whole number, at least", "buckets: expected increasing limits; received"
WAY = r"number the classes: classes, y = numpy.unique\(labels, return_inverse=True\)"
MANY = "2 of 3 sequences are longer than the last limit 8, the first is 1: add a limit of 12"
BELOW = "valid: expected a number below 100"
COUNTS = ("batch_size", "shuffle_buffer", "length", "prefetch")
NONE = ("ab" * 32, "sha1:12", "crc:abc", "SHA1:" + "AB" * 20)
ONE_LOADER = ArrayLoader(X, Y, 4)


def dataset(data=(1, 2, 3), batch_size=2, **options):
    return DatasetLoader(data, batch_size, **options)


def bucket(sequences=SEQUENCES, labels=None, **options):
    return BucketLoader(sequences, labels, options.pop("batch_size", 2), **options)


def mixed(y, x=X[:2]):
    return mixup(x, y, np.random.Generator(np.random.PCG64(0)), classes=5)


def balanced(classes, **options):
    return ArrayLoader(V[:4], V[:4], 2, **{"shuffle": True, **options}, balance=classes)


def evaluated(loader):
    return mxkit.evaluate(mxkit.models.mlp(2), loader, loss="softmax_ce")


OF_ARRAYS = [
    (lambda: ArrayLoader(X, Y[:10], 4), DataError, r"ArrayLoader: x has 11 samples, y the shape \(10,\)"),
    (lambda: ArrayLoader((X, X), (Y, Y[:10]), 4), DataError, r"x has 11 samples, y the shape \(10,\)"),
    (lambda: ArrayLoader((X, 3), None, 4), DataError, r"x has 11 samples, x the shape \(\)"),
    (lambda: ArrayLoader(X[:0], Y[:0], 4), EmptyDataError, r"x has no sample, its shape is \(0, 1, 2, 3\)"),
    (lambda: ArrayLoader(X, Y, 0), ValueError, f"ArrayLoader: batch_size: {WHOLE} 1; received 0"),
    (lambda: ArrayLoader(X, Y, 4, scale=float("nan")), ValueError, "scale: expected a finite number; received nan"),
    (lambda: ArrayLoader(X, np.ma.masked_equal(Y, 3), 4), DataError, r"\(11,\) has masked values, .* array.filled"),
    (lambda: ArrayLoader(X, Y, 12, drop_last=True), EmptyDataError, "drop_last leaves no batch: 11 samples"),
    (lambda: ArrayLoader(X[:1], np.array([2**40]), 1), DataError, "int64 becomes int32, which cannot hold 10995116"),
    (lambda: ArrayLoader(V[:3], NAMES, 2), DataError, rf"y: expected numbers; .* shape \(3,\) <U3.*{WAY}"),
    (lambda: ArrayLoader(V[:3], NAMES.astype(object), 2), DataError, f"y: expected numbers; .* object.*{WAY}"),
    (lambda: ONE_LOADER.skip(4), DataError, "ArrayLoader.skip: an epoch has 3 batches, of which 4 cannot be left out"),
    (lambda: ONE_LOADER.skip(-1), ValueError, f"ArrayLoader.skip: {WHOLE} 0; received -1"),
    (lambda: balanced([0, 1, 1, 0], shuffle=False), ValueError, "balance draws .* each epoch: pass shuffle=True"),
    (lambda: balanced([0, 1, 1]), DataError, "balance: expected a class for each of 4 samples; received 3"),
    (lambda: balanced([0, 1, np.nan, 1]), DataError, "balance: sample 2 has the class NaN"),
    (lambda: evaluated(balanced([0, 1, 1, 0])), DataError, "has balance, which repeats samples"),
    (lambda: class_weights(np.eye(2)), DataError, r"labels: expected shape \(N,\), .* received \(2, 2\)"),
    (lambda: class_weights(["a", "b"]), DataError, "expected class numbers from 0"),
    (lambda: class_weights([0.5, 1]), DataError, "expected class numbers from 0"),
    (lambda: class_weights([-1, 0]), DataError, "expected class numbers from 0"),
    (lambda: class_weights([]), EmptyDataError, "class_weights: labels: there is no sample"),
]
OF_PAIRS = [
    (lambda: PairLoader(V, V, 4), DataError, "each of the 12 classes has one sample: no two are alike"),
    (lambda: PairLoader(V, V * 0, 4), DataError, "all 12 samples are of one class, so that no two are unlike"),
    (lambda: PairLoader(V, CLASSES[:11], 4), DataError, r"y: expected the shape \(12,\), .* received \(11,\)"),
    (lambda: PairLoader(V, CLASSES[:, None], 4), DataError, r"a class for each; received \(12, 1\)"),
    (lambda: PairLoader((V, V), CLASSES, 4), DataError, "expected one array"),
    (lambda: PairLoader(V, CLASSES, 4, kind="quads"), ValueError, "kind: expected 'pairs' or 'triplets'.*'quads'"),
    (lambda: PairLoader(V, CLASSES, 4, same=50), ValueError, "same: expected a share from 0 to 1; received 50"),
    (lambda: PairLoader(V, CLASSES, 4, length=0), ValueError, f"PairLoader: length: {WHOLE} 1; received 0"),
    (lambda: PairLoader(V, CLASSES, 40, drop_last=True), EmptyDataError, "PairLoader: drop_last leaves no batch"),
]
OF_BUCKETS = [
    (lambda: bucket([]), EmptyDataError, "BucketLoader: there is no sequence"),
    (lambda: bucket([[1], []]), DataError, r"sequence 1 has the shape \(0,\): expected \(T, ...\) with T at least 1"),
    (lambda: bucket([[1], 3]), DataError, r"sequence 1 has the shape \(\)"),
    (lambda: bucket([np.zeros((2, 3)), np.zeros((2, 4))]), DataError, r"0 and 1 have the shapes \(2, 3\) and \(2, 4\)"),
    (lambda: bucket([[1], ["ab"]]), DataError, r"sequence 1: expected numbers; received an array of shape \(1,\) <U2"),
    (lambda: bucket([[2**40]]), DataError, "sequence 0: int64 becomes int32, which cannot hold"),
    (lambda: bucket([[1], [2]], [1, 2, 3]), DataError, r"there are 2 sequences, and labels of shape \(3,\)"),
    (lambda: bucket([[1], [2]], [[1], [2, 3]]), ValueError, "same shape"),
    (lambda: bucket(buckets=[4, 8]), DataError, MANY),
    *[(lambda wrong=wrong: bucket(buckets=wrong), ValueError, LIMITS) for wrong in ([8, 4, 20], [4, 4, 20], [])],
    *[(lambda wrong=wrong: bucket(buckets=wrong), ValueError, WHOLE) for wrong in (0, [0, 20], 2.5, [4.5, 20])],
    (lambda: bucket(pad_to="max"), ValueError, "pad_to: expected 'bucket' or 'longest'; received 'max'"),
    (lambda: bucket([np.ones(2, "uint8")], pad=-1), ValueError, "pad: the sequences are uint8, which cannot hold -1"),
    (lambda: bucket([np.ones(2, "int64")], pad=0.5), ValueError, "sequences are int32, which cannot hold 0.5"),
    (lambda: bucket(drop_last=True), EmptyDataError, "drop_last leaves no batch: no bucket has 2 sequences"),
    (lambda: bucket(batch_size=0), ValueError, f"BucketLoader: batch_size: {WHOLE}"),
]
OF_DATASETS = [
    (lambda: dataset(workers=4), ValueError, "'thread:4' or 'process:4'; received 4: for gluon's .* 'process:4'"),
    (lambda: dataset(workers="threads:4"), ValueError, "expected 0, 'thread:4' or 'process:4'.*'threads:4'"),
    (lambda: dataset(workers="process:0"), ValueError, "received 'process:0'"),
    (lambda: dataset(batch_size=0), ValueError, f"DatasetLoader: batch_size: {WHOLE} 1; received 0"),
    (lambda: dataset(draws=["torch"]), ValueError, r"draws: expected some of \['mxnet', 'numpy', 'python'\], or \(\)"),
    (lambda: dataset(prefetch=0), ValueError, f"prefetch: {WHOLE} 1"),
    (lambda: dataset([]), EmptyDataError, "the dataset, a list, has no sample"),
    (lambda: dataset(iter([1])), DataError, r"a list_iterator, has no len\(\).*StreamLoader"),
    (lambda: list(dataset([(1, 2), (1, 2, 3)])), DataError, r"0 and 1 have different parts: \(1, 2\), \(1, 2, 3\)"),
    (lambda: list(dataset(["a", "b"])), DataError, "sample 0 holds 'a', which is no number"),
    (lambda: list(dataset([1, None])), DataError, "sample 1 holds None, which is no number"),
    (lambda: list(dataset([{"a": 1}])), DataError, "sample 0 holds .*which is no number"),
    (lambda: list(dataset([[[1], [1, 2]]])), DataError, "a sample holds a list that is not an array|sample 0 holds"),
    (lambda: list(dataset([(1.0, 2**40), (1.0, 2)])), DataError, "samples 0 to 1: int64 .* cannot hold 1099511627776"),
    (lambda: list(dataset(batchify=lambda _: 1 / 0)), DataError, "could not join the samples 0, 1 of tuple: ZeroDiv"),
    (lambda: ImageFiles("a", ["a.jpg"], [0, 1], ["x", "y"]), DataError, "1 images and 2 labels"),
    (lambda: ImageFiles("a", ["a.jpg", "b.jpg"], [0, 2], ["x", "y"]), DataError, "labels 0 to 2 of 2 classes"),
    *[(lambda size=size: mxkit.data.digits(size), ValueError, f"received {size}") for size in (0, 7, 9, 29, -8)],
    *[(lambda part=part: chosen_part(None, 100, part, "valid"), ValueError, BELOW) for part in (-1, 1.0, 100, 1.5)],
]
ONCE = ((number for number in (1, 2)), map(float, range(3)), zip(range(3)), iter([1]))
READY = ({"drop_last": True}, {"transform": float}, {"batchify": list})
AHEAD = [{"prefetch": 0}, {"prefetch": 3}]
ONLY_ONCE = r"can be read only once.*\(T62\).*StreamLoader\(samples, "
LEFT_OUT = "epoch 1 has 1 samples, and drop_last leaves them out"


def stream(samples, batch_size=2, **options):
    return StreamLoader(samples, **{"batch_size": batch_size, **options})


OF_STREAMS = [
    *[(lambda once=once: stream(once), DataError, ONLY_ONCE) for once in ONCE],
    *[(lambda name=name: stream([1], **{name: -1}), ValueError, f"{name}: expected a whole") for name in COUNTS],
    *[(lambda wrong=wrong: stream([1], None, **wrong), ValueError, "need a batch_size") for wrong in READY],
    (lambda: stream([1]).skip(-1), ValueError, f"StreamLoader.skip: {WHOLE} 0; received -1"),
    (lambda: stream([1], drop_last=True, length=1), EmptyDataError, "leaves no batch: length is 1, not 2"),
    (lambda: list(stream(lambda: None)), DataError, "expected an iterable of samples; .* NoneType"),
    (lambda: list(stream(3)), DataError, "expected an iterable of samples; .* int"),
    *[(lambda ahead=ahead: list(stream([], **ahead)), EmptyDataError, "epoch 1 has no sample") for ahead in AHEAD],
    *[(lambda ahead=ahead: list(stream([1], drop_last=True, **ahead)), EmptyDataError, LEFT_OUT) for ahead in AHEAD],
    *[(lambda digest=digest: fetch("http://127.0.0.1:9/a", digest=digest), ValueError, "sha256:") for digest in NONE],
    (lambda: from_lines([], float, 2), FileNotFoundError, "from_lines: paths names no file"),
    (lambda: from_lines(["/dev", __file__], float, 2), FileNotFoundError, "/dev is no file; the current folder is "),
    (lambda: from_lines("/dev/null", float, 2), FileNotFoundError, "from_lines: /dev/null is no file"),
    (lambda: from_lines(f"{__file__}/*.txt", float, 2), FileNotFoundError, r"\*\.txt is no file"),
    (lambda: from_lines(__file__, float, 2, bad="ignore"), ValueError, "bad: expected 'raise' or 'skip'.*'ignore'"),
]
OF_LABELS = [
    (lambda: mixed(np.array([0, 5])), LabelError, r"from 0 to 4; received \[5\]"),
    (lambda: mixed(np.array([0, -1])), LabelError, "received .-1"),
    (lambda: mixed(np.array([0.0, 1.5])), LabelError, "received .1.5"),
    (lambda: mixed(np.array([np.nan, 1])), LabelError, "received .nan"),
    (lambda: mixed(np.zeros((2, 3))), LabelError, r"received \(2, 3\) of float64"),
    (lambda: mixed(np.zeros((2, 1), int)), LabelError, r"received \(2, 1\)"),
    (lambda: mixed(np.zeros(3, int)), DataError, "3 labels and inputs of shape"),
    (lambda: mixup(X, Y, np.random.default_rng(0), classes=11, alpha=0), ValueError, "alpha"),
    (lambda: cutmix(X, Y, None, classes=1), ValueError, "classes"),
    (lambda: smooth_labels(X, Y, classes=11, epsilon=1.0), ValueError, "epsilon"),
    (lambda: cutmix(X[:, 0], Y, None, classes=11), DataError, r"\(N, channels, height, width\)"),
]


@pytest.mark.parametrize(
    ("call", "error", "words"), OF_ARRAYS + OF_PAIRS + OF_BUCKETS + OF_DATASETS + OF_STREAMS + OF_LABELS
)
def test_what_is_refused(call, error, words):
    with pytest.raises(error, match=words) as caught:
        call()
    assert type(caught.value) is error
