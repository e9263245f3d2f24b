"""Accumulated micro-batches on any devices against one big batch: drawn at random, and special cases."""

from functools import partial
import math
from unittest import mock

from built_nets import ready
from hypothesis import given, settings
from hypothesis import strategies as st
import mxkit
from mxkit.errors import LossShapeError
from mxkit.training.ledger import _sums_of_parts
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np
from oracle import (
    CLASSES,
    OPTIMIZERS,
    SOFTMAX,
    array,
    assert_replicas_close,
    joined,
    make_batches,
    make_net,
    make_trainer,
    mean_gradient,
    recorded,
    replicas,
    requests,
    train_by_hand,
    weights,
)
import pytest
from sharing import Kind, examples


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
    assert_replicas_close(net, expected)


def backward(net, batch, how=autograd.backward):
    with autograd.record():
        shards = mxkit.data.split_batch(batch, net[0].weight.list_ctx())
        losses = [SOFTMAX(net(*one.inputs), *one.labels) for one in shards]
    how(losses)


def test_replicas_are_reduced_once_an_update():
    """T6."""
    net = make_net("cpu:2")
    trainer = make_trainer(net, OPTIMIZERS[0], False)
    with mock.patch.object(trainer, "allreduce_grads", wraps=trainer.allreduce_grads) as reduce:
        list(mxkit.updates(net, make_batches([4, 4, 4, 4, 4]), loss="softmax_ce", trainer=trainer, accumulate=2))
    assert reduce.call_count == 3


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
            accumulator.backward(recorded(net, x, y))
            found.append(accumulator.step())
        found.append(accumulator.flush())
    steps = [update and (update.step, update.samples) for update in found]
    each = {1: [(1, 4), (2, 2), (3, 5), (4, 3), None], 3: [None, None, (1, 11), None, (2, 3)]}
    assert steps == each[every]
    assert accumulator.updates == 5 - steps.count(None)
    assert_replicas_close(net, expected)


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
    assert_replicas_close(net, expected)
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
        layers = [gluon.nn.Dense(2, in_units=2, activation="softsign") for _ in range(105)]
        net = ready(*layers, gluon.nn.Dense(3, in_units=2), initializer=("xavier", {"magnitude": 12}))
        net.hybridize()
        return net

    batches = [(x[:, :2], y) for x, y in make_batches([4, 3])]
    expected, net = deep(), deep()
    norm = np.linalg.norm(mean_gradient(expected, joined(batches)[0]))
    train_by_hand(expected, joined(batches), OPTIMIZERS[0])
    (update,) = mxkit.updates(net, batches, loss="softmax_ce", trainer=OPTIMIZERS[0], accumulate=2, clip_norm=1e9)
    assert update.grad_norm == pytest.approx(norm, rel=1e-5)
    assert_replicas_close(net, expected)


def test_frozen_parameters_do_not_count_in_the_norm():
    net, reference = make_net("cpu:2"), make_net()
    net[0].collect_params().setattr("grad_req", "null")
    batch = make_batches([6])[0]
    gradient = mean_gradient(reference, batch)
    (update,) = mxkit.updates(net, [batch], loss="softmax_ce", trainer="sgd", clip_norm=1.0)
    assert update.grad_norm == pytest.approx(np.linalg.norm(gradient[-CLASSES * 7 - CLASSES :]), rel=1e-6)


def test_backward_refuses_what_it_cannot_count():
    net, ((x, y),) = make_net(), make_batches([4])
    accumulator = mxkit.Accumulator(make_trainer(net), every=2)
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
    with mxkit.Accumulator(make_trainer(net, OPTIMIZERS[0]), every=every) as accumulator:
        for x, y in make_batches([4, 4]):
            backward(accumulator, recorded(net, x, y, loss=lambda *arrays: reduced(SOFTMAX(*arrays))))
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

    normal = ("normal", {"sigma": 0.5})
    nets = [
        kind.net(lambda units=units: ready(gluon.nn.Dense(units, in_units=2), initializer=normal)) for units in (2, 1)
    ]
    trainers = [make_trainer(net, ("sgd", {"learning_rate": 0.5})) for net in nets]
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
    def ends(disturbed):
        net = kind.net(make_net)
        with kind.switches(), mxkit.Accumulator(make_trainer(net, OPTIMIZERS[0]), every) as accumulator:
            for x, y in kind.of(make_batches([4] * 4)):
                accumulator.backward(recorded(net, x, y))
                if disturbed and (where == "in a window" or accumulator.step()):
                    recorded(net, x, loss=lambda scores: scores.max(axis=1)).backward()
                if where == "in a window" or not disturbed:
                    accumulator.step()
        return weights(net)

    if where == "in a window":
        with pytest.raises(RuntimeError, match="another backward pass changed the gradients of the window"):
            ends(True)
    else:
        np.testing.assert_array_equal(ends(True), ends(False))


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


