"""Schedules against MXNet's own, rates that move while a net trains, and the search for one that leaves no trace."""

import contextlib
import math
import random

from built_nets import ready
from hypothesis import given, settings
from hypothesis import strategies as st
import mxkit
from mxkit.errors import CheckpointWarning, TrapWarning
from mxkit.training.callbacks.learning_rate import LearningRate, Plateau
from mxkit.training.rehearsal import LearningRateSearch, find_learning_rate
from mxkit.training.schedules import get_schedule, schedule
from mxkit.training.state import FitState, Options
import mxnet as mx
from mxnet import gluon
from mxnet import lr_scheduler as theirs
from mxnet.gluon import nn
import numpy as np
from oracle import FEATURES, fit, make_batches, make_net, make_trainer, replicas, weights
import pytest
from sharing import examples

# three samples on three devices
pytestmark = pytest.mark.filterwarnings("ignore:a device got a batch of one sample")

BATCHES = make_batches([8, 8, 3, 8])


def run(net, callbacks, trainer=("sgd", {"learning_rate": 0.3}), data=BATCHES, epochs=3, **changes):
    return fit(net, data, trainer=trainer, epochs=epochs, callbacks=callbacks, **changes)


def recorder(rates):
    """Keeps the rate that each update was done with; stands before `LearningRate` in the list."""
    return mxkit.callbacks.LambdaCallback(on_update=lambda state, update: rates.append(state.trainer.learning_rate))


# LearningRate


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize(
    ("ours", "theirs", "devices"),
    [
        (
            schedule("multi_step", base=0.3, at=["1 epoch", "2 epochs"], factor=0.5, warmup="2 updates"),
            lambda: mx.lr_scheduler.MultiFactorScheduler([4, 8], 0.5, 0.3, 2),
            "cpu:2",
        ),
        (schedule("cosine", base=0.3, total="12 updates"), lambda: mx.lr_scheduler.CosineScheduler(12, 0.3), "cpu"),
    ],
)
def test_training_equals_an_optimizer_with_mxnets_scheduler(ours, theirs, devices):
    net, other = make_net(devices), make_net(devices)
    run(net, [LearningRate(ours)])
    run(other, [], trainer=("sgd", {"lr_scheduler": theirs()}))
    np.testing.assert_array_equal(replicas(net), replicas(other))


def test_one_tick_an_update_and_epochs_of_the_fit_with_accumulation():
    rates = []
    falling = LearningRate(("step", {"base": 0.4, "every": "1 epoch", "factor": 0.5}))
    history = run(make_net(), [recorder(rates), falling], accumulate=2)
    assert rates == [0.4, 0.4, 0.2, 0.2, 0.1, 0.1]
    assert history.column("learning_rate") == [0.4, 0.2, 0.1]  # a row has the rate of its updates


def test_what_the_schedule_does_not_say_is_the_optimizers_and_the_fits():
    rates, net = [], make_net()
    callbacks = [recorder(rates), LearningRate("cosine")]
    trainer = make_trainer(net, ("sgd", {"learning_rate": 0.3}))
    run(net, callbacks, trainer)
    assert rates == schedule("cosine", base=0.3, total="12 updates").rates(12)
    assert trainer.learning_rate == 0  # it is left as it is
    run(net, callbacks, trainer)  # and no base of the next fit
    assert rates[12:] == rates[:12]


def test_going_on_with_a_state():
    falling, resumed = LearningRate("cosine"), LearningRate("cosine")
    run(make_net(), [falling], epochs=1)
    state = state_of(epochs=2, rate=0.01)
    state.updates = 5
    resumed.load_state_dict(falling.state_dict())
    with pytest.warns(CheckpointWarning, match="total was 1 epoch, is 2 epochs. The 5 updates so far had its rates"):
        resumed.on_fit_begin(state)
    resumed.load_state_dict(resumed.state_dict())
    resumed.on_fit_begin(state)
    assert state.trainer.learning_rate == schedule("cosine", base=0.3, total="8 updates").rate(5)


