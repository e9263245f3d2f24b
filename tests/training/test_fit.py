"""`fit` and `updates` against a hand-written Gluon loop; options, history, callbacks, and what they leave alone."""

from contextlib import nullcontext
import csv
from functools import partial
import logging
from pathlib import Path

from built_nets import ready, stack
from callback_runs import norm_net
import mxkit
from mxkit.errors import TrapWarning, UnknownNameError
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np
from oracle import (
    CLASSES,
    FEATURES,
    OPTIMIZER_IDS,
    OPTIMIZERS,
    SOFTMAX,
    fit,
    joined,
    make_batches,
    make_net,
    train_by_hand,
    traps,
    weights,
)
import pytest

BATCHES = make_batches([8, 8, 3])


def run(net=None, data=BATCHES, **changes):
    arguments = {"trainer": ("sgd", {"learning_rate": 0.1}), "metrics": ["accuracy"], "epochs": 3, **changes}
    return fit(net or make_net(), data, **arguments)


def test_rows_hold_what_the_docstring_says():
    history = run(valid=BATCHES[:1])
    expected = "epoch updates samples seconds samples_per_second learning_rate train_loss train_accuracy valid_loss "
    assert " ".join(history.columns) == expected + "valid_accuracy"
    assert history.column("epoch") == [1, 2, 3]
    assert history.column("updates") == [3, 6, 9]
    assert history.column("samples") == [19, 19, 19]
    assert history.column("learning_rate") == [0.1, 0.1, 0.1]
    assert all(row["samples_per_second"] == row["samples"] / row["seconds"] for row in history)
    assert history.stopped is None
    with pytest.raises(UnknownNameError, match="unknown column of the history 'trian_loss': did you mean 'train_loss'"):
        history.column("trian_loss")


@pytest.mark.parametrize("accumulate", [1, 2])
def test_train_numbers_are_means_over_samples_as_the_weights_moved(accumulate):
    net, metric = make_net(), mxkit.metrics.get_metric("accuracy")
    stream = mxkit.updates(
        net, BATCHES, loss=SOFTMAX, trainer=("sgd", {"learning_rate": 0.1}), metrics=[metric], accumulate=accumulate
    )
    expected = sum(update.loss * update.samples for update in stream) / 19
    (row,) = run(epochs=1, accumulate=accumulate)
    assert row["train_loss"] == pytest.approx(expected, rel=1e-12)
    assert row["train_accuracy"] == metric.get()


