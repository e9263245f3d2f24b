"""A training of several workers that the tests kill: `python killed_training.py FOLDER PAUSE`.

It has BatchNorm, momentum, accumulation, shuffling and checkpoints inside epochs, and processes of a DataLoader, which
must not outlive it.
"""

import os
from pathlib import Path
import sys
import time

import mxkit
from mxkit import distributed
from mxkit.data import ArrayLoader
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np

EPOCHS, SAMPLES = 2, 116


class Pause(mxkit.Callback):
    """Stretches the training, so that kills meet it everywhere."""

    def __init__(self, seconds):
        self.seconds = seconds

    def on_update(self, state, update):
        time.sleep(self.seconds)


def main(folder, pause):
    mxkit.seed_all(7)
    distributed.initialize()
    rank = distributed.rank()
    children = gluon.data.DataLoader(gluon.data.SimpleDataset(list(range(64))), batch_size=4, num_workers=2)
    next(iter(children))
    net = nn.Sequential()
    net.add(nn.Dense(8, in_units=6), nn.BatchNorm(in_channels=8), nn.Activation("relu"), nn.Dense(3, in_units=8))
    mxkit.initialize(net)
    random = np.random.RandomState(0)
    x, y = random.randn(SAMPLES, 6).astype("float32"), random.randint(0, 3, SAMPLES)
    train = ArrayLoader(x, y, batch_size=2, shuffle=True, seed=5)
    history = mxkit.fit(
        net,
        train,
        loss="softmax_ce",
        trainer=("sgd", {"learning_rate": 0.1, "momentum": 0.9}),
        epochs=EPOCHS,
        accumulate=2,
        metrics=["accuracy"],
        callbacks=[Pause(pause)],
        checkpoint=mxkit.Checkpoints(Path(folder) / "checkpoints", every="4 updates"),
        resume="auto",
        progress=False,
    )
    found = {name: one.data().asnumpy() for name, one in mxkit.parameters(net).items()}
    numbers = [[row["train_accuracy"], row["samples"]] for row in history]
    losses = [row["train_loss"] for row in history]
    part = Path(folder) / f".part-{rank}.npz"
    np.savez(str(part), numbers=np.array(numbers), losses=np.array(losses), **found)
    part.replace(Path(folder) / f"result-{rank}.npz")
    print(f"worker {rank} ended after {os.environ.get('MXKIT_RESTARTS')} restarts", flush=True)  # noqa: T201
    mx.nd.waitall()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
