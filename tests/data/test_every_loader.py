"""All loaders: orders that depend on (seed, epoch) only, devices, and runs that are killed and resumed."""

from functools import partial
import random

from batches import assert_same, leaves, read
from built_nets import ready
from hypothesis import given, settings
from hypothesis import strategies as st
import mxkit
from mxkit.core.arrays import switches
from mxkit.data import ArrayLoader, BucketLoader, DatasetLoader, PairLoader, StreamLoader, from_lines
import mxnet as mx
from mxnet.gluon import nn
import numpy as np
from oracle import fit
import pytest
from sharing import Kind, examples, pairs

X = np.arange(12.0)  # each sample is its own number
Y = np.repeat([3, 1, 7], [4, 6, 2])
SEQUENCES = [np.full(length, number) for number, length in enumerate([1, 5, 2, 6, 3, 7, 4, 8])]

SHUFFLED = {
    "arrays": lambda seed: ArrayLoader(X[:8], X[:8], 8, shuffle=True, seed=seed),
    "balanced": lambda seed: ArrayLoader(X[:7], None, 7, shuffle=True, seed=seed, balance=[0, 0, 0, 0, 0, 1, 1]),
    "dataset": lambda seed: DatasetLoader(X[:8], 8, shuffle=True, seed=seed),
    "buckets": lambda seed: BucketLoader(SEQUENCES, None, 2, buckets=2, shuffle=True, seed=seed),
    "pairs": lambda seed: PairLoader(X, Y, 4, length=4, seed=seed),
    "triplets": lambda seed: PairLoader(X, Y, 4, length=3, kind="triplets", balanced=True, seed=seed),
    "stream": lambda seed: StreamLoader(lambda: iter(X[:10]), 10, shuffle_buffer=4, seed=seed),
}
ORDERS_OF_SEED_7 = {
    "arrays": [[0, 6, 7, 2, 4, 5, 1, 3], [6, 3, 1, 0, 2, 4, 7, 5]],
    "balanced": [[3, 6, 2, 5, 6, 1, 4], [6, 2, 5, 3, 5, 1, 6]],
    "dataset": [[0, 6, 7, 2, 4, 5, 1, 3], [6, 3, 1, 0, 2, 4, 7, 5]],
    "buckets": [[1, 3, 2, 4, 0, 6, 7, 5], [7, 5, 6, 0, 2, 4, 3, 1]],
    "pairs": [[0, 7, 11, 8, 3, 5, 0, 11], [11, 5, 7, 6, 6, 7, 10, 9]],
    "triplets": [[5, 10, 3, 7, 11, 1, 1, 1, 5]],
    "stream": [[3, 2, 5, 1, 6, 7, 8, 4, 9, 0], [2, 3, 1, 6, 7, 4, 0, 5, 8, 9]],
}


def make(kind, size, batch_size, shuffle, drop_last, workers, prefetch):
    x, y = np.arange(size) / 2, np.arange(size)
    options = {"drop_last": drop_last, "seed": 3}
    if kind == "arrays":
        return ArrayLoader(x, y, batch_size, shuffle=shuffle > 1, prefetch=prefetch, **options)
    if kind == "dataset":
        pairs = list(zip(x, y))
        return DatasetLoader(pairs, batch_size, shuffle=shuffle > 1, workers=workers, prefetch=prefetch + 1, **options)
    return StreamLoader(
        lambda: zip(x, y), batch_size, shuffle_buffer=shuffle, length=size, prefetch=prefetch, **options
    )


@settings(max_examples=examples(120))
@given(
    kind=st.sampled_from(["arrays", "dataset", "stream"]), size=st.integers(1, 50), batch_size=st.integers(1, 20),
    shuffle=st.integers(0, 60), drop_last=st.booleans(), epoch=st.integers(0, 1000),
    ways=st.lists(st.tuples(st.sampled_from([0, "thread:4", "process:1", "process:3"]), st.integers(0, 3)), min_size=2,
                  max_size=2), data=st.data(),
)  # fmt: skip
def test_each_epoch_holds_every_sample_once_and_skip_gives_the_rest(
    kind, size, batch_size, shuffle, drop_last, epoch, ways, data
):
    batch_size = min(batch_size, size)
    loader, again = (make(kind, size, batch_size, shuffle, drop_last, *way) for way in ways)
    loader.epoch = epoch
    batches = read(loader)
    assert len(batches) == len(loader)
    assert {len(y) for _, y in batches[:-1]} <= {batch_size}
    y = np.concatenate([y for _, y in batches])
    np.testing.assert_array_equal(np.concatenate([x for x, _ in batches]), y / 2)
    assert len(set(y.tolist())) == len(y) == (size - size % batch_size if drop_last else size)
    if shuffle < 2:
        np.testing.assert_array_equal(y, np.arange(len(y)))
    elif kind == "stream":  # no sample comes before it could be in the buffer
        assert (y - np.arange(len(y)) < shuffle).all()
    else:
        np.testing.assert_array_equal(y, make(kind, size, 1, shuffle, False, 0, 0).order(epoch)[: len(y)])
    for skipped in (data.draw(st.integers(0, len(batches))), 0):
        again.epoch = epoch
        again.skip(skipped)
        assert_same(read(again), batches[skipped:])


