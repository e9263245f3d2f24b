"""Kills, signals and full disks in real processes: no run is lost, and each ends where the uninterrupted one does."""

import hashlib
import json
import multiprocessing
import os
from pathlib import Path
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings

import mxkit
from mxkit.errors import CheckpointWarning
from mxkit.storage.directory import checkpoint_paths, find_checkpoint
from mxnet.gluon import nn
import numpy as np
import pytest
from sharing import long
import torture

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kills, limits and signals as Linux has them")
DATA = np.random.RandomState(0)
X, Y = DATA.randn(200, 5).astype("float32"), DATA.randint(0, 3, 200)


# what happens in the forked processes


def make_net(width=8):
    mxkit.seed_all(3)
    net = nn.HybridSequential()
    net.add(nn.Dense(width, in_units=5, activation="tanh"), nn.Dropout(0.5), nn.Dense(3, in_units=width))
    mxkit.initialize(net)
    return net


def train(folder, *, at=(), do=None, valid=None, width=8, checkpoint=None, **arguments):
    """A run of 2 epochs of 50 updates, on the grid of 16; `do` is called after the updates `at`."""

    def on_update(state, update):
        if update.step in ([at] if isinstance(at, int) else at):
            do()

    net = make_net(width)
    history = mxkit.fit(
        net,
        mxkit.data.ArrayLoader(X, Y, 4, shuffle=True, seed=8),
        loss="softmax_ce",
        trainer="adam",
        seed=5,
        epochs=2,
        valid=valid or [(X[:20], Y[:20])],
        callbacks=[mxkit.callbacks.LambdaCallback(on_update=on_update), mxkit.callbacks.EMA(0.9)],
        checkpoint=checkpoint or mxkit.Checkpoints(folder / "checkpoints", every="1 epoch"),
        resume="auto",
        progress=False,
        **arguments,
    )
    tell(net, history)
    return history


def tell(net, history):
    rows = [torture.unclocked(row) for row in history]
    digest = hashlib.sha256(json.dumps([rows, history.stopped]).encode())
    for parameter in net.collect_params().values():
        digest.update(parameter.data().asnumpy().tobytes())
    print(f"ended with {digest.hexdigest()} after {rows[-1]['updates'] if rows else 0}", flush=True)  # noqa: T201


def myself(number):
    return lambda: os.kill(os.getpid(), number)


def sigterm(folder):
    train(folder, at=21, do=myself(signal.SIGTERM))
    print("not reached", flush=True)  # noqa: T201


def sigterm_from_outside(folder):
    """Another process sends it a moment after update 21, wherever the run is then."""
    orders = iter([f"sleep 0.0{os.getpid() % 10}; kill -TERM {os.getpid()}"])

    def order():
        for one in orders:
            subprocess.Popen(["sh", "-c", one])
        time.sleep(0.005)

    train(folder, at=range(21, 101), do=order)
    print("not reached", flush=True)  # noqa: T201


class Signalling:
    """A list of batches that sends a signal each time it is read, but for the look before the first update."""

    def __init__(self, number, first=1):
        self.number, self.reads, self.first = number, 0, first

    def __iter__(self):
        self.reads += 1
        if self.reads > self.first:
            os.kill(os.getpid(), self.number)
        return iter([(X[:20], Y[:20])])


def sigterm_in_validation(folder):
    checkpoint = mxkit.Checkpoints(folder / "checkpoints", every="100 epochs")
    train(folder, valid=Signalling(signal.SIGTERM), checkpoint=checkpoint)


def sigterm_when_all_is_done(folder):
    train(folder)
    train(folder, valid=Signalling(signal.SIGTERM, first=0))
    print("not reached", flush=True)  # noqa: T201


def sigterm_with_a_handler_of_the_script(folder):
    def handler(number, frame):
        print("the script's handler", flush=True)  # noqa: T201
        raise SystemExit(7)

    signal.signal(signal.SIGTERM, handler)
    train(folder, at=21, do=myself(signal.SIGTERM))


