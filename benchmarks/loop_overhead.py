"""What the training loop itself costs, beside the loops that people write and the one that Gluon ships.

Each way trains the same net on the same batches, interleaved epoch by epoch; medians of the wall time with the spread
of the ratios. `python -m benchmarks.loop_overhead [ROUNDS]`.

- hand-tuned: hybridized statically, no metric, nothing waits inside the epoch. The other three count accuracy.
- mxkit.fit: accuracy, finiteness checks and progress on.
- seeds' loop: as the tutorials write it, net not hybridized, loss and accuracy read at every batch.
- Estimator: `gluon.contrib.estimator` with its default handlers, on a hybridized net; its progress is not printed.
"""

import contextlib
import io
import logging
import statistics
import sys
import time

import mxkit  # before mxnet
import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon.contrib.estimator import Estimator
import numpy as np

BATCH = 64
SAMPLES = {"softmax_regression": 12800, "mlp": 12800, "lenet": 3200}


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
    mxkit.fit(net, loader, loss=loss, trainer=trainer, epochs=1, metrics=["accuracy"])


def seeds_loop(net, trainer, loss, loader):
    total_loss = total_accuracy = 0.0
    for data, label in loader:
        with autograd.record():
            output = net(data)
            losses = loss(output, label)
        losses.backward()
        trainer.step(BATCH)
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
    x, y = rng.randint(0, 255, (samples, 1, 28, 28)).astype(np.uint8), rng.randint(0, 10, samples)
    loader = mxkit.data.ArrayLoader(x, y, BATCH, shuffle=True, seed=0)
    return net, gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01}), loss, loader


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    for name in SAMPLES:
        parts = {way: make(name, way) for way in WAYS}
        taken = {way: [] for way in WAYS}
        for number in range(rounds + 1):
            for way, run in WAYS.items():
                begun = time.perf_counter()
                with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
                    run(*parts[way])
                mx.nd.waitall()
                if number:  # the first round traces the graph
                    taken[way].append(time.perf_counter() - begun)
        print(f"{name}, batch {BATCH}, {rounds} rounds")
        for way, seconds in taken.items():
            ratios = [one / other for one, other in zip(seconds, taken["hand-tuned"])]
            per_update = 1e6 * BATCH / SAMPLES[name] * statistics.median(seconds)
            print(
                f"  {way:12} {per_update:8.0f} us/update  {statistics.median(ratios):6.3f} x hand-tuned "
                f"({min(ratios):.3f} to {max(ratios):.3f})"
            )


if __name__ == "__main__":
    main()
