"""Rows of SEEDS.md on features and files; see test_seed_rows.py. Rows 116 to 119: test_features.py; 124: T53."""

import pickle

import mxkit
from mxkit.errors import CheckpointError
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np
import pytest
from seed_code import X, stack


def trained():
    net = stack(nn.Dense(2, in_units=2))
    net.hybridize()
    net(X)
    return net


def test_row_120_pickle(tmp_path):
    net = trained()
    with pytest.raises(ValueError, match="ctypes objects containing pointers cannot be pickled"):
        pickle.dumps(net)
    mxkit.save_net(tmp_path / "net.mxk", net)
    np.testing.assert_array_equal(mxkit.load_net(tmp_path / "net.mxk")(X).asnumpy(), net(X).asnumpy())


def test_row_121_export_and_load(tmp_path):
    net, other, prefix = trained(), trained(), str(tmp_path / "triplet-net")
    net.export(prefix, epoch=3)
    with pytest.raises(mx.MXNetError, match=r"triplet-net-0005.params"):
        mx.model.load_checkpoint(prefix, epoch=5)
    other.export(prefix, epoch=5)  # names carry a counter, and both share a -symbol.json
    _, arguments, _ = mx.model.load_checkpoint(prefix, epoch=3)
    assert not set(arguments) & set(other.collect_params())

    mxkit.export(net, tmp_path / "ours", epoch=3)
    with pytest.raises(ValueError, match="holds another net .* Choose another path, or overwrite=True"):
        mxkit.export(other, tmp_path / "ours", epoch=5)


def test_row_122_parameters_in_files(tmp_path):
    relu, tanh = (stack(nn.Dense(3, in_units=2, activation=kind)) for kind in ("relu", "tanh"))
    file = str(tmp_path / "net.params")
    broken = pytest.raises(AttributeError, match="'ValueError' object has no attribute 'message'")
    with broken, pytest.warns(UserWarning, match="save_params is deprecated"):
        relu.save_params(file)
    with pytest.raises(gluon.parameter.DeferredInitializationError):
        stack(nn.Dense(3)).save_parameters(file)
    with pytest.raises(mx.MXNetError, match="LocalFileSystem"):
        relu.save_parameters(str(tmp_path / "no" / "folder.params"))
    relu.save_parameters(file)
    tanh.load_parameters(file)
    assert (tanh(X) != relu(X)).asnumpy().any()

    mxkit.save_net(tmp_path / "a" / "folder" / "net.mxk", relu)
    with pytest.raises(CheckpointError, match="0: activation: 'tanh' here, 'relu' there"):
        mxkit.load_net(tmp_path / "a" / "folder" / "net.mxk", tanh)


def test_row_123_a_net_from_its_print(tmp_path):
    net = stack(nn.Dense(3, flatten=False), nn.ELU(0.3), nn.Conv2DTranspose(3, 2, in_channels=5))
    with (tmp_path / "net.txt").open("w") as file:
        print(net, file)  # noqa: T201
    assert (tmp_path / "net.txt").read_text() == ""  # it went to the terminal
    assert "flatten" not in repr(net)
    assert "0.3" not in repr(net)

    twin = mxkit.nets.build(mxkit.nets.describe(net))
    assert (twin[0]._flatten, twin[1]._alpha, twin[2]._channels) == (False, 0.3, 3)
