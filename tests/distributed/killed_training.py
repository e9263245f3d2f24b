"""A training of several workers that the tests kill: `python killed_training.py FOLDER PAUSE`.

It has BatchNorm, momentum, accumulation, shuffling and checkpoints inside epochs, and processes of a DataLoader, which
must not outlive it.
"""

import os
from pathlib import Path
import sys
import time

from joint_cases import data, fitted, made, net_of
from joint_runs import write
import mxkit
from mxkit import distributed
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn


def main(folder, pause):
    distributed.initialize()
    rank = distributed.rank()
    children = gluon.data.DataLoader(gluon.data.SimpleDataset(list(range(64))), batch_size=4, num_workers=2)
    next(iter(children))
    net = net_of(nn.Dense(8, in_units=6), nn.BatchNorm(in_channels=8), nn.Activation("relu"), nn.Dense(3, in_units=8))
    found = fitted(
        made(net),
        mxkit.data.ArrayLoader(*data(116), 2, shuffle=True, seed=5),
        trainer=("sgd", {"learning_rate": 0.1, "momentum": 0.9}),
        accumulate=2,
        metrics=["accuracy"],
        # stretches the training, so that kills meet it everywhere
        callbacks=[mxkit.callbacks.LambdaCallback(on_update=lambda state, update: time.sleep(pause))],
        checkpoint=mxkit.Checkpoints(Path(folder) / "checkpoints", every="4 updates"),
        resume="auto",
    )
    write(folder, rank, found)
    print(f"worker {rank} ended after {os.environ.get('MXKIT_RESTARTS')} restarts", flush=True)  # noqa: T201
    mx.nd.waitall()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
