"""Net, loss and metrics in one graph, and static graphs (T109): the same bits as separate calls in each case."""

import subprocess
import sys

from built_nets import hybrid_net, ready, stack
import mxkit
from mxkit.core.arrays import switches
from mxkit.errors import TrainingError, TrapWarning
from mxkit.training.one_graph import OneGraph
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn
import numpy as np
import oracle
from oracle import (
    OPTIMIZERS,
    SOFTMAX,
    STATIC,
    array,
    convolutions,
    make_batches,
    make_net,
    recorded,
    train_by_hand,
    weights,
)
import pytest
from sharing import needs_bfloat16, pairs

SGD = OPTIMIZERS[1]


@pytest.fixture
def taken(monkeypatch):
    """For each batch, whether it was computed in one graph."""
    seen = []
    compute = OneGraph._in_graph

    def watched(graph, shard, kind):
        found = compute(graph, shard, kind)
        seen.append(found is not None)
        return found

    monkeypatch.setattr(OneGraph, "_in_graph", watched)
    return seen


def images(sizes, seed=0):
    random = np.random.RandomState(seed)
    return [(array(random.rand(n, 1, 12, 12)), array(random.randint(0, 3, n), dtype="int32")) for n in sizes]


def fit(net, batches, **settings):
    return oracle.fit(net, batches, **{"trainer": SGD, **settings})


def same_both_ways(taken, count, make=make_net, batches=None, change=None, **settings):
    """A training ends with the same weights without graphs and with graphs, which compute `count` batches.

    `change(net, step, hybridize)` is called after each update.
    """
    ends = []
    for hybridize in (False, True):
        net = make(hybridize=hybridize)
        how = {name: value(hybridize) if name == "loss" else value for name, value in settings.items()}
        if change is not None:
            how["callbacks"] = [on_update(lambda state, update, net=net, to=hybridize: change(net, update.step, to))]
        fit(net, batches or make_batches([8] * 5), **how)
        ends.append(weights(net))
        assert hybridize or not any(taken)
    np.testing.assert_array_equal(*ends)
    assert sum(taken) == count


def hybridized(net):
    net.initialize()
    net.hybridize()
    return net


def on_update(function):
    return mxkit.callbacks.LambdaCallback(on_update=function)


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize(("flags", "optimizer"), [({}, SGD), (STATIC, OPTIMIZERS[2])], ids=["momentum", "static adam"])
def test_bits_equal_a_gluon_loop_with_batch_norm_and_dropout(taken, flags, optimizer):
    batches = images([8, 8, 8, 8, 3])
    expected, net = convolutions(flags), convolutions(flags)
    mx.random.seed(11)
    seen = []
    train_by_hand(expected, batches, optimizer, epochs=2, note=lambda *both: seen.append([x.asnumpy() for x in both]))
    outputs, losses = zip(*seen)
    mx.random.seed(11)
    read = []
    reader = on_update(lambda state, update: read.append(update.loss))
    found = fit(net, batches, trainer=optimizer, epochs=2, metrics=["accuracy"], callbacks=[reader])
    # the first of its kind, and the tail, go the ordinary way; the graph is kept for the next epoch
    assert taken == [False, True, True, True, False, *[True] * 5]
    np.testing.assert_array_equal(weights(net), weights(expected))
    np.testing.assert_allclose(read, [one.mean(dtype="float64") for one in losses], rtol=1e-12)
    right = sum((out.argmax(axis=1) == y.asnumpy()).sum() for out, (_, y) in zip(outputs, batches * 2))
    assert sum(row["train_accuracy"] for row in found) * 35 == pytest.approx(right)


@pytest.mark.parametrize(
    ("name", "weighted"), pairs(["l1", "l2", "huber", "hinge", "sigmoid_bce", "softmax_ce"], [False, True])
)
def test_losses_by_name_and_sample_weights_equal_the_loss_called_alone(taken, name, weighted):
    random = np.random.RandomState(2)
    batches = make_batches([6] * 4)
    if name != "softmax_ce":
        least = 0 if name == "sigmoid_bce" else -1
        batches = [(x, mx.nd.array(np.where(random.rand(6, 3) < 0.5, least, 1))) for x, _ in batches]
    weight = mx.nd.array(random.rand(6, 1))
    given = [(x, (y, weight) if weighted else y) for x, y in batches]
    expected, net = make_net(hybridize=True), make_net(hybridize=True)
    by_hand = [(x, y, weight) if weighted else (x, y) for x, y in batches]
    train_by_hand(expected, by_hand, SGD, loss=mxkit.losses.get_loss(name))
    fit(net, given, loss=name)
    assert taken == [False, True, True, True]
    np.testing.assert_array_equal(weights(net), weights(expected))


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize("settings", [{"accumulate": 2}, {"clip_norm": 0.1}, {"clip_value": 0.01}], ids=str)
def test_windows_and_clipping_equal_the_ordinary_way(taken, settings):
    same_both_ways(taken, 4, **settings)


