"""What Gluon accepts in silence, or fails at with a riddle: the text of each error."""

import contextlib
from functools import partial

from built_nets import plain_net, ready, stack
import mxkit
from mxkit.errors import (
    DataError,
    ForwardError,
    LabelError,
    LossShapeError,
    NonFiniteError,
    TrainingError,
    TrapWarning,
    UnusedParameterError,
)
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np
from oracle import (
    CLASSES,
    FEATURES,
    SOFTMAX,
    fit,
    in_batches,
    make_batches,
    make_net,
    make_trainer,
    recorded,
    replicas,
    weights,
)
import pytest


def train(net, data, **changes):
    arguments = {"loss": "softmax_ce", "trainer": ("sgd", {"learning_rate": 0.1}), **changes}
    return list(mxkit.updates(net, data, **arguments))


def difference(one, other):
    return one - other if mx.util.is_np_array() else mx.nd.broadcast_sub(one, other)


# labels


@pytest.mark.parametrize("wrong", [3, -1, 0.5, float("nan")])
def test_labels_out_of_range(wrong):
    """T10."""
    net = make_net("cpu:2")
    before = weights(net)
    x = np.zeros((4, FEATURES), "float32")
    y = np.array([0, 1, wrong, wrong], "float32")
    text = "labels must be whole numbers from 0 to 2, because the net has 3 outputs"
    with pytest.raises(LabelError, match=text) as e:
        train(net, [(x, y)])
    assert f"received {float(wrong)}" in str(e.value)
    assert "SoftmaxCrossEntropyLoss would clip them without an error" in str(e.value)
    np.testing.assert_array_equal(weights(net), before)


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize(
    ("loss", "received", "way"),
    [
        (lambda o, y: SOFTMAX(o, y).mean(), r"\(1?,?\)", "It is a mean or a sum already: return one loss per sample"),
        (lambda o, y: (o - 1) ** 2, r"\(4, 3\)", r"Average over the other axes: losses.reshape\(.*\).mean\(axis=1\)"),
        (lambda o, y: difference(o[:, :1], y.reshape((1, -1))).reshape((-1,)), r"\(16,\)", r"\(T11\): reshape the lab"),
        (lambda o, y: difference(o[:, 0], y.reshape((-1, 1))) ** 2, r"\(4, 4\)", r"\(T11\): reshape the labels"),
    ],
    ids=["mean", "not_averaged", "broadcast", "labels of shape (n, 1)"],
)
def test_a_loss_that_is_not_per_sample(loss, received, way):
    """T4, T11."""
    net = make_net()
    before = weights(net)
    text = rf"expected shape \(4,\) for a batch of 4 samples; received {received}"
    with pytest.raises(LossShapeError, match=text) as e:
        train(net, [(x, y.astype("float32")) for x, y in make_batches([4])], loss=loss)
    e.match(way)
    np.testing.assert_array_equal(weights(net), before)


@pytest.mark.usefixtures("switched")
def test_a_mean_over_broadcast_samples_is_refused():
    """The mean has one value per sample, each of all labels. T11."""
    data = [(np.ones((4, FEATURES)), np.arange(4.0))]
    text = r"depends on the other samples: outputs have the shape \(4, 1\), labels \(4,\)\. Arrays of shape \(n, 1\)"
    for pick, broadcasts in ((lambda y: y, True), (lambda y: y.reshape((-1, 1)), False)):

        def loss(o, y, pick=pick):
            return ((o - pick(y)) ** 2).mean(axis=1)

        net = ready(nn.Dense(1))
        for use in (mxkit.evaluate, fit):
            with pytest.raises(LossShapeError, match=text) if broadcasts else contextlib.nullcontext():
                use(net, data, loss=loss)


@pytest.mark.usefixtures("switched")
def test_the_shape_of_a_later_loss_is_checked_too():
    def loss(output, label):
        losses = SOFTMAX(output, label)
        return losses if output.shape[0] == 4 else losses.mean()

    with pytest.raises(LossShapeError, match=r"expected shape \(3,\) for a batch of 3 samples; received \(1?,?\)"):
        train(make_net(), make_batches([4, 3]), loss=loss)


def frames():
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(np.random.RandomState(0).rand(6, FEATURES), columns=list("abcdefghij")[:FEATURES]), pandas


