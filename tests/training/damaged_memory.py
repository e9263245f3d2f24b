"""Short trainings in one process, one after the other, in an order by seed: python damaged_memory.py [--repeat N].

`make memory` runs it under a debug allocator, which ends the process where memory is damaged. Each job is a way to
train: a net family, a loader or a rung of the ladder. The jobs named `deferred ...` are variants of a program that used
to damage memory (T187): a net of deferred shapes over a DatasetLoader.
"""

import argparse
import os
from pathlib import Path
import random
import sys
import tempfile
import time
import warnings

import mxkit
from mxkit.data import ArrayLoader, DatasetLoader, StreamLoader
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np

RNG = np.random.RandomState(0)
SAMPLES = [(RNG.rand(3, 24, 32).astype("float32"), number % 2) for number in range(12)]
IMAGES, LABELS = np.stack([x for x, _ in SAMPLES]), np.array([y for _, y in SAMPLES])


def fit(net, data, **options):
    options = {"loss": "softmax_ce", "trainer": "adam", "epochs": 1, **options}
    mxkit.fit(net, data, progress=False, **options)
    return net


def deferred(filters=4, devices="cpu", static=False, layers=()):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(filters, 3), *layers, nn.GlobalAvgPool2D(), nn.Dense(2))
    mxkit.initialize(net, "xavier", devices=devices)
    if static:
        net.hybridize(static_alloc=True, static_shape=True)
    return net


def loader(**options):
    return DatasetLoader(SAMPLES, 4, **options)


def flipped(x, rng):
    return np.ascontiguousarray(x[:, :, ::-1]) if rng.random() < 0.5 else x


def predictor_beside():
    net = deferred()
    net(mx.nd.array(IMAGES[:1]))
    with mxkit.Predictor(net, sample=IMAGES[0]) as predictor:
        futures = [predictor.submit(x) for x in IMAGES]
        fit(deferred(), loader())
        assert np.isfinite([future.result() for future in futures]).all()


def two_in_turn():
    first, second = deferred(), deferred(16)
    for _ in range(2):
        fit(first, loader())
        fit(second, ArrayLoader(IMAGES, LABELS, 5))


def resumed():
    with tempfile.TemporaryDirectory() as folder:
        fit(deferred(), loader(), checkpoint=folder)
        fit(deferred(), loader(), epochs=2, checkpoint=folder, resume=True)


def family(name, size, channels=3, **arguments):
    def job():
        net = mxkit.models.get_model(name, **arguments)
        mxkit.initialize(net, "xavier")
        net.hybridize(static_alloc=True)
        x = RNG.rand(4, channels, size, size).astype("float32")
        fit(net, ArrayLoader(x, np.arange(4) % 10, 2), metrics=["accuracy"], epochs=2)
        mxkit.predict(net, x)

    return job


def joined_blocks():
    for split in ((8, 8), (12, 20), (4, 12), (16, 16)):
        net = gluon.contrib.nn.HybridConcurrent(axis=1)
        for part in split:
            net.add(nn.Conv2D(part, 1))
        whole = nn.HybridSequential()
        whole.add(net, nn.Conv2D(16, 3), nn.GlobalAvgPool2D(), nn.Dense(2))
        whole.initialize()
        fit(whole, ArrayLoader(IMAGES, LABELS, 4))


JOBS = {
    "deferred": lambda: fit(deferred(), loader()),
    "deferred static": lambda: fit(deferred(static=True), loader()),
    "deferred transform": lambda: fit(deferred(), loader(transform=flipped)),
    "deferred devices": lambda: fit(deferred(devices="cpu:2"), loader()),
    "deferred 32 filters": lambda: fit(deferred(32), loader()),
    "deferred prefetching": lambda: fit(deferred(), loader(workers="thread:2")),
    "deferred processes": lambda: fit(deferred(), loader(workers="process:2")),
    "deferred beside a Predictor": predictor_beside,
    "deferred two in turn": two_in_turn,
    "deferred resumed": resumed,
    "batch norm": lambda: fit(deferred(layers=[nn.BatchNorm(), nn.Activation("relu")]), loader(), epochs=2),
    "StreamLoader": lambda: fit(deferred(), StreamLoader(lambda: iter(SAMPLES), 4), limit_batches=3),
    "DataIter": lambda: fit(deferred(), mx.io.NDArrayIter(IMAGES, LABELS, 5)),
    "mlp": family("mlp", 8),
    "lenet": family("lenet", 28, channels=1),
    "resnet18": family("resnet18", 8, small=True),
    "googlenet": family("googlenet", 8, small=True),
    "densenet121": family("densenet121", 8, small=True),
    "nin": family("nin", 15, small=True),
    "mobilenet": family("zoo:mobilenet0.25", 32),
    "squeezenet": family("zoo:squeezenet1.1", 224),
    "joined blocks": joined_blocks,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=1, help="times that each job runs")
    parser.add_argument("--only", default="", help="jobs whose names begin with this text")
    asked = parser.parse_args()
    names = [name for name in JOBS if name.startswith(asked.only)] * asked.repeat
    random.Random(asked.seed).shuffle(names)
    names = ["deferred"] * 12 + names  # the first training of a process was the one that damaged it
    warnings.simplefilter("ignore")
    begun = time.time()
    for name in names:
        print(name, flush=True)  # the last one printed is the one that ended the process
        JOBS[name]()
        mx.nd.waitall()
    checked = os.environ.get("MALLOC_CHECK_", "no")
    print(f"{len(names)} trainings in {time.time() - begun:.0f} s, MALLOC_CHECK_={checked}: memory is whole")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    main()
