"""A run that goes on with other settings of the net says which; what a run changes itself is no such setting."""

from built_nets import hybrid_net, ready
from callback_runs import Killed
import mxkit
from mxkit.errors import CheckpointWarning
from mxkit.training import resume
from mxkit.training.net_settings import differences_of, from_json, net_settings, to_json
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np
from oracle import fit, weights
import pytest

DRAWS = np.random.RandomState(0)
X, Y = DRAWS.randn(48, 5).astype("float32"), DRAWS.randint(0, 3, 48)


def make_net(rate=0.2, activation="relu"):
    mxkit.seed_all(0)
    return ready(nn.Dense(4, in_units=5, activation=activation), nn.Dropout(rate), nn.Dense(3, in_units=4))


def train(directory, net, epochs, **arguments):
    loader = mxkit.data.ArrayLoader(X, Y, batch_size=16, shuffle=True, seed=0)
    how = {"trainer": ("sgd", {"learning_rate": 0.1, "momentum": 0.9}), "seed": 0, "resume": "auto"}
    fit(net, loader, epochs=epochs, checkpoint=directory, **{**how, **arguments})
    return weights(net)


def with_multipliers(**multipliers):
    net = make_net()
    mxkit.nets.set_multipliers(net, {"0.*": multipliers})
    return net


def frozen():
    net = make_net()
    mxkit.freeze(net, "0.*")
    return net


OTHERS = {
    "dropout": (lambda: make_net(rate=0.6), "1: Dropout rate was 0.2, is 0.6"),
    "activation": (lambda: make_net(activation="tanh"), "0.act: Activation act_type was 'relu', is 'tanh'"),
    "lr_mult": (lambda: with_multipliers(lr=0.01), "0.weight: lr_mult was 1.0, is 0.01; 0.bias: lr_mult was"),
    "wd_mult": (lambda: with_multipliers(wd=0.0), "0.weight: wd_mult was 1.0, is 0.0; 0.bias: wd_mult was"),
    "frozen": (frozen, "0.weight: grad_req was 'write', is 'null'; 0.bias: grad_req was"),
}


@pytest.mark.parametrize("name", ["same", *OTHERS])
def test_a_net_with_other_settings_is_told_once(name, tmp_path):
    expected = train(tmp_path / "whole", make_net(), 4)
    train(tmp_path / "stopped", make_net(), 2)
    if name == "same":
        assert (train(tmp_path / "stopped", make_net(), 4) == expected).all()
        return
    make, text = OTHERS[name]
    with pytest.warns(CheckpointWarning, match=f"cannot be bit-equal to an uninterrupted run: {text}") as told:
        train(tmp_path / "stopped", make(), 4)
    assert len(told) == 1
    train(tmp_path / "stopped", make(), 5)  # the run has these settings now


@pytest.mark.parametrize("again", ["a new net", "the same net"])
@pytest.mark.parametrize("begins_frozen", [True, False])
def test_what_a_callback_changes_is_not_told(again, begins_frozen, tmp_path):
    class Rate(mxkit.Callback):
        """Sets a layer as a schedule does."""

        def on_epoch(self, state, row):
            state.net[1]._rate = 0.2 + 0.1 * row["epoch"]

        def on_fit_begin(self, state):
            state.net[1]._rate = 0.1 + 0.1 * state.epoch

    def callbacks():
        return [mxkit.callbacks.Freeze("0.*", until="2 epochs", lr=0.25), Rate()]

    def make():
        return frozen() if begins_frozen else make_net()

    expected = train(tmp_path / "whole", make(), 6, callbacks=callbacks())
    net = make()
    for epochs in (1, 3, 4, 6):
        net = net if again == "the same net" else make()
        found = train(tmp_path / "stopped", net, epochs, callbacks=callbacks())
    assert (found == expected).all()
    # a net of a new process, after parts of the run with a net that it had changed before
    train(tmp_path / "stopped", make(), 7, callbacks=callbacks())


