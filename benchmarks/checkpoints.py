"""What a checkpoint of a 100 MB net costs: the pause of the training, the write beside it, and the load.

`python -m benchmarks.checkpoints [ROUNDS]`. Medians; files on the folder for temporary files.
"""

import hashlib
from pathlib import Path
import statistics
import sys
import tempfile
import time

import mxkit  # before mxnet
from mxkit.checkpoint.snapshot import take_snapshot
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn
import numpy as np


def net_of_100_megabytes():
    mxkit.seed_all(0)
    net = nn.HybridSequential()
    for _ in range(6):
        net.add(nn.Dense(2048, in_units=2048, activation="relu"))
    net.add(nn.Dense(10, in_units=2048))
    mxkit.initialize(net)
    net.hybridize(static_alloc=True)
    return net


def timed(work):
    mx.nd.waitall()
    begun = time.perf_counter()
    result = work()
    return time.perf_counter() - begun, result


def sha256(path):
    digest = hashlib.sha256()
    digest.update(path.read_bytes())
    return digest.hexdigest()


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    net = net_of_100_megabytes()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
    x, y = mx.nd.random.normal(shape=(8, 2048)), mx.nd.array(np.arange(8))
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    with autograd.record():
        losses = loss(net(x), y)
    losses.backward()
    trainer.step(8)
    arrays = {path: p.data() for path, p in net._collect_params_with_prefix().items()}
    print(f"{sum(array.size * 4 for array in arrays.values()) / 1e6:.0f} MB in {len(arrays)} arrays, {rounds} rounds")
    taken = {}
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for number in range(rounds):
            parts = {}
            parts["nd.save"], _ = timed(lambda: mx.nd.save(str(folder / "plain.params"), arrays))
            begun = time.perf_counter()
            snapshot = take_snapshot(net, trainer, step=number)
            parts["snapshot: until training may go on"] = time.perf_counter() - begun
            mx.nd.waitall()
            parts["snapshot: until it is copied"] = time.perf_counter() - begun
            parts["writing beside the training"], _ = timed(lambda copied=snapshot: copied.write(folder / "run"))
            plain = folder / "run" / f"step-{number:08d}" / "net.params"
            parts["load_parameters + SHA-256"], _ = timed(
                lambda file=plain: (net.load_parameters(str(file)), sha256(file), mx.nd.waitall())
            )
            parts["load_checkpoint"], _ = timed(
                lambda file=plain: (mxkit.load_checkpoint(file.parent, net), mx.nd.waitall())
            )
            for name, seconds in parts.items():
                taken.setdefault(name, []).append(seconds)
    for name, seconds in taken.items():
        low, high = min(seconds), max(seconds)
        print(f"  {name:36} {1e3 * statistics.median(seconds):7.1f} ms ({1e3 * low:.1f} to {1e3 * high:.1f})")
    ratios = [a / b for a, b in zip(taken["load_checkpoint"], taken["load_parameters + SHA-256"])]
    print(f"  load_checkpoint / load_parameters + SHA-256: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
