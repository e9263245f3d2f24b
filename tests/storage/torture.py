"""Kills training runs at random instants, and resumes them: `python tests/storage/torture.py --kills 50 --seed 0`.

A run has dropout, BatchNorm, shuffling, augmentation, accumulation, EMA, early stopping with the best weights put
back, a schedule, metrics and a CSV log. Exit code 1 if a resumed run does not end with the bits of the run that was
never killed, if a checkpoint that was there is lost, or if a run fails.

Nets of mx.np run under `npx.set_np()` and are compared with the run of the mx.nd net that was never killed; all
combinations together kill them `--kills` times.

With `--writes` a process dies at each call of a save to the file system: of a new step, of the same step again, and
with pruning.

Runs are forked from this process, which has imported MXNet but not used it: its engine starts in the fork.
"""

import argparse
import builtins
from collections import Counter
import csv
import io
import json
import os
from pathlib import Path
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings

import mxkit
from mxkit.data import ArrayLoader
from mxkit.storage.directory import checkpoint_paths, find_checkpoint, prepare, verify
from mxkit.storage.snapshot import take_snapshot
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from built_nets import ready  # noqa: E402
from sharing import Kind  # noqa: E402

CLOCKED = ("seconds", "samples_per_second")
OPTIMIZERS = {"momentum": ("sgd", {"learning_rate": 0.05, "momentum": 0.9}), "adam": ("adam", {"learning_rate": 0.01})}
COMBINATIONS = [(1, "momentum", "loader"), (1, "adam", "generator")]
COMBINATIONS += [(2, "momentum", "generator"), (2, "adam", "loader")]
CALLS = ["open", "close", "fsync", "mkdir", "rename", "replace", "unlink", "remove", "rmdir", "scandir", "stat"]
BATCHES, SIZE, ACCUMULATE = 66, 4, 3
RANDOM = np.random.RandomState(0)
X, Y = RANDOM.randn(BATCHES * SIZE + 60, 6).astype("float32"), RANDOM.randint(0, 4, BATCHES * SIZE + 60)


def make_net(devices, kind):
    """A small net that draws random numbers and keeps statistics, with the same first values each time."""

    def make():
        mxkit.seed_all(3)
        first = nn.Dense(16, in_units=6, activation="tanh"), nn.BatchNorm(in_channels=16), nn.Dropout(0.3)
        net = ready(*first, nn.Dense(4, in_units=16), devices=f"cpu:{devices}")
        net.hybridize()
        return net

    return kind.net(make)


def augmented():
    """Draws from all three generators while it is read, in an order of its own in each epoch."""
    for number in np.random.permutation(BATCHES):
        chosen = slice(SIZE * number, SIZE * number + SIZE)
        noise = mx.nd.random.normal(shape=(SIZE, 6)) * 0.1 + np.random.rand() * random.choice([-0.1, 0.1])
        yield mx.nd.array(X[chosen]) + noise, mx.nd.array(Y[chosen])


