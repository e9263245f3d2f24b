"""What exact resume costs while training: LeNet with dropout, seeded on the grid against not at all.

`python -m benchmarks.reseeding [ROUNDS]`: interleaved epochs, medians, and the cost of a reseed by itself.
"""

import statistics
import sys
import time

import mxkit  # before mxnet
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np

BATCH, SAMPLES = 64, 3200


def make():
    mxkit.seed_all(0)
    net = mxkit.models.lenet()
    net.add(nn.Dropout(0.1))
    mxkit.initialize(net)
    net.hybridize(static_alloc=True, static_shape=True)
    rng = np.random.RandomState(0)
    data = mxkit.data.ArrayLoader(rng.rand(SAMPLES, 1, 28, 28).astype("float32"), rng.randint(0, 10, SAMPLES), BATCH)
    return net, gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01}), data


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    parts = {None: make(), 1: make()}
    taken = {seed: [] for seed in parts}
    for number in range(rounds + 1):
        for seed, (net, trainer, data) in parts.items():
            begun = time.perf_counter()
            mxkit.fit(net, data, loss="softmax_ce", trainer=trainer, epochs=1, seed=seed, progress=False)
            mx.nd.waitall()
            if number:
                taken[seed].append(time.perf_counter() - begun)
    begun = time.perf_counter()
    for seed in range(200):
        mxkit.seed_all(seed)
    alone = (time.perf_counter() - begun) / 200
    update = statistics.median(taken[None]) * BATCH / SAMPLES
    ratios = [one / other for one, other in zip(taken[1], taken[None])]
    print(
        f"one reseed {1e3 * alone:.2f} ms, one update {1e3 * update:.2f} ms: on a grid of 16 {alone / 16 / update:.2%}"
    )
    print(f"seeded / not seeded: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
