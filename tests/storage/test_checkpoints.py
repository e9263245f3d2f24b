"""When checkpoints are written, which are kept, and what happens around them when something goes wrong."""

import multiprocessing
import re
import stat
import threading
import weakref

from comparing import X, Y, assert_equal, make_net, step, values
import mxkit
from mxkit.errors import CheckpointError, CheckpointWarning, NonFiniteError, UnknownNameError
from mxkit.storage.directory import (
    checkpoint_paths,
    find_checkpoint,
    list_checkpoints,
    only_writer,
    prune_to,
    remove_checkpoints,
)
from mxkit.storage.snapshot import take_snapshot
from mxkit.training import checkpoints as module
import mxnet as mx
from mxnet import gluon
import numpy as np
from oracle import Scores
import pytest
from sharing import command, long, pairs

NAN = float("nan")


def train(directory, *, net=None, callbacks=(), data=None, **arguments):
    """Epochs of 10 updates; nothing draws random numbers, so that a checkpoint may follow any update."""
    settings = {name: arguments.pop(name) for name in list(arguments) if name.startswith(("every", "keep_"))}
    return mxkit.fit(
        net or make_net(),
        mxkit.data.ArrayLoader(X, Y, 4) if data is None else data,
        **{
            "loss": "softmax_ce",
            "trainer": ("sgd", {"learning_rate": 0.1, "momentum": 0.9}),
            "epochs": 4,
            "seed": 5,
            "callbacks": list(callbacks),
            "checkpoint": mxkit.Checkpoints(directory, **settings),
            "progress": False,
            **arguments,
        },
    )


def steps(directory):
    return [int(path.name[5:]) for path in reversed(checkpoint_paths(directory))]


def on_update(step, do):
    """A callback that calls `do` after one update."""
    return mxkit.callbacks.LambdaCallback(on_update=lambda state, update: do() if update.step == step else None)


def raise_(error):
    raise error


@pytest.fixture
def holding(monkeypatch):
    """Each update from which a run can go on is held in memory."""
    monkeypatch.setattr(module, "HOLD_SECONDS", 0.0)
    return monkeypatch


def scored(directory, scores, mode="min", **arguments):
    settings = {"keep_last": 1, "keep_best": ("valid_loss", mode), "epochs": len(scores), **arguments}
    return train(directory, valid=[(X, Y)], callbacks=[Scores(scores)], **settings)


