"""StreamLoader and from_lines: samples of any length, read in one direction, in an order of (seed, epoch)."""

from collections.abc import Sized
import gc
import gzip
from itertools import count, islice
import threading
import weakref

from batches import read
from mxkit.data.stream import StreamLoader, from_lines
from mxkit.errors import DataError, EmptyDataError, TrapWarning
import mxnet as mx
import numpy as np
import pytest


def numbers(size):
    def samples():
        for number in range(size):
            yield np.full(2, number / 2), number

    return samples


def labels(loader):
    return [batch[-1].asnumpy().tolist() for batch in loader]


def test_ready_batches():
    ready = [(np.zeros((3, 2)), [0, 1, 2]), (mx.nd.ones((2, 2)), np.array([3, 4]))]
    loader = StreamLoader(lambda: iter(ready), None, length=2)
    (x, y), (kept, _) = loader
    assert (x.dtype, y.dtype, y.asnumpy().tolist()) == (np.float32, np.int32, [0, 1, 2])
    assert kept is ready[1][0]
    assert len(loader) == 2
    loader.skip(1)
    assert len(list(loader)) == 1
    (((a, b),),) = StreamLoader(lambda: [([np.zeros(3), np.zeros(3)],)], None)
    assert a.shape == b.shape == (3,)
    assert [len(batch) for batch in StreamLoader(lambda: [np.zeros((2, 2))], None)] == [1]
    loader = StreamLoader([1.0, 2.0, 3.0], 2)
    assert labels(loader) == labels(loader) == [[1.0, 2.0], [3.0]]
    shuffled = StreamLoader(lambda: [(np.zeros(1), np.array([number])) for number in range(9)], None, shuffle_buffer=5)
    assert sorted(labels(shuffled)) == [[number] for number in range(9)]


def test_a_function_that_returns_one_generator_again_is_refused_in_the_second_epoch():
    """T62."""
    shared = numbers(9)()
    loader = StreamLoader(lambda: shared, 2)
    next(iter(loader))  # the first epoch ends early: the second would go on in the middle of it
    with pytest.raises(DataError, match="returned the same generator as for the epoch before"):
        next(iter(loader))


def test_it_has_a_length_only_if_one_is_given():
    loader = StreamLoader(numbers(5), 2)
    assert not isinstance(loader, Sized)  # what `fit` looks at
    assert loader
    assert len(list(loader)) == 3
    with pytest.raises(TypeError, match=r"'StreamLoader' has no len\(\)"):  # a resumed run would know less than this
        len(loader)
    assert repr(StreamLoader(numbers(3), 2, seed=3)) == "StreamLoader(samples, batch_size=2, shuffle_buffer=0, seed=3)"
    assert [loader.shuffle, StreamLoader([1], 1, shuffle_buffer=2).shuffle] == [False, True]
    assert len(StreamLoader(numbers(5), 2, length=5)) == 3
    assert len(StreamLoader(numbers(5), 2, length=5, drop_last=True)) == 2


@pytest.mark.parametrize(("length", "found"), [(4, "more than 4"), (6, "5")])
def test_a_wrong_length_is_told(length, found):
    loader = StreamLoader(numbers(5), 2, length=length)
    with pytest.warns(TrapWarning, match=rf"StreamLoader\(samples\): length is {length}, but an epoch has {found}: "):
        list(loader)


def test_a_stream_without_end_is_never_all_in_memory():
    alive = {}

    class Sample(np.ndarray):
        pass

    def endless():
        for number in count():
            sample = np.full(2, number).view(Sample)
            alive[number] = weakref.ref(sample, lambda _, number=number: alive.pop(number))
            yield sample

    loader = StreamLoader(endless, 4, shuffle_buffer=50, seed=1)
    seen = []
    for (x,) in islice(loader, 200):
        seen += x[:, 0].asnumpy().tolist()
        assert len(alive) <= 50 + 2 * 4 + 1
    assert len(set(seen)) == 800


def test_skipped_samples_are_not_transformed():
    transformed = []
    loader = StreamLoader(numbers(10), 3, transform=lambda x: transformed.append(1) or x)
    loader.skip(2)
    assert labels(loader) == [[6, 7, 8], [9]]
    assert len(transformed) == 4
    loader.skip(4)
    assert labels(loader) == []
    loader.skip(5)
    with pytest.raises(DataError, match="epoch 3 has 4 batches, of which 5 cannot be left out"):
        labels(loader)