def test_other_metrics_see_outputs_and_labels(taken):
    class Loudest(mxkit.metrics.Accuracy):
        name = "loudest"

        def update(self, labels, output):
            self.add(output.max(axis=1))

    names = ["accuracy", ("top_k", {"k": 2}), "f1", Loudest()]
    batches = [(x, y.reshape((-1, 1))) for x, y in make_batches([8] * 4)]
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    one = fit(make_net(), batches, loss=loss, metrics=names)[0]
    other = fit(make_net(hybridize=True), batches, metrics=names)[0]
    assert sum(taken) == 3
    for name in ("train_accuracy", "train_top_2_accuracy", "train_f1", "train_loudest"):
        assert one[name] == other[name]


def test_a_hybridized_loss_of_ones_own_stays_as_it_was_traced(taken):
    class Scaled(gluon.loss.SoftmaxCrossEntropyLoss):
        factor = 1.0

        def hybrid_forward(self, F, pred, label, sample_weight=None):
            return super().hybrid_forward(F, pred, label, sample_weight) * self.factor

    made = []

    def loss(hybridize):
        made.append(Scaled())
        made[-1].hybridize()
        return made[-1]

    # frozen in its graph since the first batch (T39)
    same_both_ways(taken, 4, change=lambda *_: setattr(made[-1], "factor", 100.0), loss=loss)


def counted(kind, method, calls):
    """A subclass that counts the calls of a method."""

    def call(self, *arrays):
        calls.append(method)
        return getattr(super(made, self), method)(*arrays)

    made = type("Counted", (kind,), {method: call})
    return made


@pytest.mark.parametrize("method", ["forward", "__call__", "of the object", "hybrid_forward"])
def test_code_of_a_loss_or_a_net_that_is_in_no_graph_runs_at_each_batch(taken, method):
    calls, net, loss = [], make_net(hybridize=True), "softmax_ce"
    if method == "of the object":
        own = net.forward
        net.forward = lambda x: calls.append(method) or own(x)
    elif method == "hybrid_forward":
        loss = counted(gluon.loss.SoftmaxCrossEntropyLoss, method, calls)()
    else:
        net = counted(nn.HybridSequential, method, calls)()
        net.add(nn.Dense(3, in_units=5))
        hybridized(net)
    fit(net, make_batches([8] * 4), loss=loss)
    assert len(calls) >= 4
    assert not any(taken)


def test_a_net_hybridized_anew_or_changed_is_traced_anew(taken):
    def change(net, step, hybridize):
        if step == 2:
            net[0].act = nn.Activation("relu")
            if hybridize:
                net.hybridize()
        if step == 4:
            net.hybridize(False)

    same_both_ways(taken, 2, batches=make_batches([8] * 6), change=change)
    assert taken[6:] == [False, True, False, True, False, False]


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
@pytest.mark.parametrize("hooked", ["net", "loss"])
def test_hooks_of_the_net_and_of_the_loss_fire_at_each_batch(taken, register, hooked):
    """T35."""
    seen, net, loss = [], make_net(hybridize=True), gluon.loss.SoftmaxCrossEntropyLoss()
    loss.hybridize()
    add = getattr(net if hooked == "net" else loss, register)
    hook = on_update(lambda state, update: update.step == 2 and add(lambda *args: seen.append(args)))
    fit(net, make_batches([8] * 5), loss=loss, callbacks=[hook])
    assert len(seen) == 3
    assert taken == [False, True, False, False, False]


@pytest.mark.filterwarnings("ignore::mxkit.errors.TrapWarning")
def test_what_has_no_single_graph_goes_the_ordinary_way(taken):
    batches = make_batches([8] * 3)
    forward = mxkit.losses.BatchLoss(forward=lambda net, x, y: -net(*x).log_softmax().pick(*y))
    fit(make_net(), batches)  # not hybridized
    fit(make_net("cpu:2", hybridize=True), batches)
    fit(make_net(hybridize=True), batches, loss=lambda scores, labels: -scores.log_softmax().pick(labels))
    fit(make_net(hybridize=True), batches, loss=forward)
    fit(hybridized(Doubled()), batches, check_finite=False)  # without known shapes
    net = make_net(hybridize=True)
    net.cast("float64")
    fit(net, [(x.astype("float64"), y) for x, y in batches])
    assert not any(taken)