def samples_of(loader):
    """Numbers of the samples in the order in which the next epoch gives them, first inputs first."""
    inputs = [batch[0][:1] if isinstance(loader, BucketLoader) else leaves(batch[:1]) for batch in loader]
    columns = [np.concatenate([x.asnumpy().reshape(len(x), -1)[:, 0] for x in column]) for column in zip(*inputs)]
    return np.concatenate(columns).astype(int).tolist()


def test_every_loader_is_in_the_tables_of_this_file():
    loaders = {name for name in dir(mxkit.data) if name.endswith("Loader")}
    assert {type(make(7)).__name__ for make in SHUFFLED.values()} == loaders
    assert {name.split()[0] for name in PLACED} == {*loaders, "from_lines"}


@pytest.mark.parametrize("name", SHUFFLED)
def test_the_order_depends_on_seed_and_epoch_only_and_is_fixed_for_good(name):
    # a run that is resumed by another version of mxkit or NumPy must read on in the same order
    loader = SHUFFLED[name](7)
    assert [samples_of(loader) for _ in ORDERS_OF_SEED_7[name]] == ORDERS_OF_SEED_7[name]

    def order(epoch, seed):
        np.random.rand(3), random.random(), mx.nd.random.uniform()
        loader = SHUFFLED[name](seed)
        assert loader.seed == seed
        loader.epoch = epoch
        found = tuple(samples_of(loader))
        assert loader.epoch == epoch + 1
        return found

    orders = {(epoch, seed): order(epoch, seed) for epoch in range(3) for seed in (1, 2, -(2**40))}
    assert len(set(orders.values())) == 9
    assert {key: order(*key) for key in orders} == orders
    first, second = SHUFFLED[name](None), SHUFFLED[name](None)
    assert first.seed != second.seed
    second.load_state_dict(first.state_dict())
    assert [samples_of(first) for _ in range(2)] == [samples_of(second) for _ in range(2)]


def as_numpy(x, y, rng):
    return x, y


def as_mx_np(x, y, rng):
    return Kind(True).of(x), y


PLACED = {
    "ArrayLoader": lambda path, x=X, y=Y: ArrayLoader(x, y, 4),
    "ArrayLoader of bytes": lambda path, x=X, y=Y: ArrayLoader(x.astype("uint8"), y, 4, prefetch=2),
    "ArrayLoader with a transform": lambda path, x=X, y=Y: ArrayLoader(x, y, 4, transform=as_numpy),
    "ArrayLoader with a transform to mx.np": lambda path, x=X, y=Y: ArrayLoader(x, y, 4, transform=as_mx_np),
    "ArrayLoader of nothing": lambda path, x=X, y=Y: ArrayLoader(np.zeros((6, 0)), y[:6], 4),
    "DatasetLoader": lambda path, x=X, y=Y: DatasetLoader(mx.gluon.data.ArrayDataset(x, y), 4),
    "DatasetLoader with threads": lambda path, x=X, y=Y: DatasetLoader(
        mx.gluon.data.ArrayDataset(x, y), 4, workers="thread:2"
    ),
    "DatasetLoader with a process": lambda path, x=X, y=Y: DatasetLoader(
        mx.gluon.data.ArrayDataset(x, y), 4, workers="process:1"
    ),
    "StreamLoader": lambda path, x=X, y=Y: StreamLoader(lambda: [(x[:2], 1)] * 5, 4, prefetch=1),
    "StreamLoader of batches": lambda path, x=X, y=Y: StreamLoader(lambda: [(x[:5], y[:5]), (x, y)], None),
    "from_lines": lambda path, x=X, y=Y: from_lines(path, lambda line: np.float32([float(line)]), 2),
    "PairLoader": lambda path, x=X, y=Y: PairLoader(x, y, 4, seed=3),
    "BucketLoader": lambda path, x=X, y=Y: BucketLoader(SEQUENCES, y[:8], 2),
}