def test_data_without_a_length_needs_updates_per_epoch():
    spec = ("step", {"every": "1 epoch", "factor": 0.5})
    history = run(make_net(), [LearningRate(spec, updates_per_epoch=4)], data=lambda: iter(BATCHES))
    assert history.column("learning_rate") == [0.3, 0.15, 0.075]


# Plateau


def state_of(epochs, rate):
    net = make_net()
    trainer = make_trainer(net, ("sgd", {"learning_rate": rate}))
    return FitState(net, trainer, Options(loss="l2"), epochs=epochs, updates_per_epoch=4)


def scripted(plateau, values):
    """The rate after each epoch with these values."""
    state = state_of(len(values), rate=1.0)
    plateau.on_fit_begin(state)
    rates = []
    for value in values:
        plateau.on_epoch(state, {"epoch": 1, "score": value})
        rates.append(state.trainer.learning_rate)
    return rates


@pytest.mark.parametrize(
    ("options", "values", "rates"),
    [
        (
            {"factor": 0.5, "patience": 2},
            [3, 2, 2, 2.5, 2, 2, 1, np.nan, 1.5],
            [1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125],
        ),
        ({"patience": 1, "min_rate": 0.05}, [1, 1, 1, 1], [1, 0.1, 0.05, 0.05]),
        ({"patience": 1, "min_rate": 2.0}, [1, 1], [1, 1]),
        ({"patience": 1, "min_delta": 0.5}, [3, 2.8, 2.0], [1, 0.1, 0.1]),
    ],
)
def test_plateau_reduces_after_patience(options, values, rates):
    assert scripted(Plateau("score", mode="min", **options), values) == rates
    assert scripted(Plateau("score", mode="max", **options), [-value for value in values]) == rates


def test_plateau_goes_on_with_a_state_and_counts_no_epoch_without_a_value():
    first, second = (Plateau("score", mode="min", patience=2) for _ in range(2))
    assert scripted(first, [1.0, 1.0, None]) == [1, 1, 1]
    second.load_state_dict(first.state_dict())
    assert scripted(second, [None, 1.0]) == [1, 0.1]


def test_plateau_in_a_fit():
    history = run(make_net(), [Plateau("train_loss", mode="max", patience=1)], epochs=3)  # the loss falls: never better
    assert history.column("learning_rate") == pytest.approx([0.3, 0.3, 0.03])  # a row is written before the hook


# find_learning_rate


def search(net, data=BATCHES, **changes):
    return find_learning_rate(net, data, **{"loss": "softmax_ce", "trainer": "sgd", "updates": 20, **changes})


def traces(net, trainer):
    """Everything a search must not change, as bytes and numbers."""
    parameters = list(net._collect_params_with_prefix().values())
    optimizer = trainer.optimizer
    states = [
        sorted((key, state.asnumpy().tobytes()) for key, state in one.states.items()) for one in trainer._updaters
    ]
    return {
        "values": [data.asnumpy().tobytes() for one in parameters for data in one.list_data()],
        "gradients": [one.grad(where).asnumpy().tobytes() for one in parameters[:1] for where in one.list_ctx()],
        "grad_req": [one.grad_req for one in parameters],
        "fresh": [data._fresh_grad for one in parameters for data in one.list_data()],
        "trainers": [one._trainer is trainer for one in parameters],
        "optimizer": (optimizer.num_update, str(optimizer._all_index_update_counts), optimizer.rescale_grad),
        "rate": (trainer.learning_rate, optimizer.momentum),
        "states": states,
        "random": (random.getstate(), np.random.get_state()[1].tobytes(), np.random.get_state()[2]),
    }


def make_used(devices):
    """A net with running statistics, a frozen layer and an accumulated gradient, and a Trainer with a velocity."""
    mxkit.seed_all(1)
    dense = (nn.Dense(units, in_units=inputs) for units, inputs in ((7, FEATURES), (4, 7), (3, 4)))
    net = ready(next(dense), nn.BatchNorm(in_channels=7), *dense, devices=devices)
    net[2].collect_params().setattr("grad_req", "null")
    trainer = make_trainer(net, ("sgd", {"learning_rate": 0.1, "momentum": 0.9}), on_kvstore=False)
    list(mxkit.updates(net, BATCHES, loss="softmax_ce", trainer=trainer))
    net[0].weight.grad_req = "add"
    for gradient in net[0].weight.list_grad():
        gradient[:] = 2
    return net, trainer


