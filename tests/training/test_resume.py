"""A run that is stopped anywhere and resumed ends bit for bit as the run that never was."""

from built_nets import ready
from callback_runs import Killed
import mxkit
from mxkit.data.source import source_of
from mxkit.errors import CheckpointError, CheckpointWarning, DataError
from mxkit.metrics import TopK
from mxkit.storage.directory import checkpoint_paths, find_checkpoint
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np
from oracle import CLASSES, FEATURES, fit, in_batches, weights
import pytest
from sharing import Kind, long

DATA = np.random.RandomState(0)
# 34 batches: an epoch holds one update of the grid, also if each has two of them
X, Y = DATA.randn(166, FEATURES).astype("float32"), DATA.randint(0, CLASSES, 166)
CLOCKED = ("seconds", "samples_per_second")


def make_net(devices="cpu", dropout=0.5, norm=True):
    mxkit.seed_all(3)
    first, last = nn.Dense(7, in_units=FEATURES, activation="tanh"), nn.Dense(CLASSES, in_units=7)
    between = [nn.BatchNorm(in_channels=7)] * norm + [nn.Dropout(dropout)] * bool(dropout)
    return ready(first, *between, last, devices=devices)


def loader():
    return mxkit.data.ArrayLoader(X[:136], Y[:136], 4, shuffle=True, seed=8)


def augmented():
    """Draws from all three generators while it is read, in an order of its own in each epoch."""

    def read():
        numpy = mx.util.is_np_array()
        array = mx.np.array if numpy else mx.nd.array
        for number in np.random.permutation(34):
            noise = mx.np.random.normal(size=(4, FEATURES)) if numpy else mx.nd.random.normal(shape=(4, FEATURES))
            chosen = slice(4 * number, 4 * number + 4)
            yield array(X[chosen]) + noise * 0.1 + np.random.rand(), array(Y[chosen])

    return read


def updates_an_epoch(arguments):
    accumulate = arguments.get("accumulate", 1)
    return -(-34 // accumulate) if isinstance(accumulate, int) else 34


def run(directory, *, devices="cpu", dropout=0.5, data=loader, dies=None, optimizer="adam", **arguments):
    net = make_net(devices, dropout)

    def die(state, update):
        if update.step == dies:
            raise Killed

    callbacks = [
        mxkit.callbacks.EMA(0.9),
        mxkit.callbacks.EarlyStopping("valid_loss", "min", patience=50, restore_best=True),
        mxkit.callbacks.LearningRate(("cosine", {"final": 1e-4}), updates_per_epoch=updates_an_epoch(arguments)),
        mxkit.callbacks.LambdaCallback(on_update=die),
    ]
    trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.01}, update_on_kvstore=None)
    settings = {"every": "16 updates", "keep_last": 2, **arguments.pop("settings", {})}
    how = {"metrics": ["accuracy", "f1", mx.metric.Accuracy(name="mxnets")], "seed": 5, "callbacks": callbacks}
    how.update(valid=mxkit.data.ArrayLoader(X[136:], Y[136:], 30), epochs=2, trainer=trainer, resume="auto")
    history = fit(net, data(), checkpoint=mxkit.Checkpoints(directory, **settings), **{**how, **arguments})
    return net, trainer, history


def rows(history):
    return [{name: value for name, value in row.items() if name not in CLOCKED} for row in history]


def everything(net, trainer):
    """Bits of all replicas of all parameters, and of the optimizer's arrays."""
    parameters = list(net.collect_params().values())
    arrays = [array for p in parameters for array in p.list_data()]
    # the Trainer's order is that of Gluon's names: dense100 before dense99
    place = {str(number): parameters.index(p) for number, p in enumerate(trainer._params)}
    for updater in trainer._updaters or [trainer._kvstore._updater]:
        for _, state in sorted(updater.states.items(), key=lambda item: place[str(item[0])]):
            arrays += state if isinstance(state, tuple) else [state]
    return [array.asnumpy() for array in arrays if array is not None]


def assert_same(one, other):
    assert rows(one[2]) == rows(other[2])
    first, second = everything(*one[:2]), everything(*other[:2])
    assert len(first) == len(second)
    np.testing.assert_equal(list(first), list(second))


def assert_resumes_exactly(tmp_path, deaths, **arguments):
    """A run that dies at these updates and is resumed equals one that does not; return the latter's history."""
    whole = run(tmp_path / "whole", **arguments)
    for death in deaths:
        with pytest.raises(Killed):
            run(tmp_path / "killed", dies=death, **arguments)
    assert_same(run(tmp_path / "killed", **arguments), whole)
    return whole[2]


