"""What `test_properties.py` does not draw: accumulated micro-batches against one big batch, in special cases."""

import mxkit
from mxkit.errors import LossShapeError
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np
from oracle import (
    CLASSES,
    OPTIMIZERS,
    SOFTMAX,
    joined,
    make_batches,
    make_net,
    mean_gradient,
    replicas,
    requests,
    train_by_hand,
    weights,
)
import pytest


def make_trainer(net, optimizer, on_kvstore):
    # by name, MXNet makes no kvstore for one device and then stumbles over update_on_kvstore=True
    kvstore = mx.kv.create("device") if on_kvstore else "device"
    return gluon.Trainer(net.collect_params(), *optimizer, kvstore=kvstore, update_on_kvstore=on_kvstore)


def assert_close_to_one_big_batch(net, expected, tolerance=1e-6):
    """Every replica within `tolerance` of the largest weight, and all replicas the same bits."""
    target = weights(expected)
    for replica in replicas(net):
        assert np.abs(replica - target).max() <= tolerance * np.abs(target).max()
    weights(net)


@pytest.mark.parametrize("way", ["updates", "updates on the kvstore", "an Accumulator outside of with"])
def test_gradients_computed_before_do_not_leak_into_an_idle_device(way):
    """T24."""
    big, small = make_batches([6, 1])
    expected, net = make_net(), make_net("cpu:2")
    trainer = make_trainer(net, OPTIMIZERS[0], "kvstore" in way)
    backward(net, big)  # never stepped: a learning rate finder, or a loop that failed
    train_by_hand(expected, [small], OPTIMIZERS[0])
    if way == "an Accumulator outside of with":
        accumulator = mxkit.Accumulator(trainer)
        backward(net, small, accumulator.backward)
        assert accumulator.step().samples == 1
    else:
        list(mxkit.updates(net, [small], loss="softmax_ce", trainer=trainer))
    assert_close_to_one_big_batch(net, expected)


def backward(net, batch, how=autograd.backward):
    with autograd.record():
        shards = mxkit.data.split_batch(batch, net[0].weight.list_ctx())
        losses = [SOFTMAX(net(*one.inputs), *one.labels) for one in shards]
    how(losses)


def test_replicas_are_reduced_once_an_update():
    """T6."""
    net = make_net("cpu:2")
    trainer = make_trainer(net, OPTIMIZERS[0], False)
    reductions = []
    original = trainer.allreduce_grads
    trainer.allreduce_grads = lambda: (reductions.append(1), original())
    list(mxkit.updates(net, make_batches([4, 4, 4, 4, 4]), loss="softmax_ce", trainer=trainer, accumulate=2))
    assert len(reductions) == 3


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize("every", [1, 3])
def test_own_loop_with_an_accumulator_as_in_its_docstring(every):
    batches = make_batches([4, 2, 5, 3])
    expected, net = make_net(), make_net()
    train_by_hand(expected, joined(batches, every), OPTIMIZERS[2])
    trainer = gluon.Trainer(net.collect_params(), *OPTIMIZERS[2])
    found = []
    with mxkit.Accumulator(trainer, every=every) as accumulator:
        for x, y in batches:
            with autograd.record():
                losses = SOFTMAX(net(x), y)
            accumulator.backward(losses)
            found.append(accumulator.step())
        found.append(accumulator.flush())
    steps = [update and (update.step, update.samples) for update in found]
    each = {1: [(1, 4), (2, 2), (3, 5), (4, 3), None], 3: [None, None, (1, 11), None, (2, 3)]}
    assert steps == each[every]
    assert accumulator.updates == 5 - steps.count(None)
    assert_close_to_one_big_batch(net, expected)


def test_a_logged_loss_does_not_depend_on_accumulate_or_devices():
    batches = make_batches([4, 1, 7])
    (one,) = mxkit.updates(make_net(), joined(batches), loss="softmax_ce", trainer="sgd")
    for devices in ("cpu:1", "cpu:2", "cpu:3"):
        (many,) = mxkit.updates(make_net(devices), batches, loss="softmax_ce", trainer="sgd", accumulate=3)
        assert many.loss == pytest.approx(one.loss, rel=1e-6)
        assert many.samples == one.samples == 12


# grad_req


