"""With a seed, all randomness of a training follows from (seed, epoch, update)."""

import random

import mxkit
from mxkit.data.source import source_of
from mxkit.training.randomness import RESEED_EVERY, Grid, draws_random_numbers, operators_of
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn
import numpy as np
from oracle import SOFTMAX, make_batches, make_net, weights
import pytest
from sharing import Kind

BATCHES = make_batches([4] * 20)


def draws():
    return random.random(), np.random.rand(), float(mx.nd.random.uniform(shape=1).asscalar())


def augmented(batches):
    """A loader that draws from all three generators while it is read."""

    def read():
        for x, y in batches:
            one, two, three = draws()
            yield x + (one - two + three), y

    return read


def fit(net, data, **arguments):
    return mxkit.fit(net, data, loss="softmax_ce", epochs=2, progress=False, **arguments)


def test_a_seed_decides_dropout_and_augmentation_whatever_was_drawn_before():
    ends = []
    for disturbances in (0, 1):
        net = make_net(dropout=0.5)
        shake = lambda *_, times=disturbances: [draws() for _ in range(times)]  # noqa: E731
        shake()
        shaken = mxkit.callbacks.LambdaCallback(on_epoch=shake)
        history = fit(net, augmented(BATCHES), trainer="adam", seed=5, callbacks=[shaken])
        ends.append((weights(net), history.column("train_loss")))
    np.testing.assert_array_equal(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]


def test_epochs_and_seeds_draw_differently():
    def run(seed):
        net = make_net(dropout=0.5)
        frozen = ("sgd", {"learning_rate": 0.0})
        return fit(net, BATCHES, trainer=frozen, seed=seed).column("train_loss")

    first, second = run(5)
    assert first != second
    assert run(6)[0] != first
    assert run(5) == [first, second]


def test_the_generators_are_seeded_on_the_grid_and_a_hand_written_loop_can_follow():
    """T67."""
    net, twin = make_net(dropout=0.5), make_net(dropout=0.5)
    fit(net, BATCHES, trainer=("sgd", {"learning_rate": 0.3}), seed=5)
    trainer = gluon.Trainer(twin.collect_params(), "sgd", {"learning_rate": 0.3})
    for epoch in range(2):
        for number, (x, y) in enumerate(BATCHES):
            if number % RESEED_EVERY == 0:
                Grid(5, epoch).reseed(number)
            with autograd.record():
                losses = SOFTMAX(twin(x), y)
            losses.backward()
            trainer.step(4)
    np.testing.assert_array_equal(weights(net), weights(twin))


def test_updates_tell_where_a_run_can_go_on_exactly():
    def told(net, data, **arguments):
        stream = mxkit.updates(net, data, loss="softmax_ce", trainer="sgd", **arguments)
        return [update.step for update in stream if update.exact]

    assert told(make_net(), BATCHES) == list(range(1, 21))
    assert told(make_net(dropout=0.5), BATCHES, seed=1) == [RESEED_EVERY]
    assert told(make_net(dropout=0.5), BATCHES) == []
    assert told(make_net(dropout=0.5), BATCHES, seed=1, first_step=100) == [99 + RESEED_EVERY]
    # a generator may draw what it likes
    assert told(make_net(), augmented(BATCHES), seed=1) == [RESEED_EVERY]


