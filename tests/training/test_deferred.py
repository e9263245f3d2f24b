"""First values that wait for the shape of the first batch follow from the generators as the user seeded them."""

import mxkit
from mxkit.errors import TrainingError
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn
import numpy as np
import oracle
from oracle import CLASSES, FEATURES, array, weights
import pytest
from sharing import pairs

X = np.random.RandomState(0).randn(24, FEATURES).astype("float32")
Y = np.random.RandomState(1).randint(0, CLASSES, 24).astype("int32")
BATCHES = [(X[i : i + 8], Y[i : i + 8]) for i in range(0, 24, 8)]


def make_net(seed, dropout=0.0, hybridize=False):
    """Its sizes are known after the first batch."""
    mxkit.seed_all(seed)
    net = nn.HybridSequential()
    net.add(nn.Dense(7, activation="tanh"), nn.Dropout(dropout), nn.Dense(CLASSES))
    mxkit.initialize(net)
    if hybridize:
        net.hybridize()
    return net


def fit(net, data=None, **arguments):
    oracle.fit(net, BATCHES if data is None else data, **{"trainer": ("sgd", {"learning_rate": 0.1}), **arguments})
    return weights(net)


def assert_decided_by_the_first(first, again, other):
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01


def generator():
    yield from BATCHES


class Jittered(gluon.data.Dataset):
    """Draws from MXNet's generator, which a DatasetLoader seeds for each sample."""

    def __len__(self):
        return 24

    def __getitem__(self, number):
        return mx.nd.array(X[number]) + mx.nd.random.normal(shape=FEATURES) * 0, Y[number]


SOURCES = {
    "list": lambda: BATCHES,
    "generator": generator,
    "function": lambda: generator,
    "ArrayLoader": lambda: mxkit.data.ArrayLoader(X, Y, 8),
    "DatasetLoader": lambda: mxkit.data.DatasetLoader(Jittered(), 8, seed=1),
    "NDArrayIter": lambda: mx.io.NDArrayIter(X, Y, 8),
    "DataLoader": lambda: gluon.data.DataLoader(gluon.data.ArrayDataset(X, Y), 8),
}


@pytest.mark.parametrize("source", list(SOURCES))
def test_the_seed_of_a_fit_does_not_decide_the_first_values(source):
    """T123."""
    assert_decided_by_the_first(*(fit(make_net(seed), SOURCES[source](), seed=5) for seed in (1, 1, 2)))


def test_a_sample_fixes_the_first_values_whatever_is_drawn_later():
    """T123."""

    def trained(draws, **sample):
        net = nn.HybridSequential()
        net.add(nn.Dense(7, activation="tanh"), nn.Dense(CLASSES))
        mxkit.seed_all(1)
        mxkit.initialize(net, **sample)
        if draws:
            mx.nd.random.normal(shape=(9,)).wait_to_read()
        return fit(net, seed=5)

    assert np.abs(trained(False) - trained(True)).max() > 0.01  # the reason for `sample`
    expected = trained(False, sample=(1, FEATURES))
    np.testing.assert_array_equal(trained(True, sample=(1, FEATURES)), expected)
    np.testing.assert_array_equal(trained(True, sample=mx.nd.array(X[:2])), expected)


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize(
    ("source", "hybridize"), pairs([name for name in SOURCES if name != "DatasetLoader"], [False, True])
)
def test_values_are_those_of_a_forward_pass_before(source, hybridize):
    """T123."""
    by_hand = make_net(1, hybridize=hybridize)
    with autograd.pause():
        by_hand(array(X[:8]))
    expected = fit(by_hand, SOURCES[source](), seed=5)
    np.testing.assert_array_equal(fit(make_net(1, hybridize=hybridize), SOURCES[source](), seed=5), expected)


def test_updates_draws_first_values_before_it_seeds():
    """T123."""

    def train(seed, data):
        net = make_net(seed)
        samples = sum(one.samples for one in mxkit.updates(net, data, loss="softmax_ce", trainer="sgd", seed=5))
        assert samples == 24
        return weights(net)

    assert_decided_by_the_first(train(1, BATCHES), train(1, generator()), train(2, BATCHES))


def test_a_loader_is_read_from_its_first_epoch_and_every_sample_is_trained():
    seen = []

    def note(net, inputs, labels):
        if autograd.is_recording():
            seen.append(labels[0].asnumpy().tolist())
        return gluon.loss.SoftmaxCrossEntropyLoss()(net(*inputs), labels[0])

    loader = mxkit.data.ArrayLoader(X, Y, 8, shuffle=True, seed=3)
    fit(make_net(1), loader, loss=mxkit.losses.BatchLoss(forward=note), seed=5, epochs=2)
    assert [sum(seen[:3], []), sum(seen[3:], [])] == [Y[loader.order(epoch)].tolist() for epoch in (0, 1)]


class Restarting:
    """An iterator that begins again at each `iter`."""

    def __iter__(self):
        self.left = iter(BATCHES)
        return self

    def __next__(self):
        return next(self.left)


def test_an_iterator_that_begins_again_is_read_in_every_epoch():
    np.testing.assert_array_equal(
        fit(make_net(1), Restarting(), seed=5, epochs=3), fit(make_net(1), BATCHES, seed=5, epochs=3)
    )


@pytest.mark.parametrize("source", ["list", "ArrayLoader", "DatasetLoader", "NDArrayIter", "generator"])
def test_adding_checkpoints_changes_nothing_where_nothing_draws(source, tmp_path):
    np.testing.assert_array_equal(
        fit(make_net(1), SOURCES[source](), checkpoint=tmp_path), fit(make_net(1), SOURCES[source]())
    )


def test_checkpoints_without_a_seed_follow_from_seed_all(tmp_path):
    def train(name, seed):
        data = gluon.data.DataLoader(gluon.data.ArrayDataset(X, Y), 8, shuffle=True)
        return fit(make_net(seed, dropout=0.5), data, checkpoint=tmp_path / name)

    assert_decided_by_the_first(train("a", 1), train("b", 1), train("c", 2))


def test_the_derived_seed_depends_on_each_generator_and_leaves_two_alone():
    def derived(change):
        mxkit.seed_all(1)
        change()
        return mxkit.core.seeding.seed_of_generators()

    import random

    changes = [lambda: None, random.random, np.random.rand, lambda: mx.nd.random.uniform().wait_to_read()]
    assert len({derived(change) for change in changes}) == 4
    mxkit.seed_all(1)
    before = random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2]
    mxkit.core.seeding.seed_of_generators()
    assert (random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2]) == before


def test_an_error_of_the_first_forward_pass_has_its_place():
    net = nn.HybridSequential()
    net.add(nn.Dense(3), nn.Dense(2, in_units=4))
    mxkit.initialize(net)
    with pytest.raises(TrainingError, match=r"epoch 1, update 1, batch x \(8, 5\) float32, y .* '1' \(Dense\)"):
        fit(net, seed=5)