pytestmark = pytest.mark.filterwarnings("ignore:accumulated micro-batches")
COMBINATIONS = [
    (devices, every, data) for devices in ("cpu", "cpu:2") for every in (1, 2) for data in (loader, augmented)
]
SHORT = [("cpu", 2, augmented), ("cpu:2", 1, loader)]


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize(
    ("devices", "accumulate", "data"), [*SHORT, *(long(*values) for values in COMBINATIONS if values not in SHORT)]
)
def test_a_killed_fit_ends_where_the_uninterrupted_one_does(devices, accumulate, data, tmp_path):
    """T98."""
    per_epoch = 34 // accumulate
    deaths = [5, per_epoch, 2 * per_epoch]
    assert len(assert_resumes_exactly(tmp_path, deaths, devices=devices, accumulate=accumulate, data=data)) == 2


def test_a_run_goes_on_with_the_other_kind_of_arrays(kind, tmp_path):
    with kind.switches():
        whole = run(tmp_path / "whole")
        with pytest.raises(Killed):
            run(tmp_path / "killed", dies=54)
    with Kind(not kind.numpy).switches():
        resumed = run(tmp_path / "killed")
    assert kind.holds(whole[0][0].weight.data())
    assert not kind.holds(resumed[0][0].weight.data())
    assert_same(resumed, whole)


@pytest.mark.parametrize("optimizer", [*map(long, ["sgd", "nadam", "nag", "rmsprop", "adagrad", "lamb"])])
def test_optimizers_go_on_inside_an_epoch(optimizer, tmp_path):
    assert_resumes_exactly(tmp_path, [54], optimizer=optimizer)


def test_a_net_that_draws_nothing_goes_on_after_any_update(tmp_path):
    quiet = {"dropout": 0.0, "settings": {"every": "7 updates"}}
    assert_resumes_exactly(tmp_path, [23], **quiet)
    with pytest.raises(Killed):
        run(tmp_path / "again", dies=23, **quiet)
    assert find_checkpoint(tmp_path / "again").step == 21


def test_a_finished_run_returns_its_results_again(tmp_path):
    whole = run(tmp_path)
    again = run(tmp_path)
    assert_same(again, whole)
    assert [row["seconds"] for row in again[2]] == [row["seconds"] for row in whole[2]]


def plain(directory, net, data=None, **arguments):
    """Without a schedule that would depend on the length."""
    how = {"trainer": ("sgd", {"learning_rate": 0.1, "momentum": 0.9}), "seed": 5, "checkpoint": directory}
    return fit(net, data or loader(), **{**how, **arguments})


@pytest.mark.parametrize(
    ("first", "then", "steps"),
    [(1, 2, [34, 68]), ("50 updates", 2, [34, 68]), ("34 updates", "84 updates", [34, 68, 84])],
)
def test_a_longer_run_equals_one_that_was_long_from_the_start(first, then, steps, tmp_path):
    net, whole = make_net(), make_net()
    plain(tmp_path / "a", make_net(), epochs=first)
    history = plain(tmp_path / "a", net, resume=True, epochs=then)
    expected = plain(tmp_path / "b", whole, epochs=then)
    assert history.column("updates") == steps
    assert rows(history) == rows(expected)
    np.testing.assert_array_equal(weights(net), weights(whole))


def test_a_run_out_of_time_goes_on(tmp_path):
    def late(limit):
        clock = iter(range(10000))  # a second each time that somebody looks
        return [mxkit.callbacks.TimeLimit(limit, clock=lambda: next(clock))]

    net, whole = make_net(), make_net()
    history = plain(tmp_path / "b", make_net(), epochs=2, callbacks=late(40))
    assert history.stopped.startswith("time limit of 40 s passed")
    history = plain(tmp_path / "b", net, epochs=2, callbacks=late(10**6), resume="auto")
    assert rows(history) == rows(plain(tmp_path / "c", whole, epochs=2))
    np.testing.assert_array_equal(weights(net), weights(whole))


def test_a_seed_is_drawn_and_kept_where_none_is_given(tmp_path):
    def unseeded(directory, net, **arguments):
        shuffled = mxkit.data.ArrayLoader(X[:136], Y[:136], 4, shuffle=True)  # draws a seed too
        return plain(directory, net, data=shuffled, seed=None, **arguments)

    whole, net = make_net(), make_net()
    history = unseeded(tmp_path, whole, epochs=2)
    first = checkpoint_paths(tmp_path)[-1]
    for path in checkpoint_paths(tmp_path)[:-1]:
        path.rename(tmp_path / "later")
    assert first.name == "step-00000034"
    assert rows(unseeded(tmp_path, net, epochs=2, resume=True)) == rows(history)
    np.testing.assert_array_equal(weights(net), weights(whole))


