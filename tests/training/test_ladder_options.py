"""What `fit` and `updates` are asked for beyond epochs of plain batches: updates=, count=, sparse gradients, NaN."""

from pathlib import Path

from callback_runs import norm_net
import mxkit
from mxkit.errors import TrapWarning
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn
import numpy as np
from oracle import CLASSES, FEATURES, make_batches, make_net, train_by_hand, traps, weights
import pytest

BATCHES = make_batches([8, 8, 3])
SGD = ("sgd", {"learning_rate": 0.3})


def fit(net, data=BATCHES, **arguments):
    return mxkit.fit(net, data, **{"loss": "softmax_ce", "trainer": SGD, "progress": False, **arguments})


@pytest.mark.parametrize(("updates", "rows"), [(1, [1]), (3, [3]), (7, [3, 6, 7]), (9, [3, 6, 9])])
def test_updates_end_the_training_where_a_gluon_loop_would_break(updates, rows):
    expected, net = make_net(), make_net()
    train_by_hand(expected, (BATCHES * 3)[:updates], SGD)
    history = fit(net, epochs=f"{updates} updates", valid=BATCHES[:], validate_every=2)
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
    history = fit(net, forever(), epochs="10 updates")  # read once: a generator is enough
    np.testing.assert_array_equal(weights(net), weights(expected))
    assert history.column("updates") == [10]


def test_the_schedules_length_and_the_messages_follow_updates(capfd):
    net = make_net()
    trainer = gluon.Trainer(net.collect_params(), *SGD)
    fit(net, epochs="5 updates", trainer=trainer, callbacks=[mxkit.callbacks.LearningRate("cosine")], progress=True)
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
    net = nn.Dense(CLASSES, flatten=False, in_units=FEATURES)
    mxkit.initialize(net, devices=devices)
    return net


def token_loss(output, y, mask):
    return (-output.log_softmax().pick(y) * mask).sum(axis=1)


def tokens(inputs, labels):
    return labels[1].sum()


def test_a_stated_count_gives_the_mean_over_tokens():
    net, twin, data = token_net("cpu:2"), token_net(), masked()
    loss = mxkit.losses.BatchLoss(token_loss, count=tokens)
    history = fit(net, data, loss=loss, accumulate=2, valid=data[:], epochs=1)
    trainer = gluon.Trainer(twin.collect_params(), *SGD)
    windows = [data[:2], data[2:]]
    total = 0.0
    for window in windows:
        x, y, mask = (np.concatenate(part) for part in zip(*[(x, y, mask) for x, (y, mask) in window]))
        with autograd.record():
            losses = token_loss(twin(mx.nd.array(x)), mx.nd.array(y), mx.nd.array(mask))
        losses.backward()
        trainer.step(float(mask.sum()))
        total += losses.sum().asscalar()
    np.testing.assert_allclose(weights(net), weights(twin), rtol=2e-5, atol=1e-6)
    everything = sum(mask.sum() for _, (_, mask) in data)
    np.testing.assert_allclose(history[0]["train_loss"], total / everything, rtol=1e-5)
    final = sum(token_loss(twin(mx.nd.array(x)), mx.nd.array(y), mx.nd.array(m)).sum().asscalar() for x, (y, m) in data)
    np.testing.assert_allclose(history[0]["valid_loss"], final / everything, rtol=1e-5)
    assert history[0]["samples"] == 10


def test_a_batch_that_counts_0_is_fine_where_its_window_counts_and_ndarrays_are_numbers():
    counts = iter([0, mx.nd.array([8]), 3])
    loss = mxkit.losses.BatchLoss("softmax_ce", count=lambda x, y: next(counts))
    assert len(list(mxkit.updates(make_net(), BATCHES, loss=loss, accumulate=2, trainer="sgd"))) == 2


def embedding_net(sparse, devices="cpu"):
    mxkit.seed_all(3)
    net = nn.HybridSequential()
    net.add(nn.Embedding(20, 4, sparse_grad=sparse), nn.Dense(3, in_units=8))
    mxkit.initialize(net, devices=devices)
    return net


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


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"accumulate": 2}, "accumulation"),
        ({"accumulate": "4 samples"}, "accumulation"),
        ({"clip_norm": 1.0}, "clipping"),
        ({"accumulate": 2, "clip_value": 1.0}, "accumulation and clipping"),
    ],
)
def test_sparse_gradients_are_refused_where_mxnet_cannot_use_them(arguments, why):
    message = rf"embedding\d+_weight have sparse gradients, which MXNet cannot use for {why}\. .*sparse_grad=False"
    with pytest.raises(ValueError, match=message):
        mxkit.updates(embedding_net(True), WORDS, loss="softmax_ce", trainer="sgd", **arguments)


def noisy_net():
    net = nn.HybridSequential()
    block = nn.HybridSequential()
    block.add(nn.Dense(4), nn.BatchNorm(), nn.Dropout(0.5))
    net.add(block, nn.BatchNorm(use_global_stats=True), nn.Dropout(0.0), nn.Dense(3))
    mxkit.initialize(net)
    return net