def test_a_frame_of_numbers_is_an_array():
    frame, pandas = frames()
    net, y = make_net(), pandas.Series(np.arange(6) % 3)
    expected = mxkit.predict(net, frame.to_numpy())
    np.testing.assert_array_equal(mxkit.predict(net, frame).asnumpy(), expected.asnumpy())
    ours, theirs = (mxkit.evaluate(net, (x, np.asarray(y)), loss="softmax_ce") for x in (frame, frame.to_numpy()))
    assert ours == theirs == mxkit.evaluate(net, (frame, y), loss="softmax_ce")
    with pytest.raises(DataError, match=r"train: expected batches \(x, y\); received tuple. .*ArrayLoader"):
        fit(net, (frame, y))


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (["red"] * 6, r"object. Convert it, .* classes, y = numpy.unique"),
        (np.array(["2020-01-01"] * 6, "datetime64[s]"), "object. Convert it"),
        (np.arange(6).astype(object), r"object. Convert it, .astype\('float32'\)"),
    ],
)
def test_a_frame_with_a_column_that_is_no_number_is_named(column, text):
    frame, _ = frames()
    frame["b"] = column
    for rung in (mxkit.predict, lambda net, frame: mxkit.data.ArrayLoader(frame, None, 4)):
        with pytest.raises(DataError, match=rf"expected numbers; received an array of shape .* {text}"):
            rung(make_net(), frame)


# NaN


def with_nan(sizes, at):
    batches = [(x.asnumpy(), y.asnumpy()) for x, y in make_batches(sizes)]
    batches[at][0][-1, 0] = float("nan")
    return batches


@pytest.mark.parametrize(("at", "seconds", "noticed"), [(4, 1e9, 12), (12, 0.0, 20), (12, 1e9, 56)])
def test_nan_is_noticed_while_an_epoch_goes_on(monkeypatch, at, seconds, noticed):
    """The first numbers are read at update 12, up to 8; then at 20, or, of quick updates, when 48 are pending."""
    monkeypatch.setattr("mxkit.training.ledger.SETTLE_EVERY", 8)
    monkeypatch.setattr("mxkit.training.ledger.SETTLE_SECONDS", seconds)
    good, bad = with_nan([2, 2], at=1)
    data = [good] * at + [bad] + [good] * 60
    seen = []
    with pytest.raises(NonFiniteError, match=rf"^update {at + 1}: .* \(noticed after update {noticed}\)"):
        seen.extend(update.step for update in mxkit.updates(make_net(), data, loss="softmax_ce", trainer="sgd"))
    assert seen == list(range(1, noticed))


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize("on_kvstore", [False, True], ids=["on_devices", "on_kvstore"])
@pytest.mark.parametrize("devices", ["cpu:1", "cpu:2"])
@pytest.mark.parametrize("clip_norm", [None, float("inf")])
def test_nan_behind_a_finite_loss(devices, on_kvstore, clip_norm):
    """T25."""
    layers = nn.Dense(4, in_units=FEATURES, activation="relu"), nn.Dense(CLASSES, in_units=4)
    net = ready(*layers, devices=devices)
    trainer = make_trainer(net, on_kvstore=on_kvstore)
    seen = []
    data = with_nan([4, 4], at=1)
    # the norm of each update's gradient is known where it is asked for, the weights at the end of an epoch
    what = "the gradient's norm is nan" if clip_norm else "a weight is not finite, since one of the last 64 updates"
    with pytest.raises(NonFiniteError, match=f"^update 2: {what}"):
        seen.extend(mxkit.updates(net, data, loss="softmax_ce", trainer=trainer, clip_norm=clip_norm))
    assert np.isfinite(seen[1].loss)
    assert not seen[1].finite
    assert seen[0].finite


TOKENS = [(np.array([[1, 2], [2, 1]], "int32"), np.array([0, 1])) for _ in range(3)]  # token 0 does not come


@pytest.mark.parametrize(
    ("layer", "data"),
    [
        pytest.param(lambda: nn.Embedding(3, 4), TOKENS, id="weights"),
        pytest.param(lambda: nn.Dense(4, bias_initializer=mx.init.Constant(-9), activation="relu"), None, id="loss"),
    ],
)
def test_nan_of_adamax_is_told_by_its_cause(layer, data):
    """T299: a gradient of 0 gives NaN in Adamax, and in no other optimizer of MXNet."""
    net, data = ready(layer(), nn.Dense(CLASSES)), data or [(np.ones((2, 3), "float32"), np.array([0, 1]))] * 3
    cause = "Adamax divides 0 by 0 where .* use 'adam'. Otherwise lower the learning rate"
    with pytest.raises(NonFiniteError, match=cause):
        fit(net, data, trainer="adamax")
    mxkit.initialize(net, force=True)
    fit(net, data, trainer="adam")