def test_a_transform_draws_as_a_function_of_seed_epoch_and_number():
    def noisy(x, rng):
        return x + rng.random()

    def all_of(loader, epoch=2):
        loader.epoch = epoch
        return {int(y): x.tolist() for xs, ys in read(loader) for x, y in zip(xs, ys)}

    expected = all_of(StreamLoader(numbers(9), 4, seed=5, transform=noisy))
    for arguments in ({"shuffle_buffer": 3}, {"prefetch": 2}, {"shuffle_buffer": 20}):
        assert all_of(StreamLoader(numbers(9), 2, seed=5, transform=noisy, **arguments)) == expected
    generator = np.random.Generator(np.random.PCG64([5, 2, 6]))
    np.testing.assert_array_equal(expected[6], np.float32(np.full(2, 3.0) + generator.random()))
    assert len({x[0] - number / 2 for number, x in expected.items()}) == 9
    assert all_of(StreamLoader(numbers(9), 4, seed=5, transform=noisy), epoch=3) != expected
    images = [(mx.nd.zeros((2, 2)), 0)] * 3
    plain = StreamLoader(images, 3, transform=mx.gluon.data.vision.transforms.Cast("float16"))
    assert read(plain)[0][0].dtype == np.float16


def test_a_function_with_rng_orders_its_shards_by_seed_and_epoch():
    def samples(rng):
        for shard in rng.permutation(9):
            yield from range(10 * shard, 10 * shard + 3)

    def epochs(**arguments):
        loader = StreamLoader(samples, 27, **arguments)
        return [labels(loader)[0] for _ in range(3)]

    assert epochs(seed=4) == epochs(seed=4)
    assert len({tuple(order) for order in epochs(seed=4) + epochs(seed=5)}) == 6


def test_what_fails_is_named_and_chained():
    def breaks():
        yield from range(5)
        raise KeyError("gone")

    def ragged():
        yield from (np.zeros(3) for _ in range(5))
        yield np.zeros(4)

    def numbered():
        return range(5)

    for function, options, cause, words in (
        (breaks, {}, KeyError, "it failed in epoch 1 after 5 samples: KeyError"),
        (numbered, {"batchify": lambda _: 1 / 0}, ZeroDivisionError, "the samples 0 to 1 give no batch: ZeroDivision"),
        (numbered, {"transform": lambda x: 1 / (3 - x)}, ZeroDivisionError, "transform failed on sample 3: ZeroDivi"),
        (ragged, {}, type(None), r"samples 4 and 5 differ in shape: \(3,\) and \(4,\)"),
    ):
        read = []
        with pytest.raises(DataError, match=rf"StreamLoader\({function.__name__}\): {words}") as e:
            read.extend(StreamLoader(function, 2, **options))
        assert isinstance(e.value.__cause__, cause)
        assert len(read) == {"batchify": 0, "transform": 1}.get("".join(options), 2)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_break_closes_the_stream(prefetch):
    closed = []

    def samples():
        try:
            yield from count()
        finally:
            closed.append(threading.current_thread().name)

    loader = StreamLoader(samples, 2, shuffle_buffer=5, prefetch=prefetch)
    for _ in loader:
        break
    gc.collect()
    assert len(closed) == 1
    assert loader.epoch == 1  # it lives on, and does not hold what it read


# ---- lines


def parse(line):
    if line.startswith("#"):
        return None
    *x, y = line.split()
    return [float(value) for value in x], int(y)


@pytest.fixture
def logs(tmp_path):
    (tmp_path / "a.log").write_bytes(b"# x x y\n\n0 0 0\n  \n1 0.5 1\r\n2 1 2")
    (tmp_path / "b.log.gz").write_bytes(gzip.compress(b"3 1.5 3\n4 2 4\n"))
    return tmp_path


def test_lines_of_several_files_and_of_zipped_ones(logs):
    one, other = logs / "a.log", logs / "b.log.gz"
    for paths in (str(logs / "*.log*"), [one, str(other)], [str(logs / "a*"), other]):
        loader = from_lines(paths, parse, 2, length=5)
        assert len(loader) == 3
        for _ in range(2):
            x, y = (np.concatenate(part) for part in zip(*read(loader)))
            np.testing.assert_array_equal(y, np.arange(5))
            np.testing.assert_array_equal(x, np.stack([y, y / 2], axis=1))
    assert repr(loader).startswith(f"StreamLoader({logs / 'a.log'} and 1 more, batch_size=2")