def sigint(folder):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    checkpoint = mxkit.Checkpoints(folder / "checkpoints", every="1 epoch")
    history = train(folder, at=21, do=myself(signal.SIGINT), checkpoint=checkpoint)
    assert history.stopped == "KeyboardInterrupt in epoch 1, after update 32"
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert find_checkpoint(folder / "checkpoints").step == 32
    train(folder, checkpoint=checkpoint)


def sigint_twice(folder):
    history = train(folder, at=[21, 23], do=myself(signal.SIGINT))
    assert history.stopped == "KeyboardInterrupt in epoch 1, after update 23"
    assert checkpoint_paths(folder / "checkpoints") == []
    train(folder)


def sigint_without_a_terminal(folder):
    os.close(2)
    sigint(folder)


def in_a_thread(folder):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    seen = []
    do = lambda: seen.extend([signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)])  # noqa: E731
    thread = threading.Thread(target=train, args=(folder,), kwargs={"at": 21, "do": do})
    thread.start()
    thread.join()
    assert tuple(seen) == before


def wait_for_ever():
    time.sleep(60)


def workers_are_terminated(folder):
    def fork_and_terminate():
        worker = multiprocessing.get_context("fork").Process(target=wait_for_ever)
        worker.start()
        time.sleep(0.1)
        worker.terminate()
        worker.join(10)
        assert worker.exitcode == -signal.SIGTERM, worker.exitcode

    train(folder, at=21, do=fork_and_terminate)


def full_disk(folder):
    """No file may grow above 2000 bytes between updates 20 and 60."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = iter([2000, resource.RLIM_INFINITY])

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (next(limits), resource.RLIM_INFINITY))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CheckpointWarning)
        train(folder, at=[20, 60], do=limit, width=64, checkpoint=checkpoints_every_16(folder))
    texts = [str(one.message) for one in caught if issubclass(one.category, CheckpointWarning)]
    print(f"{len(texts)} warnings, the first: {texts[0]}", flush=True)  # noqa: T201
    print([path.name for path in checkpoint_paths(folder / "checkpoints")], flush=True)  # noqa: T201


def full_filesystem(folder):
    """The second checkpoint fits no more beside the first one."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CheckpointWarning)
        train(folder, width=64, checkpoint=checkpoints_every_16(folder, keep_last=1))
    texts = [str(one.message) for one in caught if issubclass(one.category, CheckpointWarning)]
    print(f"{len(texts)} warnings, the first: {texts[0]}", flush=True)  # noqa: T201


def checkpoints_every_16(folder, **arguments):
    return mxkit.Checkpoints(folder / "checkpoints", every="16 updates", **arguments)


def in_folder(name, folder):
    globals()[name](Path(folder))


def enough_disk(folder):
    train(folder, width=64, checkpoint=checkpoints_every_16(folder))


# the tests


@pytest.fixture(scope="module")
def answer(forks):
    """Play a scenario in a process of its own: exit status and output."""

    def play(name, folder):
        folder.mkdir(exist_ok=True)
        done = forks.run("test_kills:in_folder", name, str(folder))
        return done.returncode, done.stdout + done.stderr

    return play


@pytest.fixture
def play(answer, tmp_path):
    return lambda name, folder=None: answer(name, folder or tmp_path)


def end_of(output):
    return output.split("ended with ")[1].split()[0]


@pytest.fixture(scope="module")
def whole(answer, tmp_path_factory):
    """How the uninterrupted run ends."""
    code, output = answer("train", tmp_path_factory.mktemp("whole"))
    assert code == 0, output
    return end_of(output)