def test_groupadagrad_refuses_parameters_of_one_axis_before_the_first_update():
    net = ready(nn.Embedding(3, 4), nn.Dense(CLASSES))
    with pytest.raises(ValueError, match=r"two axes only; '1.bias' has shape \(3,\). Use 'adagrad', or freeze"):
        fit(net, TOKENS, trainer="groupadagrad")
    mxkit.freeze(net, "1.bias")
    before = net[0].weight.data().asnumpy()
    fit(net, TOKENS, trainer=("groupadagrad", {"learning_rate": 0.1}))
    assert (net[0].weight.data().asnumpy() != before).any()


def test_check_finite_false_goes_on():
    found = train(make_net(), with_nan([4] * 5, at=1), check_finite=False)
    assert [np.isfinite(update.loss) for update in found] == [True, False, False, False, False]
    assert len(fit(make_net(), with_nan([4] * 5, at=1), epochs=2, check_finite=False)) == 2


def test_nan_before_a_stop_is_told():
    stop = mxkit.callbacks.LambdaCallback(on_update=lambda state, update: state.stop("enough"))
    with pytest.raises(NonFiniteError, match="epoch 1, update 1: the loss is nan"):
        fit(make_net(), with_nan([4] * 3, at=0), callbacks=[stop])


def test_errors_of_the_net_tell_epoch_update_and_batch():
    calls, ended = [], []

    def breaks(net, x):
        calls.append(1)
        return net.inner(x) if len(calls) < 4 else {}["no such key"]

    net = plain_net(breaks, inner=make_net())
    end = mxkit.callbacks.LambdaCallback(on_fit_end=lambda state, error: ended.append(error))
    with pytest.raises(TrainingError) as e:
        fit(net, make_batches([4, 3, 2]), epochs=2, callbacks=[end])
    text = "epoch 2, update 4, batch x (4, 5) float32, y (4,) int32: the net (Net): KeyError: 'no such key'"
    assert str(e.value) == text
    assert isinstance(e.value.__cause__, KeyError)
    assert ended == [e.value]


def test_an_assertion_without_a_message_is_told_by_its_line():
    def refuses(*_):
        raise AssertionError  # pytest gives every `assert` a message

    text = r"AssertionError: raise AssertionError .*\(.*test_wrong_inputs.py, line \d+\)"
    with pytest.raises(TrainingError, match=text):
        train(plain_net(refuses, inner=make_net()), make_batches([4]))
    with pytest.raises(TrainingError, match=text):
        train(make_net(), make_batches([4]), loss=refuses)


def test_errors_of_the_loss_inside_a_window_name_the_open_update():
    def loss(output, label):
        if output.shape[0] == 1:
            raise ZeroDivisionError("one sample")
        return SOFTMAX(output, label)

    with pytest.raises(TrainingError, match="^update 2, batch .*: ZeroDivisionError: one sample"):
        train(make_net(), make_batches([4, 4, 4, 1]), loss=loss, accumulate=2)


def test_interrupting_is_not_dressed_up():
    def loss(output, label):
        raise KeyboardInterrupt

    net = make_net()
    with pytest.raises(KeyboardInterrupt):
        train(net, make_batches([4]), loss=loss, accumulate=2)
    assert net[0].weight.grad_req == "write"


def alternating(devices="cpu"):
    """A net that uses its second layer for batches of more than two samples only."""
    layers = {name: nn.Dense(CLASSES, in_units=FEATURES) for name in ("always", "extra")}
    net = plain_net(lambda net, x: net.always(x) + (net.extra(x) if x.shape[0] > 2 else 0), **layers)
    return ready(net, devices=devices)


