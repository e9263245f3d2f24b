"""What `mxkit.fit`, with accuracy and finiteness checks on, costs beside a hand-tuned Gluon loop without them.

Both run the same batches through the same hybridized net, interleaved epoch by epoch; medians of the wall time with
their spread. `python -m benchmarks.loop_overhead [ROUNDS]`.
"""

import statistics
import sys
import time

import mxkit  # before mxnet
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np

BATCH = 64
SAMPLES = {"softmax_regression": 12800, "mlp": 12800, "lenet": 3200}


def hand_tuned(net, trainer, loss, loader):
    for x, y in loader:
        with autograd.record():
            losses = loss(net(x), y)
        losses.backward()
        trainer.step(len(x))
    mx.nd.waitall()


def with_mxkit(net, trainer, loss, loader):
    mxkit.fit(net, loader, loss=loss, trainer=trainer, epochs=1, metrics=["accuracy"], progress=False)
    mx.nd.waitall()


def make(name):
    mxkit.seed_all(0)
    net = mxkit.models.get_model(name)
    mxkit.initialize(net, "xavier")
    net.hybridize(static_alloc=True, static_shape=True)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    loss.hybridize(static_alloc=True)
    rng = np.random.RandomState(0)
    samples = SAMPLES[name]
    x, y = rng.randint(0, 255, (samples, 1, 28, 28)).astype(np.uint8), rng.randint(0, 10, samples)
    loader = mxkit.data.ArrayLoader(x, y, BATCH, shuffle=True, seed=0)
    return net, gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01}), loss, loader


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    for name in SAMPLES:
        ways = {way: make(name) for way in (hand_tuned, with_mxkit)}
        taken = {way: [] for way in ways}
        for number in range(rounds + 1):
            for way, parts in ways.items():
                begun = time.perf_counter()
                way(*parts)
                if number:  # the first round traces the graph
                    taken[way].append(time.perf_counter() - begun)
        hand, kit = (statistics.median(taken[way]) for way in ways)
        ratios = [b / a for a, b in zip(*taken.values())]
        per_update = 1e6 * BATCH / SAMPLES[name]
        print(
            f"{name:20} hand-tuned {hand * per_update:7.0f} us/update  mxkit.fit {kit * per_update:7.0f} us/update  "
            f"ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        )


if __name__ == "__main__":
    main()