@needs_bfloat16
@pytest.mark.filterwarnings("ignore::mxkit.errors.TrapWarning")
def test_mixed_precision_goes_the_ordinary_way(taken):
    fit(make_net(hybridize=True), make_batches([8] * 3), amp="bfloat16")
    assert not any(taken)


def test_the_net_its_names_and_its_calls_stay_as_they_were(taken):
    net = make_net(hybridize=True)
    net.hybridize(**STATIC)
    names, children = list(net.collect_params()), list(net._children.values())
    batches = make_batches([8] * 3)
    fit(net, batches)
    assert sum(taken) == 2
    assert (list(net.collect_params()), list(net._children.values())) == (names, children)
    before = mx.sym.argmax(mx.sym.var("x"), axis=1).name
    fit(net, batches, metrics=["accuracy"])
    number = int(before[len("argmax") :])
    assert mx.sym.argmax(mx.sym.var("x"), axis=1).name == f"argmax{number + 1}"
    x = batches[0][0]
    hybridized = net(x).asnumpy()
    net.hybridize(False)
    np.testing.assert_array_equal(hybridized, net(x).asnumpy())


def test_a_batch_of_another_shape_or_type_gets_its_error(taken):
    good = make_batches([8] * 3)
    x, y = good[0]
    for bad, text in ((x[:, :3], r"update 4, batch x \(8, 3\)"), (x.astype("float64"), "update 4, .*float64")):
        with pytest.raises(TrainingError, match=text):
            fit(make_net(hybridize=True), [*good, (bad, y)])
    assert taken == [False, True, True, False] * 2


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize("labels", [(), (1,)], ids=["flat", "column"])
def test_a_loader_with_a_tail_has_two_graphs(taken, labels):
    random = np.random.RandomState(0)
    x, y = random.rand(83, 5).astype("float32"), random.randint(0, 3, (83, *labels))
    loader = mxkit.data.ArrayLoader(x, y, 4, shuffle=True, seed=1)  # 21 batches, the last of three samples

    def rows(hybridize):
        found = fit(make_net(hybridize=hybridize), loader, epochs=2, metrics=["accuracy", "f1"], seed=3)
        return [{name: row[name] for name in ("train_accuracy", "train_f1", "train_loss")} for row in found]

    expected = rows(False)
    assert not any(taken)
    assert rows(True) == expected
    assert taken[42:] == [False, *[True] * 19, False, *[True] * 21]


def test_a_value_read_inside_an_epoch_holds_all_batches_so_far():
    read = []

    def note(state, update):
        if update.step in (3, 20):
            read.append(state.metrics[0].get())

    random = np.random.RandomState(0)
    loader = mxkit.data.ArrayLoader(random.rand(100, 5).astype("float32"), random.randint(0, 3, 100), 4)
    for hybridize in (False, True):
        row = fit(make_net(hybridize=hybridize), loader, metrics=["accuracy"], callbacks=[on_update(note)])[0]
        read.append(row["train_accuracy"])
    assert read[:3] == read[3:]


class Doubled(nn.HybridBlock):
    """Its shapes are known when it runs: the branch of `cond` decides them."""

    def __init__(self):
        super().__init__()
        self.scores = nn.Dense(3, in_units=5)

    def hybrid_forward(self, F, x):
        scores = self.scores(x)
        return F.contrib.cond(x.sum() > 0, lambda: scores * 2, lambda: scores)


def test_gradients_of_the_branch_not_taken_are_arbitrary():
    """T194."""
    with pytest.warns(TrapWarning, match=r"F\.contrib\.cond in Doubled, hybridized: .* choose by F\.where"):
        fit(hybridized(Doubled()), make_batches([8] * 2), check_finite=False)


class Moody(nn.HybridBlock):
    """Its code asks for the mode by `asked`; None asks for none."""

    def __init__(self, asked):
        super().__init__()
        self.scores, self.dropout, self.asked = nn.Dense(3, in_units=5), nn.Dropout(0.5), asked

    def hybrid_forward(self, F, x):
        scores = self.dropout(self.scores(x))
        return scores * 10 if self.asked and self.asked() else scores


