"""Splits, devices, windows, optimizers and clipping drawn at random: the updates of one big batch on one device."""

from functools import partial
import math

from hypothesis import given, settings
from hypothesis import strategies as st
import mxkit
from mxkit.training.ledger import _sums_of_parts
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np
from oracle import SOFTMAX, array, joined, make_batches, make_net, replicas, requests, weights
import pytest
from sharing import Kind, examples

# Optimizers that divide by the gradient's own size turn the rounding of a gradient near 0 into a step of another size.
# So Adam and LAMB run in float64; MXNet's rmsprop, adagrad, adadelta and ftrl refuse it. Where something tiny is added
# to the divisor, more is added here.
OPTIMIZERS = {
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

ADAM = "adam", OPTIMIZERS["adam"][1]

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
    """Gluon's own loop with a clipping by NumPy; returns the norm of each update's averaged gradient."""
    norms = []
    for x, *labels in batches:
        count = float(labels[1].asnumpy().sum()) if counted else x.shape[0]
        with autograd.record():
            losses = weighted_loss(net(x), *labels)
        losses.backward()
        parameters = net.collect_params().values()
        means = [parameter.grad().asnumpy().astype("float64") / count for parameter in parameters]
        wanted, norm = clipped(means, clip_norm, clip_value)
        norms.append(norm)
        if clip_norm is not None or clip_value is not None:
            for parameter, gradient in zip(parameters, wanted):
                parameter.grad()[:] = array(gradient * count, dtype=parameter.dtype)
        trainer.step(count)
    return norms


def make_trainer(net, name, arguments, on_kvstore=None):
    # by name, MXNet makes no kvstore for one device and then stumbles over update_on_kvstore=True
    kvstore = mx.kv.create("device") if on_kvstore else "device"
    name = "sgd" if name == "momentum" else name
    return gluon.Trainer(net.collect_params(), name, arguments, kvstore=kvstore, update_on_kvstore=on_kvstore)


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


def assert_every_replica_close(net, expected, tolerance):
    target = weights(expected)
    for replica in replicas(net):
        assert np.abs(replica - target).max() <= tolerance * np.abs(target).max()
    weights(net)  # all replicas are the same bits


@pytest.mark.parametrize("name", OPTIMIZERS)
@settings(max_examples=examples(16))
@given(case=CASES)
def test_any_split_equals_one_big_batch(name, case):
    """T42."""
    with case["kind"].switches():
        check_split(name, case)


def check_split(name, case):
    dtype, arguments = OPTIMIZERS[name]
    arguments = {**arguments, "wd": case["wd"]}
    expected, net = (case["kind"].net(partial(make_net, on, dtype=dtype)) for on in ("cpu", f"cpu:{case['devices']}"))
    if case["hybridize"] is not None:
        net.hybridize(**case["hybridize"])
    trainer = make_trainer(net, name, arguments, case["on_kvstore"])
    if is_refused(case):
        with pytest.raises(ValueError, match="clip_value: the Trainer adds replicas up inside its kvstore"):
            run_updates(net, case, dtype, trainer)
        return
    found, seen = run_updates(net, case, dtype, trainer)
    every, sizes = case["accumulate"], case["sizes"]
    norms = train_big_batches(
        expected,
        joined(flat(make_data(case, dtype)), every),
        make_trainer(expected, name, arguments),
        case["clip_norm"],
        case["clip_value"],
        is_counted(case),
    )
    assert [update.samples for update in found] == [sum(sizes[i : i + every]) for i in range(0, len(sizes), every)]
    in_float64 = dtype == "float64" and case["clip_norm"] is None and case["clip_value"] is None
    assert_every_replica_close(net, expected, EXACT if in_float64 else ROUNDED)
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
    trainer = make_trainer(net, *ADAM, on_kvstore)

    def spoilt():
        yield from make_batches([4] * broken, seed=9, dtype="float64")
        raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        list(mxkit.updates(net, spoilt, loss=SOFTMAX, trainer=trainer, accumulate=accumulate))
    np.testing.assert_array_equal(weights(net), weights(expected))
    list(mxkit.updates(net, batches, loss=SOFTMAX, trainer=trainer, accumulate=accumulate))
    train_big_batches(expected, joined(batches, accumulate), make_trainer(expected, *ADAM))
    assert_every_replica_close(net, expected, EXACT)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=40), st.integers(0, 2**32 - 1))
def test_sums_read_together_equal_each_read_alone_to_the_last_bit(sizes, seed):
    scales = np.repeat(10.0 ** (np.arange(len(sizes)) % 7), sizes)
    values = np.random.RandomState(seed).standard_normal(sum(sizes)) * scales
    parts = np.split(values, np.cumsum(sizes)[:-1])
    assert _sums_of_parts(values, sizes) == [_sums_of_parts(part, [len(part)])[0] for part in parts]
    np.testing.assert_allclose(_sums_of_parts(values, sizes), [math.fsum(part) for part in parts], rtol=0, atol=1e-6)