@pytest.mark.usefixtures("switched")
@pytest.mark.filterwarnings("ignore:accumulated micro-batches")  # a search compares with no big batch
@pytest.mark.parametrize(
    ("devices", "accumulate", "fails"), [("cpu", 1, True), ("cpu:3", 2, False), ("cpu:3", 1, True)]
)
def test_a_search_leaves_no_trace(devices, accumulate, fails):
    net, trainer = make_used(devices)

    def data():
        yield from BATCHES
        random.random()
        np.random.rand()
        if fails:
            raise OSError("the disk is gone")

    before = traces(net, trainer)
    with pytest.raises(OSError, match="disk is gone") if fails else contextlib.nullcontext():
        search(net, data, trainer=trainer, accumulate=accumulate, end=10.0, updates=12)
    assert traces(net, trainer) == before


def test_a_search_with_a_used_trainer_sees_what_a_new_one_sees():
    net, trainer = make_used("cpu")
    used = search(net, trainer=trainer)
    new = search(net, trainer=("sgd", {"learning_rate": 3.0, "momentum": 0.9}))
    assert (used.rates, used.losses) == (new.rates, new.losses)
    made = mx.optimizer.SGD(momentum=0.9, lr_scheduler=mx.lr_scheduler.FactorScheduler(5))
    assert search(net, trainer=made).losses == new.losses
    assert made.num_update == 0
    assert made.lr_scheduler is not None


def test_unknown_shapes_come_from_the_first_batch_which_is_trained_on_too():
    nets = []
    for known in (FEATURES, 0):
        mxkit.seed_all(2)
        nets.append(nn.Dense(3, in_units=known))
        mxkit.initialize(nets[-1], "zeros")
    known, deferred = (search(net, updates=10) for net in nets)
    assert known.losses == deferred.losses
    assert (nets[1].weight.data().asnumpy() == 0).all()


def test_a_source_that_ends_and_one_that_is_reset():
    net = make_net()
    once = search(net, iter(BATCHES))
    assert len(once.rates) == len(once.losses) == 4
    again = search(net, mx.io.NDArrayIter(*BATCHES[0], 4))
    assert len(again.losses) == 20
    assert again.rates[0] == 1e-7
    assert again.rates[-1] == pytest.approx(1.0)


def test_the_suggestion_on_real_digits():
    train = mxkit.data.digits().train
    loader = mxkit.data.ArrayLoader(train.x, train.y, 64, shuffle=True, seed=0)
    mxkit.seed_all(0)
    net = ready(mxkit.models.mlp(hidden=[32]))
    found = search(net, loader, start=1e-4, end=100.0, updates=100)
    assert loader.epoch == 0
    assert 0.02 < found.suggestion < 5
    optimizer = ("sgd", {"learning_rate": found.suggestion})
    assert run(net, [], optimizer, loader, 5, metrics=["accuracy"])[-1]["train_accuracy"] > 0.9


def test_the_suggestion_is_the_steepest_point_of_a_known_curve(tmp_path):
    rates = [10 ** (-5 + 0.05 * number) for number in range(100)]
    losses = [2 - np.tanh(3 * (np.log10(rate) + 2)) + max(0, np.log10(rate) + 0.5) * 9 for rate in rates]
    found = LearningRateSearch(rates, losses)
    assert found.suggestion == pytest.approx(1e-2, rel=0.2)
    np.testing.assert_allclose(LearningRateSearch(rates, [2.0] * 100).smoothed, 2.0)
    assert found.plot(tmp_path / "search.png").axes[0].get_xscale() == "log"
    assert (tmp_path / "search.png").stat().st_size > 5000
    rising = LearningRateSearch(rates[:20], list(range(20)))
    with pytest.raises(ValueError, match="loss did not fall in 20 updates .* no rate can be suggested"):
        _ = rising.suggestion
    assert "did not fall" in rising.plot().axes[0].get_title()