@pytest.mark.usefixtures("switched")
def test_frozen_parameters_stay_frozen_and_unchanged():
    """T5."""
    expected, net = make_net(), make_net("cpu:2")
    for one in (expected, net):
        one[0].collect_params().setattr("grad_req", "null")
    net[1].bias.grad_req = "add"
    batches = make_batches([4, 1, 3])
    frozen = net[0].weight.data(mx.cpu(0)).asnumpy()
    train_by_hand(expected, joined(batches), OPTIMIZERS[1])
    list(mxkit.updates(net, batches, loss="softmax_ce", trainer=OPTIMIZERS[1], accumulate=3))
    assert_close_to_one_big_batch(net, expected)
    for device in mxkit.devices("cpu:2"):
        np.testing.assert_array_equal(net[0].weight.data(device).asnumpy(), frozen)


def test_what_the_user_froze_inside_stays_frozen():
    net = make_net()
    with mxkit.Accumulator(gluon.Trainer(net.collect_params(), "sgd"), every=2):
        net[0].weight.grad_req = "null"
    assert requests(net) == {"0.weight": "null", "0.bias": "write", "1.weight": "write", "1.bias": "write"}


def test_more_parameters_than_multi_all_finite_survives():
    """T29."""

    def deep():
        mxkit.seed_all(5)
        net = gluon.nn.HybridSequential()
        net.add(*[gluon.nn.Dense(2, in_units=2, activation="softsign") for _ in range(105)])
        net.add(gluon.nn.Dense(3, in_units=2))
        mxkit.initialize(net, ("xavier", {"magnitude": 12}), devices="cpu")
        net.hybridize()
        return net

    batches = [(x[:, :2], y) for x, y in make_batches([4, 3])]
    expected, net = deep(), deep()
    norm = np.linalg.norm(mean_gradient(expected, joined(batches)[0]))
    train_by_hand(expected, joined(batches), OPTIMIZERS[0])
    (update,) = mxkit.updates(net, batches, loss="softmax_ce", trainer=OPTIMIZERS[0], accumulate=2, clip_norm=1e9)
    assert update.grad_norm == pytest.approx(norm, rel=1e-5)
    assert_close_to_one_big_batch(net, expected)


# clipping


def test_frozen_parameters_do_not_count_in_the_norm():
    net, reference = make_net("cpu:2"), make_net()
    net[0].collect_params().setattr("grad_req", "null")
    batch = make_batches([6])[0]
    gradient = mean_gradient(reference, batch)
    (update,) = mxkit.updates(net, [batch], loss="softmax_ce", trainer="sgd", clip_norm=1.0)
    assert update.grad_norm == pytest.approx(np.linalg.norm(gradient[-CLASSES * 7 - CLASSES :]), rel=1e-6)


# arguments


def test_backward_refuses_what_it_cannot_count():
    net = make_net()
    (x, y), *_ = make_batches([4])
    accumulator = mxkit.Accumulator(gluon.Trainer(net.collect_params(), "sgd"), every=2)
    with mx.util.np_shape(), autograd.record():
        losses = SOFTMAX(net(x), y)
        scalar = losses.reshape(-1)[0].reshape(())
    with pytest.raises(RuntimeError, match="call it inside `with Accumulator"):
        accumulator.backward(losses)
    with accumulator:
        with pytest.raises(mxkit.errors.DataError, match="received no loss"):
            accumulator.backward([])
        with pytest.raises(LossShapeError, match="one per sample; received a scalar"):
            accumulator.backward(scalar)
        assert accumulator.flush() is None


def own_loop(backward, every=2, reduced=lambda losses: losses):
    net = make_net()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.3})
    with mxkit.Accumulator(trainer, every=every) as accumulator:
        for x, y in make_batches([4, 4]):
            with autograd.record():
                losses = reduced(SOFTMAX(net(x), y))
            backward(accumulator, losses)
            accumulator.step()


@pytest.mark.parametrize("every", [1, 2])
def test_a_backward_that_the_accumulator_does_not_see_is_an_error(every):
    with pytest.raises(RuntimeError, match=r"window holds no micro-batch. Call accumulator.backward\(losses\) before"):
        own_loop(lambda accumulator, losses: losses.backward(), every)