def moody(asked, inside=False):
    net = hybridized(Moody(asked))
    return stack(net, kind=nn.Sequential) if inside else net


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("asked", [autograd.is_training, autograd.is_recording])
def test_a_graph_with_a_branch_for_training_is_told_once(asked, inside):
    """T39."""
    (x, y), *_ = batches = make_batches([8] * 2)
    for rung in (fit, lambda net, data: list(mxkit.updates(net, data, loss="softmax_ce", trainer="sgd"))):
        net = moody(asked, inside)
        with pytest.warns(TrapWarning, match=r"(Moody|0), hybridized: .*T39") as seen:
            rung(net, batches)
        assert len(seen) == 1
        with pytest.warns(TrapWarning, match="T39"):
            mxkit.predict(net, x)
        mxkit.evaluate(net, batches, loss="softmax_ce")  # warns of nothing


def test_graphs_that_are_right_are_not_told_of():
    """T39."""
    (x, _), *_ = batches = make_batches([8] * 2)
    net = moody(autograd.is_training)  # traced for predictions alone
    mxkit.predict(net, x)
    mxkit.evaluate(net, batches, loss="softmax_ce")
    for net in (moody(None), moody(None, inside=True)):
        fit(net, batches)
        mxkit.predict(net, x)
    net = moody(autograd.is_training)
    net.hybridize(False)
    fit(net, batches)


def test_a_graph_of_np_with_a_number_inside(taken):
    def make(hybridize):
        mxkit.seed_all(0)
        with switches(True):
            # the mean has shape ()
            net = hybridized(hybrid_net(lambda net, F, x: net.scores(x - F.np.mean(x)), scores=nn.Dense(3, in_units=5)))
            net.hybridize(hybridize)
        return net

    same_both_ways(taken, 4, make)


