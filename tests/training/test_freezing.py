"""`finetune`, then `Freeze`: what is trained when, on one device and on two, and after a death at any update."""

from built_nets import hybrid_net, ready, stack
from callback_runs import Failing, Killed, fail, norm_net, run
import mxkit
from mxkit.training.callbacks import Freeze, LambdaCallback
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np
import oracle
from oracle import make_net, requests, same, values
import pytest
from sharing import needs_bfloat16, pairs

X = np.random.RandomState(0).rand(24, 3, 6, 6).astype("float32")
Y = np.arange(24) % 3
FEATURES = ["features.0.weight", "features.0.bias", "features.1.gamma", "features.1.beta"]
HEAD = ["output.weight", "output.bias"]


def tuned(devices="cpu", hybridize=False):
    """A net whose features `finetune` froze, the same for every call."""
    mxkit.seed_all(4)
    layers = nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Flatten(), nn.Dropout(0.5)
    parts = {"features": stack(*layers), "output": nn.Dense(5)}
    net = hybrid_net(lambda net, F, x: net.output(net.features(x)), **parts)
    base = ready(net, devices=devices, sample=X.shape)
    if hybridize:
        base.hybridize(static_alloc=True, static_shape=True)
    return mxkit.finetune(base, 3)


def loader():
    return mxkit.data.ArrayLoader(X, Y, 4, shuffle=True, seed=2)


class Looks(mxkit.Callback):
    """Keeps what each update of each epoch moved, and ends the run after one of them."""

    def __init__(self, dies=None):
        self.dies, self.moved, self.before = dies, {}, {}

    def on_fit_begin(self, state):
        self.before = values(state.net)

    def on_update(self, state, update):
        now = values(state.net)
        moved = {path for path, device in now if (now[path, device] != self.before[path, device]).any()}
        self.moved.setdefault(state.epoch, set()).update(moved)
        self.before = now
        if update.step == self.dies:
            raise Killed


def fit(net, *callbacks, optimizer=("sgd", {"learning_rate": 0.1, "momentum": 0.9}), on_kvstore=None, **changes):
    trainer = gluon.Trainer(net.collect_params(), *optimizer, update_on_kvstore=on_kvstore)
    return oracle.fit(net, loader(), callbacks=callbacks, **{"trainer": trainer, "epochs": 4, "seed": 6, **changes})


SETTINGS = [("cpu", None), ("cpu:2", True), ("cpu:2", False)]


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize(("devices", "on_kvstore", "hybridize"), [("cpu", None, False), ("cpu:2", True, True)])
def test_only_the_head_learns_before_the_epoch_and_all_of_it_from_there(devices, on_kvstore, hybridize):
    net, look = tuned(devices, hybridize), Looks()
    statistics = net.features[1].running_mean.list_data()[0].asnumpy()
    fit(net, Freeze(until="2 epochs"), look, on_kvstore=on_kvstore)
    assert look.moved == {1: set(HEAD), 2: set(HEAD), 3: {*FEATURES, *HEAD}, 4: {*FEATURES, *HEAD}}
    asked = requests(net)
    assert all(asked[path] == "write" for path in FEATURES + HEAD)
    assert asked["features.1.running_mean"] == asked["features.1.running_var"] == "null"
    for parameter in mxkit.parameters(net).values():
        first, *others = [one.asnumpy() for one in parameter.list_data()]
        assert all((first == other).all() for other in others)
    np.testing.assert_array_equal(net.features[1].running_mean.list_data()[0].asnumpy(), statistics)


@pytest.mark.parametrize(
    ("devices", "on_kvstore", "accumulate"), [("cpu", None, 2), ("cpu:2", True, 1), ("cpu:2", False, 2)]
)
@pytest.mark.filterwarnings("ignore:accumulated micro-batches")
def test_it_equals_two_runs_with_unfreeze_between_them(devices, on_kvstore, accumulate):
    ends = []
    for by_hand in (False, True):
        net = tuned(devices, hybridize=True)
        trainer = gluon.Trainer(net.collect_params(), "adam", update_on_kvstore=on_kvstore)
        if by_hand:
            how = {"trainer": trainer, "accumulate": accumulate, "seed": 6}
            for epoch in range(4):
                if epoch == 2:
                    mxkit.unfreeze(net, "features.*")
                    mxkit.nets.set_multipliers(net, {"features.*": {"lr": 0.5}})
                where = {"epoch": epoch, "first_step": 1 + 100 * epoch}
                assert list(mxkit.updates(net, loader(), loss="softmax_ce", **where, **how))
        else:
            fit(net, Freeze(until="2 epochs", lr=0.5), trainer=trainer, accumulate=accumulate)
        ends.append(values(net))
    assert same(*ends)


