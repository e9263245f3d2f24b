"""A program: trainings by two workers that stop inside an epoch and are resumed, and one that is not stopped."""

import os
from pathlib import Path
import signal
import sys
import time
import warnings

from joint_cases import data, fitted, made, net_of
from joint_runs import write
import mxkit
import mxnet as mx
from mxnet.gluon import nn
import numpy as np

METRICS = ["accuracy", "cross-entropy", ("f1", {"average": "macro"})]


def rank():
    return mxkit.distributed.rank()


class At(mxkit.Callback):
    """Does something after an update, on one worker."""

    def __init__(self, step=None, what=None):
        self.step, self.what = step, what

    def on_update(self, state, update):
        if update.step == self.step and rank() == 1:
            self.what(state)


def checkpoints(name, every="4 updates"):
    return mxkit.Checkpoints(FOLDER / name, every=every)


def shares(**arguments):
    train = mxkit.data.ArrayLoader(*data(83), 5, shuffle=True, seed=3)
    return fitted(train=train, epochs=3, valid=data(30), metrics=METRICS, trainer="adam", **arguments)


def turns(**arguments):
    """Batches in turn, of which one is left over; an order that NumPy's generator decides while they are read."""

    def shuffled():
        parts = odd_batches()
        for number in np.random.permutation(len(parts)):
            np.random.rand()
            yield parts[number]

    return fitted(train=shuffled, epochs=2, metrics=METRICS, seed=2, **arguments)


def listed(**arguments):
    """Batches in turn, which a run can be resumed after: also after the last one of an epoch, which is left over."""
    return fitted(train=odd_batches(), epochs=2, metrics=METRICS, **arguments)


def odd_batches():
    x, y = data(204)
    return [(mx.nd.array(x[i : i + 4]), mx.nd.array(y[i : i + 4])) for i in range(0, 204, 4)]


def dropout(**arguments):
    """Random numbers are drawn: it is resumed after an update of the epoch that 16 divides."""
    net = net_of(nn.Dense(8, activation="relu"), nn.Dropout(0.5), nn.Dense(3))
    train = mxkit.data.ArrayLoader(*data(200), 4, shuffle=True, seed=3)
    return fitted(made(net), train, epochs=2, metrics=METRICS, trainer="adam", seed=5, **arguments)


KINDS = {"shares": (shares, 6), "turns": (turns, 19), "listed": (listed, 25), "dropout": (dropout, 18)}


def interrupted(name, run, step, what):
    first = run(checkpoint=checkpoints(name), callbacks=[At(step, what)], resume="auto")
    inside = first["rows"][-1]["updates"] if first["rows"] else 0
    second = run(checkpoint=checkpoints(name), callbacks=[At()], resume="auto")
    return {**second, "first": first["stopped"], "inside": inside}


def send(number):
    return lambda state: os.kill(os.getpid(), number)


def wait_for_the_test(state):
    (FOLDER / "waits").touch()
    while not (FOLDER / "go on").exists():
        time.sleep(0.02)  # the test is another process


def main(folder, *how):
    global FOLDER
    FOLDER = Path(folder)
    warnings.simplefilter("ignore")
    mxkit.distributed.initialize()
    if how[:1] == ("locked",):
        result = shares(checkpoint=checkpoints("locked"), callbacks=[At(6, wait_for_the_test)])
        write(FOLDER, rank(), {**result, "process": os.getpid()})
        return
    if how[:1] == ("of_one",):
        found = {}
        for name, run in (("inside", shares), ("at the end", shares)):
            try:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    run(checkpoint=checkpoints(name), callbacks=[At()], resume=True)
                found[name] = [str(one.message) for one in caught]
            except mxkit.errors.CheckpointError as error:
                found[name] = str(error)
        write(FOLDER, 0, found)
        return
    found = {}
    for name, (run, step) in KINDS.items():
        found[name] = run(checkpoint=checkpoints(f"{name}-whole"), callbacks=[At()])
        stop = lambda state: state.stop("for now", for_now=True)  # noqa: E731
        found[f"{name}-stopped"] = interrupted(f"{name}-stopped", run, step, stop)
    signal.signal(signal.SIGTERM, lambda *_: None)  # `fit` delivers it at its end
    found["shares-terminated"] = interrupted("shares-terminated", shares, 6, send(signal.SIGTERM))
    found["dropout-interrupted"] = interrupted("dropout-interrupted", dropout, 18, send(signal.SIGINT))
    minutes = mxkit.Checkpoints(FOLDER / "minutes", every="0.0001 minutes")  # the clock of worker 0 decides
    found["shares-minutes"] = shares(checkpoint=minutes, callbacks=[At()])
    shares(checkpoint=checkpoints("inside"), callbacks=[At(6, stop)])
    shares(checkpoint=checkpoints("at the end", "1 epoch"), callbacks=[At(9, stop)])
    try:
        shares(checkpoint=checkpoints("inside" if rank() == 0 else "elsewhere"), callbacks=[At()], resume="auto")
    except mxkit.errors.DistributedError as error:
        found["elsewhere"] = str(error)
    found["files"] = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.glob("*/step-*"))
    write(FOLDER, rank(), found)


if __name__ == "__main__":
    main(*sys.argv[1:])