UNUSED = "the loss does not depend on 'extra.weight', 'extra.bias', so the backward pass gave no gradient"


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("on_kvstore", [False, True], ids=["on_devices", "on_kvstore"])
@pytest.mark.parametrize("devices", ["cpu:1", "cpu:2"])
def test_an_unused_parameter_is_named_by_its_path_and_nothing_is_updated(devices, on_kvstore, accumulate):
    """T28; one that was used before is missed in a later update, T24."""
    net = alternating(devices)
    before = replicas(net)
    trainer = make_trainer(net, on_kvstore=on_kvstore)
    with pytest.raises(UnusedParameterError) as e:
        train(net, make_batches([2, 2]), trainer=trainer, accumulate=accumulate)
    way = "Use it in forward, or freeze it: parameter.grad_req = 'null'. Nothing was updated"
    assert str(e.value) == f"update 1: {UNUSED}. {way}"
    assert e.value.parameters == [net.extra.bias, net.extra.weight]
    np.testing.assert_array_equal(replicas(net), before)
    with pytest.raises(UnusedParameterError, match=f"^update 2: {UNUSED}"):
        train(net, make_batches([6, 6, 2, 2][2 - accumulate : 4]), trainer=trainer, accumulate=accumulate)
    net.extra.collect_params().setattr("grad_req", "null")
    assert train(net, make_batches([2, 2]), accumulate=accumulate)


@pytest.mark.usefixtures("switched")
def test_a_parameter_that_only_one_of_the_devices_uses_is_no_error():
    """T28."""
    net = alternating("cpu:2")
    train(net, make_batches([6, 5, 5]))  # 3 + 2 samples: the second device does not use `extra`
    weights(net)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_backward_of_before_does_not_hide_an_unused_parameter(accumulate):
    """T28."""
    net = alternating()
    big, small = make_batches([6, 2])
    recorded(net, *big).backward()  # never stepped
    with pytest.raises(UnusedParameterError, match=f"^update 1: {UNUSED}"):
        train(net, [small, small], accumulate=accumulate)


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize("hybridized", [False, True])
def test_a_batch_norm_built_for_other_channels_is_refused(hybridized):
    """T101."""
    net = ready(nn.Conv2D(3, 1), nn.BatchNorm(in_channels=4), nn.Dense(2))
    net.hybridize(hybridized)
    before = net[1].running_mean.data().asnumpy().copy()
    expected = r"'1' \(BatchNorm\) is built for 4 channels and got 3: MXNet would read and write past its arrays"
    with pytest.raises(ForwardError, match=expected):
        train(net, [(np.ones((2, 1, 4, 4)), np.zeros(2))])
    assert (net[1].running_mean.data().asnumpy() == before).all()


@pytest.mark.parametrize("where", [gluon.nn.Dense, gluon.loss.L2Loss])
def test_a_backward_that_gluon_never_calls_is_told(where):
    """T33."""
    own = type("Own", (where,), {"backward": lambda self, gradient: gradient})
    layer, loss = (own if where is kind else kind for kind in (gluon.nn.Dense, gluon.loss.L2Loss))
    net = ready(stack(layer(1, in_units=3)))
    text = "^Own defines" if layer is gluon.nn.Dense else r"^'0' \(Own\) defines"
    with pytest.warns(TrapWarning, match=f"{text} backward, which Gluon never calls.*T33"):
        train(net, [(mx.nd.ones((2, 3)), mx.nd.ones((2, 1)))] * 3, loss=loss())


def test_dropout_inside_a_recurrent_layer_is_told():
    """T115."""
    net = ready(gluon.rnn.LSTM(4, 2, layout="NTC", dropout=0.5), nn.Dense(2))
    with pytest.warns(TrapWarning, match="dropout between the layers of 0 does nothing on the CPU"):
        train(net, [(np.ones((2, 3, 4)), np.zeros(2))])


RECURRENT = [
    (gluon.rnn.LSTM, "float64", {}, "LSTM of 2 layers with float64"),
    (gluon.rnn.GRU, "float32", {"MXNET_USE_MKLDNN_RNN": "0"}, "GRU of 2 layers with MXNET_USE_MKLDNN_RNN=0"),
    (gluon.rnn.RNN, "float32", {"MXNET_MKLDNN_ENABLED": "0"}, "RNN of 2 layers with MXNET_MKLDNN_ENABLED=0"),
]