def curve(seed, middle=None, noise=0.3, updates=100):
    """Rates from 1e-6 to 1, and losses that fall by 2 around 10 ** middle, with the noise of batches."""
    rates = np.logspace(-6, 0, updates)
    fall = 0 if middle is None else np.tanh(3 * (np.log10(rates) - middle))
    return LearningRateSearch(list(rates), list(3 - fall + noise * np.random.RandomState(seed).randn(updates)))


@pytest.mark.parametrize("updates", [60, 100, 300])
def test_noise_alone_suggests_no_rate(updates):
    for seed in range(20):
        with pytest.raises(ValueError, match="did not fall .* by clearly more than it varies"):
            _ = curve(seed, updates=updates).suggestion
        assert 10**-2.6 < curve(seed, middle=-2, updates=updates).suggestion < 10**-1.4


@pytest.mark.parametrize(
    ("middle", "end", "way"), [(-6.5, "start", "Pass a lower start"), (0.5, "end", "Pass a higher end")]
)
def test_a_rate_at_an_end_of_the_range_is_no_suggestion(middle, end, way):
    for noise in (0.0, 0.01):
        with pytest.raises(ValueError, match=f"falls fastest at the {end} of the range, .*. {way}"):
            _ = curve(0, middle, noise).suggestion


def test_a_search_stops_where_the_loss_diverges():
    found = search(make_net(), start=1e-3, end=1e6, updates=60)
    assert len(found.losses) < 60
    assert found.losses[-1] > 4 * min(found.losses) or np.isfinite(found.losses).all()


def test_a_trainer_that_a_schedule_brought_to_0_is_told_at_the_next_fit():
    net = make_net()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.2})

    def go_on(*callbacks, epochs=2):
        run(net, callbacks, trainer, epochs=epochs)

    go_on(LearningRate("cosine"))
    before = weights(net)
    text = r"learning rate is \S+, left by the schedule of an earlier fit, which began with 0.2: this fit"
    with pytest.warns(TrapWarning, match=text):
        go_on()
    np.testing.assert_allclose(weights(net), before, atol=1e-6)
    go_on(LearningRate(("cosine", {"base": 0.2})), epochs=3)
    with pytest.warns(TrapWarning, match=text), pytest.raises(ValueError, match="base") as caught:
        go_on(LearningRate("cosine"))
    assert 'LearningRate(("cosine", {"base": 0.1})), or call trainer.set_learning_rate(0.1)' in str(caught.value)
    trainer.set_learning_rate(0.1)  # the way out
    go_on()
    assert np.abs(weights(net) - before).max() > 1e-3


def test_a_rate_of_0_by_mxnets_own_schedule_is_told_and_a_warm_up_is_not():
    net = make_net()
    curve = mx.lr_scheduler.PolyScheduler(len(BATCHES), base_lr=0.1, warmup_steps=2, warmup_begin_lr=0)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"lr_scheduler": curve})
    run(net, [], trainer, epochs=1)  # which begins with 0
    with pytest.warns(TrapWarning, match="the Trainer's learning rate is 0: this fit changes next to nothing"):
        run(net, [], trainer, epochs=1)


SCHEDULES = [
    schedule("constant", base=0.3, warmup="1 epoch"),
    schedule("step", base=0.3, every="0.5 epochs", factor=0.5),
    schedule("step", base=0.3, every="1 update", factor=0.9, final=0.1),
    schedule("multi_step", base=0.3, at=["7 updates", "2 epochs"], warmup="4 updates"),
    schedule("poly", base=0.3, total="3 epochs", power=1.5, final=0.01, warmup="3 updates"),
    schedule("cosine", base=0.3, total="31 updates", warmup="1 epoch"),
    schedule("one_cycle", base=0.3, total="3 epochs"),
]