def test_history_files_keep_all_digits(tmp_path):
    history = run(valid=BATCHES[:1])
    history.stopped = "for a reason"
    history.to_json(tmp_path / "history.json")
    again = mxkit.History.from_json(tmp_path / "history.json")
    assert list(again) == list(history)
    assert again.stopped == "for a reason"
    history.to_csv(str(tmp_path / "history.csv"))
    with (tmp_path / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [{name: float(value) for name, value in row.items()} for row in rows] == list(history)
    assert (tmp_path / "history.csv").read_text().count("\n") == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["history.csv", "history.json"]


def test_a_row_is_copied_in():
    row = {"epoch": 1, "train_loss": 0.5}
    history = mxkit.History([row])
    history.append(row)
    row["train_loss"] = 9.0
    assert history.column("train_loss") == [0.5, 0.5]
    assert repr(history) == "History(2 epochs; last: train_loss=0.5)"
    assert repr(mxkit.History()) == "History(0 epochs; last: empty)"


# callbacks


class Recorder(mxkit.Callback):
    """Writes down what is called, under a name."""

    def __init__(self, name, calls, stop_at=None, fail_in=None):
        self.name, self.calls, self.stop_at, self.fail_in = name, calls, stop_at, fail_in

    def note(self, hook, *details):
        self.calls.append((self.name, hook, *details))
        if self.fail_in == hook:
            raise LookupError(f"broken {hook}")

    def on_fit_begin(self, state):
        self.note("begin", state.epochs, state.updates_per_epoch)

    def on_update(self, state, update):
        self.note("update", state.epoch, update.step)
        if update.step == self.stop_at:
            state.stop(f"{self.name} had enough")

    def on_epoch(self, state, row):
        self.note("epoch", row["epoch"], len(state.history), "valid_loss" in row)

    def on_fit_end(self, state, error):
        self.note("end", type(error).__name__, state.history.stopped)


def test_callbacks_are_called_in_the_order_of_the_docstring():
    calls = []
    run(data=BATCHES[:2], epochs=2, valid=BATCHES, callbacks=[Recorder("a", calls), Recorder("b", calls)])
    hooks = [
        ("begin", 2, 2),
        ("update", 1, 1),
        ("update", 1, 2),
        ("epoch", 1, 1, True),
        ("update", 2, 3),
        ("update", 2, 4),
        ("epoch", 2, 2, True),
        ("end", "NoneType", None),
    ]
    assert calls == [(name, *hook) for hook in hooks for name in "ab"]


def test_a_stop_ends_after_its_update_and_tells_why():
    calls = []
    net = make_net()
    history = run(net, epochs=5, callbacks=[Recorder("a", calls, stop_at=5), Recorder("b", calls, stop_at=5)])
    assert history.stopped == "a had enough"  # the first reason
    assert history.column("updates") == [3, 5]
    assert history.column("samples") == [19, 16]
    assert ("b", "update", 2, 5) in calls
    assert calls[-2:] == [("a", "end", "NoneType", "a had enough"), ("b", "end", "NoneType", "a had enough")]
    expected = make_net()
    run(expected, epochs=1)
    run(expected, data=BATCHES[:2], epochs=1)
    np.testing.assert_array_equal(weights(net), weights(expected))


@pytest.mark.parametrize("hook", ["begin", "update", "epoch", "end"])
def test_every_on_fit_end_is_called_and_gets_the_error_of_a_callback(hook, capsys):
    calls, error = [], "NoneType" if hook == "end" else "LookupError"
    with pytest.raises(LookupError, match=f"broken {hook}"):
        run(callbacks=[Recorder("a", calls, fail_in=hook), Recorder("b", calls)], progress=True)
    assert calls[-2:] == [("a", "end", error, None), ("b", "end", error, None)]


# what fit leaves alone


def test_the_users_metrics_are_not_changed():
    mine, theirs = mxkit.metrics.get_metric("accuracy"), mx.metric.TopKAccuracy(top_k=2)
    mine.add(mx.nd.array([1, 1, 1, 0]))
    theirs.update([mx.nd.array([0])], [mx.nd.array([[1, 2, 3]])])
    before = theirs.get()
    history = run(metrics=[mine, theirs], valid=BATCHES[:])
    assert mine.get() == 0.75
    assert theirs.get() == before
    assert 0 < history[-1]["valid_top_k_accuracy_2"] < 1
    assert history[-1]["valid_top_k_accuracy_2"] >= history[-1]["valid_accuracy"]


def test_without_a_seed_the_generators_are_left_alone():
    net = make_net()
    mxkit.seed_all(5)
    expected = np.random.rand(), mx.nd.random.uniform().asscalar()
    mxkit.seed_all(5)
    run(net, valid=BATCHES[:1])
    assert (np.random.rand(), mx.nd.random.uniform().asscalar()) == expected


def test_a_scheduler_of_the_optimizer_shows_in_the_history():
    schedule = mx.lr_scheduler.FactorScheduler(step=3, factor=0.5, base_lr=0.4)
    history = run(trainer=("sgd", {"learning_rate": 0.4, "lr_scheduler": schedule}))
    assert history.column("learning_rate") == [0.4, 0.2, 0.1]


# the history in other forms


def test_a_history_as_a_dataframe_and_as_a_table():
    history = run(valid=BATCHES[:1], validate_every=2)
    frame = history.to_dataframe()
    assert list(frame.index) == [1, 2, 3]
    assert frame["train_loss"].tolist() == history.column("train_loss")
    assert frame["valid_loss"].isna().tolist() == [True, False, False]
    lines = history.table().splitlines()
    assert " ".join(lines[0].split()) == "epoch learning_rate train_loss train_accuracy valid_loss valid_accuracy"
    assert {len(line) for line in lines[2:]} == {len(lines[0])}  # line 1 ends with empty cells
    assert lines[3].split()[2] == f"{history[2]['train_loss']:.5g}"


def ragged():
    return make_batches([8, 8, 3])  # the hand-written loop steps by 3 at the end (T2)


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize("hybridize", [False, True], ids=["imperative", "hybridized"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=OPTIMIZER_IDS)
def test_each_update_of_fit_is_bit_equal_to_that_of_a_gluon_loop(optimizer, hybridize):
    expected, net = make_net(hybridize=hybridize), make_net(hybridize=hybridize)
    before, trainer, steps = weights(net), None, []

    def compare(state, update):
        nonlocal trainer
        batch = ragged()[len(steps) % 3]
        trainer = train_by_hand(expected, [batch], optimizer, trainer=trainer)
        np.testing.assert_array_equal(weights(net), weights(expected))
        assert update.samples == batch[0].shape[0]
        steps.append(update.step)

    callback = mxkit.callbacks.LambdaCallback(on_update=compare)
    history = fit(net, ragged(), trainer=optimizer, epochs=3, callbacks=[callback])
    assert np.abs(weights(net) - before).max() > 0.01
    assert (steps, [row["updates"] for row in history]) == ([*range(1, 10)], [3, 6, 9])


def test_measuring_validating_and_watching_do_not_change_a_bit():
    plain, watched = make_net(), make_net()
    fit(plain, ragged(), trainer=OPTIMIZERS[2], epochs=2, check_finite=False)
    watching = {"valid": ragged()[:1], "metrics": ["accuracy"], "clip_norm": float("inf")}
    fit(watched, ragged(), trainer=OPTIMIZERS[2], epochs=2, **watching)
    np.testing.assert_array_equal(weights(watched), weights(plain))


@pytest.mark.usefixtures("switched")
def test_a_trainer_of_ones_own_goes_on_over_calls():
    expected, net = make_net(), make_net()
    train_by_hand(expected, ragged(), OPTIMIZERS[1], epochs=2)
    trainer = mx.gluon.Trainer(net.collect_params(), *OPTIMIZERS[1])
    for epoch in range(2):
        first = epoch * len(ragged()) + 1
        stream = mxkit.updates(net, ragged(), loss=SOFTMAX, trainer=trainer, epoch=epoch, first_step=first)
        assert [update.step for update in stream] == [first, first + 1, first + 2]
    np.testing.assert_array_equal(weights(net), weights(expected))


def test_a_parameter_used_twice_and_a_float64_net_train_as_in_gluon():
    def shared():
        mxkit.seed_all(4)
        first = nn.Dense(5, in_units=5, activation="tanh")
        net = stack(first, nn.Dense(5, in_units=5, params=first.params), nn.Dense(3, in_units=5))
        net.cast("float64")
        return ready(net)

    batches = make_batches([8, 5], dtype="float64")
    expected, net = shared(), shared()
    train_by_hand(expected, batches, OPTIMIZERS[0], epochs=2)
    fit(net, batches, trainer=OPTIMIZERS[0], epochs=2)
    np.testing.assert_array_equal(weights(net), weights(expected))


def test_checkpoints_and_a_resume_are_records_of_the_level_info(tmp_path, caplog, capfd):
    how = {"checkpoint": tmp_path, "resume": "auto"}
    fit(make_net(), BATCHES[:1], **how)
    assert not caplog.records
    with caplog.at_level(logging.INFO, logger="mxkit"):
        fit(make_net(), BATCHES[:1], epochs=2, **how)
    assert {record.name for record in caplog.records} == {"mxkit"}
    assert [record.getMessage() for record in caplog.records] == [
        f"training resumed after update 1, from {tmp_path / 'step-00000001'}",
        f"checkpoint of step 2 written to {tmp_path}",
    ]
    assert capfd.readouterr() == ("", "")


SGD = ("sgd", {"learning_rate": 0.3})
go = partial(fit, trainer=SGD)


@pytest.mark.parametrize(("updates", "rows"), [(1, [1]), (3, [3]), (7, [3, 6, 7]), (9, [3, 6, 9])])
def test_updates_end_the_training_where_a_gluon_loop_would_break(updates, rows):
    expected, net = make_net(), make_net()
    train_by_hand(expected, (BATCHES * 3)[:updates], SGD)
    history = go(net, BATCHES, epochs=f"{updates} updates", valid=BATCHES[:], validate_every=2)
    np.testing.assert_array_equal(weights(net), weights(expected))
    assert history.column("updates") == rows
    assert history.stopped is None
    assert history[-1]["valid_loss"] is not None
    assert history[-1]["samples"] == [8, 16, 19][(updates - 1) % 3]


def test_updates_of_data_that_never_ends():
    def forever():
        while True:
            yield from BATCHES

    expected, net = make_net(), make_net()
    train_by_hand(expected, (BATCHES * 4)[:10], SGD)
    history = go(net, forever(), epochs="10 updates")  # read once: a generator is enough
    np.testing.assert_array_equal(weights(net), weights(expected))
    assert history.column("updates") == [10]


def test_the_schedules_length_and_the_messages_follow_updates(capfd):
    net = make_net()
    trainer = gluon.Trainer(net.collect_params(), *SGD)
    callbacks = [mxkit.callbacks.LearningRate("cosine")]
    go(net, BATCHES, epochs="5 updates", trainer=trainer, callbacks=callbacks, progress=True)
    assert trainer.learning_rate == 0  # reached by the fifth update
    assert "epoch 1  train_loss" in capfd.readouterr().err


def masked(seed=0):
    """Sequences with padding: x (B, 6, features), labels and masks (B, 6)."""
    random = np.random.RandomState(seed)
    batches = []
    for size in (4, 4, 2):
        mask = (np.arange(6) < random.randint(1, 7, (size, 1))).astype("float32")
        x = random.randn(size, 6, FEATURES).astype("float32")
        batches.append((x, (random.randint(0, CLASSES, (size, 6)).astype("float32"), mask)))
    return batches


def token_net(devices="cpu"):
    mxkit.seed_all(3)
    return ready(nn.Dense(CLASSES, flatten=False, in_units=FEATURES), devices=devices)


def token_loss(output, y, mask):
    return (-output.log_softmax().pick(y) * mask).sum(axis=1)


def tokens(inputs, labels):
    return labels[1].sum()


def test_a_stated_count_gives_the_mean_over_tokens():
    net, twin, data = token_net("cpu:2"), token_net(), masked()
    loss = mxkit.losses.BatchLoss(token_loss, count=tokens)
    history = go(net, data, loss=loss, accumulate=2, valid=data[:], epochs=1)
    big, sums = joined([tuple(map(mx.nd.array, (x, y, mask))) for x, (y, mask) in data], 2), []
    how = {"loss": token_loss, "count": lambda x, y, mask: float(mask.sum().asscalar())}
    train_by_hand(twin, big, SGD, note=lambda output, losses: sums.append(losses.sum().asscalar()), **how)
    np.testing.assert_allclose(weights(net), weights(twin), rtol=2e-5, atol=1e-6)
    everything = sum(mask.sum() for _, (_, mask) in data)
    np.testing.assert_allclose(history[0]["train_loss"], sum(sums) / everything, rtol=1e-5)
    final = sum(token_loss(twin(mx.nd.array(x)), mx.nd.array(y), mx.nd.array(m)).sum().asscalar() for x, (y, m) in data)
    np.testing.assert_allclose(history[0]["valid_loss"], final / everything, rtol=1e-5)
    assert history[0]["samples"] == 10


def test_a_batch_that_counts_0_is_fine_where_its_window_counts_and_ndarrays_are_numbers():
    counts = iter([0, mx.nd.array([8]), 3])
    loss = mxkit.losses.BatchLoss("softmax_ce", count=lambda x, y: next(counts))
    assert len(list(mxkit.updates(make_net(), BATCHES, loss=loss, accumulate=2, trainer="sgd"))) == 2


def embedding_net(sparse, devices="cpu"):
    mxkit.seed_all(3)
    return ready(nn.Embedding(20, 4, sparse_grad=sparse), nn.Dense(3, in_units=8), devices=devices)


WORDS = [(mx.nd.array(np.arange(6).reshape(3, 2) + i), mx.nd.array([0, 1, 2])) for i in range(4)]


@pytest.mark.parametrize(
    ("devices", "name", "arguments", "lazy"),
    [
        ("cpu", "adam", {}, True),
        ("cpu", "sgd", {"momentum": 0.9}, True),
        ("cpu", "sgd", {"wd": 0.1}, True),
        ("cpu", "sgd", {}, False),
        ("cpu:2", "sgd", {}, False),
        ("cpu", "nag", {"momentum": 0.9}, False),
        ("cpu", "adam", {"lazy_update": False}, False),
        ("cpu", "sgd", {"momentum": 0.9, "wd": 0.1, "lazy_update": False}, False),
    ],
)
def test_an_optimizer_that_leaves_rows_out_is_told(devices, name, arguments, lazy):
    """T257."""
    trained = {}
    for sparse in (True, False):
        net = embedding_net(sparse, devices)
        told = traps(lambda net=net: fit(net, WORDS, trainer=(name, arguments), epochs=2))
        assert [one.startswith("0.weight: the gradient is sparse") for one in told] == [True] * (sparse and lazy)
        trained[sparse] = weights(net)
    assert np.allclose(trained[True], trained[False], rtol=1e-5, atol=1e-7) != lazy


@pytest.mark.parametrize("window", [{"accumulate": 2}, {"accumulate": "20 samples"}])
def test_layers_that_cannot_be_accumulated_exactly_are_named_once(window):
    """T48."""
    block = stack(nn.Dense(4), nn.BatchNorm(), nn.Dropout(0.5))
    net = ready(block, nn.BatchNorm(use_global_stats=True), nn.Dropout(0.0), nn.Dense(3))
    with pytest.warns(TrapWarning, match="except for these layers") as caught:
        fit(net, BATCHES, epochs=3, **window)
    (text,) = [str(warning.message) for warning in caught]
    assert "BatchNorm takes its statistics from each micro-batch alone: 0.1; " in text
    assert text.endswith("dropout draws other masks than for one batch: 0.2")
    fit(net, BATCHES)  # nothing is accumulated, nothing is said


def test_check_finite_stop_ends_the_run_with_its_reason():
    data = [BATCHES[0], (BATCHES[1][0] * float("nan"), BATCHES[1][1])]
    net = make_net()
    reached = []
    hooks = [mxkit.callbacks.LambdaCallback(on_fit_end=lambda state, error: reached.append(type(error).__name__))]
    history = go(net, data, epochs=3, callbacks=hooks, check_finite="stop")
    assert history.stopped.startswith("epoch 1, update 2: the loss is nan")
    assert len(history) == 0
    assert reached == ["NonFiniteError"]
    with pytest.raises(mxkit.errors.NonFiniteError):
        go(make_net(), data, epochs=3)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scores_that_are_no_numbers_are_told_where_only_metrics_are_computed(value):
    """T26."""

    net, data = nn.HybridLambda(lambda F, x: x * value), [(mx.nd.ones((4, 3)), mx.nd.zeros(4))]
    with pytest.warns(TrapWarning, match="outputs for data hold NaN or infinity.*accuracy as class 0"):
        mxkit.evaluate(net, data, metrics=["accuracy"])


def test_a_trainings_loss_does_not_depend_on_when_it_is_read():
    # progress reads losses now and then, which must not change the order in which they are added
    data = make_batches([5] * 100)
    read = mxkit.callbacks.LambdaCallback(on_update=lambda state, update: update.loss if update.step % 7 == 0 else None)
    one, two = go(make_net(), data, epochs=1), go(make_net(), data, epochs=1, callbacks=[read])
    assert one[0]["train_loss"] == two[0]["train_loss"]


def test_an_abandoned_loop_does_not_take_the_process_with_it(tmp_path, forks):
    # In a cycle of garbage Python ends objects in any order: without a hold on the Trainer the loop would put
    # grad_req back on arrays that are freed already.
    script = tmp_path / "abandon.py"
    script.write_text(
        "import gc, sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "import mxkit\n"
        "from oracle import make_batches, make_net\n"
        "gc.freeze()\n"
        "for _ in range(10):\n"
        "    net = make_net()\n"
        "    net.loop = mxkit.updates(net, make_batches([4] * 3), loss='softmax_ce', trainer='sgd', accumulate=2)\n"
        "    next(net.loop)\n"
        "    net.itself = net\n"
        "    del net\n"
        "    gc.collect()\n"
        "print('alive')\n"
    )
    done = forks.run(script)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


@pytest.mark.parametrize(("sizes", "devices"), [([8, 8, 1], "cpu"), ([8, 3], "cpu:2")])
def test_a_batch_of_one_sample_under_batchnorm(sizes, devices):
    """T18."""
    with pytest.warns(TrapWarning, match=r"batch of one sample.*makes zeros.*: 1 \(T18\)"):
        list(mxkit.updates(norm_net(devices), make_batches(sizes), loss="softmax_ce", trainer="sgd"))
    list(mxkit.updates(norm_net("cpu"), make_batches([8, 2]), loss="softmax_ce", trainer="sgd"))
    list(mxkit.updates(make_net(), make_batches([8, 1]), loss="softmax_ce", trainer="sgd"))


def test_one_image_under_batchnorm_is_named_only_where_no_height_and_width_are_left():
    """T18."""
    images = [(np.zeros((size, 3, 4, 4), "float32"), np.zeros(size)) for size in (2, 1)]
    for last in ([], [nn.BatchNorm()]):
        net = nn.HybridSequential()
        net.add(nn.Conv2D(2, 3), nn.BatchNorm(), nn.GlobalAvgPool2D(), *last, nn.Flatten())
        mxkit.initialize(net)
        given = pytest.warns(TrapWarning, match=r"makes zeros.*: 3 \(T18\)") if last else nullcontext()
        with given:
            list(mxkit.updates(net, images, loss="softmax_ce", trainer="sgd"))


def test_evaluating_moves_no_statistics():
    """T18."""
    net = norm_net("cpu")
    go(net, make_batches([8, 8]), epochs=1)
    before = [p.data().asnumpy() for p in net.collect_params(".*running.*").values()]
    mxkit.evaluate(net, make_batches([8, 8], seed=1), loss="softmax_ce")
    mxkit.predict(net, make_batches([8])[0][0])
    after = [p.data().asnumpy() for p in net.collect_params(".*running.*").values()]
    assert len(before) == 2
    for one, other in zip(before, after):
        np.testing.assert_array_equal(one, other)
        assert one.any()


def test_the_length_of_an_epoch_is_rounded_up_and_unknown_for_generators():
    x, y, lengths = np.zeros((50, 5), np.float32), np.zeros(50), []
    look = mxkit.callbacks.LambdaCallback(on_fit_begin=lambda state: lengths.append(state.updates_per_epoch))
    windows = [(4, "12 samples"), (4, "10 samples"), (8, "64 samples"), (7, "7 samples"), (2, 2), (8, 3)]
    for batch_size, window in windows:
        data = mxkit.data.ArrayLoader(x, y, batch_size)
        history = go(make_net(), data, epochs=1, accumulate=window, callbacks=[look])
        assert lengths.pop() == history[-1]["updates"]
    for data in (lambda: iter(BATCHES), BATCHES):
        go(make_net(), data, epochs=1, accumulate=2, callbacks=[look])
    assert lengths == [None, 2]