@pytest.mark.parametrize(("layer", "dtype", "environment", "words"), RECURRENT)
def test_recurrent_layers_with_wrong_gradients_are_refused(layer, dtype, environment, words, monkeypatch):
    """T259."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    x = mx.nd.random.normal(shape=(5, 3, 4), dtype=dtype)

    def updates(layers):
        net = layer(4, layers, input_size=4)
        net.cast(dtype)
        return train(ready(net), [(x, x)], loss="l2")

    with pytest.raises(ValueError, match=f"{words}.*T259"):
        updates(2)
    assert len(updates(1)) == 1


def test_lengths_that_a_recurrent_layer_ignores_are_refused():
    """T262."""
    layer = gluon.rnn.LSTM(4, input_size=3, use_sequence_length=True)
    net = ready(plain_net(lambda net, x, state, lengths: net.layer(x, [state, state], lengths)[0], layer=layer))
    data = [((mx.nd.ones((6, 6, 3)), mx.nd.zeros((1, 6, 4)).reshape((6, 1, 4)), mx.nd.ones(6)), mx.nd.zeros((6, 6)))]
    for call in (partial(train, loss="l2"), partial(mxkit.evaluate, loss="l2"), mxkit.predict):
        with pytest.raises(ValueError, match="use_sequence_length.*T262"):
            call(net, data)


def test_limits_of_states_that_a_recurrent_layer_ignores_are_refused():
    """T296."""
    net = ready(gluon.rnn.LSTM(4, layout="NTC", state_clip_max=0.01), sample=np.ones((6, 6, 3), "float32"))
    for call in (partial(train, loss="l2"), partial(mxkit.evaluate, loss="l2"), mxkit.predict):
        with pytest.raises(ValueError, match="state_clip_max.*T296"):
            call(net, [(mx.nd.ones((6, 6, 3)), mx.nd.zeros((6, 6, 4)))])


def drain():
    """Errors of the engine that nobody read would surface in another test (T43)."""
    for _ in range(10):
        with contextlib.suppress(mx.MXNetError):
            mx.nd.waitall()


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("devices", ["cpu", "cpu:2"])
def test_an_error_inside_a_custom_gradient_shows_its_cause(hybridize, devices, capfd):
    custom = mxkit.gradients.CustomGradient(lambda x: x * 1, lambda dy, x, y: {}["my own text"])
    net = ready(nn.Dense(3, in_units=FEATURES), custom, devices=devices)
    net.hybridize(hybridize)
    with pytest.raises(TrainingError, match=r"update \d.*KeyError: 'my own text' \(in a custom gradient") as caught:
        train(net, make_batches([4] * 3))
    assert isinstance(caught.value.__cause__, KeyError)
    drain()
    if devices == "cpu":  # an error that nobody asked about is no cause of what fails later
        with mx.autograd.record():
            loss = net(mx.nd.ones((4, FEATURES)))
        loss.backward()
        with pytest.raises(mx.MXNetError):
            net[0].weight.grad().wait_to_read()
        drain()
    with pytest.raises(TrainingError, match="built for 5 inputs") as caught:
        train(make_net(), make_batches([4]) + [(mx.nd.ones((4, FEATURES + 1)), mx.nd.zeros(4))])
    assert "my own text" not in str(caught.value)
    capfd.readouterr()


def test_an_optimizer_object_of_an_earlier_training():
    """T244."""
    optimizer = mx.optimizer.Adam()
    train(make_net(), make_batches([4, 4]), trainer=optimizer)
    with pytest.warns(TrapWarning, match=r"Adam has made 2 updates with another Trainer, .*\('adam', \{\.\.\.\}\)"):
        train(make_net(), make_batches([4]), trainer=optimizer)


def test_classes_on_axis_1_or_on_the_last():
    """T124."""
    images, labels = np.random.rand(2, 6, 6, 6).astype("float32"), np.zeros((2, 6, 6), "int32")
    net = ready(nn.Conv2D(6, 1))
    for loss in ("softmax_ce", "focal", ("softmax_ce", {"class_weight": [1] * 6})):
        for size in (6, 5):
            with pytest.raises(DataError, match=r"may have their classes on axis 1, .* or on axis 3.*{'axis': 1}"):
                mxkit.evaluate(net, [(images[..., :size], labels[..., :size])], loss=loss)
    by_channel = mxkit.evaluate(net, [(images, labels)], loss=("softmax_ce", {"axis": 1}), metrics=["accuracy"])
    read = mxkit.predict(net, images).asnumpy().argmax(axis=1)
    assert by_channel["accuracy"] == pytest.approx((read == 0).mean())


def test_padding_of_weight_0_may_have_any_label():
    """T10."""
    labels = np.array([[0, 1, 255], [2, 255, 255]])
    kept = (labels != 255).astype("float32")
    net = ready(nn.Dense(3, flatten=False))
    x = np.random.rand(2, 3, 4).astype("float32")
    metrics = [("accuracy", {"ignore_label": 255})]
    found = mxkit.evaluate(net, [(x, (labels, kept))], loss="softmax_ce", metrics=metrics)
    with pytest.raises(LabelError, match="received 255 in 1 of"):
        mxkit.evaluate(net, [(x, (labels, np.ones_like(kept) * [1, 1, 0]))], loss="softmax_ce")
    read = mxkit.predict(net, x).asnumpy()
    shares = np.log(np.exp(read) / np.exp(read).sum(axis=-1, keepdims=True))
    expected = -sum(shares[i, j, labels[i, j]] for i in range(2) for j in range(3) if kept[i, j]) / 6
    assert found["loss"] == pytest.approx(expected, rel=1e-5)
    assert found["accuracy"] == pytest.approx((read.argmax(-1) == labels)[kept > 0].mean())


def test_two_losses_of_a_forward_loss_are_no_loss_and_output():
    def two(net, inputs, labels):
        return SOFTMAX(net(*inputs), labels[0]), SOFTMAX(net(*inputs), labels[0])

    text = r"the forward of BatchLoss returned two arrays of shape \(4,\).*return their sum"
    with pytest.warns(TrapWarning, match=text):
        train(make_net(), make_batches([4]), loss=mxkit.losses.BatchLoss(forward=two))


@pytest.mark.usefixtures("switched")
def test_tokens_of_uint8():
    """T181."""
    net = ready(nn.Embedding(9, 4), nn.Dense(2))
    tokens = np.random.RandomState(0).randint(0, 9, (12, 5)).astype("uint8")
    train = mxkit.data.ArrayLoader(tokens, np.arange(12) % 2, batch_size=4, scale=1 / 255)
    whole = mxkit.data.ArrayLoader(tokens, np.arange(12) % 2, batch_size=4)
    with pytest.warns(TrapWarning, match=r"^0 .* hold fractions, .* \(T181\)"):
        fit(net, train)
    with pytest.warns(TrapWarning, match="hold fractions"):
        mxkit.predict(net, mxkit.data.ArrayLoader(tokens, None, 4, scale=1 / 255))
    fit(net, whole)  # warnings are errors here
    found = mxkit.predict(net, tokens).asnumpy()
    np.testing.assert_array_equal(found, mxkit.predict(net, tokens.astype("int32")).asnumpy())


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize("wrong", [-1, 9])
def test_tokens_outside_an_embedding_are_refused(wrong, hybridize):
    """T263."""
    net = ready(nn.Embedding(9, 4), nn.Dense(2))
    net.hybridize(hybridize)
    good, y = np.arange(8, dtype="int32").reshape(8, 1), np.zeros(8)
    bad = np.where(good == 6, wrong, good)  # in the second batch
    fit(net, mxkit.data.ArrayLoader(good, y, batch_size=4))
    extract = lambda net, data: mxkit.extract(net, ["0"], data)  # noqa: E731
    for call in (fit, partial(mxkit.evaluate, loss="softmax_ce"), mxkit.predict, extract):
        with pytest.raises(mxkit.errors.MxkitError, match=f"0 .Embedding. has 9 rows.* received {wrong},.*T263"):
            call(net, mxkit.data.ArrayLoader(bad, y, batch_size=4))


@pytest.mark.parametrize(("shift", "refused"), [(0, True), (1, True), (-20, False)])
def test_tokens_are_those_that_reach_the_embedding(shift, refused):
    """T263."""
    calls = []

    def forward(net, x, tokens):
        words = net.words(tokens + shift if shift else tokens)
        calls.append(1)
        return net.dense(words) + x

    net = ready(plain_net(forward, words=nn.Embedding(9, 4), dense=nn.Dense(2)))
    tokens = np.full((4, 3), 8 - min(shift, 0) + refused)
    data = [((np.full((4, 2), 99, "float32"), tokens), np.zeros(4))]
    if refused:
        for call in (partial(mxkit.evaluate, loss="softmax_ce"), lambda net, data: mxkit.extract(net, ["dense"], data)):
            with pytest.raises(DataError, match=f"words .*received {9 + shift}, .*T263"):
                call(net, data)
    else:
        mxkit.evaluate(net, data, loss="softmax_ce")
        assert len(calls) == 1  # a forward pass for the check ends after the Embedding


@pytest.mark.parametrize("kind", ["graph", "part of a graph", "code", "own forward"])
def test_tokens_are_checked_without_another_forward_pass(kind):
    """T263: an own forward pass would draw random numbers, and count calls, that the training does not have."""
    calls = []

    class Twice(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.words, self.dense = nn.Embedding(9, 4), nn.Dense(2, in_units=12)

        def hybrid_forward(self, F, x, y):  # noqa: N803
            kept = F.random.uniform(shape=(1, 3)) > 0.3
            words = self.words(F.broadcast_mul(x, kept)) + self.words(y) + self.words(y + 1)
            return self.dense(words)

    def forward(net, inputs, labels):
        calls.append(inputs[0].shape[0])
        return gluon.loss.SoftmaxCELoss()(net(*inputs), *labels)

    net = Twice()
    mxkit.initialize(net)
    whole = net if kind != "part of a graph" else plain_net(lambda net, *given: net.inner(*given), inner=net)
    net.hybridize(kind in ("graph", "part of a graph"))
    loss = mxkit.losses.BatchLoss(forward=forward) if kind == "own forward" else "softmax_ce"
    x = np.arange(24).reshape(8, 3) % 9
    drawn = []
    for good in (x % 8, None):  # `y + 1` of 8 has no row
        mx.random.seed(3)
        y = x if good is None else good
        batches = [((x[k : k + 4].astype("float32"), y[k : k + 4]), np.zeros(4)) for k in (0, 4)]
        if good is None:
            with pytest.raises(DataError, match="words .*has 9 rows.* received 9, .*T263"):
                list(mxkit.updates(whole, batches, loss=loss, trainer="sgd"))
        else:
            assert len(list(mxkit.updates(whole, batches, loss=loss, trainer="sgd"))) == 2
            drawn.append(mx.nd.random.uniform().asscalar())
    mx.random.seed(3)
    for _ in range(2):
        mx.nd.random.uniform(shape=(1, 3))
    assert drawn == [mx.nd.random.uniform().asscalar()]
    assert calls == ([4, 4, 4] if kind == "own forward" else [])


@pytest.mark.parametrize(
    "make",
    [
        lambda x, y: mxkit.data.ArrayLoader(x, y, batch_size=5),
        lambda x, y: in_batches(x, y, 5),
        lambda x, y: lambda: iter(in_batches(x, y, 5)),  # cannot be read again: only the newest batch is known
    ],
)
def test_nan_in_the_data_is_named_by_batch_and_row(make):
    x, y = np.random.RandomState(0).rand(20, FEATURES).astype("float32"), np.arange(20) % CLASSES
    x[[13, 14], 1] = float("nan")  # rows 3 and 4 of batch 3
    where = r"The inputs of batch 3 hold NaN or infinity in row 3 \(from 0\) and 1 more: repair the data"
    lower, again = "Lower the learning rate, set clip_norm, or search the data for NaN", not callable(make(x, y))
    for arguments, update, known in (({}, 3, again), ({"limit_batches": 3}, 3, True), ({"accumulate": 2}, 2, again)):
        text = where if known else lower
        with pytest.raises(NonFiniteError, match=rf"^epoch 1, update {update}: .*there on\. {text}; check_finite="):
            fit(make_net(), make(x, y), **arguments)


def test_nan_in_the_data_is_found_in_the_order_of_the_epoch():
    x, y = np.random.RandomState(0).rand(20, FEATURES).astype("float32"), np.random.RandomState(1).rand(20, 1)
    net = ready(nn.Dense(1, in_units=FEATURES))
    wrong = in_batches(x, np.where(np.arange(20)[:, None] == 16, np.nan, y), 5)
    with pytest.raises(NonFiniteError, match=r"update 4: .* The labels of batch 4 hold NaN or infinity in row 1 \("):
        fit(net, wrong, loss="l2")
    net.initialize(force_reinit=True)
    x[7, 2] = float("inf")
    loader = mxkit.data.ArrayLoader(x, y, batch_size=5, shuffle=True, seed=2)
    batch, row = divmod([bool(np.isinf(one).any()) for part, _ in loader for one in part.asnumpy()].index(True), 5)
    text = rf"^epoch 1, update {batch + 1}: .* The inputs of batch {batch + 1} hold NaN or infinity in row {row} \("
    with pytest.raises(NonFiniteError, match=text):
        fit(net, loader, loss="l2")
