"""Nets that call the block of an exported graph more than once, and graphs whose inputs have awkward names."""

import mxkit
from mxkit.errors import CheckpointError
import mxnet as mx
from mxnet import gluon
import numpy as np
import pytest

X = np.random.RandomState(0).uniform(-1, 1, (3, 5)).astype("f")
Y = np.random.RandomState(1).uniform(-1, 1, (3, 5)).astype("f")


class Twice(gluon.HybridBlock):
    """The difference of what one block gives for two inputs."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.last = gluon.nn.Dense(2, in_units=3)

    def hybrid_forward(self, F, x, y):  # noqa: N803
        return self.last(self.inner(x) - self.inner(y))


@pytest.fixture
def twice(tmp_path):
    inner = gluon.nn.HybridSequential()
    inner.add(gluon.nn.Dense(4), gluon.nn.BatchNorm(), gluon.nn.Dense(3))
    mxkit.initialize(inner, "xavier")
    mxkit.export(inner, tmp_path / "inner", input_shape=(1, 5))
    net = Twice(mxkit.load_exported(tmp_path / "inner"))
    mxkit.initialize(net.last, "xavier")
    return net


@pytest.mark.parametrize("format", ["symbol", "onnx", "torch"])
def test_a_symbol_block_called_twice_is_exported(twice, tmp_path, format):
    if format == "torch":
        pytest.importorskip("torch", reason="mxkit[torch] is not installed")
    if format == "onnx":
        pytest.importorskip("onnxruntime", reason="mxkit[onnx] is not installed")
    expected = twice(mx.nd.array(X), mx.nd.array(Y)).asnumpy()
    exported = mxkit.export(twice, tmp_path / "twice", format=format, input_shape=[(1, 5), (1, 5)])
    assert not exported.proof.failures
    ending = {"symbol": "", "onnx": ".onnx", "torch": ".py"}[format]
    read = mxkit.load_exported(f"{tmp_path / 'twice'}{ending}")
    np.testing.assert_allclose(read(mx.nd.array(X), mx.nd.array(Y)).asnumpy(), expected, rtol=1e-4, atol=1e-5)


def test_the_layers_of_a_symbol_block_called_twice_are_listed(twice):
    table = mxkit.layers(twice, (1, 5), (1, 5))
    assert table["inner"].calls == 2
    assert table["inner"].macs == 2 * (5 * 4 + 4 * 3)


def graph_with_input(folder, name):
    mx.sym.FullyConnected(mx.sym.var(name), num_hidden=3, name="fc").save(f"{folder}/net-symbol.json")
    arrays = {"arg:fc_weight": mx.nd.array(X[:, :5]), "arg:fc_bias": mx.nd.ones(3)}
    mx.nd.save(f"{folder}/net-0000.params", arrays)
    return folder / "net"


def test_an_input_called_output_is_no_output_of_the_onnx_file(tmp_path):
    pytest.importorskip("onnxruntime", reason="mxkit[onnx] is not installed")
    net = graph_with_input(tmp_path, "output")
    mxkit.export(net, tmp_path / "other", format="onnx", input_shape=(1, 5))
    read = mxkit.load_exported(tmp_path / "other.onnx")
    np.testing.assert_allclose(read(mx.nd.array(Y)).asnumpy(), Y @ X.T + 1, rtol=1e-5)


def test_an_input_called_self_is_refused_by_name(tmp_path):
    with pytest.raises(CheckpointError, match="'self'"):
        mxkit.load_exported(graph_with_input(tmp_path, "self"))