@pytest.mark.parametrize("window", [{"accumulate": 2}, {"accumulate": "20 samples"}])
def test_layers_that_cannot_be_accumulated_exactly_are_named_once(window):
    """T48."""
    with pytest.warns(TrapWarning, match="except for these layers") as caught:
        fit(noisy_net(), epochs=3, **window)
    (text,) = [str(warning.message) for warning in caught]
    assert "BatchNorm takes its statistics from each micro-batch alone: 0.1; " in text
    assert text.endswith("dropout draws other masks than for one batch: 0.2")
    fit(noisy_net(), epochs=1)  # nothing is accumulated, nothing is said


def test_check_finite_stop_ends_the_run_with_its_reason():
    data = [BATCHES[0], (BATCHES[1][0] * float("nan"), BATCHES[1][1])]
    net = make_net()
    reached = []
    hooks = [mxkit.callbacks.LambdaCallback(on_fit_end=lambda state, error: reached.append(type(error).__name__))]
    history = fit(net, data, epochs=3, callbacks=hooks, check_finite="stop")
    assert history.stopped.startswith("epoch 1, update 2: the loss is nan")
    assert len(history) == 0
    assert reached == ["NonFiniteError"]
    with pytest.raises(mxkit.errors.NonFiniteError):
        fit(make_net(), data, epochs=3)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scores_that_are_no_numbers_are_told_where_only_metrics_are_computed(value):
    """T26."""

    class Broken(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return x * value

    net = Broken()
    net.initialize()
    data = [(mx.nd.ones((4, 3)), mx.nd.zeros(4))]
    with pytest.warns(TrapWarning, match="outputs for data hold NaN or infinity.*accuracy as class 0"):
        scores = mxkit.evaluate(net, data, metrics=["accuracy"])
    assert scores == {"accuracy": 1.0}  # what makes it a trap


def test_a_trainings_loss_does_not_depend_on_when_it_is_read():
    # progress reads losses now and then, which must not change the order in which they are added
    data = make_batches([5] * 100)
    read = mxkit.callbacks.LambdaCallback(on_update=lambda state, update: update.loss if update.step % 7 == 0 else None)
    one, two = fit(make_net(), data, epochs=1), fit(make_net(), data, epochs=1, callbacks=[read])
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
        "for _ in range(50):\n"
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
    norm = nn.BatchNorm(in_channels=4)
    norm.initialize()
    with autograd.record():  # what the warning is about
        assert float(norm(mx.nd.random.normal(shape=(1, 4))).abs().sum().asscalar()) == 0


def test_evaluating_moves_no_statistics():
    """T18."""
    net = norm_net("cpu")
    fit(net, make_batches([8, 8]), epochs=1)
    before = [p.data().asnumpy() for p in net.collect_params(".*running.*").values()]
    mxkit.evaluate(net, make_batches([8, 8], seed=1), loss="softmax_ce")
    mxkit.predict(net, make_batches([8])[0][0])
    after = [p.data().asnumpy() for p in net.collect_params(".*running.*").values()]
    assert len(before) == 2
    for one, other in zip(before, after):
        np.testing.assert_array_equal(one, other)
        assert one.any()


@pytest.mark.parametrize("on_kvstore", [True, False])
def test_both_kinds_of_trainer_reduce_for_themselves(on_kvstore):
    """T7."""
    one, two = make_net(), make_net("cpu:2")
    trainer = gluon.Trainer(two.collect_params(), *SGD, update_on_kvstore=on_kvstore)
    (update,) = mxkit.updates(two, BATCHES, loss="softmax_ce", trainer=trainer, accumulate=3, clip_norm=0.1)
    (expected,) = mxkit.updates(one, BATCHES, loss="softmax_ce", trainer=SGD, accumulate=3, clip_norm=0.1)
    np.testing.assert_allclose(weights(two), weights(one), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(update.grad_norm, expected.grad_norm, rtol=1e-6)
    if on_kvstore:  # what a script would have met
        with pytest.raises(AssertionError, match="allreduce_grads"):
            trainer.allreduce_grads()


def test_windows_of_samples_have_a_known_length_where_batches_are_equal():
    x, y = np.zeros((50, 5), np.float32), np.zeros(50)
    lengths = []
    look = mxkit.callbacks.LambdaCallback(on_fit_begin=lambda state: lengths.append(state.updates_per_epoch))
    rate = mxkit.callbacks.LearningRate("cosine")  # which asks for the length
    for batch_size, samples in ((4, 12), (4, 10), (8, 64), (7, 7)):
        loader = mxkit.data.ArrayLoader(x, y, batch_size)
        callbacks = [look, rate]
        history = fit(make_net(), loader, epochs=1, accumulate=f"{samples} samples", callbacks=callbacks)
        assert lengths.pop() == history[-1]["updates"]