@pytest.mark.filterwarnings("ignore:accumulated micro-batches")
def test_a_window_of_several_batches_is_no_other_grad_req(tmp_path):
    def die(state, update):
        if update.step == 32:
            raise Killed

    def go_on(**arguments):
        loader = mxkit.data.ArrayLoader(np.tile(X, (8, 1)), np.tile(Y, 8), batch_size=8)
        checkpoint = mxkit.Checkpoints(tmp_path, every="16 updates")
        fit(make_net(), loader, accumulate=2, checkpoint=checkpoint, seed=0, resume="auto", epochs=2, **arguments)

    with pytest.raises(Killed):
        go_on(callbacks=[mxkit.callbacks.LambdaCallback(on_update=die)])
    assert (tmp_path / "step-00000016").exists()
    go_on()


def test_a_checkpoint_without_settings_of_the_net_says_nothing_of_them(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(resume, "_about_net", lambda state: {})
        train(tmp_path, make_net(), 2)
    train(tmp_path, make_net(rate=0.6), 4)
    with pytest.warns(CheckpointWarning, match="1: Dropout rate was 0.6, is 0.2"):
        train(tmp_path, make_net(), 5)


def own(scale=2.0, mode="sum", **children):
    """A block of a class that nobody described, with all that must not be compared."""

    def forward(net, F, x):
        net.calls += 1
        net.asked = True
        return net.body(x) * net.scale

    net = hybrid_net(forward, **{"body": nn.Conv2D(2, 3, in_channels=2), **children})
    net.scale, net.mode, net.calls, net.asked, net.address, net.label = scale, mode, 0, False, id(net), net.prefix
    net.words, net.nothing = dict.fromkeys("abc", 1), None
    return net


@pytest.mark.parametrize(
    ("make", "other", "lines"),
    [
        (own, lambda: own(scale=3.0), ["the net: scale was 2.0, is 3.0"]),
        (own, lambda: own(mode="max"), ["the net: mode was 'sum', is 'max'"]),
        (own, lambda: own(body=nn.Conv2D(2, 3, strides=2)), ["body: Conv2D stride was [1, 1], is [2, 2]"]),
        (own, lambda: own(body=nn.Conv2D(2, 3)), []),  # its size is not known before the first batch
        (lambda: own(end=nn.Flatten()), lambda: own(end=nn.Swish()), ["end was Flatten, is Swish"]),
        (own, lambda: own(end=nn.Flatten()), ["end is Flatten, which the net did not have"]),
        (lambda: own(end=nn.Flatten()), own, ["end was Flatten, is no longer in the net"]),
        (
            lambda: ready(*[nn.Dropout(0.1) for _ in range(5)]),
            lambda: ready(*[nn.Dropout(0.2) for _ in range(5)]),
            [
                *(f"{number}: Dropout rate was 0.1, is 0.2" for number in range(3)),
                "and 2 more such differences of the net",
            ],
        ),
    ],
)
def test_settings_that_differ(make, other, lines):
    stored = from_json(to_json(net_settings(make())))
    assert stored == net_settings(make()) == from_json(to_json(stored))
    assert differences_of(stored, net_settings(other())) == lines


def test_what_a_layer_of_a_user_counts_is_not_told(tmp_path):
    def make():
        return ready(own(), nn.Dense(3, in_units=2 * 2 * 2))

    loader = mxkit.data.ArrayLoader(DRAWS.randn(48, 2, 4, 4).astype("float32"), Y, batch_size=16)
    for epochs in (1, 2, 3):
        fit(make(), loader, epochs=epochs, checkpoint=tmp_path, resume="auto")


def test_graphs_are_compared_without_their_names():
    def graph(rate):
        data = mx.sym.var("data", dtype="float32")
        return gluon.SymbolBlock(mx.sym.Dropout(data, p=rate), data)

    first, again, other = (net_settings(graph(rate)) for rate in (0.1, 0.1, 0.2))
    assert first == again
    (line,) = differences_of(first, other)
    assert line.startswith("the net: SymbolBlock digest of the graph was")