@pytest.mark.parametrize(("sizes", "devices"), [((2, 1), "cpu"), ((1, 3), "cpu"), ((2, 3), "cpu:2")])
def test_a_mean_over_the_steps_of_one_sample_is_its_loss(sizes, devices):
    """In the layout (time, samples, features), axis 0 is not that of the samples."""

    def forward(net, inputs, labels):
        return (net(inputs[0].swapaxes(0, 1)) - 1).square().mean(axis=(0, 2))

    net, x = ready(gluon.nn.Dense(3, flatten=False), devices=devices), np.ones((sum(sizes), 4, 2), "float32")
    batches = [(part, np.zeros(len(part))) for part in np.split(x, np.cumsum(sizes)[:-1])]
    loss = mxkit.losses.BatchLoss(forward=forward)
    assert [one.samples for one in mxkit.updates(net, batches, loss=loss, trainer="sgd")] == list(sizes)


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize(
    "reduced", [lambda losses: losses, lambda losses: losses * 3, lambda losses: losses.reshape((-1, 1)).mean(axis=1)]
)
@pytest.mark.parametrize("hybridize", [False, True])
def test_a_batch_of_one_sample_counts_as_one(reduced, hybridize):
    ((x, y),), net = make_batches([1]), make_net(hybridize=hybridize)
    with mxkit.Accumulator(make_trainer(net)) as accumulator:
        accumulator.backward(recorded(net, x, y, loss=lambda *arrays: reduced(SOFTMAX(*arrays))))
        assert accumulator.step().samples == 1


def test_a_worker_alone_joins_no_others_and_applies_its_open_window():
    net, ((x, y),) = make_net(), make_batches([4])
    with mxkit.Accumulator(make_trainer(net), every=2) as accumulator:
        assert accumulator.join() is None
        accumulator.backward(recorded(net, x, y))
        assert (accumulator.join().samples, accumulator.updates) == (4, 1)
        assert accumulator.join() is None


# Optimizers that divide by the gradient's own size turn the rounding of a gradient near 0 into a step of another size.
# So Adam and LAMB run in float64; MXNet's rmsprop, adagrad, adadelta and ftrl refuse it. Where something tiny is added
# to the divisor, more is added here.
DRAWN = {
    "sgd": ("float32", {"learning_rate": 0.3}),
    "momentum": ("float32", {"learning_rate": 0.1, "momentum": 0.9}),
    "nag": ("float32", {"learning_rate": 0.1, "momentum": 0.9}),
    "adam": ("float64", {"learning_rate": 0.02, "epsilon": 1e-4}),
    "rmsprop": ("float32", {"learning_rate": 0.01, "epsilon": 1e-3}),
    "adagrad": ("float32", {"learning_rate": 0.1, "eps": 1e-3}),
    "adadelta": ("float32", {}),
    "ftrl": ("float32", {"learning_rate": 0.3}),
    "lamb": ("float64", {"learning_rate": 0.02, "epsilon": 1e-4}),
}
# Largest difference of a weight, as a share of the largest weight. Factors of clip_norm and limits of MXNet's `clip`
# are float32 in a float64 net too.
ROUNDED, EXACT = 2e-5, 1e-10

ADAM, NAMES = ("adam", DRAWN["adam"][1]), {"momentum": "sgd"}

CASES = st.fixed_dictionaries(
    {
        "sizes": st.lists(st.integers(1, 9), min_size=1, max_size=9),
        "accumulate": st.integers(1, 5),
        "devices": st.integers(1, 4),
        "on_kvstore": st.sampled_from([None, False, True]),
        "hybridize": st.sampled_from([None, {}, {"static_alloc": True}, {"static_alloc": True, "static_shape": True}]),
        # the norms of most gradients here are 0.2 to 2.5, their largest elements 0.2 to 1.7
        "clip_norm": st.sampled_from([None, 0.05, 1.0, 100.0, float("inf")]),
        "clip_value": st.sampled_from([None, None, 0.02, 0.1, 10.0]),
        "weighted": st.sampled_from([None, "loss", "forward"]),
        "counted": st.booleans(),  # by the sum of weights in place of the number of samples
        "wd": st.sampled_from([0.0, 0.01]),
        "seed": st.integers(0, 10**6),
        "kind": st.sampled_from([Kind(False), Kind(True)]),
    }
)