def test_shuffling_draws_the_order_of_files_and_lines(tmp_path):
    for number in range(6):
        (tmp_path / f"{number}.txt").write_text("".join(f"0 {100 * number + line}\n" for line in range(20)))

    def orders(**arguments):
        loader = from_lines(tmp_path / "?.txt", parse, 120, shuffle_buffer=10, **arguments)
        return [labels(loader)[0] for _ in range(3)]

    found = orders(seed=2)
    assert found == orders(seed=2, prefetch=2)
    files = {tuple(dict.fromkeys(label // 100 for label in order)) for order in found}
    assert len(files) == 3
    for order in found:
        assert sorted(order) == [100 * number + line for number in range(6) for line in range(20)]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_bad_line_is_named(tmp_path, suffix):
    path = tmp_path / f"a.log{suffix}"
    content = b"0 0\n\n1 1\rx\n2 zwei\n\xc3\xa9 3\n\xff\xfe 4\n5 5\n"
    path.write_bytes(gzip.compress(content) if suffix else content)
    loader = from_lines(path, lambda line: parse(line.replace("\r", " 0 0 0")[:3]), 1)
    text = r"a\.log(\.gz)?, line 4: parse raised ValueError: .*; the line is '2 zwei'"
    with pytest.raises(DataError, match=text) as e:
        list(loader)
    assert isinstance(e.value.__cause__, ValueError)
    loader = from_lines(path, lambda line: int(line[-1]) if line[-1].isdigit() else None, 1)
    with pytest.raises(DataError, match="line 6: a byte is not utf-8-sig; encoding='latin-1'"):
        list(loader)
    assert len(list(from_lines(path, lambda line: 1, 1, encoding="latin-1"))) == 6


def test_bad_lines_are_left_out_and_counted(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(b"0 0\nzero\n1 1\n\xff 2\n# no sample\n3 3\n")
    loader = from_lines(path, parse, 2, bad="skip")
    with pytest.warns(TrapWarning, match=r"2 of 6 lines were left out\. .*a\.log, line 2: parse raised ValueError"):
        assert labels(loader) == [[0, 1], [3]]
    path.write_text("1 2 0\n\n1 2 3 0\n")
    text = r"samples .*a\.log, line 1 and .*a\.log, line 3 differ in shape: \(2,\) and \(3,\)"
    with pytest.raises(DataError, match=text):
        list(from_lines(path, parse, 2))


def test_encodings(tmp_path):
    path = tmp_path / "a.txt"
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "latin-1"):
        path.write_bytes("1 é\n2 ü\n".encode(encoding))
        read_as = "utf-8-sig" if encoding == "utf-8" else encoding
        assert labels(from_lines(path, lambda line: int(line[0]), 2, encoding=read_as)) == [[1, 2]]


def test_empty_and_damaged_files(tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_text("\n# nothing\n")
    with pytest.raises(EmptyDataError, match=r"StreamLoader\(.*empty\.txt\): epoch 1 has no sample"):
        list(from_lines(empty, parse, 2))
    path = tmp_path / "a.gz"
    whole = gzip.compress("".join(f"{number} {number / 2} 1\n" for number in range(9999)).encode())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"a\.gz: it is damaged after line \d{3,}: EOFError"):
        list(from_lines(path, parse, 100))
    path.write_bytes(b"1 1 1\n")
    with pytest.raises(DataError, match=r"a\.gz: it is damaged after line 0: (BadGzipFile|OSError)"):
        list(from_lines(path, parse, 100, bad="skip"))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_no_file_stays_open(tmp_path, prefetch):
    # an open file that is forgotten warns, and warnings are errors here
    path = tmp_path / "a.txt"
    path.write_text("".join(f"{number} {number}\n" for number in range(500)))
    for _ in range(3):
        for _ in from_lines(path, parse, 2, shuffle_buffer=5, prefetch=prefetch):
            break
    with pytest.raises(DataError):
        list(from_lines(path, lambda line: 1 / (250 - int(line.split()[0])), 4, prefetch=prefetch))
    gc.collect()
