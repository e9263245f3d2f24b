"""Where batches lie: loaders give cpu(0) whatever GPUs there are, and pinned arrays of a user's are taken (T133)."""

import mxkit
from mxkit.data import ArrayLoader, BucketLoader, DatasetLoader, PairLoader, StreamLoader, from_lines
import mxnet as mx
import numpy as np
import pytest

X = np.random.RandomState(0).rand(6, 4).astype("float32")
Y = np.arange(6) % 3


def as_numpy(x, y, rng):
    return x, y


LOADERS = {
    "ArrayLoader": lambda path: ArrayLoader(X, Y, 4),
    "ArrayLoader of bytes": lambda path: ArrayLoader(X.astype("uint8"), Y, 4, prefetch=2),
    "ArrayLoader with a transform": lambda path: ArrayLoader(X, Y, 4, transform=as_numpy),
    "ArrayLoader of nothing": lambda path: ArrayLoader(np.zeros((6, 0)), Y, 4),
    "DatasetLoader": lambda path: DatasetLoader(mx.gluon.data.ArrayDataset(X, Y), 4),
    "DatasetLoader with threads": lambda path: DatasetLoader(mx.gluon.data.ArrayDataset(X, Y), 4, workers="thread:2"),
    "DatasetLoader with a process": lambda path: DatasetLoader(
        mx.gluon.data.ArrayDataset(X, Y), 4, workers="process:1"
    ),
    "StreamLoader": lambda path: StreamLoader(lambda: iter([(X[0], 1)] * 5), 4),
    "from_lines": lambda path: from_lines(path, lambda line: np.float32([float(line)]), 2),
    "PairLoader": lambda path: PairLoader(X, Y, 4),
    "BucketLoader": lambda path: BucketLoader([X[:number, 0] for number in (1, 2, 3)], [0, 1, 2], 2),
}


def contexts(batches):
    return {str(array.context) for batch in batches for array in flat(batch)}


def flat(part):
    if isinstance(part, (tuple, list)):
        return [array for one in part for array in flat(one)]
    return [getattr(part, "array", part)]  # bytes that wait for their device


@pytest.mark.parametrize("name", LOADERS)
def test_t133_batches_of_loaders_lie_on_the_cpu_where_a_driver_shows_a_gpu(name, tmp_path, monkeypatch):
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 1)
    (tmp_path / "lines").write_text("1\n2\n3\n")
    loader = LOADERS[name](tmp_path / "lines")
    assert contexts(loader) == {"cpu(0)"}
    if hasattr(loader, "packed"):
        assert contexts(loader.packed()) == {"cpu(0)"}


def pinned():
    for start in (0, 4):
        yield tuple(mx.nd.array(array[start : start + 4], ctx=mx.cpu_pinned()) for array in (X, Y))


def test_t133_a_hybridized_net_takes_a_users_pinned_batches():
    net = mxkit.models.mlp(3, hidden=[4])
    mxkit.initialize(net, devices="cpu:2")
    net.hybridize()
    with pytest.raises(mx.MXNetError, match="cpu_pinned"):
        net(next(pinned())[0])  # why batches must not lie there
    history = mxkit.fit(
        net, pinned, loss="softmax_ce", trainer="sgd", epochs=1, valid=list(pinned()), metrics=["accuracy"],
        progress=False,
    )  # fmt: skip
    assert history[0]["samples"] == 6
    assert mxkit.evaluate(net, pinned, loss="softmax_ce") == {"loss": pytest.approx(history[0]["valid_loss"])}
    assert mxkit.predict(net, pinned).context == mx.cpu()
    np.testing.assert_array_equal(
        mxkit.predict(net, mx.nd.array(X, ctx=mx.cpu_pinned())).asnumpy(), mxkit.predict(net, X).asnumpy()
    )
    assert mxkit.extract(net, ["2"], pinned, progress=False)["2"].shape == (6, 3)