def make_data(case, dtype):
    """Batches `(x, (y, w))`, or `(x, y)` where samples have no weights."""
    batches = make_batches(case["sizes"], seed=case["seed"], dtype=dtype)
    if not case["weighted"]:
        return batches
    random = np.random.RandomState(case["seed"] + 1)
    least = 1 if case["counted"] else 0  # a sample of weight 0 counts and adds nothing
    factors = [array(random.randint(least, 9, x.shape[0]) / 4, dtype=dtype) for x, _ in batches]
    return [(x, (y, factor)) for (x, y), factor in zip(batches, factors)]


def weighted_loss(output, label, factor=None):
    losses = SOFTMAX(output, label)
    return losses if factor is None else losses * factor


def sum_of_weights(inputs, labels):
    return labels[1].sum()


def weighted_forward(net, inputs, labels):
    return weighted_loss(net(*inputs), *labels)


def clipped(gradients, clip_norm, clip_value):
    """NumPy's clipping, and the norm before it."""
    norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients))
    factor = 1.0 if clip_norm is None or norm <= clip_norm else clip_norm / norm
    limit = np.inf if clip_value is None else clip_value
    return [np.clip(gradient * factor, -limit, limit) for gradient in gradients], norm


def train_big_batches(net, batches, trainer, clip_norm=None, clip_value=None, counted=False):
    """Gluon's own loop with a clipping by NumPy; returns the norm of each averaged gradient, and each mean loss."""
    norms, means_of_losses = [], []
    for x, *labels in batches:
        count = float(labels[1].asnumpy().sum()) if counted else x.shape[0]
        losses = recorded(net, x, *labels, loss=weighted_loss)
        losses.backward()
        means_of_losses.append(float(losses.asnumpy().sum(dtype="float64")) / count)
        parameters = net.collect_params().values()
        means = [parameter.grad().asnumpy().astype("float64") / count for parameter in parameters]
        wanted, norm = clipped(means, clip_norm, clip_value)
        norms.append(norm)
        if clip_norm is not None or clip_value is not None:
            for parameter, gradient in zip(parameters, wanted):
                parameter.grad()[:] = array(gradient * count, dtype=parameter.dtype)
        trainer.step(count)
    return norms, means_of_losses


def is_refused(case):
    """The default of several devices is to step in the kvstore, where single values cannot be reached."""
    return case["clip_value"] is not None and case["devices"] > 1 and case["on_kvstore"] is not False


def is_counted(case):
    return bool(case["weighted"] and case["counted"])


def flat(batches):
    return [(x, *(label if isinstance(label, tuple) else (label,))) for x, label in batches]


def run_updates(net, case, dtype, trainer):
    """Train by `mxkit.updates`; returns the updates, and every replica's weights as each batch was asked for."""
    seen = []

    def watched():
        for batch in make_data(case, dtype):
            seen.append(replicas(net))
            yield batch

    how = {"forward": weighted_forward} if case["weighted"] == "forward" else {"loss": weighted_loss}
    loss = mxkit.losses.BatchLoss(**how, count=sum_of_weights if is_counted(case) else None)
    options = {name: case[name] for name in ("accumulate", "clip_norm", "clip_value")}
    found = list(mxkit.updates(net, watched, loss=loss, trainer=trainer, **options))
    return found, seen


@pytest.mark.parametrize("name", DRAWN)
@settings(max_examples=examples(16))
@given(case=CASES)
def test_any_split_equals_one_big_batch(name, case):
    """T42."""
    with case["kind"].switches():
        check_split(name, case)


def check_split(name, case):
    dtype, arguments = DRAWN[name]
    arguments = {**arguments, "wd": case["wd"]}
    expected, net = (case["kind"].net(partial(make_net, on, dtype=dtype)) for on in ("cpu", f"cpu:{case['devices']}"))
    if case["hybridize"] is not None:
        net.hybridize(**case["hybridize"])
    trainer = make_trainer(net, (NAMES.get(name, name), arguments), case["on_kvstore"])
    if is_refused(case):
        with pytest.raises(ValueError, match="clip_value: the Trainer adds replicas up inside its kvstore"):
            run_updates(net, case, dtype, trainer)
        return
    found, seen = run_updates(net, case, dtype, trainer)
    every, sizes = case["accumulate"], case["sizes"]
    norms, losses = train_big_batches(
        expected,
        joined(flat(make_data(case, dtype)), every),
        make_trainer(expected, (NAMES.get(name, name), arguments)),
        case["clip_norm"],
        case["clip_value"],
        is_counted(case),
    )
    assert [update.loss for update in found] == pytest.approx(losses, rel=1e-4)
    assert [update.samples for update in found] == [sum(sizes[i : i + every]) for i in range(0, len(sizes), every)]
    in_float64 = dtype == "float64" and case["clip_norm"] is None and case["clip_value"] is None
    assert_replicas_close(net, expected, EXACT if in_float64 else ROUNDED)
    if case["clip_norm"] is None:
        assert [update.grad_norm for update in found] == [None] * len(found)
    else:
        assert [update.grad_norm for update in found] == pytest.approx(norms, rel=1e-5)
    for window in range(0, len(seen), every):
        for later in seen[window + 1 : window + every]:
            np.testing.assert_array_equal(later, seen[window])


