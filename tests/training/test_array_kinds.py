"""Nets of mx.np train like nets of mx.nd: the same bits, under `npx.set_np()` and without it."""

from built_nets import ready, stack
import mxkit
from mxkit.core.arrays import switches
from mxnet import gluon, init, npx
from mxnet.gluon import nn
from mxnet.util import is_np_array, is_np_shape
import numpy as np
from oracle import fit
import pytest
from sharing import Kind, needs_bfloat16


def _data():
    random = np.random.default_rng(0)
    x = random.normal(size=(50, 5)).astype("float32")
    return x, (x.sum(axis=1) > 0).astype("int32") + (x[:, 0] > 1)


def _net(devices):
    net = stack(nn.Dense(16, activation="relu", in_units=5), nn.BatchNorm(in_channels=16), nn.Dropout(0.3), nn.Dense(3))
    net[3].weight.shape = (3, 16)
    net.initialize(init.Xavier(), ctx=mxkit.devices(devices))
    return net


def _trained(kind, devices, hybridized, switch):
    mxkit.seed_all(1)
    x, y = _data()
    net = kind.net(lambda: _net(devices))
    if hybridized:
        net.hybridize()
    loader = mxkit.data.ArrayLoader(x, y, batch_size=8, shuffle=True, seed=1)
    with switches(switch):
        options = {"accumulate": 2, "clip_norm": 1.0, "metrics": ["accuracy"], "seed": 5}
        history = fit(net, loader, trainer=("adam", {"learning_rate": 0.01}), epochs=2, **options)
        scores = mxkit.evaluate(net, (x, y), loss="softmax_ce", metrics=["accuracy", "f1"])
        outputs = mxkit.predict(net, x)
    assert kind.holds(outputs)
    values = [array.asnumpy() for one in net.collect_params().values() for array in one.list_data()]
    row = {name: value for name, value in history[-1].items() if "second" not in name}
    return [*values, outputs.asnumpy()], [row, scores]


@pytest.mark.filterwarnings("ignore::mxkit.errors.TrapWarning")
@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("devices", ["cpu:1", "cpu:2"])
def test_both_kinds_end_with_the_same_bits(devices, hybridized):
    arrays, numbers = _trained(Kind(False), devices, hybridized, False)
    for numpy, switch in ((False, True), (True, False), (True, True)):
        other, other_numbers = _trained(Kind(numpy), devices, hybridized, switch)
        assert other_numbers == numbers
        np.testing.assert_equal(list(other), list(arrays))


def test_a_net_of_both_kinds_is_refused():
    net = stack(ready(nn.Dense(2, in_units=2)))
    with switches(True):
        net.add(ready(nn.Dense(2, in_units=2)))
    with pytest.raises(ValueError, match=r"two kinds of parameters: '1\.weight' holds arrays of mx\.np, '0\.weight'"):
        mxkit.predict(net, np.zeros((1, 2), "float32"))


def _updated(kind, change):
    """Weights after an epoch in which `change` is called between two updates, by a Trainer of the other switch."""
    x, y = _data()
    mxkit.seed_all(1)
    net = kind.net(lambda: _net("cpu:2"))
    with switches(not kind.numpy):
        trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01}, update_on_kvstore=False)
    before = is_np_array(), is_np_shape()
    stream = mxkit.updates(net, [(x, y)] * 3, loss="softmax_ce", trainer=trainer, accumulate=2, clip_norm=1.0, seed=1)
    for _ in stream:
        assert (is_np_array(), is_np_shape()) == before
        change()
        before = is_np_array(), is_np_shape()
    return [array.asnumpy() for one in net.collect_params().values() for array in one.list_data()]


@pytest.mark.filterwarnings("ignore::mxkit.errors.TrapWarning")
def test_who_takes_updates_may_change_the_switches(kind):
    expected = _updated(Kind(False), lambda: None)
    try:
        for change in (lambda: None, npx.set_np, npx.reset_np):
            np.testing.assert_equal(list(_updated(kind, change)), list(expected))
    finally:
        npx.reset_np()


@pytest.mark.parametrize("switch", [False, True])
def test_what_is_the_users_runs_under_the_switches_of_the_net(kind, switch):
    seen = []

    def note(*values):
        seen.append((is_np_array(), is_np_shape(), *map(kind.holds, values)))

    def loss(output, label):
        note(output, label)
        return (output.sum(axis=1) - label) ** 2

    def forward(net, inputs, labels):
        note(*inputs, *labels)
        return loss(net(*inputs), *labels)

    x, y = _data()
    net = kind.net(lambda: _net("cpu:1"))
    hooks = []
    callback = mxkit.callbacks.LambdaCallback(on_update=lambda *_: hooks.append((is_np_array(), is_np_shape())))
    for given in (loss, mxkit.losses.BatchLoss(forward=forward)):
        with switches(switch):
            valid = [(x[:9], y[:9] * 1.0)]
            fit(net, [(x, y.astype("float32"))], loss=given, valid=valid, callbacks=[callback])
    assert len(seen) == 9  # a batch of valid is checked first, and `forward` calls `loss`
    assert {values[0] for values in seen} == {kind.numpy}
    assert all(all(values[2:]) for values in seen)
    assert hooks == [(switch, switch)] * 2


class _Zeros(init.Initializer):
    def _init_weight(self, name, array):
        array[()] = 0  # MXNet's own write `array[:]`, which an array without axes refuses


class _Scaled(gluon.HybridBlock):
    def __init__(self, shape):
        super().__init__()
        with self.name_scope():
            self.dense = nn.Dense(1, in_units=5)
            self.scale = self.params.get("scale", shape=shape, init=_Zeros())

    def hybrid_forward(self, F, x, scale):
        return self.dense(x) * (scale + 1)


CLIPPED = {"accumulate": 2, "clip_norm": 0.1, "clip_value": 0.01}


@pytest.mark.parametrize("switch", [False, True])
@pytest.mark.parametrize("options", [CLIPPED, pytest.param({"amp": "bfloat16"}, marks=needs_bfloat16), {}])
def test_a_parameter_without_axes_trains_like_one_of_shape_1(options, switch, tmp_path):
    x, y = _data()
    ends = []
    for shape in ((), (1,)):
        mxkit.seed_all(1)
        with switches(True):
            net = _Scaled(shape)
            net.initialize(ctx=mxkit.devices("cpu:2"))
        with switches(switch):
            ema = mxkit.callbacks.EMA(0.5)
            stopper = mxkit.callbacks.EarlyStopping("train_loss", "min", patience=9, restore_best=True)
            how = {"loss": "l2", "trainer": "adam", "epochs": 3, "callbacks": [ema, stopper], "seed": 1, **options}
            data, folder = [(x[:49], x[:49, :1] * 2), (x[49:], x[49:, :1] * 2)], tmp_path / f"{len(shape)}"
            fit(net, data, valid=[(x, x[:, :1])], checkpoint=folder, **how)
            assert net.scale.shape == shape
            with switches(True):
                net.scale.grad_req = "add"
            mxkit.find_learning_rate(net, [(x, x[:, :1])], loss="l2", trainer="sgd", updates=10)
        arrays = [one.list_data() for one in net.collect_params().values()]
        with ema.applied(net):
            ends.append([array.asnumpy().ravel() for replicas in arrays for array in replicas])
    for one, two in zip(*ends):
        np.testing.assert_array_equal(one, two)