@pytest.mark.parametrize(
    ("setting", "optimizer"), pairs(SETTINGS, [("sgd", {"learning_rate": 0.1, "momentum": 0.9}), ("adam", {})])
)
def test_a_run_killed_before_at_and_after_the_epoch_ends_with_the_same_bits(tmp_path, setting, optimizer):
    devices, on_kvstore = setting

    def run(folder, dies=None):
        net = tuned(devices, hybridize=True)
        callbacks = [Freeze("features.*", until="2 epochs", lr=0.25), mxkit.callbacks.EMA(0.9), Looks(dies)]
        how = {"optimizer": optimizer, "on_kvstore": on_kvstore, "resume": "auto", "checkpoint": tmp_path / folder}
        fit(net, *callbacks, **how)
        return net

    whole = run("whole")
    for dies in (5, 12, 13):  # six updates an epoch
        with pytest.raises(Killed):
            run("killed", dies)
    resumed = run("killed")
    assert same(values(resumed), values(whole))
    assert requests(resumed) == requests(whole)
    assert resumed.features[0].weight.lr_mult == 0.25


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize("until", ["1 epoch", "7 updates"])  # the seventh is in the second epoch, and that one counts
def test_a_run_killed_inside_the_epoch_goes_on_from_there(tmp_path, until):
    def run(folder, dies=None):
        net, look = tuned(), Looks(dies)
        net.features[4]._rate = 0.0  # so that a run can go on after any update
        checkpoints = mxkit.Checkpoints(tmp_path / folder, every="4 updates")
        fit(net, Freeze(until=until, lr=0.25), look, resume="auto", checkpoint=checkpoints)
        return net, look

    whole, _ = run("whole")
    with pytest.raises(Killed):
        run("killed", 9)
    resumed, look = run("killed")
    assert min(look.moved) == 2
    assert same(values(resumed), values(whole))


@pytest.mark.parametrize("mixed", [{}, pytest.param({"amp": "bfloat16"}, marks=needs_bfloat16)])
def test_multipliers(mixed):
    net = tuned()
    fit(net, Freeze("features.0.*", until="1 epoch", lr=0.0), epochs=2, **mixed)
    assert net.features[0].weight.lr_mult == net.features[0].bias.lr_mult == 0
    assert net.output.weight.lr_mult == 10
    assert requests(net)["features.1.gamma"] == "null"
    net = tuned()
    fit(net, Freeze(until="1 epoch"), epochs=2, **mixed)
    assert net.features[0].weight.lr_mult == 1


# parameters that were trained before


@pytest.mark.parametrize("hook", ["on_fit_begin", "on_epoch"])
def test_freeze_restores_after_an_error_and_leaves_the_frozen_alone(hook):
    net = norm_net("cpu")
    net[2].collect_params().setattr("grad_req", "null")
    before, seen = requests(net), {}
    look = LambdaCallback(on_update=lambda state, update: seen.update(requests(net)))
    with pytest.raises(Failing):
        run(net, Freeze("[02].*", until="4 epochs"), look, LambdaCallback(**{hook: fail}))
    if seen:
        assert (seen["0.weight"], seen["0.bias"], seen["1.gamma"]) == ("null", "null", "write")
    assert requests(net) == before
    assert before["2.weight"] == before["1.running_mean"] == "null"


def test_a_number_of_updates_ends_with_its_epoch():
    net, seen = make_net(), []
    look = LambdaCallback(on_update=lambda *_: seen.append(requests(net)["0.weight"] == "null"))
    run(net, Freeze("0.*", until="5 updates"), look)
    assert seen == [True] * 6 + [False] * 3
    assert set(requests(net).values()) == {"write"}


@pytest.mark.parametrize("hybridize", [False, True])
def test_the_callback_leaves_statistics_as_freeze_and_unfreeze_do(hybridize):
    """T265."""

    def trained(by_callback):
        net = tuned(hybridize=hybridize)
        mxkit.unfreeze(net)
        net.features[1]._kwargs["use_global_stats"] = False  # as if it had never been frozen
        callback = Freeze("features.*", until="1 epoch")
        if not by_callback:
            mxkit.freeze(net, "features.*")
            callback = LambdaCallback(on_epoch=lambda state, row: mxkit.unfreeze(net, "features.*"))
        fit(net, callback, epochs=2)
        return values(net)

    found = trained(True)
    assert same(found, trained(False))
    start = values(tuned(hybridize=hybridize))
    for path in ("features.1.running_mean", "features.1.running_var"):
        np.testing.assert_array_equal(found[path, mx.cpu()], start[path, mx.cpu()])


def test_freezing_between_epochs_keeps_the_state_of_an_optimizer_on_a_kvstore():
    def trained(on_kvstore):
        net = tuned("cpu:2")
        mxkit.unfreeze(net)
        freezes = LambdaCallback(on_epoch=lambda state, row: mxkit.freeze(state.net, "features.*"))
        fit(net, freezes, optimizer=("adam", {}), on_kvstore=on_kvstore, epochs=2)
        return values(net)

    assert same(trained(True), trained(False))
