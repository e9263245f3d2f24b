"""Options of the ladder: windows by samples, clipping by value, dry runs, interrupts."""

from contextlib import nullcontext

from built_nets import ready, stack
import mxkit
from mxkit.errors import DataError, TrapWarning
import mxnet as mx
from mxnet import gluon
import numpy as np
import oracle
from oracle import (
    OPTIMIZERS,
    SOFTMAX,
    assert_replicas_close,
    joined,
    make_batches,
    make_net,
    replicas,
    requests,
    train_by_hand,
    weights,
)
import pytest

BATCHES = make_batches([3, 5, 1, 1, 4, 2, 6])


def fit(net=None, data=BATCHES, **changes):
    return oracle.fit(net or make_net(), data, **{"trainer": OPTIMIZERS[0], "epochs": 2, **changes})


def test_windows_by_samples_equal_big_batches():
    expected, net = make_net(), make_net("cpu:3")
    windows = [BATCHES[:2], BATCHES[2:6], BATCHES[6:]]  # 8, 8 and the open 6
    train_by_hand(expected, [joined(window)[0] for window in windows], OPTIMIZERS[1])
    found = list(mxkit.updates(net, BATCHES, loss="softmax_ce", trainer=OPTIMIZERS[1], accumulate="8 samples"))
    assert [update.samples for update in found] == [8, 8, 6]
    assert_replicas_close(net, expected)
    assert {p.grad_req for p in net.collect_params().values()} == {"write"}


def test_limit_batches_is_a_dry_run_of_both_parts():
    calls = []

    def valid():
        for batch in BATCHES:
            calls.append(len(batch[1]))
            yield batch

    history = fit(limit_batches=3, accumulate=2, valid=valid, epochs=1)
    assert (history[-1]["updates"], history[-1]["samples"]) == (2, 3 + 5 + 1)
    assert calls == [3, 3, 5, 1]  # the look at one batch before training, then three


def test_validate_every_skips_epochs_but_the_last():
    history = fit(epochs=5, valid=BATCHES[:2], validate_every=2)
    assert [row["valid_loss"] is not None for row in history] == [False, True, False, True, True]


def test_validation_is_tried_before_an_epoch_is_trained_but_not_on_a_generator():
    # a batch of it would be missing after the epoch
    once = (batch for batch in BATCHES[:3])
    history = fit(valid=once, epochs=1)
    assert history[-1]["valid_loss"] == pytest.approx(fit(valid=BATCHES[:3], epochs=1)[-1]["valid_loss"])


def test_ctrl_c_returns_the_history_so_far():
    def interrupt(state, update):
        if update.step == 9:
            raise KeyboardInterrupt

    net, ended = make_net(), []
    hooks = mxkit.callbacks.LambdaCallback(
        on_update=interrupt, on_fit_end=lambda state, error: ended.append(type(error))
    )
    history = fit(net, callbacks=[hooks], epochs=3)
    assert (len(history), history.stopped) == (1, "KeyboardInterrupt in epoch 2, after update 9")
    assert ended == [KeyboardInterrupt]
    assert {p.grad_req for p in net.collect_params().values()} == {"write"}


# what can be meant, but mostly is a mistake


def ending_in(kind):
    net = make_net()
    net.add(gluon.nn.Activation(kind) if kind == "sigmoid" else gluon.nn.HybridLambda(kind))
    return net


def images(*shape):
    return np.random.RandomState(0).rand(*shape).astype("float32"), np.arange(shape[0]) % 3


def conv_net():
    return ready(gluon.nn.Conv2D(2, 3), gluon.nn.Flatten(), gluon.nn.Dense(3))


SOFT, LOGS = "softmax_ce", ("softmax_ce", {"from_logits": True})
GRAY, GRAY_LABELS = images(4, 1, 8, 8)
DOUBLES = mx.nd.array(GRAY, dtype="float64"), mx.nd.array(GRAY_LABELS)
FIRST_BATCHES = [
    (SOFT, lambda: ending_in("softmax"), BATCHES[0], "outputs are probabilities, and Softmax.* applies a softmax"),
    (SOFT, lambda: ending_in("sigmoid"), BATCHES[0], "the net ends in a sigmoid, and Softmax.* applies a softmax"),
    (LOGS, make_net, BATCHES[0], "expects log-probabilities"),
    (LOGS, lambda: ending_in("log_softmax"), BATCHES[0], ""),
    (SOFT, conv_net, images(4, 8, 8, 3), r"shape \(4, 8, 8, 3\) look like NHWC, .* takes 8 as the number of channels"),
    (SOFT, conv_net, images(4, 3, 8, 8), ""),
    (SOFT, conv_net, (np.floor(GRAY * 255), GRAY_LABELS), "hold whole numbers up to 2[0-9][0-9]: divide by 255"),
    (SOFT, conv_net, ((GRAY * 255).astype("uint8"), GRAY_LABELS), r"a batch of shape \(4, 1, 8, 8\) is uint8"),
    (SOFT, conv_net, DOUBLES, r"is float64: cast it in the loader, x.astype\('float32'\)"),
]


@pytest.mark.parametrize(("loss", "make", "batch", "text"), FIRST_BATCHES)
def test_what_does_not_suit_the_net_is_told_with_the_first_batch(loss, make, batch, text):
    """T12, T13, T14."""
    refused = pytest.raises(DataError, match=text) if "is uint8" in text or "is float64" in text else None
    with refused or (pytest.warns(TrapWarning, match=text) if text else nullcontext()):
        list(mxkit.updates(make(), [batch], loss=loss, trainer="sgd"))