@pytest.mark.parametrize(
    ("ours", "made"),
    [
        (
            schedule("step", base=0.3, every="5 updates", warmup="4 updates"),
            lambda: theirs.FactorScheduler(5, 0.1, 0, 0.3, 4),
        ),
        (
            schedule("multi_step", base=0.3, at=["1 epoch", "22 updates"], warmup="3 updates"),
            lambda: theirs.MultiFactorScheduler([10, 22], 0.1, 0.3, 3),
        ),
        (
            schedule("poly", base=0.3, total="2.5 epochs", warmup="0.5 epochs", final=0.02),
            lambda: theirs.PolyScheduler(25, 0.3, 2, 0.02, 5),
        ),
        (schedule("cosine", base=0.3, total="3 epochs"), lambda: theirs.CosineScheduler(30, 0.3)),
    ],
)
def test_equals_mxnets_scheduler_called_once_an_update(ours, made):
    stepped = made()
    # an optimizer counts its first update as number 1 before it asks
    assert ours.rates(60, 10) == [stepped(number) for number in range(1, 61)]


def test_closed_forms():
    assert schedule("constant", base=1.0, warmup="4 updates").rates(6) == [0.25, 0.5, 0.75, 1, 1, 1]
    poly = schedule("poly", base=1.0, total="10 updates", power=3, final=0.5)
    assert poly.rates(12) == pytest.approx([0.5 + 0.5 * (1 - min(t, 10) / 10) ** 3 for t in range(1, 13)])


def test_one_cycle_is_two_halves_of_a_cosine():
    rates = schedule("one_cycle", base=1.0, start=0.2, final=0.1, warmup="4 updates", total="10 updates").rates(12)
    up = [0.2 + 0.8 * (1 - math.cos(math.pi * t / 4)) / 2 for t in range(1, 5)]
    down = [0.1 + 0.9 * (1 + math.cos(math.pi * t / 6)) / 2 for t in range(1, 7)]
    assert rates == pytest.approx([*up, *down, 0.1, 0.1])
    assert max(schedule("one_cycle", base=0.5, total="2 epochs").rates(20, 10)) == 0.5


QUESTIONS = st.lists(st.tuples(st.integers(0, 60), st.sampled_from([8, 10])), min_size=1, max_size=8)


@settings(max_examples=examples(100))
@given(st.sampled_from(SCHEDULES), QUESTIONS)
def test_the_rate_depends_on_no_earlier_question(one, questions):
    """T21."""
    for done, updates_per_epoch in questions:
        fresh = schedule_like(one)
        in_order = [fresh.rate(earlier, updates_per_epoch) for earlier in range(done + 1)][-1]
        assert one.rate(done, updates_per_epoch) == in_order


def schedule_like(one):
    return get_schedule(one).completed(1.0)  # a copy, with nothing asked


@pytest.mark.parametrize("name", ["poly", "cosine", "one_cycle"])
def test_a_first_question_past_the_end_gives_the_final_rate(name):
    """T21: MXNet's own, made again as after a restart, answers with the base rate."""
    assert schedule(name, base=0.3, total="10 updates", final=0.05).rate(500) == pytest.approx(0.05)


def test_lengths_in_epochs_are_rounded_to_updates():
    def warm(warmup, per_epoch=7):
        return [round(rate * 4) for rate in schedule("constant", base=1, warmup=warmup).rates(4, per_epoch)]

    assert warm(".5 epochs") == warm("4 updates", None) == [1, 2, 3, 4]
    assert warm("0.01 epochs") == warm(0, None) == warm("0 epochs", None) == [4, 4, 4, 4]


def test_what_is_not_said_is_completed_once():
    open_end = schedule("cosine")
    assert open_end.completed(0.1, "2 epochs") == schedule("cosine", base=0.1, total="2 epochs")
    assert schedule("cosine", base=0.5, total="3 updates").completed(0.1, "2 epochs").base == 0.5
    assert schedule("constant").completed(0.1, "2 epochs") == schedule("constant", base=0.1)