@pytest.mark.parametrize("name", PLACED)
def test_every_loader_reads_arrays_of_each_kind_and_hands_over_those_of_the_switch(name, kind, tmp_path, monkeypatch):
    """T133: on the CPU, also where a driver shows a GPU."""
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 1)
    (tmp_path / "lines").write_text("1\n2\n3\n")
    expected = read(PLACED[name](tmp_path / "lines", X.astype("float32"), Y.astype("int32")))
    loader = PLACED[name](tmp_path / "lines", kind.of(X), kind.of(Y.astype("int32")))
    for numpy in (False, True):
        with switches(numpy):
            loader.epoch = 0
            batches = list(loader)
            loader.epoch = 0
            loader.skip(1)
            rest = read(loader)
        assert all(Kind(numpy).holds(leaf) for batch in batches for leaf in leaves(batch))
        packed = list(loader.packed()) if hasattr(loader, "packed") else []
        # packed bytes are an array too
        assert {str(getattr(leaf, "array", leaf).ctx) for leaf in leaves([*batches, *packed])} == {"cpu(0)"}
        assert_same([tuple(leaf.asnumpy() for leaf in leaves(batch)) for batch in batches], expected)
        assert_same(rest, expected[1:])


def generated(x, y, switch):
    """Batches that a user's code computes with the operators of the kind that the user's switch names."""
    array = (mx.np if switch else mx.nd).array
    for start in range(0, len(x), 4):
        assert mx.util.is_np_shape() == mx.util.is_np_array() == switch
        yield array(x[start : start + 4]) * 1, array(y[start : start + 4], dtype="int32")


def computed(loader):
    for x, y in loader:
        yield (mx.np if mx.util.is_np_array() else mx.nd).abs(x), y


SOURCES = {
    "ArrayLoader": lambda x, y: ArrayLoader(x, y, 4),
    "generator": lambda x, y: partial(generated, x, y, mx.util.is_np_array()),
    "generator over a loader": lambda x, y: lambda: computed(ArrayLoader(x, y, 4)),
    "DataLoader": lambda x, y: mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(x, y), 4),
    "DataLoader with a thread": lambda x, y: mx.gluon.data.DataLoader(
        mx.gluon.data.ArrayDataset(x, y), 4, num_workers=1, thread_pool=True
    ),
    "DataLoader with a process": lambda x, y: mx.gluon.data.DataLoader(
        mx.gluon.data.ArrayDataset(x, y), 4, num_workers=1
    ),
    "NDArrayIter": lambda x, y: mx.io.NDArrayIter(x, y, 4),
    "PrefetchingIter": lambda x, y: mx.io.PrefetchingIter(mx.io.NDArrayIter(x, y, 4)),
}


@pytest.mark.filterwarnings("ignore:ndarray.as_in_context:DeprecationWarning")  # of gluon's DataLoader
@pytest.mark.parametrize(("name", "kind"), pairs(list(SOURCES), [Kind(False), Kind(True)]))
def test_every_source_trains_nets_of_each_kind_under_either_switch(name, kind):
    x, y = np.abs(ROWS[:10]).astype("float32"), LABELS[:10].astype("int32")
    weights = []
    for source, switch in (("ArrayLoader", False), (name, False), (name, True)):
        mxkit.seed_all(0)
        net = kind.net(started)
        with switches(switch):
            data = SOURCES[source](x, y)
            mxkit.fit(net, data, loss="softmax_ce", trainer="sgd", epochs=2, seed=5, progress=False)
        weights.append(net[0].weight.data().asnumpy())
        np.testing.assert_array_equal(weights[-1], weights[0])


def test_a_hybridized_net_takes_a_users_pinned_batches():
    """T133."""
    x = np.random.RandomState(0).rand(6, 4).astype("float32")

    def pinned():
        for start in (0, 4):
            yield tuple(mx.nd.array(array[start : start + 4], ctx=mx.cpu_pinned()) for array in (x, np.arange(6) % 3))

    net = ready(mxkit.models.mlp(3, hidden=[4]), devices="cpu:2")
    net.hybridize()
    history = fit(net, pinned, valid=list(pinned()), metrics=["accuracy"])
    assert history[0]["samples"] == 6
    assert mxkit.evaluate(net, pinned, loss="softmax_ce") == {"loss": pytest.approx(history[0]["valid_loss"])}
    assert mxkit.predict(net, pinned).context == mx.cpu()
    np.testing.assert_array_equal(
        mxkit.predict(net, mx.nd.array(x, ctx=mx.cpu_pinned())).asnumpy(), mxkit.predict(net, x).asnumpy()
    )
    assert mxkit.extract(net, ["2"], pinned, progress=False)["2"].shape == (6, 3)


def started():
    return ready(nn.Dense(7, in_units=4, activation="tanh"), nn.Dropout(0.5), nn.Dense(3, in_units=7))


ROWS = np.random.RandomState(0).randn(150, 4)
LABELS = np.random.RandomState(1).randint(0, 3, 150)
