"""What the training loop itself costs, beside the loops that people write and the one that Gluon ships.

Each way trains the same net on the same batches, interleaved epoch by epoch; medians of the wall time with the spread
of the ratios, and the main thread's processor time, of which other work on the machine changes less.
`python -m benchmarks.loop_overhead [--rounds N] [--ways NAMES] [--omp THREADS] [NETS]`.

- hand-tuned: hybridized statically, no metric, nothing waits inside the epoch. The other three count accuracy.
- mxkit.fit: accuracy, finiteness checks, a checkpoint at the end and progress (into a pipe) on.
- seeds' loop: as the tutorials write it, net not hybridized, loss and accuracy read at every batch.
- Estimator: `gluon.contrib.estimator` with its default handlers, on a hybridized net; its progress is not printed.
"""

import argparse
import contextlib
import io
import logging
import os
import statistics
import sys
import tempfile
import time

import mxkit  # before mxnet
import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon.contrib.estimator import Estimator
import numpy as np

BATCHES = {"softmax_regression": 64, "mlp": 64, "lenet": 64, "resnet18": 32}
IMAGES = {"resnet18": (3, 32, 32)}
# an epoch of MNIST, a fifth of CIFAR-10's: what an epoch costs once, its checkpoint and first batch, weighs as it does
SAMPLES = {"softmax_regression": 60000, "mlp": 60000, "lenet": 60000, "resnet18": 9600}
# what the ratio to the hand-tuned loop should not pass
BARS = {"softmax_regression": 1.15, "lenet": 1.02, "resnet18": 1.02}


class Batches(gluon.data.DataLoader):
    """The Estimator takes a DataLoader and nothing else; this one gives the batches of an `ArrayLoader`."""

    def __init__(self, loader):
        super().__init__(gluon.data.SimpleDataset([0]), batch_size=1)
        self._loader = loader

    def __iter__(self):
        return iter(self._loader)


def hand_tuned(net, trainer, loss, loader):
    for x, y in loader:
        with autograd.record():
            losses = loss(net(x), y)
        losses.backward()
        trainer.step(len(x))


def with_mxkit(net, trainer, loss, loader):
    read, write = os.pipe()
    with contextlib.ExitStack() as held:
        held.enter_context(os.fdopen(read))
        held.enter_context(contextlib.redirect_stderr(held.enter_context(os.fdopen(write, "w"))))
        directory = held.enter_context(tempfile.TemporaryDirectory())
        mxkit.fit(net, loader, loss=loss, trainer=trainer, epochs=1, metrics=["accuracy"], checkpoint=directory)


def seeds_loop(net, trainer, loss, loader):
    total_loss = total_accuracy = 0.0
    for data, label in loader:
        with autograd.record():
            output = net(data)
            losses = loss(output, label)
        losses.backward()
        trainer.step(len(data))
        total_loss += nd.mean(losses).asscalar()
        total_accuracy += nd.mean(output.argmax(axis=1) == label.astype("float32")).asscalar()


def estimator(net, trainer, loss, loader):
    logger = logging.getLogger("benchmark")
    logger.setLevel(logging.WARNING)
    accuracy = mx.metric.Accuracy()
    Estimator(net, loss, train_metrics=accuracy, trainer=trainer, context=mx.cpu()).fit(Batches(loader), epochs=1)


WAYS = {"hand-tuned": hand_tuned, "mxkit.fit": with_mxkit, "seeds' loop": seeds_loop, "Estimator": estimator}


def make(name, way):
    mxkit.seed_all(0)
    net = mxkit.models.get_model(name)
    mxkit.initialize(net, "xavier")
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    if way != "seeds' loop":
        net.hybridize(static_alloc=True, static_shape=True)
        loss.hybridize(static_alloc=True)
    rng = np.random.RandomState(0)
    samples = SAMPLES[name]
    x = rng.randint(0, 255, (samples, *IMAGES.get(name, (1, 28, 28)))).astype(np.uint8)
    loader = mxkit.data.ArrayLoader(x, rng.randint(0, 10, samples), BATCHES[name], shuffle=True, seed=0)
    return net, gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01}), loss, loader


def measure(name, ways, rounds):
    """Seconds of each way and round: wall time, and the main thread's processor time."""
    parts = {way: make(name, way) for way in ways}
    taken = {way: [] for way in ways}
    for number in range(rounds + 1):
        for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
            wall, cpu = time.perf_counter(), time.thread_time()
            with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
                WAYS[way](*parts[way])
            mx.nd.waitall()
            if number:  # the first round traces the graph
                taken[way].append((time.perf_counter() - wall, time.thread_time() - cpu))
    return taken


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("nets", nargs="*", default=list(SAMPLES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--omp", help="OMP_NUM_THREADS; it must be there before MXNet is")
    asked = parser.parse_args()
    if asked.omp and os.environ.get("OMP_NUM_THREADS") != asked.omp:
        os.environ["OMP_NUM_THREADS"] = asked.omp
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.loop_overhead", *sys.argv[1:]])
    for name in asked.nets:
        bar = f", bar {BARS[name]}" if name in BARS else ""
        updates = -(-SAMPLES[name] // BATCHES[name])
        print(f"{name}, batch {BATCHES[name]}, {updates} updates, {asked.rounds} rounds{bar}")
        taken = measure(name, asked.ways.split(","), asked.rounds)
        base = taken["hand-tuned"]
        for way, seconds in taken.items():
            walls, cpus = ([one[part] / other[part] for one, other in zip(seconds, base)] for part in (0, 1))
            wall, cpu = (1e6 / updates * statistics.median(one[part] for one in seconds) for part in (0, 1))
            print(
                f"  {way:12} {wall:8.0f} us/update {statistics.median(walls):6.3f} x ({min(walls):.3f} to "
                f"{max(walls):.3f})   main thread {cpu:6.0f} us/update {statistics.median(cpus):6.3f} x",
                flush=True,
            )


if __name__ == "__main__":
    main()