def test_a_graph_prints_no_line():
    """MXNet decides with the first bind of a process whether each one prints, so this is a process of its own."""
    program = """import mxkit, mxnet as mx
net = mxkit.models.mlp(2, hidden=[3])
mxkit.initialize(net)
net.hybridize()
batches = [(mx.nd.ones((4, 5)), mx.nd.zeros(4))] * 3
mxkit.fit(net, batches, loss="softmax_ce", trainer="sgd", epochs=1, progress=False)"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_batches_of_many_shapes_have_some_graphs(taken):
    same_both_ways(taken, 8, batches=make_batches([*range(2, 13)] * 2))
    assert taken[22:] == [False] * 11 + [True] * 8 + [False] * 3


def test_a_graph_is_bound_anew_to_other_values(taken):
    def move(net, step, hybridize):
        first = net[0].weight
        if step == 2:
            first._data = [first.data().copy()]  # as a user's code or a later Gluon may do
            first._init_grad()
            first._data[0][:] *= 2

    same_both_ways(taken, 4, change=move)


@pytest.mark.filterwarnings("ignore::mxkit.errors.TrapWarning")  # T257
def test_sparse_gradients_equal_the_ordinary_way(taken):
    random = np.random.RandomState(0)
    batches = [(array(random.randint(0, 20, (8, 4))), array(random.randint(0, 3, 8), dtype="int32")) for _ in range(5)]

    def make(hybridize):
        mxkit.seed_all(0)
        net = ready(nn.Embedding(20, 6, sparse_grad=True), nn.Dense(3, in_units=24), devices="cpu:1")
        net.hybridize(hybridize)
        return net

    same_both_ways(taken, 4, make, batches)


def test_running_statistics_read_between_updates_are_those_of_the_newest():
    """T193. A slow backward pass shows it: the statistics of the update before were read in each of ten tries."""
    random = np.random.RandomState(0)
    batches = [(array(random.rand(64, 3, 32, 32)), array(random.randint(0, 3, 64), dtype="int32")) for _ in range(4)]

    def read(wait):
        mxkit.seed_all(0)
        layers = nn.Conv2D(16, 3, in_channels=3), nn.BatchNorm(in_channels=16), nn.Dense(3, in_units=16 * 30 * 30)
        net = ready(*layers, devices="cpu:1")
        net.hybridize()
        seen = []
        for _ in mxkit.updates(net, batches, loss="softmax_ce", trainer="sgd"):
            if wait:
                mx.nd.waitall()
            seen.append(net[1].running_var.data().asnumpy().sum())
        return seen

    assert read(wait=False) == read(wait=True)


FAST = ("sgd", {"learning_rate": 0.5})


def static_net(hybridize, devices="cpu:1"):
    net = make_net(devices)
    if hybridize:
        net.hybridize(**STATIC)
    return net


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize(
    ("devices", "accumulate", "amp"),
    [
        ("cpu:1", 1, None),
        ("cpu:2", 2, None),
        pytest.param("cpu:2", 1, "bfloat16", marks=needs_bfloat16),
        pytest.param("cpu:1", 2, "bfloat16", marks=needs_bfloat16),
    ],
)
def test_epochs_of_accumulated_batches(devices, accumulate, amp):
    """T109."""

    def trained(flags):
        net = make_net(devices)
        net.hybridize(**flags)
        fit(net, make_batches([6] * 4), trainer=FAST, epochs=4, accumulate=accumulate, amp=amp)
        return weights(net)

    np.testing.assert_array_equal(trained(STATIC), trained({}))


def by_hand(net):
    net[0].collect_params().setattr("grad_req", "null")
    net[0].collect_params().setattr("grad_req", "write")


def by_mxkit(net):
    mxkit.freeze(net, "0.*")
    mxkit.unfreeze(net, "0.*")


def anew(net):
    values = [parameter.data().copy() for parameter in net.collect_params().values()]
    mxkit.initialize(net, "zeros", devices="cpu", force=True)
    for parameter, value in zip(net.collect_params().values(), values):
        parameter.set_data(value)


CHANGES = [by_hand, by_mxkit, anew]


@pytest.mark.parametrize(("inside", "one_graph"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("change", CHANGES)
def test_gradients_made_anew_by_a_callback(change, inside, one_graph):
    """T109."""

    class Changes(mxkit.Callback):
        def on_update(self, state, update):
            if inside and update.step == 2:
                change(state.net)

        def on_epoch(self, state, row):
            if not inside and state.epoch == 1:
                change(state.net)

    def trained(hybridize):
        net = static_net(hybridize)
        # a loss of one's own goes the ordinary way, through the net's own graph
        own = mxkit.losses.BatchLoss(forward=lambda net, x, y: SOFTMAX(net(*x), *y))
        loss, trainer = "softmax_ce" if one_graph else own, gluon.Trainer(net.collect_params(), *FAST)
        fit(net, make_batches([6] * 3), loss=loss, trainer=trainer, epochs=3, callbacks=[Changes()])
        return weights(net)

    np.testing.assert_array_equal(trained(True), trained(False))


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize("change", CHANGES)
def test_gradients_made_anew_between_two_trainings(change):
    """T109."""

    def trained(hybridize):
        net = static_net(hybridize)
        trainer = gluon.Trainer(net.collect_params(), *FAST)
        for _ in range(2):
            fit(net, make_batches([6] * 3), trainer=trainer)
            change(net)
            for _ in mxkit.updates(net, make_batches([6] * 3), loss="softmax_ce", trainer=trainer):
                pass
            change(net)
        return weights(net)

    np.testing.assert_array_equal(trained(True), trained(False))


def test_a_window_in_a_loop_of_ones_own_leaves_the_gradients_where_they_are():
    """T109."""

    def epoch(net, trainer):
        with mxkit.Accumulator(trainer, every=2) as accumulator:
            for x, y in make_batches([6] * 5):
                accumulator.backward(recorded(net, x, y))
                accumulator.step()

    def trained(hybridize):
        net = static_net(hybridize)
        trainer = gluon.Trainer(net.collect_params(), *FAST)
        for _ in range(3):
            text = "last window held 1 micro-batches, 6 samples.* Call accumulator.flush"
            with pytest.raises(RuntimeError, match=text):
                epoch(net, trainer)
        train_by_hand(net, make_batches([6] * 2), trainer=trainer)  # with "write" again
        return weights(net)

    np.testing.assert_array_equal(trained(True), trained(False))


@pytest.mark.parametrize("change", [by_mxkit, anew])
def test_unfreeze_and_initialize_mend_graphs_outside_of_a_training(change):
    """T109."""
    net = static_net(True)
    (batch,) = make_batches([6])
    recorded(net, *batch).backward()
    expected = net[0].weight.grad().asnumpy()
    change(net)
    recorded(net, *batch).backward()
    mx.nd.waitall()
    np.testing.assert_array_equal(net[0].weight.grad().asnumpy(), expected)