@settings(max_examples=examples(24))
@given(
    first=st.sampled_from(["write", "add", "null"]),
    last=st.sampled_from(["write", "add"]),
    batches=st.integers(2, 7),
    accumulate=st.integers(1, 5),
    devices=st.integers(1, 3),
    end=st.sampled_from(["data ends", "break", "error in the loss", "error in the data", "error in the loop"]),
    at=st.integers(0, 6),
)
def test_grad_req_is_what_it_was_however_the_loop_ends(first, last, batches, accumulate, devices, end, at):
    net = make_net(f"cpu:{devices}")
    net[0].collect_params().setattr("grad_req", first)
    net[1].collect_params().setattr("grad_req", last)
    before, at, inside = requests(net), at % batches, []

    def data():
        for number, batch in enumerate(make_batches([3] * batches)):
            if number == at and end == "error in the data":
                raise KeyError("broken")
            yield batch

    def loss(output, label):
        inside.append(requests(net))
        if len(inside) > at and end == "error in the loss":
            raise KeyError("broken")
        return SOFTMAX(output, label)

    def loop():
        for update in mxkit.updates(net, data, loss=loss, trainer="sgd", accumulate=accumulate):
            if update.step > at // accumulate and end in ("break", "error in the loop"):
                if end == "break":
                    break
                raise KeyError("broken")

    if "error" in end:
        with pytest.raises((KeyError, mxkit.errors.TrainingError), match="broken"):
            loop()
    else:
        loop()
    assert requests(net) == before
    added = {path: "add" if request == "write" and accumulate > 1 else request for path, request in before.items()}
    assert all(found == added for found in inside)


@settings(max_examples=examples(12))
@given(
    sizes=st.lists(st.integers(1, 9), min_size=2, max_size=6),
    broken=st.integers(1, 5),
    accumulate=st.integers(2, 5),
    devices=st.integers(1, 4),
    on_kvstore=st.sampled_from([None, False, True]),
    request=st.sampled_from(["write", "add"]),
)
def test_a_window_that_broke_off_leaves_nothing_behind(sizes, broken, accumulate, devices, on_kvstore, request):
    """T1."""
    expected, net = make_net(dtype="float64"), make_net(f"cpu:{devices}", dtype="float64")
    batches = make_batches(sizes, dtype="float64")
    net.collect_params().setattr("grad_req", request)
    broken = min(broken, accumulate - 1)  # an error inside the first window: no update was done
    trainer = make_trainer(net, ADAM, on_kvstore)

    def spoilt():
        yield from make_batches([4] * broken, seed=9, dtype="float64")
        raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        list(mxkit.updates(net, spoilt, loss=SOFTMAX, trainer=trainer, accumulate=accumulate))
    np.testing.assert_array_equal(weights(net), weights(expected))
    list(mxkit.updates(net, batches, loss=SOFTMAX, trainer=trainer, accumulate=accumulate))
    train_big_batches(expected, joined(batches, accumulate), make_trainer(expected, ADAM))
    assert_replicas_close(net, expected, EXACT)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=40), st.integers(0, 2**32 - 1))
def test_sums_read_together_equal_each_read_alone_to_the_last_bit(sizes, seed):
    scales = np.repeat(10.0 ** (np.arange(len(sizes)) % 7), sizes)
    values = np.random.RandomState(seed).standard_normal(sum(sizes)) * scales
    parts = np.split(values, np.cumsum(sizes)[:-1])
    assert _sums_of_parts(values, sizes) == [_sums_of_parts(part, [len(part)])[0] for part in parts]
    np.testing.assert_allclose(_sums_of_parts(values, sizes), [math.fsum(part) for part in parts], rtol=0, atol=1e-6)
