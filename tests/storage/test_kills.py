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

from built_nets import ready
import mxkit
from mxkit.errors import CheckpointWarning
from mxkit.storage.directory import checkpoint_paths, find_checkpoint
from mxnet.gluon import nn
import numpy as np
from oracle import fit
import pytest
from sharing import LONG, long
import torture

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kills, limits and signals as Linux has them")
DATA = np.random.RandomState(0)
X, Y = DATA.randn(160, 5).astype("float32"), DATA.randint(0, 3, 160)


# what happens in the forked processes


def make_net(width=8):
    mxkit.seed_all(3)
    return ready(nn.Dense(width, in_units=5, activation="tanh"), nn.Dropout(0.5), nn.Dense(3, in_units=width))


def train(folder, *, at=(), do=None, valid=None, width=8, checkpoint=None, **arguments):
    """A run of 2 epochs of 40 updates, on the grid of 16; `do` is called after the updates `at`."""

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

    train(folder, at=range(21, 81), do=order)
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


def workers_are_terminated(folder):
    def fork_and_terminate():
        worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        worker.start()
        time.sleep(0.1)
        worker.terminate()
        worker.join(10)
        assert worker.exitcode == -signal.SIGTERM, worker.exitcode

    train(folder, at=21, do=fork_and_terminate)


def interrupted(folder):
    """All ways one after the other; the last one closes the standard error."""
    for way in (sigint_twice, in_a_thread, workers_are_terminated, sigint_without_a_terminal):
        way(folder / way.__name__)


def train_again(folder):
    for one in sorted(folder.iterdir()):
        train(one)


def full_disk(folder):
    """No file may grow above 2000 bytes between updates 20 and 50 of the second run."""
    warned(folder / "whole")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = iter([2000, resource.RLIM_INFINITY])

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (next(limits), resource.RLIM_INFINITY))

    warned(folder / "full", at=[20, 50], do=limit)
    print([path.name for path in checkpoint_paths(folder / "full" / "checkpoints")], flush=True)  # noqa: T201


def full_filesystem(folder):
    """The second checkpoint of the second run fits no more beside the first one."""
    warned(folder.parent / "whole")
    warned(folder, keep_last=1)


def warned(folder, at=(), do=None, **arguments):
    """A run with checkpoints, and its warnings."""
    checkpoint = mxkit.Checkpoints(folder / "checkpoints", every="16 updates", **arguments)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CheckpointWarning)
        train(folder, at=at, do=do, width=64, checkpoint=checkpoint)
    texts = [str(one.message) for one in caught if issubclass(one.category, CheckpointWarning)]
    print(f"{len(texts)} warnings, the first: {texts[:1]}", flush=True)  # noqa: T201


def in_folder(name, folder):
    globals()[name](Path(folder))


# the tests


@pytest.fixture(scope="module")
def play(forks):
    """Play a scenario in a process of its own: exit status, output, and the digest and updates of each run's end."""

    def play(name, folder):
        folder.mkdir(exist_ok=True)
        done = forks.run("test_kills:in_folder", name, str(folder))
        output = done.stdout + done.stderr
        return done.returncode, output, re.findall(r"ended with (\w+) after (\d+)", output)

    return play


@pytest.fixture(scope="module")
def whole(play, tmp_path_factory):
    """How the uninterrupted run ends."""
    code, output, ends = play("train", tmp_path_factory.mktemp("whole"))
    assert code == 0, output
    return ends[-1]


def torture_run(forks, *arguments):
    done = forks.run(torture.__file__, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_run_killed_at_a_random_instant_ends_bit_for_bit_where_the_uninterrupted_one_does(forks):
    """`make torture` kills more, in all combinations; here a net of mx.np ends like the uninterrupted one of mx.nd."""
    told = torture_run(forks, "--kills", "1", "--epochs", "2", "--only", "2", "--kind", "mx.np")
    assert told.startswith("mx.np")
    assert "1 killed" in told


@pytest.mark.parametrize("stride", [16, long(1)])
def test_every_call_of_a_save_may_be_the_last(forks, stride):
    told = torture_run(forks, "--writes", "--stride", str(stride))
    kinds = [f"left .{kind}-*" for kind in ("writing", "replaced", "pruned") if stride == 1]
    for left in [*kinds, *(f"{job.__name__}: deaths" for job in torture.SAVES)]:
        assert f" 0 {left}" not in told
        assert left in told


# Exit status, step of the checkpoint, and what is said; a signal from outside may come at any update.
TERMINATED = {
    "sigterm": (-signal.SIGTERM, 32, "mxkit: stopping at the next checkpoint\n"),
    "sigterm_in_validation": (-signal.SIGTERM, 40, ""),
    "sigterm_when_all_is_done": (-signal.SIGTERM, 80, ""),
    "sigterm_with_a_handler_of_the_script": (7, 32, "the script's handler"),
    **({"sigterm_from_outside": (-signal.SIGTERM, None, "")} if LONG else {}),
}


def test_sigterm_writes_a_checkpoint_and_ends_the_process(play, whole, tmp_path):
    for scenario, (status, step, words) in TERMINATED.items():
        code, output, _ = play(scenario, tmp_path / scenario)
        assert (code, "not reached" in output, words in output) == (status, False, True), output
        assert step is None or find_checkpoint(tmp_path / scenario / "checkpoints").step == step
    code, output, ends = play("train_again", tmp_path)
    assert (code, ends) == (0, [whole] * len(TERMINATED)), output


def test_ctrl_c_returns_the_history_and_no_other_process_or_thread_is_disturbed(play, whole, tmp_path):
    code, output, ends = play("interrupted", tmp_path)
    said = "mxkit: stopping at the next checkpoint; Ctrl-C again stops at once\n"
    assert (code, output.count(said), output.count("stopping")) == (0, 1, 1), output
    assert [updates for _, updates in ends] == ["0", "80", "80", "80", "0", "80"]
    assert {end for end in ends if end[1] == "80"} == {whole}


def test_a_run_goes_on_while_the_disk_is_full(play, tmp_path):
    code, output, ends = play("full_disk", tmp_path)
    assert (code, ends) == (0, ends[:1] * 2), output
    # the checkpoint of update 16 may still be on its way when the limit comes
    text = r"[12] warnings, the first: \['a checkpoint could not be written, the run goes on and earlier"
    assert re.search(text, output), output
    # MXNet writes short in silence, Python tells: which of them meets the limit first is a matter of time
    assert re.search(r"could not be written whole; is the disk full\?|\[Errno 27\] File too large", output)
    assert "['step-00000080', 'step-00000072', 'step-00000056']" in output
    assert sorted(path.name[:5] for path in (tmp_path / "full" / "checkpoints").iterdir()) == ["step-"] * 3


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
def test_a_run_goes_on_where_the_file_system_is_full(play, mounted):
    code, output, ends = play("full_filesystem", mounted)
    assert (code, ends) == (0, ends[:1] * 2), output
    assert "No space left on device" in output or "is the disk full?" in output
    assert [path.name[:5] for path in (mounted / "checkpoints").iterdir()] == ["step-"]
    assert find_checkpoint(mounted / "checkpoints").step == 16


def test_a_directory_that_cannot_be_written_is_told_before_the_first_update(mounted):
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    seen = []
    noting = mxkit.callbacks.LambdaCallback(on_update=lambda state, update: seen.append(update))
    with pytest.raises(OSError, match="Read-only file system"):
        fit(make_net(), [(X, Y)], callbacks=[noting], checkpoint=mounted)
    assert seen == []
