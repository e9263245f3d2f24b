"""T116: a convolution in prediction reorders its weight in place, later than the call that started it.

A read that races with it is seen about once in a hundred times, and only on a busy machine. So these tests look at
what can be seen each time: that a reader waits before it touches the values.
"""

from built_nets import stack
import mxkit
from mxkit.plots.feature_plots import plot_filters
import mxnet as mx
from mxnet.gluon import nn
import numpy as np
import pytest


@pytest.fixture
def events(monkeypatch):
    """Names of the calls that wait for the engine or take values out of arrays, in their order."""
    calls = []

    def spied(owner, name):
        original = getattr(owner, name)

        def call(*args, **kwargs):
            calls.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    spied(mx.nd, "waitall")
    for name in ("asnumpy", "asscalar", "copyto", "copy", "astype"):
        spied(mx.nd.NDArray, name)
    return calls


def make_net():
    net = stack(nn.Conv2D(4, 3, in_channels=3), nn.BatchNorm(in_channels=4), nn.GlobalAvgPool2D(), nn.Flatten())
    mxkit.initialize(net, "xavier", devices="cpu")
    return net


READERS = {
    "save_net": lambda net, folder: mxkit.save_net(folder / "net.mxk", net),
    "export": lambda net, folder: mxkit.export(net, folder / "net"),
    "save_checkpoint": lambda net, folder: mxkit.save_checkpoint(folder, net, step=1),
    "compare": lambda net, folder: mxkit.nets.compare(net, net),
    "plot_filters": lambda net, folder: plot_filters(net, "0"),
    "check_gradient": lambda net, folder: mxkit.gradients.check_gradient(
        net, mx.nd.random.uniform(shape=(1, 3, 5, 5)), wrt=[], limit=1
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_a_reader_of_weights_waits_before_it_reads(name, events, tmp_path):
    net = make_net()
    net(mx.nd.ones((1, 3, 8, 8)))  # nobody reads what it predicts
    del events[:]
    READERS[name](net, tmp_path)
    assert events[0] == "waitall"
    assert len(events) > 1


def test_queued_copies_need_no_wait(events, tmp_path):
    # the engine runs them before or after the reordering, never beside it: training goes on meanwhile
    from mxkit.storage.snapshot import take_snapshot

    net = nn.Conv2D(64, 3, in_channels=64, use_bias=False)
    weight = mx.nd.random.uniform(shape=(64, 64, 3, 3))
    mx.nd.save(str(tmp_path / "a.params"), {"weight": weight})
    expected = weight.asnumpy()
    for _ in range(20):
        net.load_parameters(str(tmp_path / "a.params"))
        net(mx.nd.ones((1, 64, 7, 7)))
        del events[:]
        snapshot = take_snapshot(net, step=1)
        assert not {"waitall", "asnumpy"} & set(events)
        np.testing.assert_array_equal(snapshot.files["net.params"]["weight"].asnumpy(), expected)
