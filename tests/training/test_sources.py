"""The kinds of data that a loop reads: the same batches train the same bits."""

import multiprocessing
import os

import mxkit
import mxnet as mx
from mxnet import gluon
import numpy as np
from oracle import CLASSES, FEATURES, SOFTMAX, make_batches, make_net, weights
import pytest

X = np.random.RandomState(0).randn(11, FEATURES).astype("float32")
Y = np.random.RandomState(1).randint(0, CLASSES, 11).astype("int32")
TRUE = [(X[i : i + 4], Y[i : i + 4]) for i in range(0, 11, 4)]  # 4, 4 and 3 samples
EPOCHS = 2


def trained(data, **arguments):
    net = make_net()
    history = mxkit.fit(
        net, data, loss="softmax_ce", trainer=("adam", {}), epochs=EPOCHS, valid=data, progress=False, **arguments
    )
    return weights(net), history


class Restarting:
    """An iterable that starts anew at each `iter`."""

    def __iter__(self):
        return iter(TRUE)


SOURCES = {
    "list of NDArrays": lambda: [(mx.nd.array(x), mx.nd.array(y, dtype="int32")) for x, y in TRUE],
    "list of lists": lambda: [[x, y] for x, y in TRUE],
    "generator factory": lambda: lambda: (batch for batch in TRUE),
    "iterable": Restarting,
    "DataLoader": lambda: gluon.data.DataLoader(gluon.data.ArrayDataset(X, Y), batch_size=4, last_batch="keep"),
    "DataLoader with threads (T44)": lambda: gluon.data.DataLoader(
        gluon.data.ArrayDataset(X, Y), batch_size=4, last_batch="keep", num_workers=1, thread_pool=True
    ),
    "NDArrayIter with padding": lambda: mx.io.NDArrayIter(X, Y, batch_size=4, last_batch_handle="pad"),
    "ArrayLoader": lambda: mxkit.data.ArrayLoader(X, Y, batch_size=4),
}


@pytest.mark.filterwarnings("ignore:valid is the training data")  # so that each source is read in both roles
@pytest.mark.parametrize("source", list(SOURCES))
def test_each_source_trains_the_same_bits(source):
    expected, expected_history = trained(TRUE)
    found, history = trained(SOURCES[source]())
    np.testing.assert_array_equal(found, expected)
    for row, expected_row in zip(history, expected_history):
        assert row["samples"] == 11
        for name in ("updates", "train_loss", "valid_loss"):
            assert row[name] == expected_row[name]


def test_padding_does_not_count_in_predict():
    net = make_net()
    found = mxkit.predict(net, mx.io.NDArrayIter(X, Y, batch_size=4, last_batch_handle="pad"))
    np.testing.assert_allclose(found.asnumpy(), net(mx.nd.array(X)).asnumpy(), rtol=1e-6, atol=1e-7)


def test_t44_a_hybridized_net_takes_batches_of_threads_and_numpy():
    net = make_net(hybridize=True)
    data = SOURCES["DataLoader with threads (T44)"]()
    assert [update.samples for update in mxkit.updates(net, data, loss=SOFTMAX, trainer="sgd")] == [4, 4, 3]


class Sum(gluon.HybridBlock):
    """A net of two inputs."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.left = gluon.nn.Dense(CLASSES, in_units=FEATURES)
            self.right = gluon.nn.Dense(CLASSES, in_units=2)

    def hybrid_forward(self, F, x, z):
        return self.left(x) + self.right(z)


@pytest.mark.parametrize("devices", ["cpu:1", "cpu:2"])
def test_two_inputs_and_weighted_labels_equal_numpy(devices):
    mxkit.seed_all(0)
    net = Sum()
    mxkit.initialize(net, devices=devices)
    z, w = X[:, :2] * 2, np.linspace(0.1, 2, 11).astype("float32")
    before = {path: p.data(mx.cpu()).asnumpy() for path, p in net._collect_params_with_prefix().items()}
    data = [((X[:6], z[:6]), (Y[:6], w[:6, None])), ((X[6:], z[6:]), (Y[6:], w[6:, None]))]
    rate = 0.5
    (update,) = mxkit.updates(net, data, loss=SOFTMAX, trainer=("sgd", {"learning_rate": rate}), accumulate=2)
    scores = X @ before["left.weight"].T + before["left.bias"] + z @ before["right.weight"].T + before["right.bias"]
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    assert update.loss == pytest.approx(-(w * np.log(shares[np.arange(11), Y])).mean(), rel=1e-5)
    slope = w[:, None] * (shares - np.eye(CLASSES)[Y]) / 11  # of the weighted loss, over 11 samples whatever they weigh
    for path, gradient in {
        "left.weight": slope.T @ X,
        "left.bias": slope.sum(axis=0),
        "right.weight": slope.T @ z,
        "right.bias": slope.sum(axis=0),
    }.items():
        for replica in net._collect_params_with_prefix()[path].list_data():
            np.testing.assert_allclose(replica.asnumpy(), before[path] - rate * gradient, atol=1e-6)


def test_batches_without_labels_train_where_the_loss_takes_none():
    net = make_net()
    found = list(mxkit.updates(net, [X[:4], (X[4:],)], loss=lambda output: output.square().mean(axis=1), trainer="sgd"))
    assert [update.samples for update in found] == [4, 7]


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_shuffling_loader_gets_the_epoch_and_another_order_each_time(epochs):
    seen = []

    def loss(output, label):
        seen.append(label.asnumpy().tolist())
        return output.mean(axis=1)

    loader = mxkit.data.ArrayLoader(X, np.arange(11), batch_size=11, shuffle=True, seed=5)
    list(loader)  # read before: no matter
    mxkit.fit(make_net(), loader, loss=loss, trainer="sgd", epochs=epochs, progress=False)
    assert seen == [loader.order(epoch).tolist() for epoch in range(epochs)]


def test_a_data_iter_is_reset_before_each_epoch():
    data = mx.io.NDArrayIter(X, Y, batch_size=4)
    next(data)
    (row, again) = mxkit.fit(make_net(), data, loss=SOFTMAX, trainer="sgd", epochs=2, progress=False)
    assert row["samples"] == again["samples"] == 11


def test_updates_reads_lazily():
    drawn = []

    def data():
        for batch in make_batches([4] * 5):
            drawn.append(1)
            yield batch

    stream = mxkit.updates(make_net(), data, loss=SOFTMAX, trainer="sgd")
    assert not drawn
    next(stream)
    assert len(drawn) == 1


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="spawn takes seconds")
def test_processes_of_a_loader_stay_for_all_epochs_of_a_fit_and_end_with_it():
    seen = []

    class Samples:
        def __len__(self):
            return 8

        def __getitem__(self, number):
            return np.full(4, os.getpid(), np.float32) * 1e-6, np.int32(number % 2)

    def note(net, inputs, labels):
        seen.append(set((inputs[0][:, 0].asnumpy() * 1e6).round().astype(int)))
        return gluon.loss.SoftmaxCrossEntropyLoss()(net(*inputs), *labels)

    net = gluon.nn.Dense(2, in_units=4)
    mxkit.initialize(net)
    loader = mxkit.data.DatasetLoader(Samples(), 2, workers="process:2")
    mxkit.fit(net, loader, forward_loss=note, trainer="sgd", epochs=3, progress=False)
    assert len(set.union(*seen)) == 2
    assert len(seen) >= 12
    assert not multiprocessing.active_children()
