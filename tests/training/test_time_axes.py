"""T293: recurrent layers of layout TNC, Gluon's default, that take the samples of a batch for steps."""

from built_nets import hybrid_net, plain_net, ready, stack
import mxkit
from mxkit.training import time_axes
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn, rnn
import numpy as np
from oracle import SOFTMAX, fit, traps, weights
import pytest

RANDOM = np.random.RandomState(0)
X = RANDOM.randint(0, 9, (16, 6))
Y = X.cumsum(axis=1) % 9
DATA = mxkit.data.ArrayLoader(X, Y, 8)


def swapped():
    return hybrid_net(lambda net, F, x: F.np.swapaxes(x, 0, 1) if mx.util.is_np_array() else F.swapaxes(x, 0, 1))


def layers(*inner, kind=nn.HybridSequential):
    return ready(stack(nn.Embedding(9, 8), *inner, nn.Dense(9, flatten=False), kind=kind))


def inner_graph():
    """A plain Block with a graph in it."""
    words = stack(nn.Embedding(9, 8), rnn.LSTM(8))
    return ready(plain_net(lambda net, x: net.dense(net.words(x)), words=words, dense=nn.Dense(9, flatten=False)))


MIXING = {
    "LSTM": lambda: layers(rnn.LSTM(8)),
    "GRU after another": lambda: layers(rnn.GRU(8), rnn.RNN(8)),
    "plain Blocks": lambda: layers(rnn.LSTM(8, bidirectional=True), kind=nn.Sequential),
    "a graph in a plain Block": inner_graph,
}
RIGHT = {
    "NTC": lambda: layers(rnn.LSTM(8, layout="NTC")),
    "swapped": lambda: layers(swapped(), rnn.LSTM(8), swapped()),
    "swapped in plain Blocks": lambda: layers(swapped(), rnn.LSTM(8), swapped(), kind=nn.Sequential),
}
RUNS = {
    "fit": lambda net, data: fit(net, data, epochs=2, valid=mxkit.data.ArrayLoader(X, Y, 8)),
    "updates": lambda net, data: list(mxkit.updates(net, data, loss="softmax_ce", trainer="sgd")),
    "evaluate": lambda net, data: mxkit.evaluate(net, data, loss="softmax_ce"),
    "predict": mxkit.predict,
}


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("kind", MIXING)
@pytest.mark.filterwarnings("ignore:All children:UserWarning")
def test_samples_taken_for_steps_are_told_once(kind, run, hybridize):
    net = MIXING[kind]()
    net.hybridize(hybridize)
    (text,) = traps(lambda: RUNS[run](net, DATA))
    assert "has the default layout 'TNC' and gets (8, 6, 8) for a batch of 8 samples" in text
    assert "mixes them (T293)" in text
    assert ("and 1 more" in text) == ("another" in kind)
    assert not any(block._forward_pre_hooks for block in [net, *net._children.values()])


@pytest.mark.usefixtures("switched")
def test_both_kinds_of_arrays_and_several_devices():
    def mixing(devices):
        return ready(nn.Embedding(9, 8), rnn.LSTM(8), nn.Dense(9, flatten=False), devices=devices)

    for devices, shape in (("cpu", "(8, 6, 8)"), ("cpu:2", "(4, 6, 8)")):
        for data in (DATA, gluon.data.DataLoader(gluon.data.ArrayDataset(X.astype("int32"), Y), 8)):
            for run in ("fit", "evaluate"):
                (text,) = traps(lambda run=run, data=data, devices=devices: RUNS[run](mixing(devices), data))
                assert f"gets {shape}" in text


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("kind", RIGHT)
@pytest.mark.filterwarnings("ignore:All children:UserWarning")
def test_right_layouts_are_silent(kind, hybridize):
    net = RIGHT[kind]()
    net.hybridize(hybridize)
    for run in RUNS.values():
        assert not traps(lambda run=run: run(net, DATA))


def test_as_many_steps_as_samples_tell_nothing():
    assert not traps(lambda: fit(MIXING["LSTM"](), mxkit.data.ArrayLoader(X, Y, 6, drop_last=True)))


def test_batches_of_time_first_train_rightly():
    """A list may hold them, and mxkit takes the steps for samples: the mean is the same."""
    data, net = [(X[:8].T, Y[:8].T)], MIXING["LSTM"]()
    assert not traps(lambda: fit(net, data))
    other = layers(swapped(), rnn.LSTM(8), swapped())
    for parameter, same in zip(other.collect_params().values(), net.collect_params().values()):
        parameter.set_data(same.data())
    losses = [
        mxkit.evaluate(one, part, loss="softmax_ce")["loss"] for one, part in ((net, data), (other, [(X[:8], Y[:8])]))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_one_label_for_each_sample_shows_that_a_list_has_samples_first():
    net = ready(nn.Embedding(9, 8), rnn.LSTM(8), nn.Dense(9))
    assert len(traps(lambda: fit(net, [(X, Y[:, 0])]))) == 1


def test_one_long_sequence_in_its_order_is_silent():
    """Samples may be its steps, unless they are shuffled."""
    series = RANDOM.randn(16, 1, 4).astype("float32")
    net = ready(rnn.LSTM(8), nn.Dense(9))
    assert not traps(lambda: fit(net, mxkit.data.ArrayLoader(series, Y[:, 0], 8)))
    assert len(traps(lambda: fit(net, mxkit.data.ArrayLoader(series, Y[:, 0], 8, shuffle=True)))) == 1


def test_sentences_of_documents_that_are_as_long_as_the_batch():
    """Time is on axis 0, and does not grow with the batch."""
    documents = RANDOM.randint(0, 9, (8, 3, 4))

    def last(net, F, x):
        words = net.words(F.reshape(x, (-3, 0)))  # (documents * sentences, time)
        read = F.slice_axis(net.lstm(F.swapaxes(words, 0, 1)), axis=0, begin=-1, end=None)
        return net.dense(F.reshape(read, (-1, 24)))

    net = ready(hybrid_net(last, words=nn.Embedding(9, 8), lstm=rnn.LSTM(8), dense=nn.Dense(9)))
    assert not traps(lambda: fit(net, mxkit.data.ArrayLoader(documents, Y[:8, 0], 4)))


def test_a_loss_that_calls_the_net_itself():
    loss = mxkit.losses.BatchLoss(forward=lambda net, inputs, labels: SOFTMAX(net(inputs[0]), labels[0]))
    data = mxkit.data.ArrayLoader((X, X), Y, 8)
    for hybridize in (False, True):
        net = MIXING["LSTM"]()
        net.hybridize(hybridize)
        assert len(traps(lambda net=net: fit(net, data, loss=loss))) == 1


def test_the_check_changes_no_bit(monkeypatch):
    """Deferred parameters get their first values, dropout draws its masks, and names count as without the check."""

    def trained():
        mxkit.seed_all(3)
        net = stack(nn.Embedding(9, 8), nn.Dropout(0.5), rnn.LSTM(8, prefix="lstm_"), nn.Dense(9, flatten=False))
        mxkit.initialize(net, "xavier")
        net.hybridize()
        list(mxkit.updates(net, DATA, loss="softmax_ce", trainer="sgd"))
        return weights(net), mx.sym.relu(mx.sym.var("x")).name

    def checked():
        found.append(trained())

    found = []
    with mx.name.NameManager():
        assert len(traps(checked)) == 1
    monkeypatch.setattr(time_axes, "_reads_time_first", lambda block: False)
    with mx.name.NameManager():
        assert not traps(checked)
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
