"""StreamLoader and from_lines: samples of any length, read in one direction, in an order of (seed, epoch)."""

from collections.abc import Sized
import gc
import gzip
from itertools import count, islice
import random
import threading
import weakref

from gluoncv.data.batchify import Pad, Stack, Tuple
from hypothesis import given, settings
from hypothesis import strategies as st
from killed_runs import check_killed_run
from mxkit.data.stream import StreamLoader
from mxkit.data.text_lines import from_lines
from mxkit.errors import DataError, EmptyDataError, TrapWarning
import mxnet as mx
from mxnet.gluon import nn
import numpy as np
import pytest
from sharing import examples


def numbers(size):
    def samples():
        for number in range(size):
            yield np.full(2, number / 2), number

    return samples


def read(loader):
    return [tuple(part.asnumpy() for part in batch) for batch in loader]


def labels(loader):
    return [batch[-1].asnumpy().tolist() for batch in loader]


def assert_equal(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)


@settings(max_examples=examples(60))
@given(
    size=st.integers(1, 60),
    batch_size=st.integers(1, 20),
    buffer=st.integers(0, 70),
    seed=st.integers(-(2**40), 2**40),
    epoch=st.integers(0, 1000),
    drop_last=st.booleans(),
    data=st.data(),
)
def test_each_epoch_holds_every_sample_once_and_skip_gives_the_rest(
    size, batch_size, buffer, seed, epoch, drop_last, data
):
    if drop_last and batch_size > size:
        batch_size = size
    arguments = {"shuffle_buffer": buffer, "seed": seed, "drop_last": drop_last, "length": size}
    loader = StreamLoader(numbers(size), batch_size, **arguments)
    loader.epoch = epoch
    batches = read(loader)
    assert len(batches) == len(loader)
    assert {len(y) for _, y in batches[:-1]} <= {batch_size}
    y = np.concatenate([y for _, y in batches])
    np.testing.assert_array_equal(np.concatenate([x for x, _ in batches]), np.stack([y / 2, y / 2], axis=1))
    assert len(set(y.tolist())) == len(y) == (size // batch_size * batch_size if drop_last else size)
    if buffer < 2:
        np.testing.assert_array_equal(y, np.arange(len(y)))
    else:  # no sample comes before it could be in the buffer
        assert (y - np.arange(len(y)) < buffer).all()
    skipped = data.draw(st.integers(0, len(batches)))
    np.random.rand(3), random.random(), mx.nd.random.uniform()  # draws of others change nothing
    again = StreamLoader(numbers(size), batch_size, prefetch=data.draw(st.sampled_from([0, 2])), **arguments)
    again.epoch = epoch
    again.skip(skipped)
    assert_equal(read(again), batches[skipped:])
    again.epoch = epoch
    assert_equal(read(again), batches)


def test_orders_differ_between_epochs_and_seeds():
    loader = StreamLoader(numbers(20), 20, shuffle_buffer=8, seed=3)
    orders = [tuple(labels(loader)[0]) for _ in range(4)]
    orders += [tuple(labels(StreamLoader(numbers(20), 20, shuffle_buffer=8, seed=seed))[0]) for seed in range(3)]
    assert len(set(orders)) == 7
    assert loader.epoch == 4


def test_the_order_of_a_seed_is_fixed_for_good():
    # a run that is resumed by another version of mxkit or NumPy must read on in the same order
    loader = StreamLoader(numbers(10), 10, shuffle_buffer=4, seed=7)
    assert [labels(loader)[0] for _ in range(2)] == ORDERS_OF_SEED_7


ORDERS_OF_SEED_7 = [[3, 2, 5, 1, 6, 7, 8, 4, 9, 0], [2, 3, 1, 6, 7, 4, 0, 5, 8, 9]]


def test_what_it_stacks_and_how_types_become_smaller():
    def one(sample):
        ((batch, *_),) = [read(StreamLoader(lambda: [sample] * 3, 3))]
        return [(part.shape, str(part.dtype)) for part in batch]

    assert one(np.zeros((4, 2))) == [((3, 4, 2), "float32")]
    assert one((np.zeros(4, "uint8"), 5)) == [((3, 4), "uint8"), ((3,), "int32")]
    assert one(([1, 2], 0.5)) == [((3, 2), "int32"), ((3,), "float32")]
    assert one((mx.nd.zeros((2,)), True)) == [((3, 2), "float32"), ((3,), "float32")]
    (((a, b), y),) = StreamLoader(lambda: [((1.0, [2, 3]), 4)] * 2, 2)
    assert (a.shape, b.shape, y.shape) == ((2,), (2, 2), (2,))
    with pytest.raises(DataError, match="int64 becomes int32, which cannot hold 1099511627776"):
        read(StreamLoader(lambda: [2**40], 1))


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
    shuffled = StreamLoader(lambda: [(np.zeros(1), np.array([number])) for number in range(9)], None, shuffle_buffer=5)
    assert sorted(labels(shuffled)) == [[number] for number in range(9)]


def test_t62_a_generator_is_refused_at_once():
    with pytest.raises(DataError, match=r"a generator can be read only once.*\(T62\).*StreamLoader\(samples, \.\.\.\)"):
        StreamLoader(numbers(3)(), 2)
    for once in (map(float, range(3)), zip(range(3)), iter([1])):
        with pytest.raises(DataError, match="can be read only once"):
            StreamLoader(once, 2)
    with pytest.raises(DataError, match="expected a function that returns an iterable of samples; received int"):
        StreamLoader(3, 2)


@pytest.mark.parametrize("make", [numbers(9), lambda: map(float, range(9))])
def test_t62_a_function_that_returns_one_generator_again_is_refused_in_the_second_epoch(make):
    shared = make()
    loader = StreamLoader(lambda: shared, 2)
    next(iter(loader))  # the first epoch ends early: the second would go on in the middle of it
    with pytest.raises(DataError, match="returned the same (generator|map) as for the epoch before"):
        next(iter(loader))
    assert labels(StreamLoader(make, 9)) == labels(StreamLoader(make, 9))


def test_lists_start_anew_by_themselves():
    loader = StreamLoader([1.0, 2.0, 3.0], 2)
    assert labels(loader) == labels(loader) == [[1.0, 2.0], [3.0]]


def test_length_is_told_where_it_is_given_and_nowhere_else():
    loader = StreamLoader(numbers(5), 2)
    with pytest.raises(TypeError, match=r"'StreamLoader' has no len\(\)"):
        len(loader)
    assert not isinstance(loader, Sized)  # what `fit` looks at
    assert loader
    assert len(list(loader)) == 3
    with pytest.raises(TypeError):  # a run that is resumed would know less than one that was not
        len(loader)
    assert len(StreamLoader(numbers(5), 2, length=5)) == 3
    assert len(StreamLoader(numbers(5), 2, length=5, drop_last=True)) == 2


@pytest.mark.parametrize(("length", "found"), [(4, "more than 4"), (6, "5")])
def test_a_wrong_length_is_told_once(length, found):
    loader = StreamLoader(numbers(5), 2, length=length)
    with pytest.warns(TrapWarning, match=rf"StreamLoader\(samples\): length is {length}, but epoch 1 has {found}: "):
        list(loader)
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


def test_skip_neither_transforms_nor_stacks_and_lasts_for_one_iteration(monkeypatch):
    transformed = []
    loader = StreamLoader(numbers(10), 3, transform=lambda x: transformed.append(1) or x)
    loader.skip(2)
    assert labels(loader) == [[6, 7, 8], [9]]
    assert len(transformed) == 4
    assert len(labels(loader)) == 4
    loader.skip(4)
    assert labels(loader) == []
    loader.skip(5)
    with pytest.raises(DataError, match="epoch 4 has 4 batches, of which 5 cannot be left out"):
        labels(loader)
    with pytest.raises(ValueError, match="StreamLoader.skip: expected a whole number, at least 0; received -1"):
        loader.skip(-1)


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


def test_batchify_pads_ragged_samples():
    samples = [([1, 2, 3], 0), ([4], 1)]
    ((x, y),) = StreamLoader(lambda: samples, 2, batchify=Tuple(Pad(), Stack()))
    assert x.asnumpy().tolist() == [[1, 2, 3], [4, 0, 0]]
    assert y.asnumpy().tolist() == [0, 1]
    with pytest.raises(
        DataError, match=r"StreamLoader\(<lambda>\): the samples 0 to 1 give no batch: ZeroDivisionError"
    ) as caught:
        list(StreamLoader(lambda: samples, 2, batchify=lambda samples: 1 / 0))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_t64_ragged_samples_are_named_with_both_shapes():
    def ragged():
        yield from (np.zeros(3) for _ in range(5))
        yield np.zeros(4)

    with pytest.raises(DataError, match=r"StreamLoader\(ragged\): samples 4 and 5 differ in shape: \(3,\) and \(4,\)"):
        list(StreamLoader(ragged, 2))
    with pytest.raises(DataError, match="samples 0 and 1 are built differently"):
        list(StreamLoader(lambda: [1, (1, 2)], 2))
    with pytest.raises(DataError, match="sample 0 holds 'a', which is no number"):
        list(StreamLoader(lambda: "abc", 2))


def test_what_fails_is_named_and_chained():
    def breaks():
        yield from range(5)
        raise KeyError("gone")

    loader = StreamLoader(breaks, 2)
    batches = iter(loader)
    assert len(list(islice(batches, 2))) == 2
    with pytest.raises(DataError, match=r"StreamLoader\(breaks\): it failed in epoch 1 after 5 samples: KeyError") as e:
        next(batches)
    assert e.traceback[-1].name != "breaks"
    assert isinstance(e.value.__cause__, KeyError)
    with pytest.raises(DataError, match="the function must return an iterable of samples; it returned NoneType"):
        list(StreamLoader(lambda: None, 2))
    with pytest.raises(DataError, match="transform failed on sample 3: ZeroDivisionError"):
        list(StreamLoader(lambda: range(5), 2, transform=lambda x: 1 / (3 - x)))


@pytest.mark.parametrize("prefetch", [0, 3])
def test_an_epoch_without_a_batch_is_an_error(prefetch):
    with pytest.raises(EmptyDataError, match=r"StreamLoader\(list\): epoch 1 has no sample"):
        list(StreamLoader([], 2, prefetch=prefetch))
    with pytest.raises(EmptyDataError, match="epoch 1 has 1 samples, and drop_last leaves them out"):
        list(StreamLoader([1], 2, drop_last=True, prefetch=prefetch))
    with pytest.raises(EmptyDataError, match="drop_last leaves no batch: length is 1, a batch has 2 samples"):
        StreamLoader([1], 2, drop_last=True, length=1)


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


def test_wrong_arguments():
    for name in ("batch_size", "shuffle_buffer", "length", "prefetch"):
        with pytest.raises(ValueError, match=f"StreamLoader: {name}: expected a whole number"):
            StreamLoader([1], **{"batch_size": 1, name: -1})
    for wrong in ({"drop_last": True}, {"transform": float}, {"batchify": list}):
        with pytest.raises(ValueError, match="need a batch_size"):
            StreamLoader([1], None, **wrong)


def test_seeds_are_told_and_taken_over():
    loaders = [StreamLoader(numbers(9), 9, shuffle_buffer=9) for _ in range(3)]
    assert len({loader.seed for loader in loaders}) == 3
    first, second, _ = loaders
    second.load_state_dict(first.state_dict())
    assert labels(first) == labels(second)
    assert first.shuffle
    assert not StreamLoader([1], 1).shuffle
    text = "StreamLoader(samples, batch_size=2, shuffle_buffer=0, seed=3)"
    assert repr(StreamLoader(numbers(3), 2, seed=3)) == text


# ---- lines


def parse(line):
    if line.startswith("#"):
        return None
    *x, y = line.split()
    return [float(value) for value in x], int(y)


def write(path, first, last, text="{0} {1} {0}\n"):
    content = "".join(text.format(number, number / 2) for number in range(first, last))
    with (gzip.open if path.suffix == ".gz" else open)(str(path), "wb") as file:
        file.write(content.encode())
    return path


@pytest.fixture
def logs(tmp_path):
    with (tmp_path / "a.log").open("w") as file:
        file.write("# x x y\n\n0 0 0\n  \n1 0.5 1\r\n2 1 2")
    with gzip.open(str(tmp_path / "b.log.gz"), "wt") as file:
        file.write("3 1.5 3\n4 2 4\n")
    return tmp_path


def test_lines_of_several_files_and_of_zipped_ones(logs):
    for paths in (
        str(logs / "*.log*"),
        [logs / "a.log", str(logs / "b.log.gz")],
        [str(logs / "a*"), logs / "b.log.gz"],
    ):
        loader = from_lines(paths, parse, 2, length=5)
        assert len(loader) == 3
        for _ in range(2):
            x, y = (np.concatenate(part) for part in zip(*read(loader)))
            np.testing.assert_array_equal(y, np.arange(5))
            np.testing.assert_array_equal(x, np.stack([y, y / 2], axis=1))
    assert repr(loader).startswith(f"StreamLoader({logs / 'a.log'} and 1 more, batch_size=2")


def test_lines_equal_the_table_that_numpy_reads(tmp_path):
    table = np.random.RandomState(0).randn(50, 4)
    np.savetxt(str(tmp_path / "t.txt"), table)
    loader = from_lines(tmp_path / "t.txt", lambda line: np.array(line.split(), "float64"), 7)
    np.testing.assert_array_equal(np.concatenate([x for (x,) in read(loader)]), table.astype("float32"))


def test_shuffling_draws_the_order_of_files_and_lines(tmp_path):
    for number in range(6):
        with (tmp_path / f"{number}.txt").open("w") as file:
            file.writelines(f"0 {100 * number + line}\n" for line in range(20))

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
    with (gzip.open if suffix else open)(str(path), "wb") as file:
        file.write(b"0 0\n\n1 1\rx\n2 zwei\n\xc3\xa9 3\n\xff\xfe 4\n5 5\n")
    loader = from_lines(path, lambda line: parse(line.replace("\r", " 0 0 0")[:3]), 1)
    with pytest.raises(
        DataError, match=r"a\.log(\.gz)?, line 4: parse raised ValueError: .*; the line is '2 zwei'"
    ) as e:
        list(loader)
    assert isinstance(e.value.__cause__, ValueError)
    loader = from_lines(path, lambda line: int(line[-1]) if line[-1].isdigit() else None, 1)
    message = "line 6: byte 0xff in column 1 is not of the encoding utf-8-sig; name the right one: encoding='latin-1'"
    with pytest.raises(DataError, match=message):
        list(loader)
    assert len(list(from_lines(path, lambda line: 1, 1, encoding="latin-1"))) == 6


def test_bad_lines_are_left_out_and_counted(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(b"0 0\nzero\n1 1\n\xff 2\n# no sample\n3 3\n")
    loader = from_lines(path, parse, 2, bad="skip")
    with pytest.warns(TrapWarning, match=r"2 of 6 lines were left out\. .*a\.log, line 2: parse raised ValueError"):
        assert labels(loader) == [[0, 1], [3]]
    assert labels(loader) == [[0, 1], [3]]  # told once
    with pytest.raises(ValueError, match="bad: expected 'raise' or 'skip'; received 'ignore'"):
        from_lines(path, parse, 2, bad="ignore")


def test_ragged_lines_are_named(tmp_path):
    path = tmp_path / "a.log"
    path.write_text("1 2 0\n\n1 2 3 0\n")
    with pytest.raises(
        DataError, match=r"samples .*a\.log, line 1 and .*a\.log, line 3 differ in shape: \(2,\) and \(3,\)"
    ):
        list(from_lines(path, parse, 2))


def test_encodings(tmp_path):
    path = tmp_path / "a.txt"
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "latin-1"):
        path.write_bytes("1 é\n2 ü\n".encode(encoding))
        read_as = "utf-8-sig" if encoding == "utf-8" else encoding
        assert labels(from_lines(path, lambda line: int(line[0]), 2, encoding=read_as)) == [[1, 2]]
    with pytest.raises(LookupError, match="unknown encoding: utf-99"):
        from_lines(path, parse, 2, encoding="utf-99")


def test_files_that_are_not_there_and_folders(tmp_path, logs):
    with pytest.raises(FileNotFoundError, match=r"from_lines: no file .*none\.log is there, from "):
        from_lines([logs / "a.log", logs / "none.log"], parse, 2)
    with pytest.raises(FileNotFoundError, match=r"no file .*\*\.txt is there"):
        from_lines(logs / "*.txt", parse, 2)
    with pytest.raises(FileNotFoundError, match="paths names no file"):
        from_lines([], parse, 2)
    with pytest.raises(DataError, match=r"is a folder; name files of it: .*\*\.log"):
        from_lines(logs, parse, 2)
    with pytest.raises(DataError, match="/dev/null is no regular file and can be read only once"):
        from_lines("/dev/null", parse, 2)


def test_a_file_that_disappears(logs):
    loader = from_lines(logs / "*.log*", parse, 2)
    list(loader)
    (logs / "b.log.gz").unlink()
    batches = iter(loader)
    next(batches)
    with pytest.raises(DataError, match=r"b\.log\.gz was there when the loader was made, and is not any more"):
        list(batches)


def test_a_file_that_grows_is_told_once(logs):
    path = logs / "a.log"
    size = path.stat().st_size
    loader = from_lines(path, parse, 2)
    list(loader)
    with path.open("a") as file:
        file.write("\n3 1.5 3\n")
    with pytest.warns(
        TrapWarning, match=rf"a\.log had {size} bytes when the loader was made, and has {size + 9}: it is"
    ):
        assert labels(loader) == [[0, 1], [2, 3]]
    list(loader)


def test_empty_and_damaged_files(tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_text("\n# nothing\n")
    with pytest.raises(EmptyDataError, match=r"StreamLoader\(.*empty\.txt\): epoch 1 has no sample"):
        list(from_lines(empty, parse, 2))
    path = write(tmp_path / "a.gz", 0, 9999)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"a\.gz: it is damaged after line \d{3,}: EOFError"):
        list(from_lines(path, parse, 100))
    path.write_bytes(b"1 1 1\n")
    with pytest.raises(DataError, match=r"a\.gz: it is damaged after line 0: (BadGzipFile|OSError)"):
        list(from_lines(path, parse, 100, bad="skip"))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_no_file_stays_open(tmp_path, prefetch):
    # an open file that is forgotten warns, and warnings are errors here
    path = write(tmp_path / "a.txt", 0, 500)
    for _ in range(3):
        for _ in from_lines(path, parse, 2, shuffle_buffer=5, prefetch=prefetch):
            break
    with pytest.raises(DataError):
        list(from_lines(path, lambda line: 1 / (250 - int(line.split()[0])), 4, prefetch=prefetch))
    gc.collect()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_killed_run_over_lines_ends_where_the_uninterrupted_one_does(tmp_path, prefetch):
    random_state = np.random.RandomState(0)
    for number in range(3):
        rows = [f"{' '.join(map(str, random_state.randn(4)))} {random_state.randint(3)}\n" for _ in range(50)]
        (tmp_path / f"{number}.txt").write_text("".join(rows))

    def make_net():
        net = nn.HybridSequential()
        net.add(nn.Dense(7, in_units=4, activation="tanh"), nn.Dropout(0.5), nn.Dense(3, in_units=7))
        return net

    def noisy(x, rng):
        return np.array(x) + 0.1 * rng.standard_normal(4)

    options = {"shuffle_buffer": 40, "seed": 8, "transform": noisy, "prefetch": prefetch}
    check_killed_run(
        tmp_path,
        make_net,
        lambda: from_lines(tmp_path / "*.txt", parse, 4, **options),
        dies=(20, 60),
        loss="softmax_ce",
        trainer=("adam", {"learning_rate": 0.01}),
        epochs=2,
    )