def test_what_resume_may_be(tmp_path):
    net = make_net()
    with pytest.raises(CheckpointError, match="no whole checkpoint in"):
        plain(tmp_path, net, epochs=1, resume=True)
    plain(tmp_path, net, epochs=1, resume="auto")
    with pytest.raises(CheckpointError, match="holds checkpoints of an earlier run, the newest step-00000034.*resume="):
        plain(tmp_path, net, epochs=2)
    mxkit.save_checkpoint(tmp_path / "own", net, step=3)
    with pytest.raises(CheckpointError, match="was not written by fit. Use load_checkpoint"):
        plain(tmp_path / "own", net, epochs=2, resume=True)


def test_what_keeps_a_resume_from_being_bit_equal_is_told(tmp_path, monkeypatch):
    plain(tmp_path, make_net(), epochs=1, callbacks=[mxkit.callbacks.EMA(0.9)])
    monkeypatch.setattr("mxkit.training.resume.in_force", lambda: 7)
    monkeypatch.setattr("mxkit.training.resume.kernels", lambda: "Z80")
    other = {"seed": 6, "loss": ("focal", {"gamma": 1}), "accumulate": 2, "clip_norm": 1.0}
    with pytest.warns(CheckpointWarning) as caught:
        plain(tmp_path, make_net("cpu:2"), epochs=2, resume=True, **other)
    told, left_out = (str(warning.message) for warning in caught)
    for text in (
        "cannot be bit-equal to an uninterrupted run: devices was ['cpu(0)'], is ['cpu(0)', 'cpu(1)']; OMP_NUM_THREADS",
        "is '7'; kernels of OpenBLAS was",
        "is 'Z80'; seed was 5, is 6; loss was 'SoftmaxCrossEntropyLoss(weight=None, batch_axis=0, axis=-1,",
        "class_weight=None, gamma=1.0)'; accumulate was 1, is 2; clip_norm was None, is 1.0",
    ):
        assert text in told
    assert "updates an epoch" not in told  # follows from accumulate
    assert "holds the state of EMA, which this run does not have: left out" in left_out


@pytest.mark.parametrize(
    ("first", "then", "text"),
    [
        ({"accumulate": 2}, {"accumulate": "8 samples"}, "accumulate was 2, is '8 samples'"),
        ({"accumulate": "8 samples"}, {}, "accumulate was '8 samples', is 1"),
        ({"accumulate": "8 samples"}, {"accumulate": "12 samples"}, "accumulate was '8 samples', is '12 samples'"),
        ({}, {"batch_size": 2}, "batch_size was 4, is 2"),
    ],
)
def test_another_accumulate_or_batch_size_after_an_epoch_is_told_once(first, then, text, tmp_path):
    how = dict(then)
    size = how.pop("batch_size", 4)
    plain(tmp_path, make_net(), epochs=1, **first)
    with pytest.warns(CheckpointWarning, match=f"cannot be bit-equal to an uninterrupted run: {text}$") as caught:
        history = plain(tmp_path, make_net(), data=sized(size), epochs=2, resume=True, **how)
    assert len(caught) == 1
    assert history.column("samples") == [136, 136]


def test_an_end_between_the_grid_is_kept_and_going_on_from_it_is_told(tmp_path):
    net = make_net()
    history = plain(tmp_path, net, epochs="44 updates")
    assert find_checkpoint(tmp_path).step == 44
    again = make_net()
    assert rows(plain(tmp_path, again, epochs="44 updates", resume=True)) == rows(history)
    np.testing.assert_array_equal(weights(again), weights(net))
    with pytest.warns(CheckpointWarning, match="cannot be bit-equal.*ended after 10 updates of epoch 2"):
        assert plain(tmp_path, make_net(), epochs="88 updates", resume=True).column("updates") == [34, 44, 78, 88]


def buffered():
    """Shuffles through a buffer: what it gives depends on what it drew batches ago."""

    def read():
        held = []
        for number in [*range(34), *[None] * 10]:
            held += [] if number is None else [number]
            if len(held) > 10 or number is None:
                number = held.pop(np.random.randint(len(held)))
                yield mx.nd.array(X[4 * number : 4 * number + 4]), mx.nd.array(Y[4 * number : 4 * number + 4])

    return read


@pytest.mark.parametrize("accumulate", [2, long("3 samples")])
def test_what_a_generator_carries_over_is_drawn_again(accumulate, tmp_path):
    assert_resumes_exactly(tmp_path, [10, 30], data=buffered, accumulate=accumulate)