def trained(folder, kind, devices, optimizer, data, epochs):
    net = make_net(devices, kind)
    name, settings = OPTIMIZERS[optimizer]
    trainer = gluon.Trainer(net.collect_params(), name, dict(settings))
    shuffled = ArrayLoader(X[: BATCHES * SIZE], Y[: BATCHES * SIZE], SIZE, shuffle=True, seed=8)
    history = mxkit.fit(
        net,
        shuffled if data == "loader" else augmented,
        loss="softmax_ce",
        trainer=trainer,
        epochs=epochs,
        valid=ArrayLoader(X[BATCHES * SIZE :], Y[BATCHES * SIZE :], 25),
        metrics=["accuracy", "f1", mx.metric.Accuracy(name="mxnets")],
        accumulate=ACCUMULATE,
        clip_norm=1.0,
        callbacks=[
            mxkit.callbacks.EMA(0.9),
            mxkit.callbacks.EarlyStopping("valid_loss", "min", patience=3, restore_best=True),
            mxkit.callbacks.LearningRate("cosine", updates_per_epoch=-(-BATCHES // ACCUMULATE)),
            mxkit.callbacks.CSVLog(folder / "log.csv"),
        ],
        seed=5,
        checkpoint=mxkit.Checkpoints(
            folder / "checkpoints", every="10 updates", keep_last=2, keep_best=("valid_loss", "min")
        ),
        resume="auto",
        progress=False,
    )
    return net, history


def train(folder, kind, devices, optimizer, data, epochs):
    """Train, or go on with training, in `folder`; leave there what the run ended with.

    The last checkpoint holds the states of the optimizer and the averages.
    """
    warnings.filterwarnings("ignore", "accumulated micro-batches")
    with kind.switches():
        net, history = trained(folder, kind, devices, optimizer, data, epochs)
    arrays = {}
    for path, parameter in net._collect_params_with_prefix().items():
        arrays.update({f"{path}@{i}": array.asnumpy() for i, array in enumerate(parameter.list_data())})
    for which in ("last", "best"):
        found = find_checkpoint(folder / "checkpoints", which)
        for name in found.manifest["files"]:
            loaded = mx.nd.load(str(found.path / name))
            arrays.update({f"{which} {found.step} {name} {one}": array.asnumpy() for one, array in loaded.items()})
    np.savez(folder / "result.npz", **arrays)
    (folder / "history.json").write_text(json.dumps({"rows": list(history), "stopped": history.stopped}))


def start(folder, job, *arguments):
    """Run `job(*arguments)` in a fork of this process; its output goes to `folder/output.txt`."""
    folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        output = os.open(str(folder / "output.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        job(*arguments)
        mx.nd.waitall()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ended(process, folder, wait=True):
    """Whether a run has ended; anything but a good end or SIGKILL is an error. None while it runs."""
    found, status = os.waitpid(process, 0 if wait else os.WNOHANG)
    if not found:
        return None
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return False
    if status:
        raise RuntimeError(f"status {status}: {(folder / 'output.txt').read_text()[-3000:]}")
    return True


def newest(directory):
    """Step of the newest checkpoint, which must verify without a word; -1 where none is expected yet."""
    if not checkpoint_paths(directory):
        return -1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return find_checkpoint(directory).step


def unclocked(row):
    return {name: value for name, value in row.items() if name not in CLOCKED}


def difference(folder, whole):
    """What a run ended with that differs from the uninterrupted one, as text."""
    for name in ("result.npz", "history.json", "log.csv"):
        if not (folder / name).exists():
            return f"no {name}"
    with np.load(str(folder / "result.npz")) as one, np.load(str(whole / "result.npz")) as other:
        if sorted(one.files) != sorted(other.files):
            return f"arrays {set(one.files) ^ set(other.files)}"
        wrong = [name for name in one.files if one[name].tobytes() != other[name].tobytes()]
    rows = []
    for path in (folder, whole):
        told = json.loads((path / "history.json").read_text())
        with (path / "log.csv").open(newline="") as file:
            log = [unclocked(row) for row in csv.DictReader(file)]
        rows.append([told["stopped"], [unclocked(row) for row in told["rows"]], log])
    wrong += [what for what, one, other in zip(("stopped", "history", "CSV"), *rows) if one != other]
    return ", ".join(wrong)


def kill(folder, process, random_, longest):
    """Let a run live for a while, or until it writes a checkpoint, and kill it; whether it had ended before."""
    until_write = random_.random() < 0.5
    limit = time.monotonic() + (60 if until_write else random_.uniform(0, longest))
    before = set(checkpoint_paths(folder / "checkpoints"))
    writes = random_.randint(1, 3)
    while time.monotonic() < limit:
        if ended(process, folder, wait=False):
            return True
        if until_write and any((folder / "checkpoints").glob(".writing-*")):
            now = set(checkpoint_paths(folder / "checkpoints"))
            writes -= now != before
            before = now
            if writes <= 0:
                time.sleep(random_.uniform(0, 0.004))
                break
        time.sleep(0.0002)
    os.kill(process, signal.SIGKILL)
    return ended(process, folder)


def kills(count, seed, kind, arguments, seconds, work):
    """Kill runs `count` times; return counts, and a line for each failure."""
    random_ = random.Random(f"{seed} {' '.join(map(str, arguments[:3]))}")
    found, failures = Counter(), []
    folder, whole = work / "killed", work / "whole"
    while found["killed"] < count or folder.exists():
        last = newest(folder / "checkpoints")
        process = start(folder, train, folder, kind, *arguments)
        over = ended(process, folder) if found["killed"] == count else kill(folder, process, random_, seconds / 3)
        step = newest(folder / "checkpoints")
        found["killed"] += not over
        found["deaths after which a checkpoint was there"] += not over and step >= 0
        for prefix in (".writing-", ".replaced-", ".pruned-"):
            found[f"deaths that left {prefix}*"] += any((folder / "checkpoints").glob(f"{prefix}*"))
        if step < last:
            failures.append(f"checkpoint {last} was lost, the newest is {step}")
        if over:
            found["runs that ended"] += 1
            wrong = difference(folder, whole)
            if wrong:
                failures.append(f"a resumed run differs in {wrong}")
            shutil.rmtree(str(folder))
    return found, failures


# each call of a save as the place of death


def snapshot(step, value):
    net = nn.Dense(3, in_units=4)
    mxkit.initialize(net, mx.init.Constant(value))
    return take_snapshot(net, step=step, content={"state": {"value": value}}, arrays={"more": mx.nd.full(5, value)})


def write_new(directory):
    snapshot(3, 30).write(directory)


def write_again(directory):
    snapshot(2, 21).write(directory)


def write_and_prune(directory):
    mxkit.Checkpoints(directory, keep_last=1)._write(snapshot(3, 30))


def sweep_and_write(directory):
    prepare(directory)
    write_new(directory)


BEFORE = {1: 10, 2: 20}
SAVES = {write_new: {3: 30}, write_again: {2: 21}, write_and_prune: {3: 30}, sweep_and_write: {3: 30}}


def begin(directory, job):
    """Write what is there before a save; before a sweep, also what deaths at the worst moments leave."""
    for step, value in BEFORE.items():
        snapshot(step, value).write(directory)
    if job is sweep_and_write:
        shutil.copytree(str(directory / "step-00000001"), str(directory / ".replaced-step-00000001"))
        shutil.copytree(str(directory / "step-00000001"), str(directory / ".pruned-step-00000000"))
        (directory / "step-00000002").rename(directory / ".replaced-step-00000002")
        (directory / ".writing-dead").mkdir()
        (directory / ".writing-dead" / "net.params").write_bytes(b"half")


def counted(limit):
    """Let this process die of SIGKILL before the call number `limit` of Python to the file system."""
    left = [limit]

    def before(function):
        def call(*arguments, **keywords):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **keywords)

        return call

    for name in CALLS:
        setattr(os, name, before(getattr(os, name)))
    builtins.open = io.open = before(io.open)
    mx.nd.save = before(mx.nd.save)


def die(directory, job, limit):
    """Do `job`, and die at call number `limit`."""
    mx.nd.ones(3).asnumpy()  # the engine's own files are opened now
    counted(limit)
    job(directory)


def values(directory):
    """Value by step of all checkpoints, which must be whole, those that were replaced among them."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return {int(path.name[-8:]): verify(path).manifest["state"]["value"] for path in checkpoint_paths(directory)}


def writes(stride, work):
    """Die at each call of each kind of save, or at each `stride`th; return counts, and a line for each failure."""
    found, failures = Counter(), []
    for job, after in SAVES.items():
        sound, seen = work / job.__name__, set()
        ended(start(sound, begin, sound / "c", job), sound)
        over, limit = False, 0
        while not over:
            folder = work / "dying"
            shutil.copytree(str(sound), str(folder))
            over = ended(start(folder, die, folder / "c", job, limit), folder)
            found[f"{job.__name__}: deaths"] += not over
            wrong = [*wrongs(folder / "c", after, over, found), *recovered(folder, seen)]
            failures += [f"{job.__name__}, death at call {limit}: {text}" for text in wrong]
            shutil.rmtree(str(folder))
            limit += stride
    return found, failures


def wrongs(directory, after, over, found):
    """What is wrong after a death."""
    now = values(directory)
    if over and any(now.get(step) != value for step, value in after.items()):
        yield f"survived, but holds {now}"
    known = {*BEFORE.items(), *after.items()}
    if max(now, default=0) < max(BEFORE) or not known.issuperset(now.items()):
        yield f"holds {now}"
    for prefix in (".writing-", ".replaced-", ".pruned-"):
        found[f"left {prefix}*"] += any(directory.glob(f"{prefix}*"))
    found["the new one was there"] += not over and all(now.get(step) == value for step, value in after.items())


def recovered(folder, seen):
    """What is wrong after the next run's sweep and save; what lies on the disk as it did before is not tried again."""
    names = sorted(str(path.relative_to(folder)) for path in folder.glob("c/**/*"))
    state = tuple(re.sub("writing-[0-9a-f]*", "writing", name) for name in names)
    if state in seen:
        return
    seen.add(state)
    ended(start(folder, recover, folder / "c"), folder)
    names = [path.name for path in (folder / "c").iterdir()]
    kept = [name for name in names if name.startswith(".replaced-") and name[len(".replaced-") :] not in names]
    if values(folder / "c").get(9) != 90 or any(not name.startswith("step-") for name in set(names) - set(kept)):
        yield f"the next run left {sorted(names)}"


def recover(directory):
    prepare(directory)
    snapshot(9, 90).write(directory)


def report(name, found, failures):
    sys.stdout.write(f"{name}: " + ", ".join(f"{number} {what}" for what, number in sorted(found.items())) + "\n")
    sys.stdout.write("".join(f"  FAILED {failure}\n" for failure in failures))
    sys.stdout.flush()
    return bool(failures)


def main():
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=50, help="for each combination of devices, optimizer and data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--only", type=int, choices=range(len(COMBINATIONS)), help="one combination")
    parser.add_argument("--kind", choices=("mx.nd", "mx.np"), help="one kind of arrays")
    parser.add_argument("--writes", action="store_true")
    parser.add_argument("--stride", type=int, default=1, help="of --writes: die at each such call only")
    asked = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as work:
        if asked.writes:
            return int(report("writes", *writes(asked.stride, Path(work))))
        for number, (devices, optimizer, data) in enumerate(COMBINATIONS):
            if asked.only not in (None, number):
                continue
            folder, begun = Path(work) / str(number), time.monotonic()
            arguments = devices, optimizer, data, asked.epochs
            ended(start(folder / "whole", train, folder / "whole", Kind(False), *arguments), folder / "whole")
            seconds = time.monotonic() - begun
            kinds = {"mx.nd": asked.kills, "mx.np": -(-asked.kills // len(COMBINATIONS))}
            for name, count in kinds.items():
                if asked.kind not in (None, name):
                    continue
                found, failures = kills(count, asked.seed, Kind(name == "mx.np"), arguments, seconds, folder)
                name = f"{name}, {devices} device(s), {optimizer}, {data} ({seconds:.1f} s a run)"
                failed = report(name, found, failures) or failed
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
