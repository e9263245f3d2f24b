"""`extract` against the net itself: in memory, in files, over devices, when it fails in the middle."""

import mxkit
from mxkit.core.arrays import of_kind
from mxkit.data import ArrayLoader
from mxkit.errors import DataError, EmptyDataError
from mxkit.nets.features import Features
from mxkit.training.evaluation import extract
import mxnet as mx
from mxnet import gluon
import numpy as np
import pytest

X = np.random.RandomState(0).rand(37, 1, 8, 8).astype(np.float32)
Y = np.arange(37, dtype=np.int32)


def small_net(devices="cpu"):
    mxkit.seed_all(3)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(4, 3), gluon.nn.BatchNorm(), gluon.nn.Dropout(0.5), gluon.nn.Dense(5))
    mxkit.initialize(net, "xavier", devices=mxkit.devices(devices))
    for device in mxkit.devices(devices):
        net(of_kind(mx.nd.array(X[:2], ctx=device), mx.util.is_np_array()))
    return net


def expected(net, count=1):
    return net[:count](mx.nd.array(X)).asnumpy()


@pytest.mark.parametrize(
    ("batch_size", "where", "in_files"),
    [(5, "cpu", True), (5, "cpu:3", False), (37, "cpu", False), (64, "cpu:3", True)],
)
def test_rows_are_those_of_the_net(tmp_path, batch_size, where, in_files, kind):
    nd, net = small_net(where), kind.net(lambda: small_net(where))
    folder = tmp_path / "made" / "for it" if in_files else None
    found = extract(net, ["0", {"scores": "-1"}], ArrayLoader(X, Y, batch_size), labels="label", folder=folder)
    assert list(found) == ["0", "scores", "label"]
    np.testing.assert_allclose(found["0"], expected(nd), atol=1e-6)
    np.testing.assert_allclose(found["scores"], nd(mx.nd.array(X)).asnumpy(), atol=1e-6)  # no dropout: predict mode
    assert (found["label"] == Y).all()
    assert found["0"].dtype == np.float32
    assert found["label"].dtype == np.int32
    if in_files:
        assert isinstance(found["0"], np.memmap)
        assert sorted(path.name for path in folder.iterdir()) == ["0.npy", "label.npy", "scores.npy"]
        assert (np.load(str(folder / "0.npy")) == found["0"]).all()


def test_a_shuffled_loader_needs_the_labels():
    net = small_net()
    loader = ArrayLoader(X, Y, 8, shuffle=True, seed=1)
    with pytest.raises(DataError, match="the loader shuffles.*labels='label'"):
        extract(net, "0", loader)
    found = extract(net, "0", loader, labels="label")
    assert sorted(found["label"]) == list(range(37))
    assert not (found["label"] == Y).all()
    np.testing.assert_allclose(found["0"], expected(net)[found["label"]], atol=1e-6)
    assert loader.epoch == 0  # looking at the data changes no later order
    assert extract(net, "0", ArrayLoader(X, Y, 8), limit_batches=2)["0"].shape[0] == 16


def test_plain_blocks_arrays_and_several_outputs():
    class Two(gluon.Block):
        def forward(self, x):
            return x * 2, [x.mean(axis=(1, 2, 3)), x + 1]

    net = gluon.nn.Sequential()
    net.add(Two())
    found = extract(net, "0", mx.nd.array(X))
    assert list(found) == ["0[0]", "0[1][0]", "0[1][1]"]
    assert (found["0[1][1]"] == X + 1).all()


def test_half_precision_is_kept(tmp_path):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Activation("relu"))  # MXNet multiplies no matrices in float16 on the CPU
    loader = [mx.nd.array(X[:8], dtype="float16"), mx.nd.array(X[8:16], dtype="float16")]
    found = extract(net, "0", loader, folder=tmp_path)["0"]
    assert found.dtype == np.float16
    assert (found == X[:16].astype(np.float16)).all()


def test_earlier_files_stay_when_the_data_fails(tmp_path):
    net = small_net()
    (tmp_path / "0.npy").write_bytes(b"earlier")

    def batches():
        yield mx.nd.array(X[:8])
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        extract(net, ["0", "3"], batches, folder=tmp_path)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("0.npy", b"earlier")]


def test_wrong_requests(tmp_path):
    net = small_net()
    with pytest.raises(EmptyDataError, match="gave no batch"):
        extract(net, "0", [])
    with pytest.raises(DataError, match=r"extract: labels: expected batches \(x, y\); received x alone"):
        extract(net, "0", mx.nd.array(X), labels="label")
    with pytest.raises(ValueError, match="a feature is called 'label' too"):
        extract(net, {"label": "0"}, ArrayLoader(X, Y, 8), labels="label")
    with pytest.raises(ValueError, match="'a/b' and 'a_b' would both be a_b.npy"):
        extract(net, {"a/b": "0", "a_b": "1"}, ArrayLoader(X, Y, 8), folder=tmp_path)
    assert not list(tmp_path.iterdir())
    ragged = [mx.nd.array(X[:8]), mx.nd.array(X[:8, :, :6, :6])]
    with pytest.raises(DataError, match=r"0.npy: rows have shape \(4, 4, 4\) and float32, those before \(4, 6, 6\)"):
        extract(net, "0", ragged, folder=tmp_path)


def test_a_layer_without_a_batch_axis_is_refused():
    class Total(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.sum(x)

    net = gluon.nn.HybridSequential()
    net.add(Total())
    with pytest.raises(DataError, match=r"'0': expected a row per sample, \(8, ...\); received shape \(1,\)"):
        extract(net, "0", ArrayLoader(X, Y, 8))


def test_features_and_extract_agree_for_every_layer():
    net = small_net()
    batch = Features(net, "*")(mx.nd.array(X))
    whole = extract(net, "*", mx.nd.array(X))
    assert list(batch) == list(whole)
    for name, array in batch.items():
        assert (array.asnumpy() == whole[name]).all()