def test_gluons_own_loader_is_gone_on_with(tmp_path):
    assert_resumes_exactly(tmp_path, [54], data=lambda: gluons(shuffle=True))


def test_iterators_that_shuffle_what_they_shuffled(tmp_path):
    """T99."""
    shuffled = mx.io.NDArrayIter(X[:136], Y[:136], 4, shuffle=True)
    with pytest.warns(CheckpointWarning, match="train is a NDArrayIter, whose order follows from all epochs before"):
        fit(make_net(), shuffled, checkpoint=tmp_path)
    fit(make_net(), shuffled)  # without checkpoints nobody resumes


def sized(batch_size=4, size=136, shuffle=True):
    return mxkit.data.ArrayLoader(X[:size], Y[:size], batch_size, shuffle=shuffle, seed=8)


def gluons(batch_size=4, size=136, shuffle=False):
    dataset = gluon.data.ArrayDataset(X[:size], Y[:size].astype("float32"))
    return gluon.data.DataLoader(dataset, batch_size, shuffle=shuffle)


INSIDE = {"epochs": "50 updates"}  # 16 updates into the second epoch
ONE, TWO = TopK(1), TopK(2)  # sums are stored by place
OTHERS = [
    ({"epochs": 1}, {"net": lambda: make_net(norm=False)}, "another shape|not in the net|missing in the file"),
    ({"epochs": 1}, {"trainer": "adam"}, r"(?s)SGD.*Adam|Adam.*SGD"),
    (INSIDE, {"epochs": 1}, "lies in epoch 2, after update 50: 1 epochs are over. Pass at least 2 epochs"),
    (INSIDE, {"epochs": "49 updates"}, "49 updates are over"),
    *(
        ({**INSIDE, "metrics": [ONE, TWO]}, {"metrics": metrics}, rf"inside an epoch with .*; this run has \[{names}\]")
        for metrics, names in (([], ""), ([TWO, ONE], f"'{TWO.name}', '{ONE.name}'"))
    ),
    *(
        ({**INSIDE, "data": make()}, {"data": make(**other)}, f"lies inside epoch 2, after 64 of its samples, .*{text}")
        for make, other, text in (
            (sized, {"batch_size": 2}, "batch_size was 4, is 2"),
            (sized, {"size": 140}, "samples of train was 136, is 140"),
            (sized, {"shuffle": False}, "shuffle was True, is False"),
            (gluons, {"batch_size": 8}, "batch_size was 4, is 8"),
            (gluons, {"shuffle": True}, "shuffle was False, is True"),
        )
    ),
]


@pytest.mark.parametrize(("first", "then", "text"), OTHERS, ids=[row[-1] for row in OTHERS])
def test_a_run_that_does_not_fit_its_checkpoint_is_refused_and_nothing_changes(first, then, text, tmp_path):
    plain(tmp_path, make_net(), **first)
    how = {"epochs": "120 updates", "net": make_net, **then}
    net = how.pop("net")()
    before = weights(net)
    with pytest.raises(CheckpointError, match=text):
        plain(tmp_path, net, resume=True, **how)
    np.testing.assert_array_equal(weights(net), before)


def test_other_batches_of_data_that_tells_nothing_are_counted(tmp_path):
    plain(tmp_path, make_net(), data=in_batches(X[:136], Y[:136], 4), epochs="50 updates")
    told = pytest.warns(CheckpointWarning, match="updates an epoch was 34, is 68")
    with told, pytest.raises(DataError, match="first 16 batches of train in epoch 2 hold 32 samples, .* held 64"):
        plain(tmp_path, make_net(), data=in_batches(X[:136], Y[:136], 2), epochs="120 updates", resume=True)


def test_settings_of_a_new_trainer_that_are_not_used_are_told(tmp_path):
    def go_on(epochs, made, *callbacks):
        return plain(tmp_path, make_net(), epochs=epochs, resume="auto", trainer=("sgd", made), callbacks=callbacks)

    begun = {"learning_rate": 0.1, "momentum": 0.9}
    lower = mxkit.callbacks.LambdaCallback(on_epoch=lambda state, row: state.trainer.set_learning_rate(0.05))
    go_on(1, begun, lower)
    assert go_on(2, begun).column("learning_rate") == [0.1, 0.05]  # of the run: not a word
    text = r"lr=0.5 is not used, the run began with 0.1; wd=0.01 is not used, .* 0. To .* state.trainer.opt"
    with pytest.warns(CheckpointWarning, match=text):
        history = go_on(3, {"learning_rate": 0.5, "momentum": 0.9, "wd": 0.01})
    assert history.column("learning_rate")[-1] == 0.05

    def change(state):
        state.trainer.optimizer.lr = 0.002

    # the checkpoint keeps what the run was begun with, and the way out sets the rate
    assert go_on(4, begun, mxkit.callbacks.LambdaCallback(on_fit_begin=change)).column("learning_rate")[-1] == 0.002