@pytest.mark.parametrize(("dropout", "accumulate", "data"), [(0.0, 1, list), (0.5, 2, list), (0.5, 1, augmented)])
@pytest.mark.filterwarnings("ignore:accumulated micro-batches")
def test_an_epoch_goes_on_where_it_stopped(dropout, accumulate, data):
    def stream(net, trainer=("sgd", {"learning_rate": 0.3}), **how):
        batches, how = data(make_batches([4] * 40)), {"accumulate": accumulate, "seed": 9, "epoch": 3, **how}
        return mxkit.updates(net, batches, loss="softmax_ce", trainer=trainer, **how)

    whole, parts = make_net(dropout=dropout), make_net(dropout=dropout)
    list(stream(whole))
    trainer = gluon.Trainer(parts.collect_params(), "sgd", {"learning_rate": 0.3})
    first = stream(parts, trainer)
    update = next(update for update in first if update.exact and update.step >= 10)
    first.close()
    assert update.batches == update.step * accumulate
    draws()
    rest = stream(parts, trainer, skip=(update.batches, update.step), first_step=update.step + 1)
    assert [one.step for one in rest] == list(range(update.step + 1, 40 // accumulate + 1))
    np.testing.assert_array_equal(weights(parts), weights(whole))


class Shaken(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return x + F.random.uniform(shape=(1,))


class Shaped(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return x.reshape((x.shape[0], -1))


class Plain(gluon.Block):
    def forward(self, x):
        assert not isinstance(x, mx.sym.Symbol), "a user's own forward is not to be called with symbols"
        return x


def around(*blocks):
    net = nn.Sequential()
    net.add(*blocks)
    return net


@pytest.mark.parametrize(
    ("net", "expected"),
    [
        (around(nn.Dense(3), nn.BatchNorm()), False),
        (around(nn.Dense(3), nn.Dropout(0)), False),
        (around(nn.Dense(3), nn.Dropout(0.1)), True),
        (gluon.model_zoo.vision.resnet18_v1(), False),
        (gluon.model_zoo.vision.alexnet(), True),
        (around(gluon.rnn.LSTM(4)), False),
        (around(gluon.rnn.LSTM(4, num_layers=2, dropout=0.3)), True),
        (around(Shaken()), True),
        (around(nn.Dense(3), Shaped()), True),
        (around(nn.Dense(3), Plain()), True),
        (around(nn.HybridLambda(lambda F, x: F.shuffle(x))), True),
    ],
)
def test_nets_that_draw(net, expected):
    assert draws_random_numbers(net, SOFTMAX, source_of(BATCHES), 1) is expected


DRAWS = {
    "normal": (), "uniform": (), "randint": (3,), "choice": (3,), "gamma": (2.0,), "exponential": (), "gumbel": (),
    "logistic": (), "rayleigh": (), "pareto": (2.0,), "power": (2.0,), "weibull": (2.0,), "beta": (1.0, 1.0),
    "chisquare": (2.0,), "f": (2.0, 2.0), "lognormal": (), "rand": (), "randn": (),
}  # fmt: skip


@pytest.mark.parametrize("name", list(DRAWS))
def test_nets_of_mx_np_that_draw(name):
    with Kind(True).switches():
        net = nn.HybridLambda(lambda F, x: x + getattr(F.np.random, name)(*DRAWS[name]))
        assert draws_random_numbers(net, SOFTMAX, source_of(BATCHES), 1)
        quiet = nn.HybridLambda(lambda F, x: F.npx.sigmoid(F.np.where(x > 0, F.npx.gamma(x), F.np.power(x, 2))))
        assert draws_random_numbers(quiet, SOFTMAX, source_of(BATCHES), 1) is False


def test_losses_and_data_that_may_draw():
    net = nn.Dense(3)
    loader = gluon.data.DataLoader(gluon.data.ArrayDataset(np.zeros((4, 2)), np.zeros(4)), batch_size=2)
    quiet = [BATCHES, mxkit.data.ArrayLoader(np.zeros((4, 2)), None, 2), mx.io.NDArrayIter(np.zeros((4, 2)))]
    assert [draws_random_numbers(net, SOFTMAX, source_of(data), 1) for data in quiet] == [False] * 3
    assert draws_random_numbers(net, SOFTMAX, source_of(loader), 1)
    assert draws_random_numbers(net, lambda output, y: output.mean(axis=1), source_of(BATCHES), 1)
    assert draws_random_numbers(net, None, source_of(BATCHES), 1)


def test_operators_in_the_body_of_a_loop_are_seen():
    class Loop(nn.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.contrib.foreach(lambda row, state: (F.Dropout(row, p=0.5), state), x, [])[0]

    assert "Dropout" in [one.operator for one in operators_of(Loop(), 1)]
    assert draws_random_numbers(Loop(), SOFTMAX, source_of(BATCHES), 1)