def generator_and_discriminator(kind, size, every, alternate):
    """Ends of a GAN: the generator's loss is computed through the discriminator, whose gradients it would change."""
    random = np.random.RandomState(0)
    real, noise = (random.randn(32, 2).astype("float32") for _ in range(2))
    loss = gluon.loss.SigmoidBCELoss()
    mxkit.seed_all(0)

    def make(units):
        net = gluon.nn.Dense(units, in_units=2)
        net.initialize(mx.init.Normal(0.5))
        return net

    nets = [kind.net(lambda units=units: make(units)) for units in (2, 1)]
    trainers = [gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5}) for net in nets]
    generator, discriminator = nets

    def of_real(x, z):
        return loss(discriminator(x), x[:, 0] * 0 + 1) + loss(discriminator(generator(z).detach()), z[:, 0] * 0)

    def of_noise(x, z):
        return loss(discriminator(generator(z)), z[:, 0] * 0 + 1)

    with kind.switches(), mxkit.Accumulator(trainers[0], every) as one, mxkit.Accumulator(trainers[1], every) as other:
        for begin in range(0, 32, size * every):
            starts = range(begin, begin + size * every, size)
            batches = [tuple(kind.of(array[start : start + size]) for array in (real, noise)) for start in starts]
            turns = [(other, of_real), (one, of_noise)]
            order = [(turn, batch) for batch in batches for turn in turns]
            for (accumulator, function), batch in order if alternate else sorted(order, key=lambda o: o[0] is turns[1]):
                with autograd.record():
                    losses = function(*batch)
                accumulator.backward(losses)
                if not alternate:
                    accumulator.step()
            if alternate:
                other.step(), one.step()
    return [one.data().asnumpy() for net in nets for one in net.collect_params().values()]


@pytest.mark.parametrize("alternate", [False, True])
def test_windows_of_two_nets_do_not_add_up(kind, alternate):
    # alternating, both gradients are of the weights before either step
    expected = generator_and_discriminator(kind, 8, 1, alternate)
    for one, other in zip(generator_and_discriminator(kind, 4, 2, alternate), expected):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    if alternate:
        apart = generator_and_discriminator(kind, 8, 1, False)
        assert max(abs(one - other).max() for one, other in zip(apart, expected)) > 1e-3


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("where", ["in a window", "between windows"])
def test_another_backward_pass_does_not_change_a_window(kind, every, where):
    def ends(between):
        net = kind.net(make_net)
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.3})
        with kind.switches(), mxkit.Accumulator(trainer, every) as accumulator:
            for x, y in kind.of(make_batches([4] * 4)):
                with autograd.record():
                    losses = SOFTMAX(net(x), y)
                accumulator.backward(losses)
                if where == "in a window":
                    between(net, x)
                if accumulator.step() and where == "between windows":
                    between(net, x)
        return weights(net)

    def saliency(net, x):
        with autograd.record():
            scores = net(x).max(axis=1)
        scores.backward()

    if where == "in a window":
        with pytest.raises(RuntimeError, match="another backward pass changed the gradients of the window"):
            ends(saliency)
    else:
        for one, other in zip(ends(saliency), ends(lambda *_: None)):
            np.testing.assert_array_equal(one, other)


REDUCED = {
    "mean": lambda losses: losses.mean(),
    "sum": lambda losses: losses.sum(),
    "mean over axis 0": lambda losses: losses.mean(axis=0),
    "weighted mean": lambda losses: (losses * 2).mean() / 2,
    "mean of shape (1,)": lambda losses: 2 - losses.mean().reshape((1,)) / 2 * losses.sum().reshape((1,)),
    "mean and a penalty": lambda losses: losses.mean() + 0.1 * (losses * losses).sum(),
}


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize("reduced", list(REDUCED))
def test_a_mean_of_losses_does_not_count_as_one_sample(reduced):
    """T4."""
    with pytest.raises(LossShapeError, match=r"received a .*mean or a sum over the samples.* without .mean\(\)"):
        own_loop(mxkit.Accumulator.backward, reduced=REDUCED[reduced])


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize(
    "reduced", [None, lambda losses: losses * 3, lambda losses: losses.reshape((-1, 1)).mean(axis=1)]
)
@pytest.mark.parametrize("hybridize", [False, True])
def test_a_batch_of_one_sample_counts_as_one(reduced, hybridize):
    x, y = make_batches([1])[0]
    net = make_net(hybridize=hybridize)
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    with mxkit.Accumulator(trainer) as accumulator:
        with autograd.record():
            losses = SOFTMAX(net(x), y)
            losses = losses if reduced is None else reduced(losses)
        accumulator.backward(losses)
        assert accumulator.step().samples == 1


def test_a_worker_alone_joins_no_others_and_applies_its_open_window():
    net = make_net("cpu:1")
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    (x, y), *_ = make_batches([4])
    with mxkit.Accumulator(trainer, every=2) as accumulator:
        assert accumulator.join() is None
        with autograd.record():
            losses = SOFTMAX(net(x), y)
        accumulator.backward(losses)
        assert (accumulator.join().samples, accumulator.updates) == (4, 1)
        assert accumulator.join() is None