def test_another_fold_does_not_pass_for_the_run_that_was_stopped(tmp_path):
    folds = [np.delete(np.arange(166), np.arange(first, first + 30)) for first in (60, 90)]  # their ends are the same

    def train(fold, directory, make=mxkit.data.ArrayLoader, **length):
        arrays = X[folds[fold]], Y[folds[fold]].astype("int32")
        data = make(*arrays, 4) if make is mxkit.data.ArrayLoader else make(gluon.data.ArrayDataset(*arrays), 4)
        return plain(tmp_path / directory, make_net(norm=False, dropout=0), data, resume="auto", **length)

    first = train(0, "folds", epochs=1)
    assert rows(train(0, "folds", epochs=1)) == rows(first)  # the same samples in new arrays: no warning
    text = "where the run is finished: nothing is trained, .* train holds other samples.* needs another directory"
    with pytest.warns(CheckpointWarning, match=text):
        assert rows(train(1, "folds", epochs=1)) == rows(first)
    with pytest.warns(CheckpointWarning, match="cannot be bit-equal.*: train holds other samples"):
        train(1, "folds", epochs=2)
    for make in (mxkit.data.ArrayLoader, gluon.data.DataLoader, mxkit.data.DatasetLoader):
        train(0, make.__name__, make, epochs="50 updates")
        with pytest.raises(CheckpointError, match="lies inside epoch 2.*the data is not the same: train holds other"):
            train(1, make.__name__, make, epochs="120 updates")


def test_samples_of_a_file_and_of_memory_are_the_same(tmp_path):
    np.save(tmp_path / "x.npy", X.astype("float64"))
    on_disk = np.load(tmp_path / "x.npy", mmap_mode="r")
    found = [source_of(mxkit.data.ArrayLoader(x, Y, 4)).digest for x in (X, on_disk, mx.nd.array(X))]
    assert found[0] is not None
    assert len(set(found)) == 1
    assert source_of([(X, Y)]).digest is None
    dataset = gluon.data.ArrayDataset(X, Y)
    transformed = gluon.data.DataLoader(dataset.transform_first(lambda x: x + 1), 4)
    assert source_of(transformed).digest == source_of(mxkit.data.DatasetLoader(dataset, 4)).digest is not None
    sequences = [[1], [2, 3], [4, 5, 6]]
    buckets = [source_of(mxkit.data.BucketLoader(one, [0, 1, 0], 2)).digest for one in (sequences, sequences[::-1])]
    assert buckets[0] != buckets[1]


@pytest.mark.parametrize(
    ("stops", "told"),
    [
        (False, "requested: 1 epochs"),
        (True, "good enough. A stopped run does not continue: load_checkpoint its weights, and fit with another dir"),
    ],
)
def test_a_finished_or_stopped_run_that_is_resumed_says_so(stops, told, tmp_path, capfd):
    stop = mxkit.callbacks.LambdaCallback(on_epoch=lambda state, row: stops and state.stop("good enough"))
    plain(tmp_path, make_net(), epochs=9 if stops else 1, callbacks=[stop])
    again = plain(tmp_path, make_net(), epochs=9 if stops else 1, resume=True, progress=True)
    assert (len(again), again.stopped) == (1, "good enough" if stops else None)
    err = capfd.readouterr().err
    assert f"nothing left to train: the run has done 34 updates; {told}" in err
    assert "resumes" not in err


def test_a_callback_that_a_resumed_run_adds_is_named(tmp_path):
    plain(tmp_path, make_net(), epochs=1)
    added = [mxkit.callbacks.EMA(0.9), mxkit.callbacks.EarlyStopping("train_loss", "min", patience=9)]
    plain(tmp_path, make_net(), epochs=1, resume=True, callbacks=added)  # nothing is trained, nothing is told
    with pytest.warns(CheckpointWarning) as told:
        plain(tmp_path, make_net(), epochs=2, resume=True, callbacks=added)
    newest = find_checkpoint(tmp_path).path.with_name("step-00000034")
    assert [str(one.message) for one in told if one.category is CheckpointWarning] == [
        f"checkpoint {newest} holds no state of {name}, which this run has: it begins now and does not know the "
        "earlier epochs"
        for name in ("EMA", "EarlyStopping")
    ]
