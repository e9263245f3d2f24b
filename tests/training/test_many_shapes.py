"""Many shapes of inputs on a GPU, for each of which cuDNN searches its algorithms anew, are told once (T136)."""

import warnings

import mxkit
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np
from oracle import fit, traps
import pytest

TEXT = "cuDNN searches its fastest algorithm again"


def convolving():
    net = nn.HybridSequential()
    net.add(nn.Conv1D(2, 1, in_channels=3), nn.GlobalAvgPool1D(), nn.Flatten())
    return net


def exported():
    x = mx.sym.Convolution(mx.sym.var("x"), num_filter=2, kernel=(1,), no_bias=True, name="conv")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SymbolBlock guesses the input's type
        return gluon.SymbolBlock(mx.sym.mean(x, axis=2), [mx.sym.var("x")])


def dense():
    net = nn.HybridSequential()
    net.add(nn.GlobalAvgPool1D(), nn.Dense(2, in_units=3))
    return net


def told(make, shapes, epochs=1, devices="cpu"):
    """How often `fit` warns, over batches of (samples, length)."""
    net = make()
    mxkit.initialize(net, devices=devices, sample=(1, 3, 2))
    data = [(np.zeros((samples, 3, length), "float32"), np.zeros(samples)) for samples, length in shapes]
    return sum(TEXT in text for text in traps(lambda: fit(net, data, epochs=epochs)))


NINE = [(2, length) for length in range(2, 11)]


@pytest.mark.parametrize(
    ("make", "shapes", "epochs", "devices", "times"),
    [
        (convolving, NINE * 2, 2, "cpu", 1),
        (exported, NINE, 1, "cpu", 1),
        (convolving, NINE[:8] * 2, 2, "cpu", 0),
        (convolving, [(3, 2)] * 2 + [(5, 3), (7, 4), (9, 5), (11, 6)], 1, "cpu:2", 1),  # 10 shapes, split unevenly
        (dense, NINE, 1, "cpu", 0),
    ],
    ids=["once", "exported", "few", "uneven", "no convolution"],
)
def test_many_shapes_on_a_gpu_are_told_once(make, shapes, epochs, devices, times, monkeypatch):
    """T136."""
    monkeypatch.setattr("mxkit.training.checks.is_gpu", lambda device: True)
    monkeypatch.delenv("MXNET_CUDNN_AUTOTUNE_DEFAULT", raising=False)
    assert told(make, shapes, epochs, devices) == times


def test_nothing_is_told_on_a_cpu_or_without_the_search(monkeypatch):
    """T136."""
    assert told(convolving, NINE) == 0
    monkeypatch.setattr("mxkit.training.checks.is_gpu", lambda device: True)
    monkeypatch.setattr("mxkit.runtime.engine_settings._switches_loaded", {"MXNET_CUDNN_AUTOTUNE_DEFAULT": "0"})
    assert told(convolving, NINE) == 0