def torture_run(forks, *arguments):
    done = forks.run(torture.__file__, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_runs_killed_at_random_instants_end_bit_for_bit_where_the_uninterrupted_one_does(forks):
    """`make torture` kills more."""
    nd, numpy = torture_run(forks, "--kills", "1", "--epochs", "2", "--only", "2").splitlines()
    assert (nd[:5], numpy[:5]) == ("mx.nd", "mx.np")
    assert "1 killed" in nd
    assert "1 killed" in numpy


@pytest.mark.parametrize("stride", [7, long(1)])
def test_every_call_of_a_save_may_be_the_last(forks, stride):
    told = torture_run(forks, "--writes", "--stride", str(stride))
    kinds = [f"left .{kind}-*" for kind in ("writing", "replaced", "pruned") if stride == 1]
    for left in [*kinds, *(f"{job.__name__}: deaths" for job in torture.SAVES)]:
        assert f" 0 {left}" not in told
        assert left in told


@pytest.mark.parametrize(
    ("scenario", "step"),
    [
        ("sigterm", 32),
        ("sigterm_in_validation", 50),
        ("sigterm_when_all_is_done", 100),
        long("sigterm_from_outside", None),
    ],
)
def test_sigterm_writes_a_checkpoint_and_ends_the_process(scenario, step, play, whole, tmp_path):
    code, output = play(scenario)
    assert (code, "not reached" in output) == (-signal.SIGTERM, False), output
    assert scenario != "sigterm" or "mxkit: stopping at the next checkpoint\n" in output
    assert step is None or find_checkpoint(tmp_path / "checkpoints").step == step
    code, output = play("train")
    assert (code, end_of(output)) == (0, whole)


def test_sigterm_reaches_the_handler_of_the_script_after_the_checkpoint(play, tmp_path):
    code, output = play("sigterm_with_a_handler_of_the_script")
    assert "the script's handler" in output
    assert find_checkpoint(tmp_path / "checkpoints").step == 32


@pytest.mark.parametrize("scenario", ["sigint_twice", "sigint_without_a_terminal", long("sigint")])
def test_sigint_returns_the_history_and_the_script_goes_on(scenario, play, whole):
    code, output = play(scenario)
    assert code == 0, output
    told = "mxkit: stopping at the next checkpoint; Ctrl-C again stops at once\n" in output
    assert told == (scenario != "sigint_without_a_terminal")
    stopped, resumed = output.split("ended with ")[1:]
    assert (stopped.split()[-1], resumed.split()[0]) == ("0", whole)


@pytest.mark.parametrize("scenario", ["in_a_thread", "workers_are_terminated"])
def test_no_handler_is_installed_in_a_thread_or_kept_by_forked_workers(scenario, play, whole):
    code, output = play(scenario)
    assert (code, end_of(output), "stopping" in output) == (0, whole, False), output


def test_a_run_goes_on_while_the_disk_is_full(play, tmp_path):
    code, expected = play("enough_disk", tmp_path / "whole")
    assert code == 0, expected
    code, output = play("full_disk")
    assert code == 0, output
    assert end_of(output) == end_of(expected)
    # the checkpoint of update 16 may still be on its way when the limit comes
    assert re.search(
        r"[23] warnings, the first: a checkpoint could not be written, the run goes on and earlier", output
    )
    # MXNet writes short in silence, Python tells: which of them meets the limit first is a matter of time
    assert re.search(r"could not be written whole; is the disk full\?|\[Errno 27\] File too large", output)
    assert "['step-00000100', 'step-00000098', 'step-00000082']" in output
    assert sorted(path.name[:5] for path in (tmp_path / "checkpoints").iterdir()) == ["step-"] * 3


@pytest.fixture
def mounted(tmp_path):
    """A file system of 32 KB, where this process may mount one."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=32k", "none", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("may not mount a file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.long
def test_a_run_goes_on_where_the_file_system_is_full(play, mounted, tmp_path):
    code, expected = play("enough_disk", tmp_path / "whole")
    assert code == 0, expected
    code, output = play("full_filesystem", mounted)
    assert code == 0, output
    assert end_of(output) == end_of(expected)
    assert "No space left on device" in output or "is the disk full?" in output
    assert [path.name[:5] for path in (mounted / "checkpoints").iterdir()] == ["step-"]
    assert find_checkpoint(mounted / "checkpoints").step == 16


def test_a_directory_that_cannot_be_written_is_told_before_the_first_update(mounted):
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    seen = []
    with pytest.raises(OSError, match="Read-only file system"):
        mxkit.fit(
            make_net(),
            [(X, Y)],
            loss="softmax_ce",
            trainer="sgd",
            epochs=1,
            callbacks=[mxkit.callbacks.LambdaCallback(on_update=lambda state, update: seen.append(update))],
            checkpoint=mounted,
            progress=False,
        )
    assert seen == []