def grown(inside=False, frozen=False):
    """A net, and a Trainer that was made before its last layer, or the last one of its first block."""
    net = stack(make_net(), ready(gluon.nn.Dense(3, in_units=3)))
    if frozen:
        mxkit.freeze(net, "0.*")
    trainer = gluon.Trainer(net.collect_params(), "adam")
    (net[0] if inside else net).add(ready(gluon.nn.Dense(3, in_units=3)))
    return net, trainer


def replaced():
    net = make_net()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    with pytest.warns(TrapWarning, match="a Trainer exists"):
        mxkit.nets.replace(net, "1", ready(gluon.nn.Dense(3, in_units=7)))
    return net, trainer


def of_another(used):
    net = make_net()
    if used:
        gluon.Trainer(net.collect_params(), "sgd")
    return net, gluon.Trainer(make_net().collect_params(), "sgd")


UNKNOWN = [
    (grown, r"2.weight, 2.bias. They were added .*, or pass trainer=\('adam', {...}\).*freeze\(net, '2.weig"),
    (lambda: grown(inside=True), "0.2.weight, 0.2.bias"),
    (lambda: grown(inside=True, frozen=True), "0.2.weight, 0.2.bias"),
    (replaced, "1.weight, 1.bias"),
    (lambda: of_another(False), "0.weight, 0.bias, 1.weight, 1.bias.* or it was made over another net"),
    (lambda: of_another(True), "0.weight, 0.bias, 1.weight, 1.bias.* or it was made over another net"),
]


@pytest.mark.parametrize(("make", "text"), UNKNOWN)
def test_a_layer_added_after_the_trainer(make, text):
    """T19."""
    net, trainer = make()
    before, asked = replicas(net), requests(net)
    runs = [lambda: fit(net, trainer=trainer)]
    runs += [lambda step=step: trained(net, trainer, first_step=step) for step in (1, 5)]  # 5: added by a callback
    for run in runs:
        with pytest.raises(ValueError, match=f"does not know . trainable parameters, which would keep .*: {text}"):
            run()
    np.testing.assert_array_equal(replicas(net), before)
    assert requests(net) == asked
    if make is grown:
        mxkit.freeze(net, "2.*")
        trained(net, trainer)
        mxkit.unfreeze(net, "2.*")
        trained(net, "adam")


def trained(net, trainer, **how):
    return list(mxkit.updates(net, BATCHES[:1], loss="softmax_ce", trainer=trainer, **how))


def test_what_was_left_out_on_purpose_for_sure_is_not_told():
    """T19."""
    net = make_net()
    before = {path: one.data().asnumpy() for path, one in mxkit.parameters(net).items()}
    trained(net, gluon.Trainer(net.collect_params(".*bias"), "sgd"))  # T46 forbids to freeze their weights
    moved = {path for path, one in mxkit.parameters(net).items() if (one.data().asnumpy() != before[path]).any()}
    assert moved == {"0.bias", "1.bias"}
    net = make_net()
    for trainer in [gluon.Trainer(net[number].collect_params(), "sgd") for number in (0, 1)]:
        trained(net, trainer)


@pytest.mark.parametrize("devices", ["cpu:1", "cpu:2"])
def test_a_trainer_over_the_last_layers_is_meant_and_freezing_gives_the_same_weights(devices):
    """T19."""
    ends = []
    for frozen in (False, True):
        net = make_net(devices)
        trainer = gluon.Trainer(net[1].collect_params(), "sgd", {"learning_rate": 0.3})
        if frozen:
            mxkit.freeze(net, "0.*")
        told = pytest.warns(TrapWarning, match=r"not know 2 .*: 0.weight, 0.bias. If this is intended")
        with nullcontext() if frozen else told:
            fit(net, trainer=trainer)
        ends.append(weights(net))
    np.testing.assert_array_equal(*ends)


def test_biases_beside_trained_weights_are_told_unless_another_trainer_has_them():
    """T19."""
    net = make_net()
    trainer = gluon.Trainer(net.collect_params(".*weight"), "sgd")
    with pytest.warns(TrapWarning, match="not know 2 .*: 0.bias, 1.bias. If this is intended, freeze"):
        fit(net, trainer=trainer)
    gluon.Trainer(net.collect_params(".*bias"), "sgd")
    fit(net, trainer=trainer)


def test_checks_warn_once_and_not_in_each_epoch():
    net = make_net()
    net.add(gluon.nn.HybridLambda("softmax"))
    with pytest.warns(TrapWarning) as caught:
        fit(net, epochs=3, valid=BATCHES)
    assert "valid is the training data: its numbers say nothing of new" in str(caught[0].message)
    assert "applies a softmax to them again" in str(caught[1].message)
    net = make_net()
    with pytest.warns(TrapWarning, match="T19") as told:
        fit(net, trainer=gluon.Trainer(net[1].collect_params(), "sgd"), epochs=3)
    assert (len(caught), len(told)) == (2, 1)


# nets of several losses, and samples that count differently


@pytest.mark.parametrize("devices", ["cpu:1", "cpu:2"])
def test_forward_loss_trains_as_the_loss_it_spells_out(devices):
    def forward_loss(net, inputs, labels):
        output = net(*inputs)
        return SOFTMAX(output, *labels), output

    plain, own = make_net(devices), make_net(devices)
    arguments = {"metrics": ["accuracy"], "valid": BATCHES[:2], "accumulate": 2}
    expected = fit(plain, **arguments)
    found = fit(own, loss=mxkit.losses.BatchLoss(forward=forward_loss), **arguments)
    np.testing.assert_array_equal(weights(own), weights(plain))
    for name in ("train_loss", "train_accuracy", "valid_loss", "valid_accuracy"):
        assert found.column(name) == expected.column(name)