# what is kept


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [20, 30, 40]),
        ({"keep_last": 1}, [40]),
        ({"every": "3 epochs"}, [30, 40]),
        ({"every": "7 updates", "keep_last": 99}, [7, 14, 21, 28, 35, 40]),
        ({"every": "1000 updates"}, [40]),
        ({"keep_last": 1, "keep_every": "15 updates"}, [20, 30, 40]),
        ({"keep_last": 1, "every": "4 updates", "keep_every": "1 epoch"}, [12, 24, 32, 40]),
        ({"every": "5 minutes", "keep_last": 99}, [6, 12, 18, 24, 30, 36, 40]),
    ],
)
def test_what_is_written_and_what_is_kept(settings, expected, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    passing = mxkit.callbacks.LambdaCallback(on_update=lambda state, update: now.__setitem__(0, now[0] + 50))
    train(tmp_path, callbacks=[passing], **settings)
    assert steps(tmp_path) == expected
    assert sorted(path.name[:5] for path in tmp_path.iterdir()) == ["step-"] * len(expected)


SCORES = [
    ([0.5, 0.3, 0.4, 0.3, 0.35], "min", 20, [20, 50]),
    ([0.5, 0.3, 0.4, 0.5, 0.35], "max", 10, [10, 50]),
    ([NAN, 0.5, NAN, 0.7, NAN], "min", 20, [20, 50]),
    ([NAN, 0.5, NAN, 0.7, NAN], "max", 40, [40, 50]),
    ([None, 0.5, None, None, 0.5], "min", 20, [20, 50]),
    ([float("inf"), float("-inf"), 0.0, 0.0, 0.0], "min", 20, [20, 50]),
    ([0.5, 0.4, 0.3, 0.2, 0.1], "min", 50, [50]),
]


@pytest.mark.parametrize(("case", "every"), pairs(SCORES, ["1 epoch", "100 epochs", "100 updates"]))
def test_the_best_is_written_kept_and_found(case, every, tmp_path):
    scores, mode, best, kept = case
    scored(tmp_path, scores, mode, every=every)
    assert steps(tmp_path) == kept
    found = find_checkpoint(tmp_path, "best")
    assert (found.step, found.score["value"]) == (best, scores[best // 10 - 1])
    assert mxkit.load_checkpoint(tmp_path, make_net(), which="best").step == best


def test_a_resumed_run_knows_the_best_before_and_compares_scores_of_one_kind(tmp_path):
    scored(tmp_path, [0.5, 0.2, 0.4])
    scored(tmp_path, [0.5, 0.2, 0.4, 0.3, 0.25], resume=True)
    assert steps(tmp_path) == [20, 50]
    best = ("valid_accuracy", "max")
    train(tmp_path, valid=[(X, Y)], metrics=["accuracy"], keep_best=best, keep_last=9, epochs=6, resume=True)
    found = find_checkpoint(tmp_path, "best")
    assert (found.score["column"], found.step > 50) == ("valid_accuracy", True)


def test_pruning_keeps_what_keep_every_of_the_run_s_recipe_keeps(tmp_path):
    directory = tmp_path / "run" / "checkpoints"
    scored(directory, [0.2, 0.5, 0.4, 0.3, 0.6], keep_last=9)
    (tmp_path / "run" / "recipe.yaml").write_text("checkpoints: {keep_every: often}")
    with pytest.raises(CheckpointError, match=r"recipe.yaml cannot be read, .* nothing was removed.*received 'often'"):
        prune_to(directory, 1)
    assert steps(directory) == [10, 20, 30, 40, 50]
    (tmp_path / "run" / "recipe.yaml").write_text("checkpoints: {keep_every: 2 epochs}")
    assert prune_to(directory, 1).kept == {
        "step-00000050": "newest", "step-00000040": "keep_every", "step-00000020": "keep_every", "step-00000010": "best"
    }  # fmt: skip
    assert steps(directory) == [10, 20, 40, 50]
    (directory / "step-00000020" / "net.params").write_bytes(b"damaged")
    assert list(prune_to(directory, 1).kept) == ["step-00000050", "step-00000040", "step-00000010"]
    assert steps(directory) == [10, 20, 40, 50]


def test_a_run_s_own_process_saves_and_removes_checkpoints_while_it_writes(tmp_path):
    def beside():
        kept = mxkit.save_checkpoint(tmp_path, net, step=7)
        assert remove_checkpoints(tmp_path, [kept.name]) == [kept.name]
        assert (tmp_path / ".writer").exists()

    net = make_net()
    train(tmp_path, net=net, callbacks=[on_update(15, beside)])
    assert steps(tmp_path) == [20, 30, 40]
    assert not (tmp_path / ".writer").exists()


def test_a_checkpoint_that_is_saved_while_the_writer_chooses_what_it_removes_stays(tmp_path, monkeypatch):
    """The writer had listed the folder again, and removed what its choice had not seen."""
    chosen = module.kept

    def choose(present, **settings):
        mxkit.save_checkpoint(tmp_path, net, step=len(present))
        return chosen(present, **settings)

    net = make_net()
    monkeypatch.setattr(module, "kept", choose)
    train(tmp_path, net=net, keep_last=5, epochs=2)
    assert steps(tmp_path) == [1, 3, 10, 20]


def _holds(folder, pipe):
    with only_writer(folder):
        pipe.send("locked")
        pipe.recv()


def test_another_process_neither_prunes_nor_writes_where_a_run_writes(tmp_path):
    train(tmp_path / "checkpoints")
    here, there = multiprocessing.Pipe()
    run = multiprocessing.get_context("fork").Process(target=_holds, args=(tmp_path / "checkpoints", there))
    run.start()
    here.recv()
    refused = f"process {run.pid} on .* writes into {tmp_path / 'checkpoints'}"
    try:
        for name in ((), ("step-00000020",)):
            code, _, err = command("checkpoints", "prune", tmp_path, "--keep-last", "1", *name)
            assert (code, bool(re.search(f"^error: {refused}", err))) == (1, True)
        with pytest.raises(CheckpointError, match=f"^{refused}"):
            mxkit.save_checkpoint(tmp_path / "checkpoints", make_net(), step=7)
        assert steps(tmp_path / "checkpoints") == [20, 30, 40]
        assert len(list_checkpoints(tmp_path / "checkpoints")) == 3  # reading is free
    finally:
        here.send("end")
        run.join()
    assert command("checkpoints", "prune", tmp_path, "--keep-last", "1")[0] == 0
    assert mxkit.save_checkpoint(tmp_path / "checkpoints", make_net(), step=7).name == "step-00000007"
    assert steps(tmp_path / "checkpoints") == [7, 40]


def test_a_best_that_is_gone_or_broken_is_an_error(tmp_path):
    train(tmp_path, valid=[(X, Y)], keep_best=("valid_loss", "max"), keep_last=9)  # the loss falls: epoch 1 is it
    assert find_checkpoint(tmp_path, "best").step == 10
    file = tmp_path / "step-00000010" / "net.params"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match=r"the best checkpoint is broken: .*net.params is damaged"):
        find_checkpoint(tmp_path, "best")
    file.write_bytes(whole)
    assert remove_checkpoints(tmp_path, ["step-00000010"]) == ["step-00000010"]
    text = (
        r"the best checkpoint is gone: valid_loss was \S+ after epoch 1, update 10\. .* there are step-00000020 \(valid"
    )
    with pytest.raises(CheckpointError, match=text):
        mxkit.load_checkpoint(tmp_path, make_net(), which="best")
    assert find_checkpoint(tmp_path).step == 40
    assert find_checkpoint(tmp_path / "step-00000020", "best").step == 20


def test_the_best_epoch_may_be_the_one_that_updates_ends(tmp_path):
    def run(updates, **more):
        arguments = {"epochs": f"{updates} updates", "keep_best": ("valid_loss", "min"), "keep_last": 9}
        return train(tmp_path, valid=[(X, Y)], **arguments, **more)

    history = run(15)  # the loss falls
    found = find_checkpoint(tmp_path, "best")
    assert (found.step, found.score["value"]) == (15, history[-1]["valid_loss"])
    longer = run(30, resume=True)
    assert [row["updates"] for row in longer] == [10, 20, 30]
    assert find_checkpoint(tmp_path, "best").step == 30


@pytest.mark.parametrize(  # test_lengths.py has more forms
    ("arguments", "expected"),
    [
        ({"every": 10}, "every: expected a length like '2 epochs', '500 updates' or '5 minutes'; received 10"),
        ({"every": "1.5 epochs"}, "every: epochs are counted in whole numbers; received '1.5 epochs'"),
        ({"keep_last": 0}, "keep_last"),
        ({"keep_last": 1.5}, "keep_last"),
        ({"keep_every": "5 minutes"}, "keep_every: expected a length like '2 epochs' or '500 updates'; received"),
        ({"keep_best": ("valid_loss", "least")}, "min.*max.*least"),
        ({"directory": "runs/x/step-00000012"}, "received one checkpoint, runs/x/step-00000012. Pass its parent"),
    ],
)
def test_wrong_arguments_are_told_at_once(arguments, expected):
    with pytest.raises((ValueError, TypeError), match=expected):
        mxkit.Checkpoints(**{"directory": "runs/x", **arguments})


def test_what_cannot_be_is_told_before_the_first_update(tmp_path):
    (tmp_path / "file").write_text("")
    seen, noting = [], mxkit.callbacks.LambdaCallback(on_update=lambda state, update: seen.append(1))
    with pytest.raises(UnknownNameError, match="unknown column of the history 'valid_accuracy'"):
        train(tmp_path, keep_best=("valid_accuracy", "max"), callbacks=[noting])
    with pytest.raises(OSError, match="file/a"):
        train(tmp_path / "file" / "a", callbacks=[noting])
    assert seen == []


# when something goes wrong


@pytest.mark.parametrize("error", [SystemExit(3), mx.MXNetError("of the engine"), long(ZeroDivisionError("callback"))])
def test_an_error_writes_the_copy_in_memory(error, holding, tmp_path):
    whole = make_net()
    expected = train(tmp_path / "whole", net=whole)
    with pytest.raises(type(error)):
        train(tmp_path / "a", every="100 epochs", callbacks=[on_update(17, lambda: raise_(error))])
    assert steps(tmp_path / "a") == [16]
    net = make_net()
    history = train(tmp_path / "a", net=net, resume=True)
    assert_equal(values(net), values(whole))
    assert history.column("train_loss") == expected.column("train_loss")
    holding.undo()  # long before the next copy, what came since the last checkpoint is lost
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "b", callbacks=[on_update(17, lambda: raise_(ZeroDivisionError()))])
    assert steps(tmp_path / "b") == [10]


def test_a_held_copy_that_cannot_be_written_does_not_hide_the_error(holding, tmp_path):
    def spoil():
        tmp_path.rename(tmp_path.with_name("moved"))
        tmp_path.write_text("a file is in the way")
        raise ZeroDivisionError

    # no checkpoint before it: while one is still being written, nothing is held
    with pytest.warns(CheckpointWarning, match="could not be written"), pytest.raises(ZeroDivisionError):
        train(tmp_path, every="100 epochs", callbacks=[on_update(17, spoil)])


def test_a_run_goes_on_where_each_checkpoint_fails_while_the_next_one_waits(tmp_path, monkeypatch):
    started, whole, net = module.BackgroundWriter.start, make_net(), make_net()
    monkeypatch.setattr(
        module.BackgroundWriter, "start", lambda self, job: started(self, lambda: (threading.Event().wait(0.02), job()))
    )
    history = train(tmp_path / "whole", net=whole, epochs=1)

    def spoil():
        (tmp_path / "a").rename(tmp_path / "moved")
        (tmp_path / "a").write_text("a file is in the way")

    with pytest.warns(CheckpointWarning, match="could not be written, the run goes on and earlier") as told:
        spoilt = train(tmp_path / "a", net=net, every="1 update", epochs=1, callbacks=[on_update(3, spoil)])
    assert len(told) > 5
    assert spoilt.column("train_loss") == history.column("train_loss")
    assert_equal(values(net), values(whole))
    assert find_checkpoint(tmp_path / "moved").step in (1, 2)


@pytest.mark.parametrize("every", ["5 updates", long("1 update"), long("1 epoch")])
def test_nan_is_never_written(every, holding, tmp_path):
    net = make_net()
    spoil = on_update(17, lambda: net[0].weight.set_data(net[0].weight.data() * NAN))
    with pytest.raises(NonFiniteError):
        train(tmp_path, net=net, every=every, keep_last=99, callbacks=[spoil])
    written = steps(tmp_path)
    assert written
    assert max(written) < 17
    for number in written:
        mxkit.load_checkpoint(tmp_path / f"step-{number:08d}", net)
        assert all(np.isfinite(array).all() for array in values(net).values())


class Giving(mxkit.Callback):
    """Gives the arrays of a function of the update's number."""

    def __init__(self, arrays):
        self.arrays, self.step = arrays, 0

    def on_update(self, state, update):
        threading.Event().wait(0.02)  # the thread that writes meets its error before the next checkpoint
        self.step = update.step

    def state_arrays(self):
        return self.arrays(self.step)


@pytest.mark.parametrize(
    ("arrays", "error", "words", "last", "written"),
    [
        # MXNet raises it once: before anything is written (T43)
        (lambda step: {"x": mx.nd.random.normal(0, 12 - step, 3)}, mx.MXNetError, "scale|sigma", [15], [5, 10]),
        # no file can hold the name: the error of the thread, which is not the disk's, comes out at an update
        (lambda step: {"\udc80": mx.nd.ones(1)}, UnicodeEncodeError, "surrogates not allowed", [5, 6, 7, 8, 9, 10], []),
    ],
)
def test_an_error_of_the_engine_or_of_the_writing_thread_comes_out(arrays, error, words, last, written, tmp_path):
    giving = Giving(arrays)
    with pytest.raises(error, match=words):
        train(tmp_path, every="5 updates", callbacks=[giving])
    assert giving.step in last
    assert steps(tmp_path) == written
    assert len(list(tmp_path.iterdir())) == len(written)


def test_a_broken_checkpoint_counts_for_nothing_and_the_run_is_not_lost(tmp_path):
    whole = make_net()
    train(tmp_path / "whole", net=whole)
    with pytest.raises(SystemExit):
        train(tmp_path / "a", every="5 updates", callbacks=[on_update(27, lambda: raise_(SystemExit))])
    assert steps(tmp_path / "a") == [15, 20, 25]
    (tmp_path / "a" / "step-00000025" / "net.params").write_bytes(b"damaged")
    stop = on_update(24, lambda: raise_(SystemExit))
    with pytest.warns(CheckpointWarning, match="skipped a broken checkpoint"), pytest.raises(SystemExit):
        train(tmp_path / "a", every="2 updates", keep_last=2, callbacks=[stop], resume=True)
    assert steps(tmp_path / "a") == [20, 22, 25]
    with pytest.warns(CheckpointWarning, match="skipped a broken checkpoint"):
        assert find_checkpoint(tmp_path / "a").step == 22
    net = make_net()
    with pytest.warns(CheckpointWarning, match="skipped a broken checkpoint"):
        train(tmp_path / "a", net=net, resume=True)
    assert_equal(values(net), values(whole))


def test_what_lies_beside_checkpoints_stays_and_is_never_the_best(tmp_path):
    (tmp_path / ".writing-notes.txt").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine").write_text("mine")
    (tmp_path / ".pruned-link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / ".writing-dead").mkdir()
    train(tmp_path, keep_last=1)
    with pytest.raises(CheckpointError, match=r"with a score, as Checkpoints\(keep_best=...\) writes"):
        find_checkpoint(tmp_path, "best")
    with pytest.raises(ValueError, match="which: expected one of 'last', 'best'; received 'newest'"):
        find_checkpoint(tmp_path, "newest")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".pruned-link", ".writing-notes.txt", "elsewhere", "step-00000040"]  # fmt: skip
    assert (tmp_path / "elsewhere" / "mine").read_text() == "mine"


def test_others_may_read_a_checkpoint_as_the_umask_says_and_numbers_of_numpy_are_numbers(tmp_path):
    (tmp_path / "plain").mkdir()
    state = {"loss": np.float32(0.5), "epoch": np.int64(3), "done": np.bool_(True)}
    saved = mxkit.save_checkpoint(tmp_path, make_net(), step=1, state=state)
    assert stat.S_IMODE(saved.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    assert find_checkpoint(saved).manifest["state"] == {"loss": 0.5, "epoch": 3, "done": True}
    with pytest.raises(ValueError, match=r"save_checkpoint: state must be plain JSON values: received array\(\[1\]\)"):
        mxkit.save_checkpoint(tmp_path, make_net(), step=2, state={"a": np.array([1])})


# what it costs


class Probe(dict):
    """A file without arrays, which is not written; unlike a tuple, it can be referred to weakly."""


def test_one_copy_of_the_run_is_in_memory_at_most(holding, tmp_path, monkeypatch):
    probes, alive, capture = [], [], module.capture

    def counted(*arguments, **keywords):
        taken = capture(*arguments, **keywords)
        taken.files["probe"] = Probe()
        probes.append(weakref.ref(taken.files["probe"]))
        alive.append(sum(probe() is not None for probe in probes))
        return taken

    monkeypatch.setattr(module, "capture", counted)
    train(tmp_path, every="7 updates", epochs=2)
    assert len(alive) > 3
    assert set(alive) == {1}
    assert not any(probe() for probe in probes)


def test_a_checkpoint_waits_in_the_training_thread_for_losses_and_copies_alone(tmp_path, monkeypatch):
    waits = []

    def counted(name, original):
        def call(*arguments, **keywords):
            if threading.current_thread() is threading.main_thread():
                waits.append(name)
            return original(*arguments, **keywords)

        return call

    for name in ("asnumpy", "wait_to_read"):
        monkeypatch.setattr(mx.nd.NDArray, name, counted(name, getattr(mx.nd.NDArray, name)))
    train(tmp_path / "once", every="100 updates", epochs=1, data=mxkit.data.ArrayLoader(X, Y, 1))
    reads, copies = waits.count("asnumpy"), waits.count("wait_to_read")
    assert copies == 8  # four parameters and their momenta
    del waits[:]
    train(tmp_path / "often", every="4 updates", epochs=1, data=mxkit.data.ArrayLoader(X, Y, 1))
    assert (waits.count("asnumpy") - reads, waits.count("wait_to_read")) == (9, 11 * copies)  # 11 checkpoints, not 1


# what others give is copied


class Counting(mxkit.Callback):
    """Gives its own list and its own array, which it goes on changing; both are empty at first."""

    def __init__(self):
        self.seen, self.total = {}, None

    def on_update(self, state, update):
        self.seen[str(update.step)] = True
        if self.total is None:
            self.total = state.net[0].bias.data() * 0  # of the net's kind
        self.total[:] = update.step

    def state_dict(self):
        return self.seen

    def load_state_dict(self, state):
        self.seen = state

    def state_arrays(self):
        return {} if self.total is None else {"total": self.total}

    def load_state_arrays(self, arrays):
        self.total = arrays["total"]


def test_what_callbacks_give_is_of_the_moment_and_comes_back(kind, tmp_path, monkeypatch):
    started = module.BackgroundWriter.start

    def late(self, job):
        """Write only when the training is further on."""
        started(self, lambda: (threading.Event().wait(0.2), job()))

    monkeypatch.setattr(module.BackgroundWriter, "start", late)
    callbacks = [Counting(), on_update(9, lambda: raise_(SystemExit))]
    with pytest.raises(SystemExit):
        train(tmp_path, net=kind.net(make_net), every="5 updates", callbacks=callbacks)
    (stored,) = find_checkpoint(tmp_path).manifest["run"]["callbacks"]
    assert list(stored["state"]) == list("12345")
    resumed = Counting()
    train(tmp_path, net=kind.net(make_net), callbacks=[resumed], epochs=1, resume=True)
    assert list(resumed.seen) == [str(step) for step in range(1, 11)]
    assert kind.holds(resumed.total)
    assert resumed.total.asnumpy().tolist() == [10] * 6
    fresh, arrays = Counting(), mx.nd.load(str(tmp_path / "step-00000005" / "state.params"))
    assert fresh.total is None
    assert [array[0].asscalar() for name, array in arrays.items() if name.endswith(":total")] == [5]


# a run out of time


class Limit(mxkit.callbacks.TimeLimit):
    """Out of time after some update, or after an epoch's validation."""

    def __init__(self, update=None, epoch=None):
        super().__init__(1000.0, clock=lambda: self.now)
        self.now, self.update, self.epoch = 0.0, update, epoch

    def on_update(self, state, update):
        self.now += 1e6 * (update.step == self.update)
        super().on_update(state, update)

    def on_epoch(self, state, row):
        self.now += 1e6 * (row["epoch"] == self.epoch)
        super().on_epoch(state, row)

    def load_state_dict(self, state):
        pass


def negative(output, label):
    return -(output[:, 0] ** 2) / 100


LIMITS = [({"epoch": 2}, False, negative, 20), ({"update": 17}, False, "softmax_ce", 17)]
LIMITS += [({"update": 9}, True, "softmax_ce", None)]


@pytest.mark.parametrize(("limit", "draws", "loss", "kept"), LIMITS)
def test_a_run_out_of_time_keeps_what_it_did_also_with_losses_below_0(limit, draws, loss, kept, tmp_path):
    def generator():
        yield from mxkit.data.ArrayLoader(X, Y, 4)

    settings = {"data": generator if draws else None, "loss": loss, "epochs": 3}
    whole, net = make_net(), make_net()
    expected = train(tmp_path / "whole", net=whole, **settings)
    history = train(tmp_path / "a", callbacks=[Limit(**limit)], every="100 epochs", **settings)
    assert history.stopped.startswith("time limit")
    assert steps(tmp_path / "a") == ([] if kept is None else [kept])
    history = train(tmp_path / "a", net=net, callbacks=[Limit()], resume="auto", **settings)
    assert_equal(values(net), values(whole))
    assert history.column("train_loss") == expected.column("train_loss")
    assert (min(history.column("train_loss")) < 0) == (loss is negative)


def test_out_of_time_between_two_points_to_go_on_from_the_held_copy_is_written(holding, tmp_path):
    def generator():  # may draw numbers: every 16th update is exact
        yield from mxkit.data.ArrayLoader(X, Y, 1)

    train(tmp_path, callbacks=[Limit(update=37)], data=generator, epochs=1, every="100 epochs")
    assert steps(tmp_path) == [32]


# with a Trainer, without fit


def make_trainer(net, optimizer, on_kvstore):
    settings = {"sgd": {"learning_rate": 0.1, "momentum": 0.9}, "adam": {"learning_rate": 0.01}}[optimizer]
    return gluon.Trainer(net.collect_params(), optimizer, dict(settings), update_on_kvstore=on_kvstore)


PLACES = [("cpu:1", False), ("cpu:2", False), ("cpu:2", True)]
TRAINERS = [(optimizer, used) for used in (False, True) for optimizer in ("sgd", "adam")]


@pytest.mark.parametrize(("place", "case"), pairs(PLACES, TRAINERS))
def test_the_next_updates_with_a_trainer_are_the_same(place, case, kind, tmp_path):
    """T47, T71, T98."""
    (devices, on_kvstore), (optimizer, used) = place, case
    net = make_net(devices, norm=True)
    trainer = make_trainer(net, optimizer, on_kvstore)
    step(net, trainer, 4)
    mxkit.save_checkpoint(tmp_path, net, trainer, step=4)
    saved = values(net)
    step(net, trainer, 5, first=4)
    other = kind.net(lambda: make_net(devices, norm=True, seed=9))  # the checkpoint fits nets of both kinds
    with kind.switches():
        loaded = make_trainer(other, optimizer, on_kvstore)
    if used:
        step(other, loaded, 3, 1, kind)
    mxkit.load_checkpoint(tmp_path, other, loaded)
    assert_equal(values(other), saved)
    step(other, loaded, 5, 4, kind)
    assert_equal(values(other), values(net))


@pytest.mark.parametrize(("place", "used"), pairs(PLACES, [True, False]))
def test_an_optimizer_that_does_not_fit_leaves_net_and_trainer_as_they_were(place, used, tmp_path):
    devices, on_kvstore = place
    trained = make_net(devices)
    trainer = make_trainer(trained, "adam", on_kvstore)
    step(trained, trainer, 2)
    mxkit.save_checkpoint(tmp_path / "adam", trained, trainer, step=2)
    mxkit.save_checkpoint(tmp_path / "none", trained, step=2)
    net, same = make_net(devices), make_net(devices)
    ours, theirs = make_trainer(net, "sgd", on_kvstore), make_trainer(same, "sgd", on_kvstore)
    if used:
        step(net, ours, 3)
        step(same, theirs, 3)
    before = values(net)
    for run, words in (("adam", "another optimizer: Adam in the checkpoint, SGD in"), ("none", "no optimizer's state")):
        with pytest.raises(CheckpointError, match=words):
            mxkit.load_checkpoint(tmp_path / run, net, ours)
        assert_equal(values(net), before)
    step(net, ours, 5)
    step(same, theirs, 5)
    assert_equal(values(net), values(same))
    waiting = mxkit.models.mlp(3, hidden=(6,))  # it may still get another width
    waiting.initialize()
    rename = {"0.*": "1.*", "1.*": "2.*"}
    with pytest.raises(CheckpointError, match="does not fit"):
        mxkit.load_checkpoint(tmp_path / "adam", waiting, make_trainer(waiting, "sgd", None), rename=rename)
    parameters = list(waiting.collect_params().values())
    assert [parameter.shape for parameter in parameters] == [(6, 0), (6,), (3, 0), (3,)]
    assert [parameter._data is None for parameter in parameters] == [True, False, True, False]
    assert not parameters[1].data().asnumpy().any()


def test_parts_of_a_checkpoint_are_loaded_by_name(tmp_path):
    net, plain = make_net(norm=True), make_net(seed=4)
    mxkit.save_checkpoint(tmp_path, net, step=2)
    before = values(plain)
    mxkit.load_checkpoint(tmp_path, plain, rename={"2.*": "1.*"}, only="1.*", strict=False)
    loaded = {name.replace("2.", "1."): array for name, array in values(net).items() if name.startswith("2.")}
    assert_equal(values(plain), {**before, **loaded})


def test_statistics_of_a_further_device_that_do_not_fit_are_refused_before_anything_changes(tmp_path):
    net = make_net("cpu:2", norm=True)
    snapshot = take_snapshot(net, step=1)
    name = "replica:1.running_mean@1"
    snapshot.files["state.params"][name] = snapshot.files["state.params"][name].astype("float64")
    snapshot.write(tmp_path)
    other = make_net("cpu:2", norm=True, seed=4)
    before = values(other)
    with pytest.raises(CheckpointError, match=f"does not fit itself: '{name}' is \\(6,\\) float64"):
        mxkit.load_checkpoint(tmp_path, other)
    assert_equal(values(other), before)


def test_a_checkpoint_is_loaded_by_its_step_or_its_path(tmp_path):
    net, other = make_net(), make_net(seed=4)
    for number in (40, 120, 160):
        net[0].weight.set_data(mx.nd.full(net[0].weight.shape, number))
        mxkit.save_checkpoint(tmp_path, net, step=number)
    assert mxkit.load_checkpoint(tmp_path, other, step=120).step == 120
    assert other[0].weight.data()[0, 0].asscalar() == 120
    assert mxkit.load_checkpoint(tmp_path / "step-00000040", other).step == 40
    assert other[0].weight.data()[0, 0].asscalar() == 40
    before = values(other)
    (tmp_path / "step-00000160" / "net.params").write_bytes(b"broken")
    for place, which, error, words in [
        (tmp_path, {"step": 100}, CheckpointError, "step-00000100 is missing"),
        (tmp_path, {"step": 40, "which": "best"}, ValueError, "step=40 names a checkpoint; pass neither which"),
        (tmp_path / "step-00000040", {"step": 40}, ValueError, "nor the path of one"),
        (tmp_path, {"step": "40"}, ValueError, "step: expected a whole number"),
        (tmp_path, {"step": 160}, CheckpointError, "is damaged"),  # and no other step in its place
    ]:
        with pytest.raises(error, match=words):
            mxkit.load_checkpoint(place, other, **which)
    assert_equal(values(other), before)


def test_a_checkpoint_prints_short_with_scores_of_its_own_weights_alone(tmp_path):
    net = make_net()
    history = train(tmp_path, net=net, epochs=2, valid=[(X, Y)], every="5 updates", keep_last=9)
    own = {name: history[-1][name] for name in ("train_loss", "valid_loss")}
    shown = {one.step: (one.epoch, one.scores) for one in list_checkpoints(tmp_path)}
    assert shown == {5: (1, {}), 10: (1, {}), 15: (2, {}), 20: (2, own)}  # 10: written before epoch 1 was validated
    texts = [f"{name}={value:.6g}" for name, value in own.items()]
    place = f"path={str(tmp_path / 'step-00000020')!r}"
    assert str(mxkit.load_checkpoint(tmp_path, net)) == f"Checkpoint({', '.join(['step=20, epoch=2', *texts, place])})"
    saved = mxkit.save_checkpoint(tmp_path / "own", net, step=3)
    assert repr(mxkit.load_checkpoint(tmp_path / "own", net)) == f"Checkpoint(step=3, path={str(saved)!r})"
    scored(tmp_path / "cut", [0.5, 0.25], epochs="15 updates", every="5 updates", keep_last=9)
    assert list_checkpoints(tmp_path / "cut")[0].scores == {"valid_loss": 0.25}
